"""What every algorithm must do, as one table of algorithms × checks. A new algorithm is one more row."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from worlds import run, same_world, seen, through_text

import offbeat.algorithms
from offbeat.algorithms import (
    AREA,
    CA2FL,
    MIFA,
    SCAFFOLD,
    Alone,
    AsFedAvg,
    AsySG,
    Decay,
    DeFedAvg,
    Favano,
    FedAsync,
    FedAsyncMixing,
    FedAvg,
    FedBuff,
    Hinge,
    Period,
    Poisson,
    Polynomial,
    QuAFL,
)
from offbeat.core.local import Local
from offbeat.core.server import Algorithm, Server
from offbeat.local import MAML, SGD, Gradient, Moreau, Prox, Scaffold
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Simulation, Until
from offbeat.simulate.run import History, Run, prepare
from offbeat.timing import Exponential, OnOff, Times

N = 8  # clients
SMALL = SGD(lr=0.02)  # one local step: the fixed point is the optimum itself
META = MAML(lr=0.02, alpha=0.02)
ENVELOPE = Moreau(lr=0.02, penalty=50.0, inner=3)
LOCAL = SGD(lr=0.01, steps=3)  # several: client i pulls with 1 − (1 − lr·h_i)^steps instead of lr·h_i


@dataclass(frozen=True)
class Row:
    """One algorithm, and how near to the optimum `updates` results have to bring it, as a share of the way there.

    AREA and everyone's FedAvg come to rest. The others keep a constant step size and move by single clients'
    results, so they jitter around the optimum by about step · heterogeneity, here up to 1 % of the way; where
    there are local steps, the point they jitter around is itself off by about lr · steps. MAML's and Moreau's losses
    have optima of their own, off by about 2·alpha and 1/penalty of the heterogeneity.
    own: what it trains are the clients' own models, each with an optimum of its own; the server's does not move.
    """

    name: str
    server: Server[Any]
    local: Local = SMALL
    within: float = 0.01
    updates: int = 6000
    own: bool = False


TABLE = [
    Row("area every message", AREA(every=1), SGD(lr=0.1), within=0.003),
    Row("area every n messages", AREA(every=N), SGD(lr=0.1), within=0.003),
    Row("area by period", AREA(every=Period(1.0)), SGD(lr=0.1), within=0.003),
    Row("area by poisson", AREA(every=Poisson(1.0)), SGD(lr=0.1), within=0.003),
    Row("area local steps", AREA(every=4), SGD(lr=0.03, steps=3), within=0.003),
    Row("area decay", AREA(every=4, schedule=Decay(c=300.0, d=1000.0)), SMALL, within=0.003),
    Row("area sampled", AREA(every=4, concurrency=4), SGD(lr=0.1), within=0.003),
    Row("fedbuff client-driven", FedBuff(size=4)),
    Row("fedbuff local steps", FedBuff(size=4), LOCAL),
    Row("fedbuff sampled", FedBuff(size=4, concurrency=5)),
    Row("fedbuff polynomial", FedBuff(size=4, weight=Polynomial(0.5))),
    Row("fedbuff by period", FedBuff(size=Period(0.5))),
    Row("fedbuff by poisson", FedBuff(size=Poisson(2.0))),
    Row("fedasync", FedAsync(lr=0.3)),
    Row("fedasync sampled", FedAsync(lr=0.3, concurrency=5)),
    Row("fedasync polynomial", FedAsync(weight=Polynomial(0.5))),
    Row("fedasync hinge", FedAsync(lr=0.5, weight=Hinge(slope=1.0, after=4.0))),
    Row("fedasync local steps", FedAsync(lr=0.3), LOCAL),
    Row("fedasync mixing", FedAsyncMixing(mixing=0.1), SGD(lr=0.1)),
    Row("fedasync mixing polynomial", FedAsyncMixing(mixing=0.3, weight=Polynomial(0.5)), SGD(lr=0.1)),
    Row("asfedavg", AsFedAvg(every=N), SGD(lr=0.1)),
    Row("asfedavg by period", AsFedAvg(every=Period(2.0)), SGD(lr=0.1)),
    Row("fedavg everyone", FedAvg(), SGD(lr=0.1), within=1e-6),
    Row("fedavg sampled", FedAvg(sampled=4)),
    Row("fedavg first", FedAvg(sampled=5, first=3)),
    Row("fedprox", FedAvg(), Prox(lr=0.1, steps=2)),
    Row("scaffold", SCAFFOLD(sampled=4), Scaffold(lr=0.05, steps=2)),
    Row("scaffold option 1", SCAFFOLD(sampled=4), Scaffold(lr=0.05, steps=2, option=1)),
    Row("scaffold first", SCAFFOLD(sampled=5, first=3), Scaffold(lr=0.05, steps=2)),
    Row("asysg", AsySG(size=4, lr=0.02), Gradient()),
    Row("defedavg", DeFedAvg(sampled=4)),
    Row("defedavg drawn", DeFedAvg(sampled=4, renew="drawn")),
    Row("favano", Favano(sampled=3, period=1.0), SGD(lr=0.05, steps=4)),
    Row("quafl", QuAFL(sampled=3, period=1.0), SGD(lr=0.05, steps=4)),
    Row("mifa", MIFA(every=4)),
    Row("ca2fl", CA2FL(size=4)),
    Row("asysg capped", AsySG(size=4, lr=0.02, cap=2.0), Gradient()),
    Row("favano stochastic", Favano(sampled=3, period=1.0, normalise="stochastic"), SGD(lr=0.05, steps=4)),
    Row("persafl-maml", FedAsync(lr=0.3), META),
    Row("persafl-maml by differences", FedAsync(lr=0.3), replace(META, hessian="difference")),
    Row("persafl-maml under fedbuff", FedBuff(size=4), META),
    Row("persafl-maml under area", AREA(every=4), replace(META, lr=0.1), within=0.003),
    Row("persafl-me", FedAsync(lr=0.3), ENVELOPE),
    Row("persafl-me with momentum", FedAsync(lr=0.3), replace(ENVELOPE, momentum=0.5)),
    Row("persafl-me under fedbuff", FedBuff(size=4), ENVELOPE),
    Row("persafl-me under area", AREA(every=4), replace(ENVELOPE, lr=0.1), within=0.003),
    Row("per-fedavg", FedAvg(sampled=4), META),
    Row("pfedme", FedAvg(sampled=4), ENVELOPE),
    Row("local-only", Alone(), SGD(lr=0.1), own=True),
    Row("local-only moreau", Alone(), replace(ENVELOPE, lr=0.1), own=True),
]
# Algorithms that have no row, and why.
SEVERAL = "trains several tasks: its rows are in test_several.py"
EXEMPT = dict.fromkeys(("FedAST", "OneByOne", "SyncST", "SyncUCBST", "SyncBayesST"), SEVERAL)
EVERY_ROW = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name.replace(" ", "-"))
EVERY_EXECUTOR = pytest.mark.parametrize("executor", ["serial", "batched"])

EQUAL = Times(Exponential(1.0))
UNEVEN = Times(Exponential(tuple(0.2 * 2.0**i for i in range(N))))
ROUGH = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.2)
QUIET = Quadratic(N, dim=5, convexity=0.2, dtype=torch.float64)
NOISY = Quadratic(N, dim=5, convexity=0.2, noise=0.5)
SHORT = Until(updates=150)


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
    made = prepare(NOISY, algorithm, ROUGH, SHORT, executor=executor, evaluate_every=3.0, watchers=[history], **options)
    return made, history


def written(running: Simulation) -> tuple[int, int]:
    """(vectors that were sent or remembered during a run, how many of them changed afterwards)."""
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for world in running.steps():
        vectors = [v for flight in world.flights.values() for v in (flight.payload or {}).values()]
        vectors += [v for flight in world.flights.values() for part in flight.result or () for v in part.values()]
        vectors += [v for _, memory in world.memories.values() for v in memory.values()]
        for vector in vectors:
            if not isinstance(vector, float):
                kept.setdefault(id(vector), (vector, vector.clone()))
    return len(kept), sum(not torch.equal(vector, snapshot) for vector, snapshot in kept.values())


@EVERY_ROW
def test_it_ends_near_the_optimum_when_all_clients_are_equally_fast(row: Row) -> None:
    result = run(QUIET, row.server, row.local, EQUAL, Until(updates=row.updates))
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
    running, _ = simulation(row, executor)
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
    servers = {name for name, value in public.items() if isinstance(value, type) and issubclass(value, Server)}
    assert servers == {type(row.server).__name__ for row in TABLE} | set(EXEMPT)
