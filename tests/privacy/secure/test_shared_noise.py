"""Noise that the members of a cohort add themselves: exact sums, as much noise as is claimed, and budgets."""

from __future__ import annotations

import ast
import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from noised import Noised
from rounds import SIGN, SIGNERS, called, drawing
from scipy.special import ndtr
from served import Served, cancel, staged, until

import offbeat
from offbeat.algorithms import AREA, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError, SpentError
from offbeat.core.events import Job
from offbeat.core.local import SUMS_SPENT, Work
from offbeat.core.sums import Encoded, Secure, SumBound, words
from offbeat.core.until import Until
from offbeat.deploy import encoding
from offbeat.deploy.refold import fingerprint, refold
from offbeat.deploy.train import check_allowance
from offbeat.local import SGD
from offbeat.privacy.accounting import delta_of
from offbeat.privacy.differential import Noise, Privacy
from offbeat.privacy.protect import guarded
from offbeat.privacy.secure.calls import threshold
from offbeat.privacy.secure.member import begin
from offbeat.privacy.secure.opening import left_masks
from offbeat.privacy.secure.tickets import TicketError, context_for
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

SECURE = Secure(cohort=4, mode="cohort")
TWENTY = replace(SECURE, bits=20)
PRIVACY = Privacy(clip=0.5, noise=Noise(participations=6, multiplier=0.2))
PROBLEM, LOCAL, TIMES = Quadratic(dim=5, clients=7, noise=0.1), SGD(lr=0.1, steps=2), Times(compute=Exponential(1.0))
SERVERS: dict[str, Any] = {"fedbuff": FedBuff(size=6), "area": AREA(size=6)}


def encoder_of(name: str = "fedbuff", secure: Secure = SECURE, privacy: Privacy = PRIVACY) -> Encoded:
    found = Algorithm(guarded(SERVERS[name], None, privacy, PROBLEM.clients), LOCAL, secure=secure).local
    assert isinstance(found, Encoded)
    return found


def work(rows: int, secret: bool = True) -> Work:
    jobs = [Job(n, n, 0, 0, 1, 0.1, 0) for n in range(rows)]
    given: Any = ({}, {}, 0.1, 1, None, np.arange(rows, dtype=np.int64))
    return Work(*given, jobs=jobs, secret=secret)


# What is opened


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 9), st.integers(0, 99), st.randoms(use_true_random=False))
def test_what_is_opened_is_the_sum_of_the_survivors_noised_messages(count: int, gone: int, order: Any) -> None:
    local, dim = encoder_of(), 3
    q = torch.from_numpy(np.random.default_rng(count).integers(-9999, 9999, (count, dim)).astype(np.float32))
    sent = words(local.noised(q * SECURE.unit, work(count)), SECURE.unit).numpy().view(np.uint32)
    made, places = called(count, dim), order.sample(range(count), count)
    gone %= count - threshold(count) + 1
    survivors, dropped = places[gone:], places[:gone]
    heard = {place: made.hear(place, sorted(places)) for place in places}
    total = sum(heard[place].masked(sent[place]) for place in survivors)
    answers = {place: heard[place].answer(survivors, dropped)[1] for place in survivors[: threshold(count)]}
    opened = (total - left_masks(made.call, survivors, dropped, answers)).view(np.int32)  # type: ignore[operator]
    exact = q[survivors].long().sum(0).numpy() + (sent.view(np.int32) - q.numpy().astype(np.int32))[survivors].sum(0)
    assert np.array_equal(opened, exact)


def test_a_sum_has_the_noise_that_is_claimed_whoever_drops_out_and_whoever_tells_the_server_its_own() -> None:
    """Six are called; four are the least, of whom two tell nobody: their noise is what is claimed."""
    local, dim = encoder_of(), 40_000
    noise = local.noised(torch.zeros(6, dim), work(6)).double()
    claimed = (0.2 * 0.5) ** 2
    assert torch.equal((noise / SECURE.unit).round() * SECURE.unit, noise)
    for survivors, told, times in ((6, 0, 3.0), (6, 3, 1.5), (4, 0, 2.0), (4, 2, 1.0), (5, 2, 1.5)):
        left = noise[:survivors].sum(0) - noise[:told].sum(0)
        assert float(left.var()) == pytest.approx(times * claimed, rel=0.03)
        assert times >= 1.0
    cheap = noise * np.sqrt(2 / 6)  # shares as if nobody ever dropped out or told
    assert float(cheap[2:4].sum(0).var()) < 0.5 * claimed


def test_nobody_draws_a_client_s_noise_again_in_a_real_run_and_everybody_in_a_simulation() -> None:
    local, sent = encoder_of(), torch.zeros(2, 1000)
    assert not torch.equal(local.noised(sent, work(2)), local.noised(sent, work(2)))
    drawn = local.noised(sent, work(2, secret=False))
    assert torch.equal(drawn, local.noised(sent, work(2, secret=False)))
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[:1], local.noised(sent[:1], work(1, secret=False)))


def rounded(deviation: float, reach: int) -> Any:
    """The probabilities of a Gaussian number rounded to a whole one, from −reach to reach."""
    edges = np.arange(-reach, reach + 2) - 0.5
    return np.diff(ndtr(edges / deviation))


@pytest.mark.parametrize(("deviation", "count"), [(0.5, 2), (0.6, 3), (0.7, 5)])
def test_a_sum_of_rounded_gaussians_is_as_near_to_one_that_is_rounded_later_as_is_said(
    deviation: float, count: int
) -> None:
    """rint(g_1) + … + rint(g_n) against rint(g + v_2 + … + v_n): exactly, where it can be seen at all."""
    fine, reach = 200, 30
    one = rounded(deviation, reach)
    sum_ = one
    for _ in range(count - 1):
        sum_ = np.convolve(sum_, one)
    grid = (np.arange(-reach * fine, reach * fine) + 0.5) / fine
    spread = np.exp(-(grid**2) / (2 * count * deviation**2)) / np.sqrt(2 * np.pi * count) / deviation / fine
    for _ in range(count - 1):
        spread = np.convolve(spread, np.full(fine + 1, 1.0) / (fine + 1), mode="same")
    later = np.add.reduceat(np.roll(spread, fine // 2), np.arange(0, len(spread), fine))
    middle = len(sum_) // 2
    near = sum_[middle - reach + 1 : middle + reach]
    apart = np.abs(near - later[1 : len(near) + 1]).sum() / 2
    said = (count - 1) * sum(np.exp(-((np.pi * deviation * m) ** 2)) for m in range(1, 9))
    assert apart <= said + 1e-4


def test_shares_of_the_smallest_size_hide_as_much_as_the_gaussian_that_is_claimed() -> None:
    """δ of three rounded shares of five units, from their probabilities, for every shift of whole units."""
    sum_ = np.convolve(np.convolve(rounded(5.0, 200), rounded(5.0, 200)), rounded(5.0, 200))
    for shift in (1, 5, 17):
        moved = np.concatenate([np.zeros(shift), sum_[:-shift]])
        for epsilon in (0.1, 1.0, 3.0):
            found = np.maximum(sum_ - np.exp(epsilon) * moved, 0).sum()
            assert found <= delta_of(epsilon, shift / (5.0 * np.sqrt(3))) + 1e-12


@pytest.mark.parametrize("name", SERVERS)
def test_a_simulation_adds_the_shares_and_nothing_else(name: str) -> None:
    """And what AREA's clients remember moves without the noise: n · x less the noise is the sum of their y."""
    algorithm = Algorithm(guarded(SERVERS[name], None, PRIVACY, PROBLEM.clients), LOCAL, secure=SECURE)
    simulation = prepare(PROBLEM, algorithm, TIMES, Until(updates=10_000), seed=3, executor="serial")
    plain, noise, arrived, opened = Encoded.noised, dict[int, Any](), list[int](), list[Any]()

    def noised(self: Encoded, sent: Any, work: Work) -> Any:
        found = plain(self, sent, work)
        noise.update({job.id: row for job, row in zip(work.jobs, found - sent, strict=True)})
        return found

    collect, summed = simulation.collect, simulation.summed
    simulation.collect = lambda *given: (arrived.append(given[1].job.id), collect(*given))[1]  # type: ignore[method-assign]
    simulation.summed = lambda n, masks=None: (opened.append(masks), summed(n, masks))[1]  # type: ignore[method-assign]
    with mock.patch.object(Encoded, "noised", noised):
        world = simulation.run()
    assert opened == [None] * world.server.model.version
    assert world.stopped == "privacy budget"
    past = world.server.model.contributions
    assert max(past.count.values()) == 6
    assert past.releases == len(opened)
    assert float(torch.stack([*noise.values()]).std()) == pytest.approx(0.1 / np.sqrt(2), rel=0.15)
    if name == "area":
        y = sum(memory["y"] for _, memory in world.memories.values())
        waiting = sum(each.total * SECURE.unit for each in world.cohorts.values())
        inside = sum(noise[job] for job in arrived)
        torch.testing.assert_close(7 * world.server.model.vector + waiting, y + inside, atol=1e-4, rtol=0)


# Budgets, and who keeps them


def test_a_client_counts_its_messages_and_trains_for_no_sum_beyond_its_budget() -> None:
    local = encoder_of()
    assert torch.equal(local.remember(torch.zeros(5))[SUMS_SPENT], torch.zeros(1))
    assert local.private(SUMS_SPENT)
    memory = {SUMS_SPENT: torch.tensor([5.0])}
    job = Job(0, 0, 0, 0, 1, 0.1, 0)
    check_allowance(PROBLEM, local, job, memory)
    with pytest.raises(SpentError, match="privacy budget: it has made 6 messages for sums, and 6 are allowed"):
        check_allowance(PROBLEM, local, job, {SUMS_SPENT: torch.tensor([6.0])})


def test_members_that_were_told_of_another_amount_of_noise_form_no_cohort() -> None:
    """How much each adds, and how often, is part of what all of them sign."""
    secure = encoder_of().secure
    context, draw = context_for("fed", "run", 0, 4, secure), drawing(3)
    for lie in (
        replace(secure, honest=1.0),
        replace(secure, bound=None),
        replace(secure, bound=replace(secure.bound, participations=7)),  # type: ignore[type-var]
    ):
        other = context_for("fed", "run", 0, 4, lie)
        assert other != context
        names = [*SIGN][:4]
        members = [begin(context if n else other, name, (1, 1, 0), SIGN[name], draw) for n, name in enumerate(names)]
        call = replace(called(4, 4).call, context=context, members=tuple(each.own for each in members))
        with pytest.raises(TicketError, match=r"other terms|not signed"):
            members[0].join(call, SIGNERS)
        with pytest.raises(TicketError, match="not signed"):
            members[1].join(call, SIGNERS)


def test_the_server_has_nothing_that_noise_follows_from() -> None:
    """No secret is in its log, and it draws no normal number: it goes through a run without being able to."""
    world = Noised(1, "noised capped", rate=0.0)
    with mock.patch("offbeat.deploy.view.secret_normal", side_effect=AssertionError):
        assert world.run().violations == []
    begun = [each for each in map(encoding.unpack, (entry.data for entry in world.log)) if each.kind == "begun"]
    assert [each.header["secret"] for each in begun] == [""] * len(begun)
    assert world.core is not None
    assert world.core.ledger.secret == ""


def test_what_has_to_be_secret_is_drawn_in_one_place_that_no_server_calls() -> None:
    """From the operating system, for jobs that are trained: `Work` is made by clients and by simulations."""
    root, users = Path(offbeat.__file__).parent, dict[str, set[str]]()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and node.id in ("system_bits", "Training"):
                users.setdefault(node.id, set()).add(str(path.relative_to(root)))
    assert users["system_bits"] == {"core/local.py"}
    assert users["Training"] <= {"deploy/client.py", "deploy/train.py", "experiment/trial.py"}


# What is refused


@pytest.mark.parametrize(
    ("privacy", "secure", "said"),
    [
        (replace(PRIVACY, noise=Noise(6, multiplier=1e-5)), SECURE, r"less than 5 times 2\^-20; give bits"),
        (replace(PRIVACY, noise=Noise(6, multiplier=50.0)), TWENTY, "would not fit into sums of 6; give bits = 16"),
        (replace(PRIVACY, noise=Noise(6, multiplier=1e-9)), SECURE, "give more noise, or a larger clip"),
        (replace(PRIVACY, separation=2, noise=Noise(6, multiplier=0.2, correlated=True)), SECURE, "leave correlated"),
    ],
    ids=["coarse", "long", "hardly any", "correlated"],
)
def test_noise_that_cannot_be_shared_out_is_refused(privacy: Privacy, secure: Secure, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Algorithm(replace(FedBuff(size=6), guard=privacy), LOCAL, secure=secure)


@pytest.mark.parametrize("mode", ["helper", "cohort"])
@pytest.mark.parametrize("epsilon", [0.1, 8.0, 1000.0])
def test_without_bits_as_many_are_used_as_there_is_room_for(mode: Any, epsilon: float) -> None:
    guard = Privacy(clip=1.0, noise=Noise(participations=50, epsilon=epsilon))
    found = Algorithm(FedBuff(size=30, guard=guard), LOCAL, secure=Secure(mode=mode)).secure
    assert found is not None
    assert found.bits is not None
    assert found.bits <= 20
    for bits in range(found.bits + 1, 21):
        with pytest.raises(SettingError, match=rf"would not fit into sums of 30; give bits = {found.bits}\b"):
            Algorithm(FedBuff(size=30, guard=guard), LOCAL, secure=Secure(mode=mode, bits=bits))


def openers(honest: float) -> list[tuple[int, int]]:
    """(called, in the sum) where those who may work with the server are enough to open single messages."""
    sums = ((called, left) for called in range(2, 100) for left in range(threshold(called), called + 1))
    return [(called, left) for called, left in sums if called - np.ceil(honest * left) >= threshold(called)]


def test_those_who_may_work_with_the_server_are_too_few_to_open_a_single_message() -> None:
    """With half of a sum honest, however many were called and have dropped out; with less than half, not always."""
    assert openers(0.5) == []
    assert (99, 67) in openers(0.45)
    with pytest.raises(SettingError, match=r"honest = 0.45: .* single messages.*give 0.5"):
        encoder_of(secure=replace(SECURE, honest=0.45))


def test_two_thirds_of_a_cohort_and_one_more_open_a_single_message_with_one_share_of_the_noise() -> None:
    """Why fewer than half are not relied on: seven of nine put the secrets of one of the other two together."""
    made, everybody, victim = called(9, 4), range(9), 8
    heard = {place: made.hear(place, everybody) for place in everybody}
    sent = np.array([5, 6, 7, 2**32 - 8], dtype=np.uint32)
    others = [*everybody][:-1]
    answers = {
        place: b"".join(both[place_ != victim] for place_, both in heard[place].shares.items()) for place in others[:7]
    }
    assert np.array_equal(heard[victim].masked(sent) - left_masks(made.call, [victim], others, answers), sent)


@pytest.mark.parametrize("honest", [0.0, 1.5, float("nan")])
def test_a_share_of_honest_clients_is_a_share(honest: float) -> None:
    with pytest.raises(SettingError, match="must be a share"):
        Secure(cohort=4, mode="cohort", honest=honest)


def test_the_share_follows_from_the_smallest_sum_and_those_who_tell_nobody() -> None:
    bound = SumBound(1.0, 2.0, 3)
    assert Secure(cohort=9, mode="cohort", honest=1.0, bound=bound).share == pytest.approx(2.0 / 3)
    assert Secure(cohort=9, mode="cohort", honest=0.4, bound=bound).share == pytest.approx(1.0)
    assert Secure(cohort=100, mode="cohort", honest=0.55).unknown == 55  # and not 56: 0.55 · 100 is no whole number
    assert Secure(cohort=9, mode="helper", bound=bound).share == 0.0
    assert Secure(cohort=9, mode="cohort").share == 0.0


# Over a broker


def test_a_run_over_a_broker_ends_with_its_budgets_and_is_replayed_from_its_log(tmp_path: Path) -> None:
    """One client loses its disk on the way: what it had spent is in its copy, and one message more is charged."""

    async def act(served: Served) -> None:
        server, task = await served.serve()
        clients = [await served.join(name) for name in served.names]
        await until(lambda: server.ledger.tally.updates >= 6)
        await cancel(clients[1][1])
        shutil.rmtree(served.folder / "state" / served.names[1])
        clients[1] = await served.join(served.names[1])
        await asyncio.wait_for(task, 60)
        ledger, link = server.ledger, await served.link("server")
        assert ledger.stopped == "privacy budget"
        assert (ledger.unopened, ledger.secret) == (0, "")
        assert fingerprint(await refold(link, served.plan(), ledger.position)) == fingerprint(ledger)
        count = ledger.server.model.contributions.count
        assert max(count.values()) <= 6
        for number, (client, _) in enumerate(clients):
            assert client.core.state is not None
            assert count[number] <= float(client.core.state.memory[0][SUMS_SPENT][0]) <= 7

    guard, secure = Privacy(4.0, Noise(6, multiplier=0.1)), Secure(cohort=2, mode="cohort", bits=16)
    staged(Served(tmp_path, server=FedBuff(size=3, guard=guard), secure=secure, until=Until(updates=500)), act)
