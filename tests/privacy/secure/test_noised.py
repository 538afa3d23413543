"""Differential privacy inside secure sums: what is released is sum plus noise, and nobody goes beyond its budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ideal import Ideal

from offbeat.algorithms import AREA, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.sums import Cohort, Encoded, Secure, SumBound, shortened
from offbeat.core.until import Until
from offbeat.deploy import encoding, wire
from offbeat.deploy.effects import Tell
from offbeat.deploy.envelope import public_seal
from offbeat.deploy.helper_core import HelperCore, HelperMemory
from offbeat.deploy.helping import HelpingHeader, read_helping, requests_of
from offbeat.experiment.experiment import Experiment
from offbeat.local import SGD
from offbeat.privacy.differential import Noise, Privacy
from offbeat.privacy.protect import guarded
from offbeat.privacy.secure.helper import Helper, HelperState, read_state
from offbeat.privacy.secure.masks import Masker, Unmasker
from offbeat.privacy.secure.tickets import LIFE, MaskContext, SumRequest, TicketError, read_request
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

SECURE, TIMES = Secure(cohort=3), Times(compute=Exponential(1.0))
PRIVACY = Privacy(clip=0.5, noise=Noise(participations=6, multiplier=0.2))
SERVERS: dict[str, Any] = {"fedbuff": FedBuff(size=4), "area": AREA(size=4)}
PROBLEM, LOCAL = Quadratic(dim=5, clients=7, noise=0.1), SGD(lr=0.1, steps=2)


def private(name: str, privacy: Privacy = PRIVACY) -> Any:
    return guarded(SERVERS[name], None, privacy, PROBLEM.clients)


def simulated(name: str, updates: int = 10_000) -> Any:
    algorithm = Algorithm(private(name), LOCAL, secure=SECURE)
    return prepare(PROBLEM, algorithm, TIMES, Until(updates=updates), seed=3, executor="serial")


@pytest.mark.parametrize("name", SERVERS)
def test_a_simulation_releases_the_sum_of_clipped_messages_plus_noise(name: str) -> None:
    simulation = simulated(name)
    opened, noises, moved = simulation.summed, [], []

    def summed(number: int, masks: Any = None) -> None:
        cohort, before = simulation.world.closed[number], simulation.world.server.model.vector
        assert cohort.count == len(cohort.clients) == 4
        noises.append(-masks.double() * SECURE.unit)
        exact = cohort.total.double() * SECURE.unit + noises[-1]
        opened(number, masks)
        step = (before - simulation.world.server.model.vector) * (4 if name == "fedbuff" else -7)
        moved.append(float((step - exact).abs().max()))

    simulation.summed = summed
    world = simulation.run()
    assert max(moved) < 1e-5
    assert torch.cat(noises).std() == pytest.approx(0.2 * 0.5, rel=0.25)
    past = world.server.model.contributions
    assert world.stopped == "privacy budget"
    assert past.closed == 0
    assert past.releases == len(noises) == world.server.model.version
    assert max(past.count.values()) == 6
    under_way = sum(cohort.count for cohort in world.cohorts.values())
    assert sum(past.count.values()) == 4 * len(noises) + under_way


@pytest.mark.parametrize("name", SERVERS)
def test_a_real_run_releases_the_sum_of_clipped_messages_plus_the_helpers_noise(name: str) -> None:
    ideal = Ideal(PROBLEM, private(name), LOCAL, TIMES, Until(updates=10_000), seed=3, secure=SECURE)
    helper, plain, wrong = Unmasker(ideal.secrets["helper"]), {}, []
    for core in ideal.client_cores:
        core.mask = watched(core.mask, plain)
    opened = ideal.core.reducer.summed

    def summed(number: int, masks: Any = None) -> None:
        cohort = ideal.core.ledger.closed[number]
        request = next(r for r in requests_of(ideal.plan, ideal.core.ledger) if r.number == number)
        exact = sum(plain[ticket[-1]] for ticket in cohort.tickets) + helper.noise(request).view(np.int32)
        wrong.append(not np.array_equal((cohort.total - masks).numpy(), exact))
        opened(number, masks)

    ideal.core.reducer.summed = summed  # type: ignore[method-assign]
    ledger = ideal.run().ledger
    assert len(wrong) > 8
    assert not any(wrong)
    assert ledger.stopped == "privacy budget"
    assert {n: c for n, c in ledger.server.model.contributions.count.items() if c > 6} == {}
    spent = {client: count for (client, _), count in ideal.helper.kept.opened.spent.items()}
    assert sum(spent.values()) == 4 * ledger.server.model.version


def watched(mask: Any, plain: dict[str, Any]) -> Any:
    """The same, and what it hides is noted by the message's key."""

    def made(header: Any, task: int, upload: Any) -> Any:
        parts = mask(header, task, upload)
        ((_, vector),) = upload.items()
        plain[parts["once"].hex()] = np.rint(vector.double().numpy() / SECURE.unit).astype(np.int32)
        assert np.linalg.norm(plain[parts["once"].hex()] * SECURE.unit) <= 0.5
        return parts

    return made


def test_no_message_is_longer_than_clip_whatever_was_trained() -> None:
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(10_000, 6, generator=draw) * 10.0 ** torch.randint(-30, 30, (10_000, 1), generator=draw)
    rows[::50, 2], rows[1::50, 3], rows[2::50] = float("nan"), float("inf"), 0.0
    sent = shortened(rows, 0.5, 2.0**-20)
    assert float(torch.linalg.vector_norm(sent.double(), dim=1).max()) <= 0.5
    assert bool((sent[::50] == 0).all())
    assert torch.equal((sent.double() * 2**20).round(), sent.double() * 2**20)
    local = Algorithm(private("fedbuff"), LOCAL, secure=SECURE).local
    assert isinstance(local, Encoded)
    assert torch.equal(local.rounded(rows, torch.rand(rows.shape)), sent)


CONTEXT = MaskContext("fed", "run", 0, 4, 2, 20, 1000.0, 2)
HELPER, CLIENTS = bytes([9]) * 32, {name: bytes([1 + n]) * 32 for n, name in enumerate("abc")}


def tickets(*who: str, seq: int) -> tuple[Any, ...]:
    maskers = [Masker(CLIENTS[name], public_seal(HELPER)) for name in who]
    nothing = np.zeros(4, np.uint32)
    return tuple(
        m.mask(CONTEXT, name, 1, seq + n, nothing)[1] for n, (m, name) in enumerate(zip(maskers, who, strict=True))
    )


def helper() -> Helper:
    return Helper("fed", "run", Unmasker(HELPER), {n: frozenset([public_seal(s)]) for n, s in CLIENTS.items()})


def test_the_helper_opens_no_more_sums_of_a_client_than_its_budget_has_and_goes_on_with_others() -> None:
    state = HelperState()
    for number in (1, 2):
        state = helper().open(state, SumRequest(number, CONTEXT, tickets("a", "b", seq=number))).state
    state = read_state(state.to_bytes())
    late = SumRequest(3, CONTEXT, tickets("a", "c", seq=3))
    with pytest.raises(TicketError, match="'a' has been in 2 sums"):
        helper().open(state, late)
    state = read_state(state.refused(3).to_bytes())
    with pytest.raises(TicketError, match="was refused"):
        helper().open(state, late)
    other = replace(CONTEXT, task=1)  # a budget of its own
    assert helper().open(state, SumRequest(4, other, tickets("a", "c", seq=5))).state.last == 4


def test_with_noise_a_helper_does_not_believe_that_the_run_was_restored() -> None:
    """There are no backups of such a run; a helper that has lost its state would have forgotten all budgets."""
    restored = SumRequest(LIFE + 1, CONTEXT, tickets("a", "b", seq=1))
    with pytest.raises(TicketError, match=f"order: sum {LIFE + 1} after 0"):
        helper().open(HelperState(), restored)
    core = HelperCore("fed", "run", HELPER, b"")
    core.kept = HelperMemory(seals={name: [public_seal(secret).hex()] for name, secret in CLIENTS.items()})
    for position, number in enumerate((LIFE + 1, LIFE + 2)):  # nor does a refusal let the next one through
        request = SumRequest(number, CONTEXT, tickets("a", "b", seq=1))
        parts = {"roster": b"", str(number): request.to_bytes()}
        said = core.hear(encoding.pack("helping", vars(HelpingHeader("run", position)), parts), 0.0)
        answers = [wire.heard(encoding.unpack(each.data)) for each in said if isinstance(each, Tell)]
        assert [getattr(answer, "error", "")[:5] for answer in answers] == ["order"]
    assert core.kept.opened.last == 0


def test_a_client_is_in_a_sum_with_noise_once() -> None:
    with pytest.raises(TicketError, match="in a sum twice"):
        helper().open(HelperState(), SumRequest(1, CONTEXT, tickets("a", "b", "a", seq=1)))


def test_an_answer_that_is_given_again_has_the_same_noise_and_another_sum_has_other_noise() -> None:
    first = SumRequest(1, CONTEXT, tickets("a", "b", seq=1))
    assert read_request(first.to_bytes()) == first
    opened = helper().open(HelperState(), first)
    assert np.array_equal(opened.masks, helper().open(opened.state, first).masks)
    second = SumRequest(2, CONTEXT, tickets("a", "b", seq=2))
    assert not np.array_equal(Unmasker(HELPER).noise(first), Unmasker(HELPER).noise(second))


def test_a_server_that_tells_the_helper_of_less_noise_gets_masks_that_fit_nothing() -> None:
    request = SumRequest(1, CONTEXT, tickets("a", "b", seq=1))
    honest = helper().open(HelperState(), request).masks + Unmasker(HELPER).noise(request)
    for lie in (replace(CONTEXT, deviation=0.0, participations=0), replace(CONTEXT, participations=10**6)):
        told = SumRequest(1, lie, request.tickets)
        masks = helper().open(HelperState(), told).masks
        assert not np.array_equal(masks, honest)
        left = Cohort(torch.from_numpy(honest.view(np.int32)), 2)
        assert not left.fits(torch.from_numpy(masks.view(np.int32)), 2, Secure(cohort=2, bits=20))


def test_the_question_to_the_helper_says_how_much_noise_the_clients_were_told_of() -> None:
    ideal = Ideal(PROBLEM, private("fedbuff"), LOCAL, TIMES, Until(updates=4), seed=3, secure=SECURE)
    asked = []
    ideal.helper.hear = lambda data, now: asked.append(read_helping(data)) or []  # type: ignore[assignment, func-returns-value, method-assign]
    ideal.run()
    found = [r.context for each in asked for r in each.requests.values()]
    assert found
    assert {(c.deviation, c.participations) for c in found} == {(0.1 * 2**20, 6)}


@pytest.mark.parametrize(
    ("privacy", "secure", "said"),
    [
        (replace(PRIVACY, separation=2, noise=Noise(6, multiplier=0.2, correlated=True)), SECURE, "leave correlated"),
        (replace(PRIVACY, clip=100.0), Secure(cohort=3, bits=20), "give bits = 17"),
        (replace(PRIVACY, noise=Noise(6, multiplier=1e4)), Secure(cohort=3, bits=20), "give bits = 14"),
        (replace(PRIVACY, clip=1e8), SECURE, "give a smaller clip"),
    ],
    ids=["correlated", "long messages", "much noise", "no bits left"],
)
def test_what_cannot_be_added_inside_a_sum_is_refused(privacy: Privacy, secure: Secure, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Algorithm(replace(FedBuff(size=3), guard=privacy), LOCAL, secure=secure)
    fits = Secure(cohort=3, bits=10).bounded(SumBound(1.0, 1.0, 1), 3)
    assert fits.bound is not None


def test_a_file_with_both_tables_is_read() -> None:
    table: dict[str, Any] = {
        "problem": {"data": "digits", "clients": 8},
        "timing": {"exponential": {"rate": 1.0}},
        "algorithm": {"fedbuff": {"size": 4, "local": {"sgd": {"lr": 0.1}}}},
        "secure": {"cohort": 4},
        "privacy": {"clip": 1.0, "noise": {"epsilon": 8.0, "participations": 10}},
    }
    secure = Experiment.parse(table).algorithms["fedbuff"].secure
    assert secure is not None
    assert secure.bound == SumBound(1.0, pytest.approx(2.0648, abs=1e-4), 10)
