"""Several curves as one: mean, range and quartiles at every x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Curve = tuple[Floats, Floats]  # (x, y)

POINTS = 200  # of a curve on the page, at most


@dataclass(frozen=True)
class Band:
    """At every x: mean, minimum, quartiles and maximum of the curves, and their number."""

    x: Floats
    mean: Floats
    low: Floats
    q1: Floats
    q3: Floats
    high: Floats
    count: Floats


def clean(x: Floats, y: Floats) -> Curve:
    """The curve without non-finite points, with one value per x: the last."""
    good = np.isfinite(x) & np.isfinite(y)
    x, y = x[good].astype(np.float64), y[good].astype(np.float64)
    last = np.append(np.diff(x) != 0, True)[: len(x)]
    return x[last], y[last]


def band(curves: Sequence[Curve], points: int = POINTS) -> Band | None:
    """The curves as one. Each counts from its first to its last point and is linear in between.

    Where all curves share their points, the numbers are theirs; with more than `points` different ones, some of them
    are left out, evenly.
    """
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return None
    x = thin(np.unique(np.concatenate([c[0] for c in curves])), points)
    each = np.array([np.interp(x, *c, left=np.nan, right=np.nan) for c in curves])
    count = np.isfinite(each).sum(axis=0)
    x, each, count = x[count > 0], each[:, count > 0], count[count > 0]
    low, q1, q3, high = np.nanquantile(each, (0.0, 0.25, 0.75, 1.0), axis=0)
    return Band(x, np.nanmean(each, axis=0), low, q1, q3, high, count.astype(np.float64))


def thin(values: Floats, points: int) -> Floats:
    """At most this many of the values, evenly spaced, including the first and the last."""
    if len(values) <= points:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, points).round().astype(np.int64))]
