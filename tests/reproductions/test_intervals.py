"""A claim is held or not only if the intervals of the means are apart."""

from __future__ import annotations

import numpy as np
import pytest

from offbeat.papers.cells import Cell, half_width
from offbeat.papers.claims import judge, judge_means
from offbeat.papers.entry import Claim


def of(*values: float) -> Cell:
    return Cell(sum(values) / len(values), min(values), max(values), len(values))


BEFORE = Claim("", less=[("a", "b")])


@pytest.mark.parametrize(
    ("a", "b", "state"),
    [
        ((1.0, 1.1), (1.05, 1.3), "undecided"),  # two seeds whose ranges overlap
        ((1.0, 1.1), (2.0, 2.1), "undecided"),  # apart, but two seeds say little: ± 6.35 times the range
        ((1.0, 1.01), (2.0, 2.01), "held"),
        ((1.0, 1.1, 1.2), (2.0, 2.1, 2.2), "held"),
        ((1.0, 1.1, 1.2), (1.3, 1.4, 1.5), "undecided"),  # 1.1 ± 0.26 and 1.4 ± 0.26
        ((2.0, 2.1, 2.2), (1.0, 1.1, 1.2), "not held"),
        ((1.0,), (9.0,), "undecided"),  # one seed has no spread
    ],
)
def test_a_claim_needs_intervals_that_are_apart(a: tuple[float, ...], b: tuple[float, ...], state: str) -> None:
    assert judge(BEFORE, {"a": of(*a), "b": of(*b)})[0] == state


def test_what_the_means_show_is_kept_beside_it() -> None:
    cells = {"a": of(1.0, 1.1), "b": of(1.05, 1.3)}
    assert (judge(BEFORE, cells)[0], judge_means(BEFORE, cells)) == ("undecided", "held")


def test_a_number_whose_spread_nobody_knows_decides_nothing_and_one_without_seeds_is_exact() -> None:
    """A time on the mean curve of ten runs, from a record that has no more; a number that the paper prints."""
    assert judge(BEFORE, {"a": Cell(1.0, seeds=10), "b": of(8.0, 8.1, 8.2)})[0] == "undecided"
    assert judge(BEFORE, {"a": Cell(1.0), "b": of(8.0, 8.1, 8.2)})[0] == "held"


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 14])
def test_the_interval_of_a_mean_covers_it_in_95_of_100_samples(seeds: int) -> None:
    """Lord's u: for normal numbers, |mean − μ| ≤ u · (max − min) with probability 0.95, or more beyond ten seeds."""
    values = np.random.default_rng(0).normal(size=(200_000, seeds))
    widths = np.array([half_width(seeds, float(spread)) for spread in np.ptp(values, axis=1)[:20_000]])
    covered = float((np.abs(values.mean(1)[:20_000]) <= widths).mean())
    assert covered == pytest.approx(0.95, abs=0.006) if seeds <= 10 else covered > 0.95
