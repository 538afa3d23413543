"""Step sizes that the server hands out with its models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from offbeat.core.errors import Checked, Positive


@runtime_checkable
class Schedule(Protocol):
    """A local step size by iteration."""

    def __call__(self, k: int, /) -> float:
        """α_k."""


@dataclass(frozen=True)
class Steady(Checked):
    """The same step size always, α_k = lr.

    lr: step size.
    """

    lr: Positive

    def __call__(self, k: int, /) -> float:
        return self.lr


@dataclass(frozen=True)
class Decay(Checked):
    """A step size that falls with the iteration, α_k = c / (k + d).

    c: numerator.
    d: offset of the iteration; α_0 = c / d.
    """

    c: Positive
    d: Positive = 1.0

    def __call__(self, k: int, /) -> float:
        return self.c / (k + self.d)
