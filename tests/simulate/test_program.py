"""Several runs as one program: each of them happens as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from contract.test_contract import EVERY_ROW, NOISY, ROUGH, SHORT, TABLE, N, Row
from contract.test_several import HALVES, NOISY as THREE, ROUGH as ROUGH_TASKS, TABLE as SEVERAL, TERMS
from torch import nn
from worlds import Line, seen

from offbeat.algorithms import AREA, FedAsync, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError
from offbeat.core.events import Stop
from offbeat.core.random import SAMPLE, key, signed
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.core.watcher import Measurement
from offbeat.data.readers import digits
from offbeat.data.splits import Dirichlet
from offbeat.local import SGD, Prox
from offbeat.local.moreau import Moreau
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.simulate.arena import Arenas
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History

TIMING = Times(Exponential(1.0))
OTHER = replace(NOISY, seed=5)  # of the same kin


class Plan(NamedTuple):
    """One run."""

    problem: Any
    algorithm: Algorithm
    timing: Any = TIMING
    until: Until = SHORT
    seed: int = 0
    options: Any = ()

    def prepare(self, executor: Any, history: History, **more: Any) -> Simulation:
        options = {"evaluate": 3.0, **dict(self.options), **more}
        return prepare(
            *(self.problem, self.algorithm, self.timing, self.until),
            seed=self.seed,
            executor=executor,
            watchers=[history],
            **options,
        )


class End(NamedTuple):
    """What came of a run."""

    events: list[str]
    measurements: list[Measurement]
    models: list[torch.Tensor]
    stopped: str
    error: str


def end(run: Simulation, history: History, error: DivergedError | None) -> End:
    models = [materialise(model.vector) for model in run.server.models(run.world.server)]
    return End(seen(history.events), history.measurements, models, run.world.stopped, str(error or ""))


def alone(plan: Plan) -> End:
    history, error = History(keep_events=True), None
    run = plan.prepare("batched", history)
    try:
        run.run()
    except DivergedError as found:
        error = found
        run.flush()
    return end(run, history, error)


class Counted(Executor):
    """An executor that keeps the sizes of its batches."""

    def __init__(self, stacked: bool = True) -> None:
        super().__init__(stacked)
        self.sizes: list[int] = []

    def compute(self, problem: Any, local: Any, arena: Any, group: Any) -> Any:
        self.sizes.append(len(group))
        return super().compute(problem, local, arena, group)


def together(plans: Sequence[Plan], width: int = 1000, executor: Executor | None = None) -> list[End]:
    """The runs as one program with one executor and one set of arenas."""
    shared, arenas = executor or Executor(True), Arenas()
    histories = [History(keep_events=True) for _ in plans]
    ends: dict[int, End] = {}

    def maker(number: int) -> Callable[[], Simulation]:
        return lambda: plans[number].prepare(shared, histories[number], arenas=arenas)

    def over(number: int, run: Simulation, error: DivergedError | None) -> None:
        assert number not in ends
        ends[number] = end(run, histories[number], error)

    program = Program(((n, maker(n)) for n in range(len(plans))), over, width)
    for unfinished in program.rounds():
        assert len(unfinished) <= max(len(plans), width)
        assert not set(unfinished) & set(ends)
    assert len(ends) == len(plans)
    return [ends[n] for n in range(len(plans))]


def assert_same(found: End, expected: End) -> None:
    assert found.events == expected.events
    assert (found.stopped, found.error) == (expected.stopped, expected.error)
    for a, b in zip(found.models, expected.models, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)
    assert [m[:4] for m in found.measurements] == [m[:4] for m in expected.measurements]
    for mine, theirs in zip(found.measurements, expected.measurements, strict=True):
        assert mine.metrics == pytest.approx(theirs.metrics, rel=1e-3, abs=1e-3, nan_ok=True)


def check(plans: Sequence[Plan], width: int = 1000, executor: Executor | None = None) -> list[End]:
    ends = together(plans, width, executor)
    for found, plan in zip(ends, plans, strict=True):
        assert_same(found, alone(plan))
    return ends


def plans_of(row: Row) -> list[Plan]:
    """The algorithm under two seeds, with another step size and steps, and on another problem of the same kin."""
    other = row.local if type(row.local).__name__ == "Gradient" else replace(row.local, lr=0.5 * row.local.lr, steps=2)
    return [
        Plan(NOISY, Algorithm(row.server, row.local), ROUGH, SHORT, 0),
        Plan(NOISY, Algorithm(row.server, other), ROUGH, SHORT, 0),
        Plan(OTHER, Algorithm(row.server, row.local), ROUGH, SHORT, 7),
    ]


@EVERY_ROW
def test_every_algorithm_runs_in_a_program_as_it_does_alone(row: Row) -> None:
    ends = check(plans_of(row))
    assert len({tuple(e.events) for e in ends}) > 1 or row.own


@pytest.mark.parametrize("row", SEVERAL, ids=lambda row: row.name.replace(" ", "-"))
def test_every_algorithm_for_several_tasks_does_so_too(row: Any) -> None:
    algorithm, options = Algorithm(row.server, HALVES), {"terms": TERMS}
    check([Plan(THREE, algorithm, ROUGH_TASKS, SHORT, seed, options) for seed in (0, 3)])


MIXED = [
    Plan(NOISY, Algorithm(AREA(size=4), SGD(lr=0.1)), seed=1),
    Plan(OTHER, Algorithm(AREA(size=2), SGD(lr=0.05, steps=3)), ROUGH, seed=2),
    Plan(NOISY, Algorithm(FedBuff(size=4), Prox(lr=0.1, steps=2, mu=0.5)), seed=3),
    Plan(NOISY, Algorithm(FedBuff(size=4), Prox(lr=0.1, steps=2, mu=5.0)), seed=3),  # another local trainer
    Plan(Quadratic(5, dim=5, noise=0.5, seed=9), Algorithm(FedAsync(), SGD(lr=0.05)), seed=4),  # fewer clients
    Plan(Quadratic(N, dim=3, noise=0.5), Algorithm(FedAsync(), SGD(lr=0.05)), seed=5),  # another dimension
    Plan(Quadratic(N, dim=5, noise=0.1), Algorithm(FedAsync(), SGD(lr=0.05)), seed=6),  # other noise: no kin
    Plan(NOISY, Algorithm(FedAsync(), SGD(lr=0.05)), until=Until(time=4.0), seed=7),
    Plan(Line([0.0, 1.0, 2.0]), Algorithm(FedBuff(size=2), SGD(lr=0.2)), until=Until(versions=20), seed=8),
]


@pytest.mark.parametrize("width", [1, 2, 1000])
def test_runs_that_have_nothing_in_common_can_share_a_program_however_many_are_at_work(width: int) -> None:
    check(MIXED, width)


def test_runs_of_one_kin_are_computed_in_one_batch() -> None:
    plans = [Plan(replace(NOISY, seed=s), Algorithm(FedBuff(size=4), SGD(lr=0.01 * (s + 1))), seed=s) for s in range(6)]
    executor = Counted()
    check(plans, executor=executor)
    assert executor.sizes[0] == 6 * N  # everybody's first jobs
    assert sum(executor.sizes) / len(executor.sizes) > 6


def test_no_more_runs_are_at_work_than_the_width_allows() -> None:
    executor = Counted()
    together([Plan(NOISY, Algorithm(FedBuff(size=4), SGD(lr=0.1)), seed=s) for s in range(4)], 2, executor)
    assert max(executor.sizes) == 2 * N


def test_runs_that_are_computed_one_by_one_take_turns() -> None:
    plans = [Plan(NOISY, Algorithm(FedBuff(size=4), SGD(lr=0.1)), ROUGH, seed=s) for s in range(3)]
    check(plans, executor=Counted(stacked=False))
    shared, events = Executor(False), []
    makers = ((n, lambda n=n: plans[n].prepare(shared, History())) for n in range(3))
    for unfinished in Program(makers, lambda *_: None).rounds():
        events.append([run.world.events for run in unfinished.values()])
    assert len(events) > 5  # somebody who wants to stop them is asked between two turns
    assert all(max(some) - min(some) < 30 for some in events if len(some) == 3)


def test_models_do_not_pile_up_while_they_wait_for_their_evaluation() -> None:
    often = {"evaluate": 0.01}
    for problem, server, halves, stacked in (
        (NOISY, FedBuff(size=4), SGD(lr=0.01), True),
        (NOISY, FedBuff(size=4), SGD(lr=0.01), False),
        (THREE, SEVERAL[0].server, HALVES, True),
    ):
        plan = Plan(problem, Algorithm(server, halves), options=often)
        executor, most = Executor(stacked), 0
        for unfinished in Program(iter([(0, lambda p=plan, e=executor: p.prepare(e, History()))]), print_no).rounds():
            most = max(most, *(len(run.world.pending) for run in unfinished.values()), 0)
        assert most < 200


def print_no(*_: Any) -> None:
    """Nobody listens."""


# Ends


def test_a_run_that_diverges_ends_alone() -> None:
    wild = Plan(OTHER, Algorithm(FedBuff(size=4), SGD(lr=1e30)), until=Until(updates=100), options={"evaluate": 0.1})
    calm = [Plan(NOISY, Algorithm(FedBuff(size=4), SGD(lr=0.1)), seed=s) for s in range(2)]
    first, diverged, last = check([calm[0], wild, calm[1]])
    assert "is not finite after 1 local steps with lr = 1e+30" in diverged.error
    assert diverged.measurements  # the record shows how it came to that
    assert first.error == last.error == ""


class Cliff(Line):
    """Its loss is no number beyond 3."""

    def measure(self, models: torch.Tensor) -> Any:
        return [
            {**m, "loss": float("nan") if float(w) > 3.0 else m["loss"]}
            for w, m in zip(models, super().measure(models), strict=True)
        ]


def test_a_run_whose_loss_is_no_number_ends_alone_with_what_was_measured_before() -> None:
    cliff = Cliff([5.0] * 4)
    plans = [Plan(cliff, Algorithm(FedBuff(size=2), SGD(lr=lr)), options={"evaluate": 0.25}) for lr in (0.1, 0.001)]
    diverged, fine = together(plans)
    assert "the loss of line is nan" in diverged.error
    assert fine.error == ""
    assert 0 < len(diverged.measurements) < len(fine.measurements)
    assert_same(fine, alone(plans[1]))


def test_runs_end_at_an_accuracy_each_at_its_own_time() -> None:
    until = Until(time=100.0, accuracy=0.9)
    lines = [Line([float(c) for c in range(4)], start=start) for start in (-5.0, 4.0)]
    plans = [Plan(p, Algorithm(FedBuff(size=4), SGD(lr=lr)), until=until, seed=1) for p in lines for lr in (0.1, 0.3)]
    plans = [plan._replace(options={"evaluate": 0.5}) for plan in plans]
    ends = check(plans)
    assert {e.stopped for e in ends} == {"accuracy"}
    assert len({e.measurements[-1].time for e in ends}) > 1


@dataclass(frozen=True)
class Listening(FedAsync):
    """A server that stops when it hears of a small loss."""

    enough: float = 0.5

    def measured(self, state: Any, task: int, metrics: Any, view: Any) -> Any:
        if metrics["loss"] < self.enough:
            yield Stop(reason="enough")


def test_servers_that_listen_to_measurements_hear_of_their_own() -> None:
    line = Line([float(c) for c in range(4)], start=9.0)
    plans = [
        Plan(line, Algorithm(Listening(lr=0.2, enough=e), SGD(lr=0.1)), until=Until(time=200.0)) for e in (4.0, 1.0)
    ]
    ends = check(plans)
    assert [e.stopped for e in ends] == ["enough"] * 2
    assert ends[0].measurements[-1].time < ends[1].measurements[-1].time


def test_a_finished_run_is_told_when_nobody_else_has_its_problem_although_others_are_to_come() -> None:
    plans = [
        Plan(replace(NOISY, seed=s), Algorithm(FedAsync(), SGD(lr=0.1)), until=Until(updates=20)) for s in range(3)
    ]
    told: list[int] = []

    def makers() -> Any:
        for n, plan in enumerate(plans):
            assert told == list(range(n))
            yield n, lambda plan=plan: plan.prepare("batched", History())

    for _ in Program(makers(), lambda n, *_: told.append(n), width=1).rounds():
        pass
    assert told == [0, 1, 2]


# Problems put together


def keys(clients: Sequence[int]) -> list[int]:
    return [signed(key(0, SAMPLE, c, 3)) for c in clients]


def test_the_clients_of_joint_quadratics_are_those_of_each() -> None:
    parts = [replace(NOISY, seed=s, clients=n) for s, n in ((0, 8), (1, 3), (2, 5))]
    joint = parts[0].union(parts)
    assert joint.clients == 16
    w, own = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), ((0, 7), (1, 0), (1, 2), (2, 4))
    firsts = (0, 8, 11)
    asked = joint.oracle([firsts[p] + c for p, c in own], keys(range(4)), 3, None, False)
    for row, (p, c) in enumerate(own):
        alone = parts[p].oracle([c], keys(range(4))[row : row + 1], 3, None, False)
        mine = w[row : row + 1]
        assert torch.equal(asked.gradient(w, 2)[row], alone.gradient(mine, 2)[0])
        assert torch.equal(asked.full(w)[row], alone.full(mine)[0])
        torch.testing.assert_close(asked.loss(w, 2)[row], alone.loss(mine, 2)[0])


@pytest.mark.parametrize("model", ["softmax", "mlp"])
@pytest.mark.parametrize("batch", [6, None])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_clients_of_joint_data_are_those_of_each(model: str, batch: int | None, weighted: bool) -> None:
    data = digits()
    parts = [
        Supervised.split(data, n, Dirichlet(0.5), model, s, l2=0.1, weighted=weighted) for s, n in ((0, 4), (1, 7))
    ]
    assert parts[0].kin == parts[1].kin
    joint = parts[0].union(parts)
    own, firsts = ((1, 6), (0, 3), (1, 0), (0, 0)), (0, 4)
    w = 0.1 * torch.randn(4, parts[0].dim, generator=torch.Generator().manual_seed(0))
    asked = joint.oracle([firsts[p] + c for p, c in own], keys(range(4)), 3, batch, False)
    for row, (p, c) in enumerate(own):
        alone = parts[p].oracle([c], keys(range(4))[row : row + 1], 3, batch, False)
        torch.testing.assert_close(asked.gradient(w, 2)[row], alone.gradient(w[row : row + 1], 2)[0])


class Warm(nn.Module):
    """A model with a number that its repr does not show."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.linear, self.temperature = nn.Linear(64, 10), temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.flatten(1)) / self.temperature
        return out


def test_models_that_differ_in_a_number_that_nobody_shows_are_no_kin() -> None:
    data, shards = digits(), [np.arange(50), np.arange(50, 100)]
    cold, warm, again = (Supervised(data, Warm(t), shards) for t in (1.0, 5.0, 1.0))
    assert cold.kin != warm.kin
    assert cold.kin == again.kin
    plans = [Plan(p, Algorithm(FedAsync(), SGD(lr=0.5, batch=8)), until=Until(updates=30)) for p in (cold, warm)]
    check(plans)


def test_on_real_data_evaluations_in_one_pass_and_joint_batches_change_nothing_that_matters() -> None:
    data = digits()
    problems = [Supervised.split(data, 10, Dirichlet(0.3), seed=s, l2=1e-4) for s in (0, 1)]
    plans = [
        Plan(p, Algorithm(FedBuff(size=5), SGD(lr=lr, steps=2, batch=16)), until=Until(updates=150), seed=s)
        for s, p in enumerate(problems)
        for lr in (0.05, 0.5)
    ]
    ends = check([plan._replace(options={"evaluate": 0.5}) for plan in plans])
    assert all(e.measurements[-1].metrics["accuracy"] > 0.3 for e in ends)


def test_local_halves_that_differ_in_more_than_their_steps_are_computed_apart() -> None:
    halves = [
        Moreau(lr=0.02, penalty=50.0, inner=3),
        Moreau(lr=0.01, penalty=50.0, inner=3),
        Moreau(lr=0.02, penalty=20.0),
    ]
    executor = Counted()
    check([Plan(NOISY, Algorithm(FedAsync(), half), seed=1) for half in halves], executor=executor)
    assert executor.sizes[:2] == [2 * N, N]


def test_every_row_of_the_contract_is_here() -> None:
    assert len(TABLE) > 40
