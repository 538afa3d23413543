"""Every algorithm of rows.py, and local trainers with settings of their own, in two small worlds: servers.txt keeps the
models, and sums over all numbers of the server's state and of the clients' memories.

That a number is right, other tests say; this one notices that it has changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
    FedAST,
    FedAsync,
    FedAsyncMixing,
    FedAvg,
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
from offbeat.core.algorithm import Algorithm
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.core.state import Tensors, dump
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.local import MAML, SGD, Moreau, Prox
from offbeat.local.adam import Adam, AdamW
from offbeat.local.compress import QSGD, LargestK, Quantise, RandomK, Signs
from offbeat.local.optimisers import AdamRule, AdamWRule, Momentum
from offbeat.local.schedules import CosineDecay, LinearDecay, StepDecay, Warmup
from offbeat.privacy.differential import Noise, Privacy
from offbeat.privacy.robust import Robust
from offbeat.privacy.rules import Median
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
    "heloco": (FedAsync(server=HeLoCo(0.6, lr=0.7, aligned=0.4, doubt=0.7)), SGD(0.05, steps=2)),
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
PRIVATE = Privacy(clip=1.0, noise=Noise(participations=9, multiplier=0.1))
CORRELATED = Privacy(1.0, Noise(30, multiplier=0.5, correlated=True), separation=3)
SECURE = Secure(cohort=3, bits=20)
TWO = SGD(0.05, steps=2)
GUARDED: dict[str, Algorithm] = {
    "secure area": Algorithm(AREA(size=4), TWO, secure=SECURE),
    "secure fedbuff": Algorithm(FedBuff(size=4, lr=0.7, concurrency=6), TWO, secure=SECURE),
    "secure private fedbuff": Algorithm(FedBuff(size=4, guard=PRIVATE), TWO, secure=SECURE),
    "secure private area": Algorithm(AREA(size=4, guard=PRIVATE), TWO, secure=SECURE),
    "private area": Algorithm(AREA(size=3, guard=PRIVATE), TWO),
    "private fedbuff": Algorithm(FedBuff(size=4, lr=0.7, guard=PRIVATE), TWO),
    "private fedbuff, sampled": Algorithm(FedBuff(size=2, concurrency=5, guard=CORRELATED), TWO),
    "private fedavg": Algorithm(FedAvg(sampled=4, guard=PRIVATE), TWO),
    "private fadas": Algorithm(FADAS(size=4, lr=0.05, guard=PRIVATE), TWO),
    "robust area": Algorithm(AREA(size=4, guard=Robust(Median())), TWO),
    "robust fedbuff": Algorithm(FedBuff(size=4, lr=0.7, guard=Robust(Median())), TWO),
}
SEVERAL_GUARDED: dict[str, Algorithm] = {
    "secure fedast": Algorithm(FedAST(requests=12, size=(4, 5), lr=0.5), TWO, secure=SECURE),
    "secure fedast area": Algorithm(FedAST(requests=12, size=4, aggregate=AREA(size=4)), TWO, secure=SECURE),
    "private fedast": Algorithm(FedAST(requests=6, size=2, lr=0.5, guard=PRIVATE), TWO),
}
ONE = {row.name: (row.server, row.local) for row in TABLE} | {f"{name} (more)": pair for name, pair in MORE.items()}
ALONE = {name: Algorithm(*pair) for name, pair in ONE.items()} | GUARDED
SEVERAL_TASKS = {row.name: Algorithm(row.server, TWO) for row in SEVERAL} | SEVERAL_GUARDED
COMPRESSORS = (LargestK(0.3), LargestK(0.01), RandomK(0.4), Signs(), QSGD(4), QSGD(7), Quantise(3), Quantise(8))
LOOK = 25  # events after which a run is looked at, besides its end


def numbers(value: Any) -> Iterator[float]:
    """All numbers of what `dump` made, tensors left out."""
    if isinstance(value, bool | int | float):
        yield float(value)
    elif isinstance(value, Mapping):
        yield from (each for part in value.values() for each in numbers(part))
    elif isinstance(value, list | tuple):
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


def course(problems: Sequence[Any], algorithm: Algorithm, world: str) -> list[str]:
    """What a run looks like on its way and at its end; of two tasks, the second comes and goes in the rough world."""
    terms = [(0.0, math.inf), (2.0, 9.0)] if len(problems) > 1 and world == "rough" else []
    running = prepare(problems, algorithm, WORLDS[world], Until(updates=60), evaluate=2.0, seed=5, terms=terms)
    steps = running.steps()
    found = [line for now in steps if now.events == LOOK for line in looked_at(now, running.server)]
    last, tally = running.world, running.world.tally
    said = [*numbers(running.server.report(last.server))]
    reported = [f"reported: {len(said)} numbers, {weighed(said):.10g}"] if said else []
    given = [f"{name}: {weighed([*map(float, v)]):.10g}" for name, v in running.server.outputs(last.server).items()]
    counts = f"lost {tally.lost}, cancelled {tally.cancelled}, computed {tally.computed}, stale {tally.staleness_sum}"
    return [*found, *looked_at(last, running.server), *reported, *given, counts]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ALONE)
def test_no_server_or_trainer_goes_another_way(name: str, world: str) -> None:
    golden.check(FILE, f"{name}, {world}", course([PROBLEM], ALONE[name], world))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", SEVERAL_TASKS)
def test_no_server_of_several_tasks_goes_another_way(name: str, world: str) -> None:
    golden.check(FILE, f"{name}, {world}", course(TASKS, SEVERAL_TASKS[name], world))


def test_no_message_has_another_length() -> None:
    sizes = [f"{name}: {made.locals(1)[0].wire(3)} {made.locals(1)[0].wire(1001)}" for name, made in ALONE.items()]
    sizes += [f"{name}: {[made.wire(11) for made in each.locals(2)]}" for name, each in SEVERAL_TASKS.items()]
    sizes += [f"{each}: {[each.size(d, w) for d in (1, 7, 8, 9, 1000) for w in (4, 8)]}" for each in COMPRESSORS]
    golden.check(FILE, "bytes", sizes)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_what_is_packed_is_unpacked_and_the_bytes_stay_those_in_the_file(compressor: Any) -> None:
    lines = []
    for dim in (1, 7, 8, 70):
        x = torch.cos(torch.arange(2.0 * dim, dtype=torch.float64)).view(2, dim) + 0.1
        code = compressor.code(x, partial(torch.linspace(0.05, 0.95, 2 * dim, dtype=x.dtype).view, 2, dim))
        packed = compressor.pack(code)
        again = compressor.unpack(packed, x)
        torch.testing.assert_close(compressor.value(again), compressor.value(code))
        lines.append(f"{dim}: {tuple(packed.shape)} {weighed(packed.flatten().tolist()):.10g}")
    golden.check(FILE, f"{compressor} packed", lines)
