"""Means over seeds with 95 % intervals, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, stdev

CONFIDENCE = 0.95
_LARGE = 1e5


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds.

    half: half the width of its 95 % interval by Student's t; infinite for a single seed, which says nothing of others,
        and where a value is infinite.
    """

    mean: float
    half: float
    seeds: int

    @property
    def sign(self) -> int:
        """1 or -1 if the whole interval lies on that side of zero, else 0."""
        return (self.mean > self.half) - (self.mean < -self.half)

    def text(self, digits: int, scale: float = 1.0, sign: str = "") -> str:
        """As `mean ± half`; a single seed has no interval. Diverged runs have large numbers: those are kept short.

        >>> estimate([1.0, 2.0, 3.0]).text(1)
        '2.0 ± 2.5'
        >>> estimate([0.5, 0.6, -3e19]).text(3)
        '-1.0e+19 ± 4.3e+19'
        """
        style = f".{digits}f" if scale * max(abs(self.mean), self.half if self.half < inf else 0.0) < _LARGE else ".1e"
        mean = f"{scale * self.mean:{sign}{style}}"
        return mean if self.half == inf else f"{mean} ± {scale * self.half:{style}}"


def estimate(values: Sequence[float]) -> SeedMean:
    """The mean of these values with its interval."""
    from scipy.special import stdtrit

    count = len(values)
    if count < 2 or not all(map(isfinite, values)):
        return SeedMean(fmean(values), inf, count)
    half = float(stdtrit(count - 1, (1.0 + CONFIDENCE) / 2.0)) * stdev(values) / sqrt(count)
    return SeedMean(fmean(values), half, count)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> SeedMean:
    """The mean of ours less theirs, seed by seed: what a seed does to both falls out."""
    return estimate([a - b for a, b in zip(ours, theirs, strict=True)])
