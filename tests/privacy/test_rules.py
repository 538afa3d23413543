"""Robust rules: each equals a slow form of its definition, and a bad minority cannot lead it away."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from offbeat.core.errors import SettingError
from offbeat.privacy.rules import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    Rule,
    TrimmedMean,
)

RULES: dict[str, Rule] = {
    "median": Median(),
    "trimmed-mean": TrimmedMean(0.25),
    "krum": Krum(0.25),
    "multi-krum": MultiKrum(0.25),
    "geometric-median": GeometricMedian(),
    "centered-clipping": CenteredClipping(1.0),
    "norm-bound": NormBound(3.0),
}


def rows(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_medians_and_trimmed_means_sort_every_coordinate(n: int) -> None:
    given = rows(n, 5, n)
    columns = [sorted(column) for column in given.T.tolist()]
    cut = min(-(-n // 4), (n - 1) // 2)
    kept = [column[cut : n - cut] for column in columns]
    trimmed = [sum(column) / len(column) for column in kept]
    middle = [(column[(n - 1) // 2] + column[n // 2]) / 2 for column in columns]
    assert torch.allclose(TrimmedMean(0.25)(given), torch.tensor(trimmed, dtype=torch.float64))
    assert torch.allclose(Median()(given), torch.tensor(middle, dtype=torch.float64))


@pytest.mark.parametrize("n", [5, 8, 11])
def test_krum_takes_the_row_with_the_nearest_neighbours(n: int) -> None:
    given, bad = rows(n, 4, n), -(-n // 4)
    beside = n - min(bad, (n - 3) // 2) - 2

    def score(at: int) -> float:
        others = [given[k] for k in range(n) if k != at]
        near = [sum(float((given[at] - o).square().sum()) for o in some) for some in combinations(others, beside)]
        return min(near)

    order = sorted(range(n), key=score)
    assert torch.equal(Krum(0.25)(given), given[order[0]])
    assert torch.allclose(MultiKrum(0.25)(given), given[order[: n - bad]].mean(dim=0))


@pytest.mark.parametrize("rule", [Krum(0.4), MultiKrum(0.4)])
def test_two_equal_bad_rows_of_five_do_not_vouch_for_each_other(rule: Rule) -> None:
    given = torch.cat([torch.full((2, 4), 1e6, dtype=torch.float64), rows(3, 4, 0)])
    assert float(torch.linalg.vector_norm(rule(given))) < 5.0


def test_the_geometric_median_has_the_smallest_sum_of_distances() -> None:
    given = rows(9, 3, 0)

    def total(point: torch.Tensor) -> float:
        return float(torch.linalg.vector_norm(given - point, dim=1).sum())

    best = GeometricMedian(iterations=500)(given)
    nearby = rows(200, 3, 1) * 0.01
    assert all(total(best) <= total(best + step) + 1e-9 for step in nearby)


def test_the_geometric_median_of_rows_on_one_point_is_that_point() -> None:
    given = torch.tensor([[1.0, 2.0]] * 4 + [[100.0, 100.0]])
    assert torch.allclose(GeometricMedian()(given), given[0])


def test_the_geometric_median_leaves_a_row_that_the_median_of_coordinates_is() -> None:
    corners = torch.tensor([[0.0, 0.0], [-1.0, 5.0], [5.0, -1.0]], dtype=torch.float64)
    sums = [
        float(torch.linalg.vector_norm(corners - at, dim=1).sum()) for at in (corners[0], GeometricMedian()(corners))
    ]
    assert sums[1] < sums[0] - 0.01


def test_rows_too_far_apart_for_a_number_are_no_error() -> None:
    given = torch.tensor([[1.0, 2.0], [3e38, 3e38]])
    assert torch.isfinite(GeometricMedian()(given)).all()


@pytest.mark.parametrize("name", [name for name in RULES if name != "norm-bound"])
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e1, 1e4, 1e8]), n=st.sampled_from([8, 12, 20]))
@settings(max_examples=40, deadline=None)
def test_a_quarter_of_bad_rows_cannot_lead_it_away(name: str, seed: int, size: float, n: int) -> None:
    """However far they are, the result stays within a few spreads of the honest rows; the mean does not."""
    given, bad = rows(n, 6, seed), n // 4
    given[:bad] = size * (1.0 + rows(bad, 6, seed + 1).abs())
    honest = given[bad:]
    reach = float(torch.linalg.vector_norm(honest, dim=1).max())
    assert float(torch.linalg.vector_norm(RULES[name](given))) <= 3 * reach
    assert size < 100 or float(torch.linalg.vector_norm(given.mean(dim=0))) > 3 * reach


@given(seed=st.integers(0, 10**6), size=st.floats(0, 1e12))
@settings(max_examples=40, deadline=None)
def test_a_norm_bound_limits_what_a_row_can_do(seed: int, size: float) -> None:
    given = rows(5, 6, seed)
    honest = NormBound(3.0)(torch.cat([torch.zeros(1, 6, dtype=torch.float64), given[1:]]))
    given[0] *= size
    assert float(torch.linalg.vector_norm(NormBound(3.0)(given) - honest)) <= 3.0 / 5 + 1e-9


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_the_order_of_the_rows_does_not_matter(rule: Callable[[Any], Any]) -> None:
    given = rows(8, 5, 3)
    assert torch.allclose(rule(given), rule(given.flip(0)))


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows_are_no_error(rule: Callable[[Any], Any], n: int) -> None:
    assert torch.isfinite(rule(rows(n, 5, 3))).all()


@pytest.mark.parametrize("share", [0.5, 0.0, -0.1, float("nan")])
def test_a_share_that_is_no_minority_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match="no rule survives a bad half"):
        TrimmedMean(share)
