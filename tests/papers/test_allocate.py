"""Who gets how many requests: FedAST, algorithm 4 (EstimateVariances), equations (3), (6) and (7)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st

from offbeat.algorithms.allocate import divide, divide_in, spread, variance
from offbeat.core.errors import SettingError


def updates(*rows: Sequence[float]) -> list[torch.Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


# Algorithm 4


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1.0], [3.0]], 1 / 4),  # mean 2, both 1 away
        ([[3.0, 4.0], [-3.0, 4.0]], 9 / 16),  # mean (0, 4), both 3 away
        ([[1.0], [2.0], [3.0], [6.0]], 14 / 4 / 9),  # mean 3; 4 + 1 + 0 + 9 over four
        ([[5.0, 5.0]] * 3, 0.0),
    ],
)
def test_the_normalised_variance_by_hand(rows: list[list[float]], expected: float) -> None:
    """Line 2: "(1/V) Σ ‖Δ_i − mean‖² / ‖mean‖²"; the mean divides by V, not by V − 1."""
    assert variance(updates(*rows)) == pytest.approx(expected, abs=1e-12)


def test_the_length_of_the_updates_does_not_matter() -> None:
    """Footnote 3: "we normalize by ‖mean‖² to account for different model sizes"."""
    rows = [[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]
    assert variance([1e3 * u for u in updates(*rows)]) == pytest.approx(variance(updates(*rows)))


def test_updates_that_cancel_have_no_finite_variance_and_then_count_as_the_largest_there_is() -> None:
    assert variance(updates([1.0], [-1.0])) == math.inf
    assert divide(14, {0: 1.0, 1: 2.0, 2: math.inf, 3: math.nan}) == {0: 2, 1: 4, 2: 4, 3: 4}


def test_what_is_left_out_of_a_vector_does_not_count_in_its_spread() -> None:
    """The authors' code skips biases: here the second and the last number."""
    rows = updates([1.0, 100.0, 0.0, 5.0], [3.0, -50.0, 0.0, 7.0])
    assert float(spread(rows, [(1, 2), (3, 4)])) == pytest.approx(1 / 4)
    assert float(spread(rows, [])) == pytest.approx(variance(rows))


def test_requests_are_divided_in_packets_by_hand() -> None:
    """The authors' code: a packet for each task, then one after the other to the task that lacks the most."""
    assert divide_in(16, {0: 0.3125, 1: 0.0512}, 4) == {0: 12, 1: 4}  # 13 and 2 would be right; 9 and −2 after one each
    assert divide_in(384, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, 32) == {0: 96, 1: 96, 2: 96, 3: 96}
    assert divide_in(384, {0: 0.0, 2: math.inf}, 32) == {0: 32, 2: 352}
    assert divide_in(10, {0: 1.0, 1: 1.0}, 4) == {0: 6, 1: 4}  # what is left of a packet
    with pytest.raises(SettingError, match="10 requests for 3 tasks: each needs at least 4"):
        divide_in(10, {0: 1.0, 1: 1.0, 2: 1.0}, 4)


# Equation (3)


def test_ten_times_the_variance_is_the_square_root_of_ten_times_the_requests() -> None:
    parts = divide(10_000, {0: math.sqrt(0.3), 1: math.sqrt(3.0)})
    assert parts[1] / parts[0] == pytest.approx(math.sqrt(10), rel=1e-3)


def test_equal_tasks_get_equal_parts_and_a_rest_goes_to_the_first() -> None:
    assert divide(150, {0: 0.7, 1: 0.7}) == {0: 75, 1: 75}
    assert divide(11, {0: 1.0, 1: 1.0, 2: 1.0}) == {0: 4, 1: 4, 2: 3}


def test_the_largest_remainders_are_rounded_up() -> None:
    assert divide(10, {0: 5.0, 1: 8.0}) == {0: 4, 1: 6}  # 3.85 and 6.15
    assert divide(100, {0: 1.0, 1: 2.0, 2: 4.0}) == {0: 14, 1: 29, 2: 57}  # 14.29, 28.57, 57.14


def test_a_task_with_next_to_no_variance_keeps_one_request() -> None:
    assert divide(30, {0: 1e-9, 1: 1.0, 2: 0.0}) == {0: 1, 1: 28, 2: 1}


def test_without_any_variance_all_get_the_same() -> None:
    assert divide(9, {0: 0.0, 1: 0.0, 2: 0.0}) == {0: 3, 1: 3, 2: 3}


def test_fewer_requests_than_tasks_are_refused() -> None:
    with pytest.raises(SettingError, match="2 requests for 3 tasks"):
        divide(2, {0: 1.0, 1: 1.0, 2: 1.0})


@given(
    weights=st.lists(st.floats(min_value=0.0) | st.just(math.nan), min_size=1, max_size=6),
    spare=st.integers(0, 2000),
)
def test_the_parts_add_up_and_none_is_below_one(weights: list[float], spare: int) -> None:
    """ "Σ R_i^{(t+1)} = Σ R_i^{(t)}", whatever was measured."""
    total = len(weights) + spare
    parts = divide(total, dict(enumerate(weights)))
    assert sum(parts.values()) == total
    assert min(parts.values()) >= 1


@given(weights=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6), total=st.integers(600, 2000))
def test_no_part_is_a_whole_request_off_its_share(weights: list[float], total: int) -> None:
    for m, part in divide(total, dict(enumerate(weights))).items():
        assert abs(part - total * weights[m] / sum(weights)) < 1.0


# Equations (6) and (7)


def bound(parts: Sequence[int], terms: Sequence[float]) -> float:
    """Σ η_s η_c τ σ² / R_m, where terms are the η_s η_c τ σ²."""
    return sum(term / part for term, part in zip(terms, parts, strict=True))


@pytest.mark.parametrize("terms", [(1.0, 10.0), (0.3, 0.2, 4.0), (1.0, 1.0, 1.0), (5.0, 0.02, 1.0)])
def test_the_parts_minimise_the_bound(terms: tuple[float, ...]) -> None:
    """(6): "min Σ η_s η_c τ σ²_m / R_m s.t. Σ R_m = R", against every division into whole numbers."""
    total = 40
    every = (p for p in itertools.product(range(1, total), repeat=len(terms)) if sum(p) == total)
    best = min(every, key=lambda parts: bound(parts, terms))
    found = divide(total, {m: math.sqrt(term) for m, term in enumerate(terms)})
    assert all(abs(part - optimum) <= 1 for part, optimum in zip(found.values(), best, strict=True))
    assert bound(list(found.values()), terms) <= 1.01 * bound(best, terms)
