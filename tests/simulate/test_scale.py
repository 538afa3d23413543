"""Cost and memory do not grow with the number of clients on the roster."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest

from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of the process from /proc")


@dataclass(frozen=True)
class Figures:
    """What a run took."""

    growth: float  # of Python's objects at most in use, from the first quarter to the last, bytes
    resident: float  # growth of the process over the same time, tensors included, bytes
    per_event: float  # seconds, over the last three quarters


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure(clients: int, concurrency: int, updates: int, traced: bool) -> Figures:
    """A run with `concurrency` clients at work, followed quarter by quarter."""
    algorithm = Algorithm(FedBuff(size=10, concurrency=concurrency), SGD(lr=0.01))
    simulation = prepare(Quadratic(clients, dim=10), algorithm, Times(Exponential(1.0)), Until(updates=updates))
    steps, peaks, sizes, seconds = simulation.steps(), [0], [0], [0.0]
    if traced:
        tracemalloc.start()
    for quarter in range(1, 5):
        began = time.process_time()
        for world in steps:
            if world.tally.updates >= quarter * updates // 4:
                break
        seconds.append(time.process_time() - began)
        peaks.append(tracemalloc.get_traced_memory()[1])
        sizes.append(resident())
        if traced:
            tracemalloc.reset_peak()
    tracemalloc.stop()
    figures = Figures(peaks[4] - peaks[1], sizes[4] - sizes[1], sum(seconds[2:]) / (0.75 * updates))
    print(f"\n{clients} clients, {concurrency} at work, {updates} updates: {figures}")
    return figures


def check(updates: int, traced: int) -> None:
    memory = measure(100_000, 1_000, traced, traced=True)
    # 24 bytes for each client that works for the first time: the number that says when it is free
    assert memory.growth < 24 * min(traced, 100_000) * 1.2
    assert memory.resident < 16e6
    few, many = (
        measure(clients, at_work, updates, traced=False) for clients, at_work in ((1_000, 500), (100_000, 1_000))
    )
    assert many.per_event < 2.0 * few.per_event


@linux
def test_a_hundred_thousand_clients_cost_what_a_thousand_cost() -> None:
    check(updates=16_000, traced=8_000)


@linux
@pytest.mark.slow
def test_two_hundred_thousand_updates_of_a_hundred_thousand_clients_stay_flat() -> None:
    check(updates=200_000, traced=200_000)
