"""Times under fixed speeds: Ringmaster (ICML 2025), Rennala and the lower bound (NeurIPS 2023)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from worlds import Line, Scripted, run

from offbeat.algorithms import Rennala, Ringmaster
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import Gradient
from offbeat.theory import ringmaster
from offbeat.theory.ringmaster import FixedTimes
from studies.theory import speeds

several = st.lists(st.floats(0.1, 50.0), min_size=1, max_size=8)
PROBLEM = FixedTimes(smoothness=2.0, sigma=3.0, gap=5.0)


def test_the_threshold_is_the_noise_over_the_target_rounded_up_and_at_least_one() -> None:
    assert [ringmaster.threshold(PROBLEM, e) for e in (0.9, 1.0, 2.0, 9.0, 100.0)] == [10, 9, 5, 1, 1]
    assert ringmaster.threshold(FixedTimes(1.0, sigma=0.0), 0.1) == 1


def test_the_formulas_by_hand() -> None:
    """L = 2, σ² = 9, Δ = 5, ε = 1: R = S = 9."""
    assert ringmaster.ringmaster_step(PROBLEM, 1.0) == min(1 / 36, 1 / 72)
    assert ringmaster.ringmaster_steps(PROBLEM, 1.0) == 8 * 9 * 10 + 16 * 9 * 10
    assert ringmaster.rennala_step(PROBLEM, 1.0) == min(1 / 2, 9 / 36)
    assert ringmaster.rennala_steps(PROBLEM, 1.0) == 240
    # H_1 = 1, H_2 = 2/(1 + ½) = 4/3, H_3 = 3/(1 + ½ + 1/10)
    assert ringmaster.fastest([10.0, 1.0, 2.0], 9) == (pytest.approx(11 / 1.5), 2)
    assert ringmaster.optimal_order(PROBLEM, [10.0, 1.0, 2.0], 1.0) == pytest.approx(10 * 11 / 1.5)
    assert ringmaster.asynchronous_order(PROBLEM, [10.0, 1.0, 2.0], 1.0) == pytest.approx(10 * 12 / 1.6)
    assert ringmaster.unlike_order(PROBLEM, [10.0, 1.0, 2.0], 1.0) == pytest.approx(10 * (10 + 13 / 9 * 9))


@given(st.floats(0.1, 10.0), st.floats(0.0, 30.0), st.floats(0.1, 10.0), st.floats(0.01, 10.0))
def test_step_sizes_and_numbers_of_steps_bring_the_usual_bounds_below_the_target(
    smoothness: float, sigma: float, gap: float, epsilon: float
) -> None:
    """2Δ/(γK) + 2γLσ² for delays below R, and 2Δ/(γK) + γLσ²/S for batches of S."""
    problem, most = FixedTimes(smoothness, sigma, gap), epsilon * (1 + 1e-9)
    step, steps = ringmaster.ringmaster_step(problem, epsilon), ringmaster.ringmaster_steps(problem, epsilon)
    assert step <= 1 / (2 * ringmaster.threshold(problem, epsilon) * smoothness)
    assert 2 * gap / (step * steps) + 2 * step * smoothness * sigma**2 <= most
    step, steps = ringmaster.rennala_step(problem, epsilon), ringmaster.rennala_steps(problem, epsilon)
    assert step <= 1 / smoothness
    assert 2 * gap / (step * steps) + step * smoothness * sigma**2 / ringmaster.threshold(problem, epsilon) <= most


@given(several, st.floats(0.0, 30.0), st.floats(0.01, 10.0))
def test_asynchronous_sgd_is_never_better_than_the_lower_bound_and_equal_speeds_make_them_equal(
    times: list[float], sigma: float, epsilon: float
) -> None:
    problem = FixedTimes(1.0, sigma)
    best, plain = (f(problem, times, epsilon) for f in (ringmaster.optimal_order, ringmaster.asynchronous_order))
    assert best <= plain * (1 + 1e-9)
    assert plain <= ringmaster.unlike_order(problem, times, epsilon) * (1 + 1e-9)
    same = [times[0]] * len(times)
    assert ringmaster.optimal_order(problem, same, epsilon) == pytest.approx(
        ringmaster.asynchronous_order(problem, same, epsilon)
    )


def test_a_client_that_never_answers_costs_the_lower_bound_nothing_and_asynchronous_sgd_does_not_profit() -> None:
    problem, four = FixedTimes(1.0, 1.0), [1.0] * 4
    assert ringmaster.optimal_order(problem, [*four, 1e9], 1.0) == pytest.approx(
        ringmaster.optimal_order(problem, four, 1.0)
    )
    slow = [ringmaster.asynchronous_order(problem, [*four, *[1e9] * many], 1.0) for many in (0, 10, 100)]
    assert slow == pytest.approx([5 / 4, 15 / 4, 105 / 4])


@settings(max_examples=60, deadline=None)
@given(several, st.integers(1, 12), st.booleans())
def test_no_r_steps_of_ringmaster_and_no_batch_of_rennala_take_longer_than_the_theory_says(
    times: list[float], count: int, stop: bool
) -> None:
    clock, line = Scripted([[time] for time in times]), Line([1.0] * len(times))
    limit = ringmaster.window_time(times, count) * (1 + 1e-9)
    for server in (Ringmaster(threshold=count, lr=0.1, stop=stop), Rennala(size=count, lr=0.1, stop=stop)):
        steps = _step_times(run(line, server, Gradient(), clock, Until(updates=200)).events)
        if isinstance(server, Ringmaster):
            assert all(later - before <= limit for before, later in zip(steps, steps[count:], strict=False))
        else:
            assert all(later - before <= limit for before, later in pairwise(steps))


def _step_times(rows: Any) -> list[float]:
    """When the server has stepped, and the beginning."""
    found, version = [0.0], 0
    for row in rows:
        if row.event == "Arrived" and row.version > version:
            found.append(row.time)
            version = row.version
    return found


def test_more_noise_or_a_smaller_target_never_takes_less_time() -> None:
    times = [1.0, 2.0, 50.0]
    found = [ringmaster.ringmaster_time(FixedTimes(1.0, sigma), times, 0.5) for sigma in (0.0, 1.0, 2.0, 4.0)]
    assert found == sorted(found)
    assert ringmaster.rennala_time(PROBLEM, times, 0.5) > ringmaster.rennala_time(PROBLEM, times, 1.0)


def test_no_clients_and_no_target_are_refused() -> None:
    with pytest.raises(SettingError, match="times is empty"):
        ringmaster.fastest([], 1)
    with pytest.raises(SettingError, match="epsilon"):
        ringmaster.threshold(PROBLEM, 0.0)
    assert math.isfinite(ringmaster.ringmaster_time(FixedTimes(1.0, 0.0), [1.0], 1.0))


@pytest.mark.slow
def test_measured_times_grow_as_the_theory_says_when_speeds_spread() -> None:
    """Slopes of log(measured) against log(order): 1 for Ringmaster and Rennala, and for asynchronous SGD its own."""
    spreads = (0.0, 1.0, 2.0)
    best, plain = (
        [order(speeds.PROBLEM, speeds.times(a), speeds.EPSILON) for a in spreads]
        for order in (ringmaster.optimal_order, ringmaster.asynchronous_order)
    )
    found = {
        name: [[speeds.time_to(made(1.0), a, seed) for a in spreads] for seed in range(2)]
        for name, made in speeds.METHODS.items()
    }
    assert speeds.slope(best, found["ringmaster"])[0] == pytest.approx(1.0, abs=0.15)
    assert speeds.slope(best, found["rennala"])[0] == pytest.approx(1.0, abs=0.15)
    assert speeds.slope(plain, found["asynchronous SGD"])[0] == pytest.approx(1.0, abs=0.15)
    assert speeds.slope(best, found["asynchronous SGD"])[0] > 1.5
