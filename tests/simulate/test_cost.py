"""What an update costs does not depend on how many clients there are, nor on how long the run has been going on."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from offbeat.algorithms import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.problem import Problem
from offbeat.core.until import Until
from offbeat.data.base import Dataset
from offbeat.local import SGD
from offbeat.models.linear import Softmax
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

UPDATES = 6_000


def quadratic(clients: int) -> Problem:
    return Quadratic(clients, dim=10, noise=0.1)


def softmax(clients: int) -> Problem:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (20_000, 64), generator=g, dtype=torch.uint8), torch.randint(10, (20_000,), generator=g)
    data = Dataset.pairs("made", x, y, x[:100], y[:100], classes=10, scale=1 / 255)
    return Supervised(data, Softmax((64,), 10), np.array_split(np.arange(20_000), clients))


def begun(problem: Problem) -> Simulation:
    algorithm = Algorithm(FedBuff(size=10, concurrency=100), SGD(lr=0.01, batch=16))
    until = Until(updates=1 << 40)
    return prepare(problem, algorithm, Times(Exponential(1.0)), until, executor="batched")


def seconds(run: Simulation, updates: int) -> float:
    """CPU time of so many more updates."""
    began, last = time.process_time(), run.world.tally.updates + updates
    while run.world.tally.updates < last:
        run.advance(50)
    return time.process_time() - began


@pytest.mark.slow
@pytest.mark.parametrize("problem", [quadratic, softmax])
def test_ten_thousand_clients_cost_what_a_hundred_do(problem: Callable[[int], Problem]) -> None:
    runs = [begun(problem(clients)) for clients in (128, 10_000)]
    for run in runs:
        seconds(run, 500)
    turns = [[seconds(run, UPDATES // 3) for run in runs] for _ in range(3)]
    few, many = (min(turn[at] for turn in turns) for at in (0, 1))
    print(
        f"\n{problem.__name__}: {few / UPDATES * 3e6:.1f} µs an update with 128 clients, × {many / few:.2f} with 10,000"
    )
    assert many < 1.5 * few


@pytest.mark.slow
@pytest.mark.parametrize("problem", [quadratic, softmax])
def test_late_updates_cost_what_early_ones_do(problem: Callable[[int], Problem]) -> None:
    run = begun(problem(128))
    seconds(run, 500)
    parts = [seconds(run, UPDATES // 3) for _ in range(12)]
    early, late = min(parts[:4]), min(parts[-4:])
    print(f"\n{problem.__name__}: × {late / early:.2f} after {4 * UPDATES:,} updates")
    assert late < 1.3 * early
