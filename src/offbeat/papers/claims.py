"""Claims: comparisons of cells, written as data.

A term is a number, the name of a cell, or one of
    { minus = [a, b] }   { over = [a, b] }   { gain = [a, b] }: 1 − a/b   { max = […] }   { min = […] }   { mean = […] }
A claim is one of
    less = [[a, b], …], factor = 1     a < factor · b, for every pair
    ratio = [[a, b], …], at_least = 1  a / b ≥ at_least
    near = [[a, b], …], within = w     |a − b| ≤ w
    order = [a, b, c, …]               a < b < c < …
A mean over seeds is an interval, `Cell.interval`, and one that a run did not reach has no end. A claim is `held` if it
holds wherever in their intervals the numbers lie, `not held` if it holds nowhere there, and otherwise `undecided`.
The intervals hold for 95 % of samples each; that two of them are apart is a stricter test than one of the difference,
and it needs no more than the lowest, the highest and the mean number, which every record has. `judge_means` says what
the means of these seeds show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isnan
from statistics import fmean
from typing import Any

from offbeat.core.errors import SettingError, unknown
from offbeat.papers.cells import Cell
from offbeat.papers.entry import Claim
from offbeat.report.comparison import NOT_CHECKED

Interval = tuple[float, float]

TERMS = ("minus", "over", "gain", "max", "min", "mean")

_JOINS: Mapping[str, Callable[[list[float]], float]] = {"max": max, "min": min, "mean": fmean}


class MissingCellError(Exception):
    """A cell that was not run."""


def _of_seeds(cell: Cell) -> Interval:
    return cell.interval


def _of_these(cell: Cell) -> Interval:
    return cell.bounds


def term(value: Any, cells: Mapping[str, Cell], of: Callable[[Cell], Interval] = _of_these) -> Interval:
    """The interval a term lies in.   of: the interval of a cell, by default of its mean over these seeds."""
    if isinstance(value, int | float):
        return float(value), float(value)
    if isinstance(value, str):
        if value not in cells:
            raise unknown("cell in a claim:", value, cells)
        if cells[value].mean is None:
            raise MissingCellError(value)
        return of(cells[value])
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in TERMS:
        raise SettingError(f"{value!r} is no term: write a number, a cell, or one of {', '.join(TERMS)}")
    kind, parts = next(iter(value.items()))
    found = [term(part, cells, of) for part in parts]
    if kind in _JOINS:
        join = _JOINS[kind]
        return join([low for low, _ in found]), join([high for _, high in found])
    if len(found) != 2:
        raise SettingError(f"{kind} takes two terms: {parts}")
    (a_low, a_high), (b_low, b_high) = found
    if kind == "minus":
        return a_low - b_high, a_high - b_low
    ratio = _divided(a_low, b_high), _divided(a_high, b_low)
    return ratio if kind == "over" else (1.0 - ratio[1], 1.0 - ratio[0])


def _divided(a: float, b: float) -> float:
    """a / b of non-negative numbers."""
    if a == b == inf:
        return inf
    if b == 0:
        return inf if a > 0 else 1.0
    return 0.0 if b == inf else a / b


def judge(claim: Claim, cells: Mapping[str, Cell]) -> tuple[str, list[tuple[Interval, Interval]]]:
    """`held`, `not held`, `undecided` or `not checked`, and the numbers that were compared."""
    return _judge(claim, cells, _of_seeds)


def judge_means(claim: Claim, cells: Mapping[str, Cell]) -> str:
    """The state if the means of these seeds were exact."""
    return _judge(claim, cells, _of_these)[0]


def _judge(
    claim: Claim, cells: Mapping[str, Cell], of: Callable[[Cell], Interval]
) -> tuple[str, list[tuple[Interval, Interval]]]:
    try:
        compared = [(term(a, cells, of), term(b, cells, of)) for a, b in claim.pairs]
    except MissingCellError:
        return NOT_CHECKED, []
    states = [_compare(claim, a, b) for a, b in compared]
    return next((state for state in ("not held", "undecided") if state in states), "held"), compared


def _compare(claim: Claim, a: Interval, b: Interval) -> str:
    """The state of one pair."""
    if claim.ratio:
        low, high, least = _divided(a[0], b[1]), _divided(a[1], b[0]), claim.bound
        return _state(low >= least, high < least)
    if claim.near:
        far = max(abs(a[1] - b[0]), abs(b[1] - a[0]))
        near = max(0.0, a[0] - b[1], b[0] - a[1])
        return _state(not isnan(far) and far <= claim.bound, near > claim.bound)
    return _state(a[1] < claim.bound * b[0], a[0] >= claim.bound * b[1])


def _state(surely: bool, surely_not: bool) -> str:
    return "held" if surely else "not held" if surely_not else "undecided"
