"""Results that a server is given before they are computed: lazy rows, here on a CPU, as they are on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rows import TABLE, N, Row
from worlds import same_world, through_text

from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import InterruptedRunError
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate import compute
from offbeat.simulate.arena import Arenas, LazyArena
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing import Exponential, OnOff, Times
from offbeat.watch.history import History
from offbeat.watch.session import Patience, drive

NOISY = Quadratic(N, dim=5, convexity=0.2, noise=0.5)
MANY = Quadratic(100, dim=5, noise=0.5)
ROUGH = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.2)
FEDBUFF = Algorithm(FedBuff(size=10), SGD(lr=0.1))


class LazyArenas(Arenas):
    """Lazy rows on any device."""

    def like(self, vector: torch.Tensor) -> LazyArena:
        kind = (vector.numel(), vector.dtype, vector.device)
        if kind not in self._kinds:
            self._kinds[kind] = LazyArena(*kind)
        found = self._kinds[kind]
        assert isinstance(found, LazyArena)
        return found


class Counted(Executor):
    """An executor that keeps the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__(stacked=True)
        self.batches: list[int] = []

    def compute(self, problem: Any, local: Any, arena: Any, group: Any) -> Any:
        self.batches.append(len(group))
        return super().compute(problem, local, arena, group)


def lazy(problem: Any, algorithm: Algorithm, timing: Times, until: Until, **given: Any) -> Simulation:
    return prepare(problem, algorithm, timing, until, **{"executor": Counted(), "arenas": LazyArenas(), **given})


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name.replace(" ", "-"))
def test_every_algorithm_has_the_events_and_the_model_of_a_run_that_computes_at_once(row: Row) -> None:
    histories = [History(keep_events=True) for _ in range(2)]
    given = [{"executor": "serial", "arenas": None}, {}]
    runs = [
        lazy(NOISY, Algorithm(row.server, row.local), ROUGH, Until(updates=80), evaluate=3.0, watchers=[h], **own)
        for h, own in zip(histories, given, strict=True)
    ]
    for run in runs:
        run.run()
    assert repr(histories[0].events) == repr(histories[1].events)
    for one, other in zip(*(run.server.models(run.world.server) for run in runs), strict=True):
        torch.testing.assert_close(materialise(one.vector), materialise(other.vector), rtol=2e-3, atol=1e-5)


def test_batches_are_longer_if_arrivals_do_not_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 clients, a step for ten updates: without, a batch ends with the first client that reports twice."""
    sizes = []
    for owes in (True, False):
        if not owes:
            monkeypatch.setattr(compute.Computing, "defers", lambda *_: False)
        run = lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=1000))
        run.run()
        assert isinstance(run.executor, Counted)
        sizes.append(sum(run.executor.batches) / len(run.executor.batches))
    assert sizes[0] > 1.25 * sizes[1]


def test_a_run_saved_where_nothing_is_owed_ends_bit_for_bit_like_one_that_was_not() -> None:
    whole = lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=400))
    world = whole.run()
    run = lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=400))
    for count, _ in enumerate(run.steps()):
        if count > 170 and not run.computing.owed:
            break
    resumed = lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=400), world=through_text(run.world))
    assert same_world(world, resumed.run())


def test_a_run_that_is_stopped_while_it_owes_goes_on_until_it_does_not(tmp_path: Path) -> None:
    """So it has the batches of one that was not stopped: on a GPU, others would round differently."""
    patience, parts = Patience(), [Counted() for _ in range(3)]
    executors = iter(parts)

    def make(watchers: Any, world: World | None) -> Simulation:
        given: dict[str, Any] = {"watchers": watchers, "world": world, "executor": next(executors)}
        return lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=400), **given)

    def asking(watchers: Any, world: World | None) -> Simulation:
        run = make(watchers, world)
        pay = run.computing.blocked  # called only while something is owed
        run.computing.blocked = lambda: patience.__setattr__("asked", True) or pay()  # type: ignore[method-assign]
        return run

    with pytest.raises(InterruptedRunError, match="and saved"):
        drive(asking, tmp_path, patience=patience)
    resumed, _, _ = drive(make, tmp_path)
    assert same_world(make([], None).run(), resumed.world)
    assert parts[0].batches + parts[1].batches == parts[2].batches


def test_reading_a_value_has_it_computed_and_rows_in_use_are_not_given_away() -> None:
    run = lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=300))
    for _ in run.steps():
        if run.computing.owed:
            server = run.world.server
            value = materialise(server.model.vector if server.buffer.sum is None else server.buffer.sum)
            assert not run.computing.owed
            assert torch.isfinite(value).all()
    plain = prepare(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=300), executor="serial")
    torch.testing.assert_close(run.world.server.model.vector, plain.run().server.model.vector)


def test_rows_are_used_again() -> None:
    arenas = LazyArenas()
    lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=3000), arenas=arenas).run()
    (arena,) = arenas._kinds.values()
    assert len(arena.matrix) <= 512


def test_what_is_owed_is_bounded_though_no_model_depends_on_it() -> None:
    run = lazy(MANY, Algorithm(FedBuff(size=10_000), SGD(lr=0.1)), Times(Exponential(1.0)), Until(updates=2000))
    most = max(len(run.computing.owed) for _ in run.steps())
    assert 0 < most <= compute._OWED


def test_runs_of_a_program_owe_each_on_its_own() -> None:
    shared: dict[str, Any] = {"executor": Counted(), "arenas": LazyArenas()}
    ended: dict[int, Simulation] = {}
    makers = (
        (seed, lambda seed=seed: lazy(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=200), seed=seed, **shared))
        for seed in range(3)
    )
    for _ in Program(iter(makers), lambda number, run, error: ended.__setitem__(number, run)).rounds():
        pass
    for seed, run in ended.items():
        alone = prepare(MANY, FEDBUFF, Times(Exponential(1.0)), Until(updates=200), seed=seed, executor="serial").run()
        torch.testing.assert_close(materialise(run.world.server.model.vector), alone.server.model.vector)
