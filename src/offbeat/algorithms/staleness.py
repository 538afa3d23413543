"""How much a stale update counts: functions of the staleness τ ≥ 0 that are 1 for a fresh update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from offbeat.core.errors import Checked, NotNegative, Positive


@runtime_checkable
class Staleness(Protocol):
    """The weight of an update by its staleness: server steps since its model was sent."""

    def __call__(self, staleness: int, /) -> float:
        """The weight."""


@dataclass(frozen=True)
class Equal:
    """Every update counts the same."""

    def __call__(self, staleness: int, /) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial(Checked):
    """An update counts (1 + τ)^−power.

    power: how fast the weight falls, 0 for not at all; ½ is FedBuff's 1/sqrt(1 + τ).
    """

    power: NotNegative = 0.5

    def __call__(self, staleness: int, /) -> float:
        return float((1.0 + staleness) ** -self.power)


@dataclass(frozen=True)
class Hinge(Checked):
    """An update counts fully up to a staleness, then 1/(slope · (τ − after) + 1).

    slope: how fast the weight falls.
    after: staleness up to which an update counts fully.
    """

    slope: Positive = 10.0
    after: NotNegative = 4.0

    def __call__(self, staleness: int, /) -> float:
        return 1.0 if staleness <= self.after else 1.0 / (self.slope * (staleness - self.after) + 1.0)
