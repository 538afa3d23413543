"""Runs that differ in their step size alone, as one: each ends bit for bit where it would have alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from rows import TABLE, Row
from simulate.test_owed import MANY, NOISY, ROUGH, Counted, LazyArenas

from offbeat.algorithms.anarchic import AFACD
from offbeat.algorithms.area import AREA
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.local.gradient import Gradient
from offbeat.local.sgd import SGD
from offbeat.privacy.differential import Noise, Privacy
from offbeat.privacy.robust import Robust
from offbeat.privacy.rules import Krum, Median, NormBound
from offbeat.simulate.abreast import Abreast, abreast
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History

LRS = (0.1, 0.02, 0.3)
SHORT = Until(updates=60)
Ends = dict[int, tuple[Any, ...]]


def played(
    makers: list[Callable[[Any, History], Simulation]], wide: bool
) -> tuple[Ends, list[int], dict[int, Simulation]]:
    """(by number, what came of each run; the sizes of the batches; what was at work first)."""
    arenas, executor, ends = LazyArenas(), Counted(), Ends()
    histories: dict[int, History] = {}

    def made() -> dict[int, Simulation]:
        histories.update({number: History(keep_events=True) for number in range(len(makers))})
        return {
            number: make({"executor": executor, "arenas": arenas, "evaluate": 3.0}, histories[number])
            for number, make in enumerate(makers)
        }

    def over(number: int, run: Simulation, error: DivergedError | None) -> None:
        models = [materialise(model.vector) for model in run.server.models(run.world.server)]
        history, tally = histories[number], run.world.tally
        ends[number] = repr(history.events), repr(history.measurements), models, tally.updates, str(error)

    runs = made()
    one = abreast(runs, arenas, made) if wide else None
    parts = {0: one} if one is not None else runs
    program = Program(iter([(number, lambda run=run: run) for number, run in parts.items()]), over)  # type: ignore[misc]
    first = dict(next(rounds := program.rounds()))
    for _ in rounds:
        pass
    return ends, executor.batches, first


def makers(problem: Any, server: Server[Any], locals_: Any, timing: Times = ROUGH, until: Until = SHORT) -> Any:
    return [
        lambda given, history, local=local: prepare(
            problem, Algorithm(server, local), timing, until, watchers=[history], **given
        )
        for local in locals_
    ]


def same(one: Ends, other: Ends) -> None:
    assert one.keys() == other.keys()
    for number in one:
        (events, measured, models, *rest), (events_, measured_, models_, *rest_) = one[number], other[number]
        assert (events, measured, rest) == (events_, measured_, rest_)
        assert all(torch.equal(a, b) for a, b in zip(models, models_, strict=True))


STEPPING = [row for row in TABLE if not isinstance(row.local, Gradient)]  # that has no step size


@pytest.mark.parametrize("row", STEPPING, ids=lambda row: row.name.replace(" ", "-"))
def test_every_algorithm_ends_where_its_runs_would_have_ended_alone(row: Row) -> None:
    each = makers(NOISY, row.server, [replace(row.local, lr=lr) for lr in LRS])
    same(played(each, wide=True)[0], played(each, wide=False)[0])


@pytest.mark.parametrize("server", [AREA(size=4), FedBuff(size=4)], ids=["area", "fedbuff"])
def test_one_run_is_planned_for_all(server: Server[Any]) -> None:
    each = makers(MANY, server, [SGD(lr=lr) for lr in LRS], Times(Exponential(1.0)), Until(updates=300))
    (ends, batches, first), (alone, others, _) = played(each, wide=True), played(each, wide=False)
    same(ends, alone)
    assert isinstance(first[0], Abreast)
    assert 3 * sum(batches) == sum(others)


GUARDS = {
    "privacy": Privacy(0.1, Noise(20, multiplier=1.0)),
    "correlated": Privacy(0.1, Noise(20, multiplier=1.0, correlated=True), separation=2),
    "median": Robust(Median()),
    "krum": Robust(Krum(0.3)),
    "norm bound": Robust(NormBound(0.1)),
}


@pytest.mark.parametrize("guard", GUARDS.values(), ids=list(GUARDS))
@pytest.mark.parametrize("server", [AREA(size=4), FedBuff(size=4)], ids=["area", "fedbuff"])
def test_a_guard_works_on_the_updates_of_each_run_by_itself(server: Any, guard: Any) -> None:
    """Clipped together, side by side, an update would be longer than its clip or shorter than it need be."""
    each = makers(NOISY, replace(server, guard=guard), [SGD(lr=lr) for lr in LRS])
    same(played(each, wide=True)[0], played(each, wide=False)[0])


def test_a_run_that_diverges_is_over_and_the_others_go_on() -> None:
    each = makers(MANY, FedBuff(size=4), [SGD(lr=lr) for lr in (0.1, 1e30, 0.3)], until=Until(updates=300))
    (ends, _, _), (alone, _, _) = played(each, wide=True), played(each, wide=False)
    same(ends, alone)
    assert [ends[number][-1] == "None" for number in range(3)] == [True, False, True]


def test_a_server_that_reads_step_sizes_gets_those_of_each_run() -> None:
    each = makers(MANY, AFACD(), [SGD(lr=lr) for lr in LRS], Times(Exponential(1.0)))
    (ends, _, first), (alone, _, _) = played(each, wide=True), played(each, wide=False)
    same(ends, alone)
    assert not any(isinstance(run, Abreast) for run in first.values())


def test_runs_that_differ_in_more_than_the_step_size_stay_apart() -> None:
    for locals_ in ([SGD(lr=0.1), SGD(lr=0.2, steps=2)], [SGD(lr=0.1), SGD(lr=0.2, momentum=0.5)]):
        _, _, first = played(makers(MANY, FedBuff(size=4), locals_), wide=True)
        assert not any(isinstance(run, Abreast) for run in first.values())
