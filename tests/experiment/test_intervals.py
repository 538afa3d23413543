"""Means over seeds with their intervals."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from offbeat.experiment.intervals import difference, estimate


def test_the_interval_of_five_numbers_is_that_of_a_table_of_students_t() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, rel=1e-3)


def test_nineteen_in_twenty_intervals_hold_the_mean() -> None:
    rng = np.random.default_rng(0)
    held = [abs(e.mean) <= e.half for e in (estimate(list(rng.normal(size=5))) for _ in range(2000))]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_one_seed_decides_nothing() -> None:
    assert estimate([7.0]).half == inf
    assert estimate([7.0]).sign == 0
    assert estimate([7.0]).text(1) == "7.0"


def test_a_run_that_diverged_leaves_no_interval() -> None:
    assert estimate([1.0, inf]).half == inf
    assert estimate([1.0, inf]).text(2) == "inf"


def test_what_a_seed_does_to_both_falls_out_of_a_difference() -> None:
    apart, paired = estimate([1.0, 11.0, 21.0]), difference([1.0, 11.0, 21.0], [2.0, 12.1, 22.0])
    assert apart.sign == 0
    assert paired.sign == -1
    assert paired.text(2, sign="+") == "-1.03 ± 0.14"
