"""What every algorithm for several tasks must do: the contract of `test_contract.py` with three small quadratics."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from rows import SEVERAL as TABLE, SeveralRow as Row
from worlds import run, same_world, seen, through_text

import offbeat.algorithms
from offbeat.algorithms import (
    OneByOne,
)
from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.experiment.run import Run
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, OnOff, Times
from offbeat.watch.history import History

N, M = 8, 3


EVERY_ROW = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name.replace(" ", "-"))
EVERY_EXECUTOR = pytest.mark.parametrize("executor", ["serial", "batched"])

HALVES = (SGD(lr=0.05), SGD(lr=0.02, steps=2), SGD(lr=0.03))  # tasks differ in all they can
EQUAL = Times(Exponential(1.0))
ROUGH = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.2, available=0.7)
QUIET = [
    Quadratic(N, dim=d, convexity=0.2, heterogeneity=0.5, label=f"task{d}", seed=d, dtype=torch.float64)
    for d in (2, 5, 3)
]
NOISY = [Quadratic(N, dim=d, convexity=0.2, noise=0.5, label=f"task{d}", seed=d) for d in (2, 5, 3)]
TERMS = [(0.0, math.inf), (2.0, 18.0), (0.0, math.inf)]  # the second comes and goes
SHORT = Until(updates=150)


def distances(result: Run) -> list[float]:
    """Of every task from its optimum, as a share of where it began."""
    models = result.simulation.server.models(result.world.server)
    pairs = zip(models, QUIET, strict=True)
    return [float(torch.linalg.vector_norm(model.vector - p.optimum())) / p.distance for model, p in pairs]


def simulation(row: Row, executor: str, **options: Any) -> tuple[Simulation, History]:
    history = History(keep_events=True)
    made = prepare(
        NOISY,
        Algorithm(row.server, HALVES),
        ROUGH,
        SHORT,
        executor=executor,
        evaluate=3.0,
        watchers=[history],
        terms=TERMS,
        **options,
    )
    return made, history


def written(running: Simulation) -> tuple[int, int]:
    """(vectors that were sent, kept or remembered during a run, how many of them changed afterwards)."""
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for world in running.steps():
        flights = world.flights.values()
        vectors = [v for flight in flights for v in (flight.payload or {}).values()]
        vectors += [v for flight in flights for part in flight.result or () for v in part.values()]
        vectors += [v for _, memory in world.memories.values() for v in memory.values()]
        vectors += [v for task in world.server.tasks for v in getattr(task, "recent", ())]
        for vector in vectors:
            if not isinstance(vector, float):
                kept.setdefault(id(vector), (vector, vector.clone()))
    return len(kept), sum(not torch.equal(vector, snapshot) for vector, snapshot in kept.values())


@EVERY_ROW
def test_every_task_ends_near_its_optimum(row: Row) -> None:
    server = row.server
    if isinstance(server, OneByOne):
        terms = [(0.0, 200.0), (0.0, 400.0), (0.0, math.inf)]  # nothing else ends a task without accuracy
        result = run(QUIET, server, SGD(lr=row.lr), EQUAL, Until(time=600.0), terms=terms)
    else:
        result = run(QUIET, server, SGD(lr=row.lr), EQUAL, Until(updates=row.updates))
    assert max(distances(result)) < row.within


@EVERY_ROW
@EVERY_EXECUTOR
def test_saved_and_resumed_at_any_event_it_ends_bit_for_bit_the_same(row: Row, executor: str) -> None:
    whole, expected = simulation(row, executor)
    whole.run()
    first, before = simulation(row, executor)
    steps = first.steps()
    for _ in zip(range(random.Random(row.name + executor).randrange(1, whole.world.events)), steps, strict=False):
        pass
    second, after = simulation(row, executor, world=through_text(first.world))
    second.run()
    assert seen(before.events + after.events) == seen(expected.events)
    assert before.measurements + after.measurements == expected.measurements
    assert same_world(second.world, whole.world)


@EVERY_ROW
@pytest.mark.parametrize("timing", [EQUAL, ROUGH], ids=["equal", "rough"])
def test_serial_and_batched_give_the_same_events_and_the_same_models(row: Row, timing: Times) -> None:
    algorithm = Algorithm(row.server, HALVES)
    logs = History(keep_events=True), History(keep_events=True)
    serial, batched = (
        prepare(NOISY, algorithm, timing, SHORT, executor=executor, watchers=[log]).run()
        for executor, log in zip(("serial", "batched"), logs, strict=True)
    )
    assert seen(logs[0].events) == seen(logs[1].events)
    for one, other in zip(row.server.models(serial.server), row.server.models(batched.server), strict=True):
        torch.testing.assert_close(one.vector, other.vector)


@EVERY_ROW
@EVERY_EXECUTOR
def test_a_vector_that_was_sent_is_never_written_again(row: Row, executor: str) -> None:
    running, _ = simulation(row, executor)
    vectors, changed = written(running)
    assert vectors > 10
    assert changed == 0


@EVERY_ROW
def test_it_survives_lost_jobs_and_clients_that_come_and_go(row: Row) -> None:
    terms = [(0.0, 100.0), (0.0, 200.0), (0.0, math.inf)]
    result = run(QUIET, row.server, SGD(lr=row.lr), ROUGH, Until(time=300.0), terms=terms)
    happened = {event.event for event in result.events}
    assert happened >= {"Started", "Arrived", "Lost", "Left", "Joined", "Closed"}
    assert result.world.now == 300.0
    assert result.world.tally.lost > 100
    assert max(distances(result)) < 0.8  # the first had only a third of the time
    assert distances(result)[-1] < 0.1


@EVERY_ROW
def test_the_same_seed_is_the_same_run_and_another_seed_another(row: Row) -> None:
    first, again, other = (run(NOISY, row.server, SGD(lr=0.02), ROUGH, SHORT, seed=seed) for seed in (1, 1, 2))
    assert seen(first.events) == seen(again.events)
    assert same_world(first.world, again.world)
    assert seen(first.events) != seen(other.events)


def test_every_algorithm_for_several_tasks_has_a_row() -> None:
    public = (getattr(offbeat.algorithms, name) for name in offbeat.algorithms.__all__)
    servers = {value.__name__ for value in public if isinstance(value, type) and issubclass(value, Server)}
    several = {name for name in servers if getattr(offbeat.algorithms, name).several}
    assert several == {type(row.server).__name__ for row in TABLE}
