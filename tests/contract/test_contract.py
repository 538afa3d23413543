"""What every algorithm must do, as one table of algorithms × checks. A new algorithm is one more row."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from rows import TABLE, N, Row
from worlds import run, same_world, seen, through_text

import offbeat.algorithms
from offbeat.algorithms import FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.experiment.run import Run
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, OnOff, Times
from offbeat.watch.history import History

EVERY_ROW = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name.replace(" ", "-"))
EVERY_EXECUTOR = pytest.mark.parametrize("executor", ["serial", "batched"])

EQUAL = Times(Exponential(1.0))
UNEVEN = Times(Exponential(tuple(0.2 * 2.0**i for i in range(N))))
ROUGH = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.2)
QUIET = Quadratic(N, dim=5, convexity=0.5, dtype=torch.float64)
NOISY = Quadratic(N, dim=5, convexity=0.2, noise=0.5)
SHORT = Until(updates=90)


def outcome(row: Row, result: Run) -> torch.Tensor:
    """What a run has trained: the server's model, or the clients' own [n, d]."""
    return torch.stack([result.personal(c, steps=0) for c in range(N)]) if row.own else result.model


def distance(row: Row, result: Run) -> float:
    """From the optimum, as a share of where it began."""
    away = outcome(row, result) - (QUIET.c if row.own else QUIET.optimum())
    return float(torch.linalg.vector_norm(away, dim=-1).max()) / QUIET.distance


def simulation(row: Row, executor: str, **options: Any) -> tuple[Simulation, History]:
    history = History(keep_events=True)
    algorithm = Algorithm(row.server, row.local)
    given = {"until": SHORT, "executor": executor, "evaluate": 3.0, "watchers": [history], **options}
    made = prepare(NOISY, algorithm, ROUGH, **given)
    return made, history


def written(running: Simulation) -> tuple[int, int]:
    """(vectors that were sent or remembered during a run, how many of them changed afterwards).

    The run is as short as others, or long enough for several: some servers step rarely.
    """
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for world in running.steps():
        vectors = [v for flight in world.flights.values() for v in (flight.payload or {}).values()]
        vectors += [v for flight in world.flights.values() for part in flight.result or () for v in part.values()]
        vectors += [v for _, memory in world.memories.values() for v in memory.values()]
        for vector in vectors:
            if not isinstance(vector, float):
                kept.setdefault(id(vector), (vector, vector.clone()))
        if world.tally.updates >= 150 and len(kept) > 20:
            break
    return len(kept), sum(not torch.equal(vector, snapshot) for vector, snapshot in kept.values())


@EVERY_ROW
def test_it_ends_near_the_optimum_when_all_clients_are_equally_fast(row: Row) -> None:
    result = run(QUIET, row.server, row.local, EQUAL, Until(updates=3000), executor="batched")
    assert distance(row, result) < row.within
    assert result.world.stopped == "updates"


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
@pytest.mark.parametrize("timing", [UNEVEN, ROUGH], ids=["uneven", "rough"])
def test_serial_and_batched_give_the_same_events_and_the_same_models(row: Row, timing: Times) -> None:
    serial, batched = (
        run(NOISY, row.server, row.local, timing, SHORT, executor=executor) for executor in ("serial", "batched")
    )
    assert seen(serial.events) == seen(batched.events)
    torch.testing.assert_close(outcome(row, serial), outcome(row, batched))


@EVERY_ROW
@EVERY_EXECUTOR
def test_a_vector_that_was_sent_is_never_written_again(row: Row, executor: str) -> None:
    running, _ = simulation(row, executor, until=Until(updates=1500))
    vectors, changed = written(running)
    assert vectors > 10
    assert changed == 0


@dataclass(frozen=True)
class InPlace(FedAsync):
    """What handlers must not do."""

    def arrived(self, state: Any, update: Any, view: Any) -> Any:
        state.model.vector.add_(update["delta"], alpha=-self.lr)
        yield from self.next(state, update.job.client, view)


def test_a_server_that_writes_in_place_would_be_caught() -> None:
    running, _ = simulation(Row("in place", InPlace()), "serial")
    assert written(running)[1] > 0


@EVERY_ROW
def test_it_survives_lost_jobs_and_clients_that_come_and_go(row: Row) -> None:
    result = run(QUIET, row.server, row.local, ROUGH, Until(updates=2000))
    happened = {event.event for event in result.events}
    assert happened >= {"Started", "Arrived", "Lost", "Left", "Joined"}
    assert result.world.stopped == "updates"
    assert result.world.tally.lost > 300
    assert distance(row, result) < 0.1


@EVERY_ROW
def test_the_same_seed_is_the_same_run_and_another_seed_another(row: Row) -> None:
    first, again, other = (run(NOISY, row.server, row.local, ROUGH, SHORT, seed=seed) for seed in (1, 1, 2))
    assert seen(first.events) == seen(again.events)
    assert torch.equal(outcome(row, first), outcome(row, again))
    assert seen(first.events) != seen(other.events)
    assert not torch.equal(outcome(row, first), outcome(row, other))


def test_every_algorithm_has_a_row() -> None:
    public = {name: getattr(offbeat.algorithms, name) for name in offbeat.algorithms.__all__}
    servers = {value for value in public.values() if isinstance(value, type) and issubclass(value, Server)}
    assert {kind for kind in servers if not kind.several} == {type(row.server) for row in TABLE}
