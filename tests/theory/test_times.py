"""Closed forms of shares, staleness and round times against the simulator and against quadrature."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad

from offbeat.algorithms import FedAST, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.experiment.run import run
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.theory import times
from offbeat.timing import Constant, Exponential, LogNormal, Times

rates = st.lists(st.floats(0.05, 20.0), min_size=2, max_size=7)
UNEVEN = (0.5, 1.0, 2.0, 4.0, 8.0)


def arrivals(server: Any, timing: Any, clients: int, updates: int = 4000) -> Any:
    algorithm = Algorithm(server, SGD(lr=0.001))
    return run(Quadratic(clients, dim=1), algorithm, timing, Until(updates=updates), keep_events=True)


@pytest.mark.parametrize("concurrency", [None, 1, 2, 4])
def test_shares_staleness_and_times_of_fedbuff(concurrency: int | None) -> None:
    """Five clients whose rates differ 16 times, K = 3, 4,000 arrivals."""
    result = arrivals(FedBuff(size=3, concurrency=concurrency), Times(Exponential(UNEVEN)), 5)
    rows = [row for row in result.events if row.event == "Arrived"]
    shares = np.bincount([row.client for row in rows], minlength=5) / len(rows)
    assert shares == pytest.approx(times.shares(UNEVEN, concurrency), abs=0.03)
    late = np.mean([row.staleness for row in rows[100:]])
    assert late == pytest.approx(times.staleness(concurrency or 5, 3), rel=0.05, abs=1e-9)
    assert result.world.now / len(rows) * 3 == pytest.approx(times.buffer_time(UNEVEN, 3, concurrency), rel=0.08)


def test_each_clients_own_staleness() -> None:
    result = arrivals(FedBuff(size=2), Times(Exponential(UNEVEN)), 5, 6000)
    expected = [(sum(UNEVEN) - rate) / (rate * 2) for rate in UNEVEN]  # (Σλ − λ_i)/(λ_i·K)
    for client in (2, 3, 4):  # the others report too rarely for a mean
        own = [r.staleness for r in result.events if r.event == "Arrived" and r.client == client]
        assert np.mean(own) == pytest.approx(expected[client], rel=0.1)


@pytest.mark.parametrize("law", [Constant(1.0), LogNormal(sigma=1.0, mean=1.0)])
def test_mean_staleness_does_not_depend_on_the_law_of_times(law: Any) -> None:
    result = arrivals(FedBuff(size=4, concurrency=6), Times(law), 10)
    late = [row.staleness for row in result.events if row.event == "Arrived"][200:]
    assert np.mean(late) == pytest.approx(times.staleness(6, 4), rel=0.05)


def test_fedasts_time_and_staleness_where_nobody_queues() -> None:
    """FedAST, §4: b/(Rλ), "assuming there is no queue on the clients": 12 requests among 2,000 clients."""
    result = arrivals(FedAST(requests=12, size=4, lr=0.1), Times(Exponential(3.0)), 2000, 3000)
    late = [row.staleness for row in result.events if row.event == "Arrived"][200:]
    assert np.mean(late) == pytest.approx(times.staleness(12, 4), rel=0.05)
    assert result.world.now / 3000 * 4 == pytest.approx(4 / (12 * 3.0), rel=0.06)


@given(rates, st.data())
def test_shares_against_the_stationary_law_of_busy_sets(each: list[float], data: Any) -> None:
    """π(S) ∝ Π 1/λ_i: summed over all sets, and checked to balance in detail."""
    C = data.draw(st.integers(1, len(each)))
    sets = list(combinations(range(len(each)), C))
    weight = np.array([math.prod(1 / each[i] for i in s) for s in sets])
    weight /= weight.sum()
    flow = np.zeros(len(each))
    for s, w in zip(sets, weight, strict=True):
        for i in s:
            flow[i] += w * each[i]
    assert times.shares(each, C) == pytest.approx(list(flow / flow.sum()), rel=1e-6)
    assert times.arrival_rate(each, C) == pytest.approx(flow.sum(), rel=1e-6)


@given(rates)
def test_sampling_is_uniform_for_one_and_client_driven_for_all(each: list[float]) -> None:
    assert times.shares(each, 1) == pytest.approx([1 / len(each)] * len(each))
    assert times.shares(each, len(each)) == pytest.approx(times.shares(each))
    assert times.arrival_rate(each, len(each)) == pytest.approx(sum(each))


@given(rates)
@settings(max_examples=20, deadline=None)
def test_the_slowest_of_unequal_clients(each: list[float]) -> None:
    expected, _ = quad(lambda t: 1 - math.prod(-math.expm1(-rate * t) for rate in each), 0, 60 / min(each), limit=500)
    assert times.slowest_time(each, 4000) == pytest.approx(expected, rel=1e-3)


def test_synchronous_rounds_are_harmonic_sums() -> None:
    """FedAST, §4: (1/λ) Σ 1/k; first-k of s by order statistics of 20,000 draws."""
    assert times.synchronous_time(2.0, 4) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 2)
    assert times.synchronous_time(2.0, 4) == pytest.approx(times.slowest_time([2.0] * 4), rel=1e-6)
    draws = np.sort(np.random.default_rng(0).exponential(0.5, (20_000, 10)), axis=1)
    assert times.synchronous_time(2.0, 10, 7) == pytest.approx(draws[:, 6].mean(), rel=0.02)


def test_the_worst_staleness_is_rarely_exceeded() -> None:
    """40 runs of 400 arrivals: at most 1 of them above a bound that should fail in 1 of 100."""
    bound = times.worst_staleness(UNEVEN, 2, 400, 0.01)
    worst = [
        max(row.staleness for row in run(
            Quadratic(5, dim=1), Algorithm(FedBuff(size=2), SGD(lr=0.001)), Times(Exponential(UNEVEN)),
            Until(updates=400), keep_events=True, seed=seed,
        ).events)
        for seed in range(40)
    ]  # fmt: skip
    assert sum(w > bound for w in worst) <= 1
    assert times.worst_staleness(UNEVEN, 2, 400, 0.01, concurrency=1) == 0.0


def test_area_counts_server_steps_between_messages() -> None:
    assert times.area_staleness([1.0, 4.0], 8.0) == [8.0, 2.0]


@pytest.mark.parametrize("wrong", [([], None), ([1.0, 0.0], None), ([1.0], 2), ([1.0], 0)])
def test_bad_rates_are_refused(wrong: Any) -> None:
    with pytest.raises(SettingError):
        times.shares(*wrong)
