"""Robust rules: a few of many vectors may be anything, and what comes out stays near the others.

Each is a function of rows [n, d] that gives one vector [d]. `share` is always the part of the rows that may be bad; of
n rows that is rounded up, because rounding down would defend small buffers against nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Protocol, runtime_checkable

import torch

from offbeat.core.errors import Checked, Count, Positive, SettingError
from offbeat.core.vectors import Vector, lengths

_TINY = 1e-12


def _minority(**settings: Any) -> None:
    for name, value in settings.items():
        if not (isinstance(value, float | int) and 0 < value < 0.5):
            raise SettingError(f"{name} = {value!r}: must be in (0, 0.5), since no rule survives a bad half")


Minority = Annotated[float, _minority]


@runtime_checkable
class Rule(Protocol):
    """Rows in, one vector out."""

    def __call__(self, rows: Vector, /) -> Vector:
        """What the rows [n, d] come to, [d]."""


@dataclass(frozen=True)
class Median(Checked):
    """The median of every coordinate; of an even number, the mean of the middle two."""

    def __call__(self, rows: Vector, /) -> Vector:
        return _middle(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Checked):
    """The mean of every coordinate without its smallest and its largest values.

    share: part of the rows that is cut off at each end, rounded up; one or two always stay.
    """

    share: Minority = 0.2

    def __call__(self, rows: Vector, /) -> Vector:
        return _middle(rows, _bad(self.share, len(rows)))


@dataclass(frozen=True)
class Krum(Checked):
    """The row that is nearest to the n − f − 2 rows next to it (Blanchard et al. 2017).

    There f is (n − 3)/2 at most, as the paper assumes: with fewer neighbours, two equal bad rows could be enough.

    share: part of the rows that may be bad, f/n.
    """

    share: Minority = 0.2

    def __call__(self, rows: Vector, /) -> Vector:
        return rows[int(_closeness(rows, _bad(self.share, len(rows))).argmin())]


@dataclass(frozen=True)
class MultiKrum(Checked):
    """The mean of the n − f rows with the best Krum scores.

    share: part of the rows that may be bad, f/n.
    """

    share: Minority = 0.2

    def __call__(self, rows: Vector, /) -> Vector:
        bad = _bad(self.share, len(rows))
        best = _closeness(rows, bad).argsort(stable=True)[: len(rows) - bad]
        return rows[best].mean(dim=0)


@dataclass(frozen=True)
class GeometricMedian(Checked):
    """The point with the smallest sum of distances to all rows, by Weiszfeld's iteration from the median.

    As modified by Vardi and Zhang (2000), so that it leaves a row that it meets, unless that is the point.

    iterations: maximum number.
    """

    iterations: Count = 32

    def __call__(self, rows: Vector, /) -> Vector:
        point = Median()(rows)
        for _ in range(self.iterations):
            away = lengths(rows - point)
            here, weights = away <= _TINY, torch.where(away <= _TINY, 0.0, 1.0 / away)
            if not bool(weights.any()):  # all rows are here, or too far for a number
                return point
            others = (weights * rows).sum(dim=0) / weights.sum()
            pull = float(torch.linalg.vector_norm(others - point) * weights.sum())
            stay = min(1.0, float(here.sum()) / pull) if pull else 1.0
            moved = stay * point + (1.0 - stay) * others
            if float(torch.linalg.vector_norm(moved - point)) <= 1e-7 * float(torch.linalg.vector_norm(point)):
                return moved
            point = moved
        return point


@dataclass(frozen=True)
class CenteredClipping(Checked):
    """Rows pulled to a distance of at most the radius from a centre, and their mean is the next centre.

    Differs from the paper (Karimireddy, He, Jaggi 2021): the first centre is the median of every coordinate and not the
    last aggregate, so that nothing is kept from one step to the next.

    radius: largest distance at which a row counts in full, τ.
    iterations: how often the centre moves.
    """

    radius: Positive
    iterations: Count = 3

    def __call__(self, rows: Vector, /) -> Vector:
        centre = Median()(rows)
        for _ in range(self.iterations):
            centre = centre + shortened(rows - centre, self.radius).mean(dim=0)
        return centre


@dataclass(frozen=True)
class NormBound(Checked):
    """The mean of the rows, each shortened to at most this length: bounds what one row can do and detects nothing.

    length: largest Euclidean length of a row.
    """

    length: Positive

    def __call__(self, rows: Vector, /) -> Vector:
        return shortened(rows, self.length).mean(dim=0)


def shortened(rows: Vector, most: float) -> Vector:
    """Rows [..., d], those that are longer than this scaled down to it."""
    return rows * torch.clamp(most / torch.clamp(lengths(rows), min=_TINY), max=1.0)


def _bad(share: float, rows: int) -> int:
    """f: how many of the rows may be bad, at most a minority."""
    return min(ceil(share * rows - 1e-9), (rows - 1) // 2)


def _middle(rows: Vector, cut: int) -> Vector:
    """The mean of every coordinate without so many of its smallest and largest values."""
    found: Vector = rows.sort(dim=0).values[cut : len(rows) - cut].mean(dim=0)
    return found


def _closeness(rows: Vector, bad: int) -> Vector:
    """Of every row, the sum of the squared distances to the n − f − 2 nearest others; to one at least."""
    squared = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    count = len(rows) - min(bad, (len(rows) - 3) // 2) - 2
    near = squared.sort(dim=1).values[:, 1 : 1 + max(1, count)]
    found: Vector = near.sum(dim=1)
    return found
