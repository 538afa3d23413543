"""Optimisers × servers: the same events and models with every executor, saved and resumed at a random event."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from contract.test_contract import EVERY_EXECUTOR, NOISY, ROUGH, UNEVEN
from worlds import run, same_world, seen, through_text

from offbeat.algorithms import (
    ACED,
    AFACS,
    AREA,
    CA2FL,
    FADAS,
    MIFA,
    SCAFFOLD,
    AsFedAvg,
    AsGrad,
    AsyncCommSGD,
    AsySG,
    DecoupledDiLoCo,
    DeFedAvg,
    DeFedAvgIID,
    Favano,
    FedAST,
    FedAsync,
    FedAsyncMixing,
    FedAvg,
    FedBuff,
    FedCompass,
    FedFa,
    FedFix,
    LocalOnly,
    Port,
    QuAFL,
    SyncST,
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
from offbeat.core.until import Until
from offbeat.local import MAML, SGD, Adam, AdamW, Gradient, Moreau, Prox, Scaffold
from offbeat.local.optimisers import AdamRule, AdamWRule, Momentum
from offbeat.local.schedules import CosineDecay, LinearDecay, StepDecay
from offbeat.simulate.pool import Pool
from offbeat.simulate.run import prepare
from offbeat.watch.history import History

SHORT = Until(updates=40)
OPTIMISERS = [
    FedAvgM(0.5),
    FedNesterov(0.5, lr=0.5),
    DelayedNesterov(0.5, lr=0.5, size=3, activation=0.2),
    LookAhead(0.5, lr=0.5),
    HeLoCo(0.5, lr=0.5),
    FedAdagrad(lr=0.1),
    FedAdam(lr=0.05),
    FedAdam(lr=0.05, correct=True, threshold=3),
    FedYogi(lr=0.05),
    FedAMSGrad(lr=0.05, threshold=2),
]
LOCALS: list[Local] = [
    SGD(0.05, steps=2, momentum=0.9),
    SGD(0.05, steps=2, momentum=0.9, nesterov=True, keep=True),
    Adam(0.05, steps=2, schedule=CosineDecay(30)),
    Adam(0.05, steps=2, amsgrad=True, keep=True, clip=0.5),
    AdamW(0.05, steps=3, schedule=StepDecay(2, gamma=0.5, over="step"), clip_value=0.5),
    Prox(0.05, steps=2, optimiser=AdamRule(), keep=True, schedule=LinearDecay(20, over="job", warmup=2)),
    MAML(0.05, steps=2, alpha=0.02, optimiser=Momentum(), keep=True),
    Moreau(0.05, steps=2, penalty=50.0, inner=2, optimiser=AdamWRule(), decay=0.1),
]
SERVERS: list[Server[Any]] = [
    FedBuff(size=3),
    FedAsync(lr=0.5),
    FedAsyncMixing(mixing=0.3),
    AREA(size=3),
    AsFedAvg(size=3),
    FedAvg(sampled=4),
    DeFedAvg(sampled=3),
    DeFedAvgIID(size=3),
    Favano(sampled=3, period=1.0),
    QuAFL(sampled=3, period=1.0),
    MIFA(size=2),
    CA2FL(size=3),
]
_locals = itertools.cycle(LOCALS)  # eight against the ten optimisers: every server meets each, every optimiser, too
PAIRS: list[tuple[Any, Local]] = [
    *((replace(server, server=optimiser), next(_locals)) for server in SERVERS for optimiser in OPTIMISERS),
    (ACED(server=FedAdam(lr=0.05)), SGD(0.05, steps=2)),
    (AFACS(size=2, lr=0.05, server=FedAvgM(0.5)), SGD(0.05, steps=2)),
    (FedFix(period=0.5, server=FedYogi(lr=0.05)), SGD(0.05, steps=2)),
    (FedFa(size=3, server=FedAvgM(0.5)), SGD(0.05, steps=2)),
    (FedCompass(least=1, most=3, server=FedAdam(lr=0.05)), SGD(0.05)),
    (FADAS(size=3, lr=0.05), SGD(0.05, steps=2)),
    (Port(size=3, server=FedAdam(lr=0.05)), SGD(0.05, steps=2)),
    (AsyncCommSGD(most=2, server=FedAvgM(0.5)), SGD(0.05)),
    (DecoupledDiLoCo(quorum=2, grace=0.1, server=FedAdam(lr=0.05)), SGD(0.05, steps=2)),
    (SCAFFOLD(sampled=4, server=FedAdam(lr=0.05)), Scaffold(0.05, steps=2, optimiser=AdamRule(), keep=True)),
    (SCAFFOLD(sampled=4, server=FedAvgM(0.5)), Scaffold(0.05, steps=2, option=1, momentum=0.9)),
    (AsySG(size=2, server=FedAdam(lr=0.05)), Gradient()),
    (AsGrad(size=2, server=FedAdam(lr=0.05)), Gradient()),
    (LocalOnly(), Adam(0.05, keep=True)),
]


def name(value: Any) -> str:
    """A readable name of a pair's half."""
    inner = getattr(value, "server", None) or getattr(value, "rule", None)
    return type(value).__name__ + (f"+{type(inner).__name__}" if inner is not None else "")


EVERY_PAIR = pytest.mark.parametrize(("server", "local"), PAIRS, ids=name)


@EVERY_PAIR
def test_serial_and_batched_give_the_same_events_and_models(server: Any, local: Local) -> None:
    serial, batched = (
        run(NOISY, server, local, UNEVEN, SHORT, executor=executor) for executor in ("serial", "batched")
    )
    assert seen(serial.events) == seen(batched.events)
    torch.testing.assert_close(serial.model, batched.model, rtol=1e-4, atol=1e-5)


@EVERY_EXECUTOR
@pytest.mark.parametrize(("server", "local"), PAIRS[-12:] + PAIRS[::9], ids=name)
def test_saved_and_resumed_at_any_event_it_ends_bit_for_bit_the_same(server: Any, local: Local, executor: str) -> None:
    whole, first = (_running(server, local, executor) for _ in range(2))
    whole.run()
    for _ in zip(range(random.Random(name(server)).randrange(1, whole.world.events)), first.steps(), strict=False):
        pass
    second = _running(server, local, executor, world=through_text(first.world))
    second.run()
    assert same_world(second.world, whole.world)


def _running(server: Any, local: Local, executor: str, **options: Any) -> Any:
    return prepare(NOISY, Algorithm(server, local), ROUGH, SHORT, executor=executor, **options)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(workers=1) as pool:
        yield pool


@pytest.mark.parametrize(("server", "local"), PAIRS[::17], ids=name)
def test_processes_give_what_serial_gives_bit_for_bit(server: Any, local: Local, pool: Pool) -> None:
    serial, spread = (run(NOISY, server, local, ROUGH, Until(updates=30), executor=e) for e in ("serial", pool))
    assert seen(serial.events) == seen(spread.events)
    assert torch.equal(serial.model, spread.model)


@pytest.mark.parametrize(
    "server",
    [
        FedAST(requests=9, ratio=1.5, lr=1.0, server=FedAdam(lr=0.05)),
        FedAST(requests=9, aggregate=AREA(size=3, server=FedAvgM(0.5))),
        SyncST(sampled=8, server=FedYogi(lr=0.05)),
    ],
    ids=["fedast", "area", "sync"],
)
def test_so_do_several_tasks_each_with_a_memory_of_its_own(server: Any) -> None:
    algorithm, tasks = Algorithm(server, Adam(0.05)), [NOISY, replace(NOISY, seed=7)]
    logs, models = [], []
    for executor in ("serial", "batched"):
        log = History(keep_events=True)
        running = prepare(tasks, algorithm, UNEVEN, SHORT, executor=executor, watchers=[log])
        running.run()
        logs.append(seen(log.events))
        states = running.server.models(running.world.server)
        models.append(torch.stack([model.vector for model in states]))
        assert all(model.memory for model in states)
    assert logs[0] == logs[1]
    torch.testing.assert_close(*models, rtol=1e-4, atol=1e-5)
