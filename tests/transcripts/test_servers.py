"""Every algorithm of rows.py, and local trainers with settings of their own, in two small worlds: servers.txt keeps the
models, and sums over all numbers of the server's state and of the clients' memories.

That a number is right, other tests say; this one notices that it has changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from rows import SEVERAL, TABLE, N

from offbeat.algorithms import (
    AREA,
    CA2FL,
    FADAS,
    MIFA,
    AsFedAvg,
    FedAsync,
    FedAsyncMixing,
    FedBuff,
    Hinge,
    LocalOnly,
    Polynomial,
)
from offbeat.algorithms.optimisers import (
    DelayedNesterov,
    FedAdagrad,
    FedAdam,
    FedAMSGrad,
    FedAvgM,
    FedNesterov,
    FedYogi,
    HeLoCo,
    LookAhead,
)
from offbeat.core.course import Until
from offbeat.core.local import Local
from offbeat.core.server import Algorithm, Server
from offbeat.core.state import Tensors, dump
from offbeat.local import MAML, SGD, Moreau, Prox
from offbeat.local.adam import Adam, AdamW
from offbeat.local.optimisers import AdamRule, AdamWRule, Momentum
from offbeat.local.schedules import CosineDecay, LinearDecay, StepDecay, Warmup
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing import Constant, Delays, Exponential, Factors, OnOff, Times

FILE = Path(__file__).with_name("servers.txt")
WORLDS = {
    "rough": Times(
        Exponential(tuple(0.5 + 0.3 * i for i in range(N))),
        network=Delays(download=(0.05, 0.1), ratio=(2.0, 3.0)),
        presence=OnOff(on=9.0, off=2.0),
        dropout=0.1,
    ),
    # whole numbers, so that much happens at the same time and thresholds are met exactly
    "ticks": Times(Constant(1.0, per="step"), speeds=Factors(tuple(1.0 + i % 3 for i in range(N)))),
}
PROBLEM = Quadratic(N, dim=3, convexity=0.2, noise=0.3, dtype=torch.float64)
TASKS = [Quadratic(N, dim=d, convexity=0.2, noise=0.3, label=f"t{d}", seed=d, dtype=torch.float64) for d in (2, 3)]
BUFF = FedBuff(size=3, lr=0.7)
MORE: dict[str, tuple[Server[Any], Local]] = {
    "fedavgm": (FedBuff(size=2, server=FedAvgM(0.6, lr=0.7)), SGD(0.05, steps=2)),
    "nesterov": (FedBuff(size=2, server=FedNesterov(0.6, lr=0.7)), SGD(0.05, steps=2)),
    "delayed nesterov": (FedAsync(server=DelayedNesterov(0.6, lr=0.7, size=3, activation=0.2)), SGD(0.05, steps=2)),
    "look-ahead": (FedAsync(server=LookAhead(0.6, lr=0.7)), SGD(0.05, steps=2)),
    "heloco": (FedAsync(server=HeLoCo(0.6, lr=0.7, blocks=(2, 1), aligned=0.4, doubt=0.7)), SGD(0.05, steps=2)),
    "adagrad": (FedBuff(size=2, server=FedAdagrad(lr=0.1, beta1=0.3, eps=0.01)), SGD(0.05, steps=2)),
    "adam": (FedBuff(size=2, server=FedAdam(lr=0.05, beta1=0.6, beta2=0.8)), SGD(0.05, steps=2)),
    "adam corrected": (MIFA(size=2, server=FedAdam(lr=0.05, correct=True, threshold=3)), SGD(0.05, steps=2)),
    "yogi": (CA2FL(size=2, lr=0.7, server=FedYogi(lr=0.05, beta2=0.8)), SGD(0.05, steps=2)),
    "amsgrad": (FADAS(size=2, lr=0.05, threshold=1), SGD(0.05, steps=2)),
    "amsgrad plain": (AREA(size=2, server=FedAMSGrad(lr=0.05, beta1=0.6, beta2=0.8)), SGD(0.05, steps=2)),
    "mifa": (MIFA(size=3, lr=0.7), SGD(0.05, steps=2)),
    "ca2fl": (CA2FL(size=3, lr=0.7), SGD(0.05, steps=2)),
    "area average": (AREA(size=3, average=True), SGD(0.05, steps=2)),
    "as-fedavg": (AsFedAvg(size=3), SGD(0.05, steps=2)),
    "hinge": (FedBuff(size=2, lr=0.7, weight=Hinge(slope=0.7, after=1.0)), SGD(0.05, steps=2)),
    "mixing": (FedAsyncMixing(mixing=0.4, weight=Hinge(slope=0.7, after=1.0)), SGD(0.05)),
    "polynomial": (FedAsync(lr=0.4, weight=Polynomial(0.7)), SGD(0.05)),
    "momentum": (BUFF, SGD(0.05, steps=2, momentum=0.7)),
    "local nesterov": (BUFF, SGD(0.05, steps=2, momentum=0.7, nesterov=True, keep=True)),
    "local adam": (BUFF, Adam(0.05, steps=2, beta1=0.6, beta2=0.8, schedule=CosineDecay(9, floor=0.2, warmup=2))),
    "local amsgrad": (BUFF, Adam(0.05, steps=2, amsgrad=True, keep=True, clip=0.5, eps=0.1)),
    "local adamw": (BUFF, AdamW(0.05, steps=3, schedule=StepDecay(2, gamma=0.5, over="step"), clip_value=0.5)),
    "local prox": (
        BUFF,
        Prox(0.05, steps=3, optimiser=AdamRule(), keep=True, schedule=LinearDecay(4, floor=0.1, over="job", warmup=2)),
    ),
    "local warmup": (BUFF, SGD(0.05, steps=2, decay=0.3, schedule=Warmup(3, over="job"))),
    "local maml": (BUFF, MAML(0.05, steps=2, alpha=0.03, optimiser=Momentum(0.7), keep=True)),
    "local moreau": (BUFF, Moreau(0.05, steps=2, penalty=50.0, inner=2, optimiser=AdamWRule(), decay=0.1)),
    "own models": (LocalOnly(), Adam(0.05, keep=True)),
}
ONE = {row.name: (row.server, row.local) for row in TABLE} | {f"{name} (more)": pair for name, pair in MORE.items()}
SEVERAL_TASKS = {row.name: row.server for row in SEVERAL}
LOOK = 25  # events after which a run is looked at, besides its end


def numbers(value: Any) -> Iterator[float]:
    """All numbers of what `dump` made, tensors left out."""
    if isinstance(value, bool | int | float):
        yield float(value)
    elif isinstance(value, dict):
        yield from (each for part in value.values() for each in numbers(part))
    elif isinstance(value, list):
        yield from (each for part in value for each in numbers(part))


def weighed(values: Sequence[float]) -> float:
    """A sum in which every number has a weight of its own."""
    return math.fsum(math.cos(i) * value for i, value in enumerate(values))


def looked_at(world: World, server: Server[Any]) -> Iterator[str]:
    models = server.models(world.server)
    yield f"{world.events} events, time {world.now:.10g}, versions {[m.version for m in models]}"
    yield from ("  " + " ".join(f"{float(x):.10g}" for x in model.vector) for model in models)
    for name, part in (("state", world.server), ("memories", world.memories)):
        tensors = Tensors()
        plain = [*numbers(dump(part, tensors))]
        inside = [float(x) for tensor in tensors.table.values() for x in tensor.flatten()]
        if plain or inside:
            yield f"  {name}: {len(plain)} and {len(inside)} numbers, {weighed(plain):.10g} {weighed(inside):.10g}"


def course(problems: Sequence[Any], server: Server[Any], local: Local, world: str) -> list[str]:
    """What a run looks like on its way and at its end."""
    running = prepare(problems, Algorithm(server, local), WORLDS[world], Until(updates=60), evaluate=2.0, seed=5)
    steps = running.steps()
    found = [line for now in steps if now.events == LOOK for line in looked_at(now, running.server)]
    last, tally = running.world, running.world.tally
    given = [f"{name}: {weighed([*map(float, v)]):.10g}" for name, v in running.server.outputs(last.server).items()]
    counts = f"lost {tally.lost}, cancelled {tally.cancelled}, computed {tally.computed}, stale {tally.staleness_sum}"
    return [*found, *looked_at(last, running.server), *given, counts]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ONE)
def test_no_server_or_trainer_goes_another_way(name: str, world: str) -> None:
    golden.check(FILE, f"{name}, {world}", course([PROBLEM], *ONE[name], world))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", SEVERAL_TASKS)
def test_no_server_of_several_tasks_goes_another_way(name: str, world: str) -> None:
    golden.check(FILE, f"{name}, {world}", course(TASKS, SEVERAL_TASKS[name], SGD(0.05, steps=2), world))
