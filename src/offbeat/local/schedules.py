"""Schedules of local step sizes: a factor of lr by local steps, by a client's jobs or by the server's version."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import cos, pi
from typing import Annotated, Literal

from offbeat.core.errors import Checked, Count, NotNegative, Positive, at_least

Over = Literal["step", "job", "version"]


@dataclass(frozen=True)
class LocalSchedule(Checked):
    """Base of schedules: `factor` says what lr is multiplied with; write one of your own like this.

    over: what is counted: the "step"s of a job, the client's "job"s, or the server's "version" that the job starts
        from.
    warmup: before that, so many counts over which the factor rises in equal parts.
    """

    over: Over = field(default="version", kw_only=True)
    warmup: Annotated[int, partial(at_least, 0)] = field(default=0, kw_only=True)

    def __call__(self, k: int) -> float:
        """The factor at count k, the first being 0."""
        return (k + 1) / (self.warmup + 1) if k < self.warmup else self.factor(k - self.warmup)

    def factor(self, k: int) -> float:
        """The factor at count k after the warm-up."""
        raise NotImplementedError


@dataclass(frozen=True)
class CosineDecay(LocalSchedule):
    """Falls from 1 to floor along half a cosine, then stays.

    length: how many counts it takes to fall to floor; `over` says what is counted.
    floor: where it ends.
    """

    length: Count
    floor: NotNegative = 0.0

    def factor(self, k: int) -> float:
        return self.floor + (1.0 - self.floor) * (1.0 + cos(pi * min(k / self.length, 1.0))) / 2.0


@dataclass(frozen=True)
class LinearDecay(LocalSchedule):
    """Falls linearly from 1 to floor, then stays.

    length: how many counts it takes to fall to floor; `over` says what is counted.
    floor: where it ends.
    """

    length: Count
    floor: NotNegative = 0.0

    def factor(self, k: int) -> float:
        return 1.0 + (self.floor - 1.0) * min(k / self.length, 1.0)


@dataclass(frozen=True)
class StepDecay(LocalSchedule):
    """Is multiplied by gamma after every `every` counts.

    every: counts from one to the next.
    gamma: what it is multiplied with.
    """

    every: Count
    gamma: Positive = 0.1

    def factor(self, k: int) -> float:
        return float(self.gamma ** (k // self.every))


@dataclass(frozen=True)
class Warmup(LocalSchedule):
    """Rises linearly to 1, then stays.

    length: how many counts it takes to rise to 1; `over` says what is counted.
    """

    length: Count

    def factor(self, k: int) -> float:
        return min((k + 1) / (self.length + 1), 1.0)
