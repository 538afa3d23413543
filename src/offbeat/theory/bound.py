"""The parts of a theorem: a right-hand side of named terms, conditions, and searches for numbers that meet them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from offbeat.core.errors import positive


@dataclass(frozen=True)
class Bound:
    """The right-hand side of a theorem.

    terms: its terms by name.   exact: False where the paper writes O(·) and the terms lack their constants.

    >>> bound = Bound({"start": 2.0, "noise": 3.0})
    >>> bound.total, bound.largest
    (5.0, 'noise')
    """

    terms: Mapping[str, float]
    exact: bool = True

    @property
    def total(self) -> float:
        return sum(self.terms.values())

    @property
    def largest(self) -> str:
        """The name of the term that dominates."""
        return max(self.terms, key=lambda name: self.terms[name])


@dataclass(frozen=True)
class Condition:
    """`value ≤ limit`, which a theorem asks for."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit * (1 + 1e-12)


def horizon(bound: Callable[[int], float], epsilon: float, least: float = 1.0, most: float = 1e30) -> float:
    """The smallest T ≥ `least` from which a falling bound(T) is at most ε; infinity where it has a floor above ε.

    >>> horizon(lambda T: 10.0 / T, 0.5)
    20.0
    """
    positive(epsilon=epsilon)
    low = max(1, math.ceil(least - 1e-9))
    if bound(low) <= epsilon:
        return float(low)
    high = low
    while bound(high) > epsilon:
        low, high = high, 2 * high
        if high > most:
            return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        if bound(middle) <= epsilon:
            high = middle
        else:
            low = middle
    return float(high)


@dataclass(frozen=True)
class Halving:
    """What one parameter would have to be to halve the time; `to` of None: no value of it does."""

    name: str
    now: float
    to: float | None


Time = Callable[[Mapping[str, float]], float]


def halve(time: Time, now: Mapping[str, float], whole: Collection[str] = (), reach: float = 2.0**40) -> list[Halving]:
    """For each parameter alone, the nearest value that halves `time(parameters)`: bisection on a logarithmic scale.

    whole: the parameters that are whole numbers.
    """
    goal = time(now) / 2.0
    return [Halving(name, value, _nearest(time, now, name, goal, name in whole, reach)) for name, value in now.items()]


def _nearest(time: Time, now: Mapping[str, float], name: str, goal: float, whole: bool, reach: float) -> float | None:
    start = now[name]
    if start <= 0 or not math.isfinite(goal):
        return None

    def at(value: float) -> float:
        return time({**now, name: value})

    found: list[float] = []
    for direction in (2.0, 0.5):
        near, factor = start, 1.0
        while 1.0 / reach < factor < reach:
            factor *= direction
            far = max(1.0, float(round(start * factor))) if whole else start * factor
            if far == near or far <= 0:
                break
            if at(far) <= goal:
                found.append(_between(at, near, far, goal, whole))
                break
            near = far
    return min(found, key=lambda value: abs(math.log(value / start)), default=None)


def _between(at: Callable[[float], float], short: float, far: float, goal: float, whole: bool) -> float:
    for _ in range(60):
        middle = math.sqrt(short * far)
        if whole:
            middle = float(round(middle))
            if middle in (short, far):
                break
        if at(middle) <= goal:
            far = middle
        else:
            short = middle
    return far
