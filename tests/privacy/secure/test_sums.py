"""Fixed point and sums: exact, unbiased, closed to single updates, and refused by name where a server needs these."""

from __future__ import annotations

import json
import random
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings, strategies as st

from offbeat.algorithms import AREA, FedAST, FedAsync, FedBuff, Polynomial, QuAFL
from offbeat.algorithms.criteria import Period
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.events import Job, Update
from offbeat.core.server import Commands, View
from offbeat.core.state import Tensors, dump, load
from offbeat.core.sums import EXACT, Cohort, Encoded, Secure, words
from offbeat.core.until import Until
from offbeat.core.vectors import Vector
from offbeat.experiment.experiment import Experiment
from offbeat.local import SGD
from offbeat.local.compress import LargestK
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Factors, Times
from offbeat.watch.results import Result

SECURE = Secure(cohort=3, bits=20)
TIMES = Times(compute=Exponential(1.0))


def encoder(size: int = 10, bits: int = 20) -> Encoded:
    made = Algorithm(FedBuff(size=size), SGD(lr=0.1), secure=Secure(cohort=2, bits=bits)).local
    assert isinstance(made, Encoded)
    return made


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 128), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_a_sum_is_exact_in_any_order_and_never_wraps(count: int, bits: int, seed: int) -> None:
    coder, draw = encoder(count, bits), torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-4, 4, (count, 1), generator=draw)
    rows = (torch.randn(count, 7, generator=draw) * scale).float()
    sent = coder.rounded(rows, torch.rand(count, 7, generator=draw))
    exact = [[int(q) for q in (row.double() / coder.secure.unit).tolist()] for row in sent]
    cohort = Cohort()
    for client in torch.randperm(count, generator=draw).tolist():
        cohort.add(client, words(sent[client], coder.secure.unit))
    assert cohort.total is not None
    assert cohort.total.tolist() == [sum(column) for column in zip(*exact, strict=True)]
    most = coder.secure.largest(count)
    assert all(abs(q) <= most < EXACT for row in exact for q in row)
    assert most * 4 * count < 2**31


def test_rounding_is_right_on_average_and_off_by_less_than_a_unit() -> None:
    coder, draw = encoder(bits=4), torch.Generator().manual_seed(0)
    x = torch.tensor([[0.03, -0.4, 1.0, 0.0]]).repeat(40_000, 1)
    sent = coder.rounded(x, torch.rand(x.shape, generator=draw))
    assert float((sent - x).abs().max()) < coder.secure.unit
    deviation = coder.secure.unit / 2 / 40_000**0.5
    assert torch.all((sent.double().mean(0) - x[0].double()).abs() < 4 * deviation + 1e-12)


def test_what_does_not_fit_is_cut_and_what_is_not_finite_stays_so() -> None:
    coder = encoder(size=2, bits=20)
    sent = coder.rounded(torch.tensor([[1e9, -1e9], [float("nan"), 1.0]]), torch.full((2, 2), 0.5))
    assert sent[0].tolist() == [coder.secure.largest(2) / 2**20, -coder.secure.largest(2) / 2**20]
    assert bool(sent[1].isnan()[0])


class Spy(FedBuff):
    """FedBuff that notes what it is shown."""

    seen: ClassVar[list[Any]] = []

    def arrived(self, state: Any, update: Update, view: View) -> Commands:
        raise AssertionError("a single update was shown")

    def sealed(self, state: Any, job: Job, view: View) -> Commands:
        Spy.seen.append(job)
        return super().sealed(state, job, view)

    def summed(self, state: Any, task: int, total: Vector, count: int, view: View) -> Commands:
        Spy.seen.append((total.clone(), count))
        return super().summed(state, task, total, count, view)


def simulated(server: Any, problem: Any, updates: int, secure: Secure | None = SECURE, executor: str = "serial") -> Any:
    algorithm = Algorithm(server, SGD(lr=0.1, steps=2), secure=secure)
    return prepare(problem, algorithm, TIMES, Until(updates=updates), seed=1, executor=executor)


def test_the_server_sees_jobs_and_sums_of_several_clients_and_nothing_else() -> None:
    Spy.seen = []
    simulated(Spy(size=4), Quadratic(dim=3, clients=6), 40).run()
    batch: list[Job] = []
    sums = 0
    for each in Spy.seen:
        if isinstance(each, Job):
            batch.append(each)
        else:
            assert each[1] == len(batch) >= 4
            assert len({job.client for job in batch}) >= 3
            batch, sums = [], sums + 1
    assert sums >= 8


def test_a_fast_client_waits_for_others_and_fills_no_sum_by_itself() -> None:
    Spy.seen = []
    one_fast = Times(compute=Exponential(1.0), speeds=Factors((0.01, 1.0, 1.0, 1.0)))
    problem = Quadratic(dim=3, clients=4)
    algorithm = Algorithm(Spy(size=3), SGD(lr=0.1), secure=Secure(cohort=3))
    prepare(problem, algorithm, one_fast, Until(updates=60), seed=1, executor="serial").run()
    counts = {each[1] for each in Spy.seen if not isinstance(each, Job)}
    assert counts <= {3, 4}  # four: if one of the three has sent an update of an older model before


def test_however_many_updates_a_client_sends_there_is_room_for_those_who_are_missing() -> None:
    cohort, secure, one = Cohort(), Secure(cohort=3), torch.ones(1, dtype=torch.int32)
    while cohort.has_room(0, 2, secure):
        cohort.add(0, one)
    for client in (1, 2):
        assert not cohort.full(2, secure)
        assert cohort.has_room(client, 2, secure)
        cohort.add(client, one)
    assert cohort.full(2, secure)


@pytest.mark.parametrize("server", [FedBuff(size=4), AREA(size=4)], ids=["fedbuff", "area"])
def test_with_fine_bits_it_is_the_same_run_as_without_rounding(server: Any) -> None:
    problem = Quadratic(dim=3, clients=6)
    fine = simulated(server, problem, 200, Secure(cohort=2, bits=22)).run().server.model.vector
    coarse = simulated(server, problem, 200, Secure(cohort=2, bits=12)).run().server.model.vector
    assert float((fine - coarse).abs().max()) < 1e-2
    assert float((fine - coarse).abs().max()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_areas_clients_and_server_agree_on_every_bit_that_was_sent(dtype: torch.dtype) -> None:
    problem = Quadratic(dim=5, clients=6, dtype=dtype)
    simulation = simulated(AREA(size=4), problem, 403, Secure(cohort=3, bits=10))  # 10 bits: much is rounded away
    unit, totals = 2.0**-10, torch.zeros(5, dtype=torch.int64)
    opened = simulation.summed

    def summed(number: int, masks: Any = None) -> None:
        nonlocal totals
        totals = totals + simulation.world.closed[number].total.long()
        opened(number, masks)

    simulation.summed = summed
    world = simulation.run()
    first = simulation.secure.round(problem.initial())
    under_way = world.cohorts[0].total.long()
    moved = sum(((memory["y"] - first).double() / unit) for (_, _), (_, memory) in world.memories.items())
    assert torch.equal(moved, (totals + under_way).double())  # Σ(y_i − y_i⁰), in units: exactly what was summed
    y = sum(memory["y"].double() for _, memory in world.memories.values()) / 6
    now = (world.server.model.vector + world.server.u).double() + under_way.double() * unit / 6
    assert torch.allclose(y, now, atol=1e-5 if dtype is torch.float32 else 1e-13)


def test_executors_agree_and_a_saved_run_goes_on_bit_for_bit() -> None:
    problem, updates = Quadratic(dim=4, clients=6), 120
    for server in (FedBuff(size=4), AREA(size=4)):
        whole = simulated(server, problem, updates).run()
        batched = simulated(server, problem, updates, executor="batched").run()
        assert torch.allclose(whole.server.model.vector, batched.server.model.vector)
        part = simulated(server, problem, updates)
        part.advance(random.Random(1).randrange(20, 100))
        tensors = Tensors()
        text = json.dumps(dump(part.world, tensors))
        world = load(json.loads(text), tensors.table)
        algorithm = Algorithm(server, SGD(lr=0.1, steps=2), secure=SECURE)
        again = prepare(problem, algorithm, TIMES, Until(updates=updates), seed=1, executor="serial", world=world).run()
        assert torch.equal(again.server.model.vector, whole.server.model.vector)


def test_fedast_adds_up_each_task_by_itself() -> None:
    problems = [Quadratic(dim=dim, clients=6, seed=dim, distance=2.0) for dim in (2, 3)]
    for aggregate in (None, AREA(size=4)):
        server = FedAST(requests=12, size=(4, 5), lr=0.5, aggregate=aggregate)
        algorithm = Algorithm(server, (SGD(lr=0.1), SGD(lr=0.1)), secure=SECURE)
        world = prepare(problems, algorithm, TIMES, Until(updates=200), seed=1, executor="serial").run()
        before = [p.measure(p.initial().unsqueeze(0))[0]["loss"] for p in problems]
        after = [
            p.measure(t.inner.model.vector.unsqueeze(0))[0]["loss"]
            for p, t in zip(problems, world.server.tasks, strict=True)
        ]
        assert all(now < then for now, then in zip(after, before, strict=True))
        assert all(task.inner.model.version >= 10 for task in world.server.tasks)


def test_no_task_s_sum_can_wrap_where_one_trainer_is_for_all() -> None:
    found = Algorithm(FedAST(requests=900, size=(4, 400)), SGD(lr=0.1), secure=SECURE).locals(2)
    assert all(isinstance(each, Encoded) and each.largest <= SECURE.largest(400) for each in found)


REFUSED = {
    "steps on every update": (FedAsync(), "size = 1: .* cohort = 3"),
    "quantises around the model": (QuAFL(), "no single one is shown"),
    "too small a buffer": (FedBuff(size=2), "size = 2: .* cohort = 3"),
    "a staleness weight": (FedBuff(size=4, weight=Polynomial(0.5)), "weight: .* no update can be weighted"),
    "by the clock": (AREA(size=Period(1.0)), "after a number of updates"),
    "dynamic allocation": (FedAST(allocation="dynamic", size=4), "it needs single updates"),
    "a buffer that changes": (FedAST(), "size: .* needs one that stays"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_servers_that_need_single_updates_are_refused(what: str) -> None:
    server, why = REFUSED[what]
    with pytest.raises(SettingError, match=why):
        Algorithm(server, SGD(lr=0.1), secure=SECURE)


def test_a_server_of_ones_own_that_changes_arrived_is_refused_unless_it_sums() -> None:
    class Other(FedBuff):
        def arrived(self, state: Any, update: Update, view: View) -> Commands:
            yield from ()

    with pytest.raises(SettingError, match="Other makes more of single updates"):
        Algorithm(Other(size=4), SGD(lr=0.1), secure=SECURE)


def test_robust_rules_contradict_sums_by_name() -> None:
    table = {
        "problem": {"data": "digits", "clients": 8},
        "timing": {"compute": {"exponential": {"rate": 1.0}}},
        "algorithm": {"fedbuff": {"size": 4, "local": {"sgd": {"lr": 0.1}}}},
        "secure": {"cohort": 4},
        "robust": {"rule": {"trimmed-mean": {"share": 0.2}}},
    }
    with pytest.raises(SettingError, match=r"secure and robust: .* compares single updates"):
        Experiment.parse(table)
    del table["robust"]
    assert Experiment.parse(table).secure == Secure(cohort=4)
    table["algorithm"]["fedbuff"]["size"] = 40  # type: ignore[index]
    with pytest.raises(SettingError, match=r"secure\.cohort = 30: only 8 clients"):
        Experiment.parse({**table, "secure": {}})


def test_compression_and_too_few_clients_are_refused() -> None:
    with pytest.raises(SettingError, match=r"compress: .* leave compress out"):
        Algorithm(FedBuff(size=4), SGD(lr=0.1, compress=LargestK(0.5)), secure=SECURE)
    with pytest.raises(SettingError, match=r"secure\.cohort = 3: only 2 clients"):
        simulated(FedBuff(size=4), Quadratic(dim=2, clients=2), 4)
    with pytest.raises(SettingError, match="the sum of one client is its update"):
        Secure(cohort=1)


def test_a_cohort_in_which_a_client_would_have_to_be_twice_is_refused_in_simulations_too() -> None:
    table = {
        "problem": {"data": "digits", "clients": 4},
        "secure": {"cohort": 3, "mode": "cohort"},
        "algorithm": {"fedbuff": {"size": 5, "local": {"sgd": {"lr": 0.1}}}},
    }
    with pytest.raises(SettingError, match="each of the 4 clients is in a sum once"):
        Experiment.parse(table)


@pytest.mark.parametrize("name", ["fedbuff", "area"])
def test_updates_of_which_a_part_is_lost_are_counted_and_said(name: str) -> None:
    """AREA's clients send the rest with their next message, so nothing of theirs is lost."""
    server = FedBuff(size=3) if name == "fedbuff" else AREA(size=3)
    algorithm = Algorithm(server, SGD(lr=0.5, steps=3), secure=Secure(cohort=3, bits=30))
    run = prepare(
        Quadratic(dim=5, clients=6, distance=9.0), algorithm, TIMES, Until(updates=30), executor="serial"
    ).run()
    assert (run.tally.cut > 0) == (name == "fedbuff")
    said = Result(name, 0, cut=run.tally.cut or None).remark
    assert ("were cut: give fewer secure.bits" in said) == (name == "fedbuff")
