"""Times that come round: counted in whole periods, because added up they would drift."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import floor


@lru_cache
def _exact(period: float) -> Fraction:
    return Fraction(repr(float(period)))


def multiple(period: float, count: int) -> float:
    """So many periods, with the period taken as it is written.

    >>> multiple(0.1, 3), 3 * 0.1, 0.1 + 0.1 + 0.1
    (0.3, 0.30000000000000004, 0.30000000000000004)
    """
    return float(_exact(period) * count)


def following(period: float, now: float) -> float:
    """The first multiple of the period after now.

    >>> following(0.1, 0.3), following(0.1, 0.35)
    (0.4, 0.4)
    """
    return multiple(period, floor(now / period * (1.0 + 1e-12)) + 1)  # what now has been rounded by is not a period
