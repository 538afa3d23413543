"""Attackers that compute faster than others, with any timing model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core.events import Job
from offbeat.timing.base import Clock, Durations, Timing


@dataclass(frozen=True)
class Hurried:
    """A timing model in which some clients compute so many times as fast."""

    timing: Timing
    speeds: Mapping[int, float]

    def bind(self, clients: int, seed: int, tasks: Sequence[str] = ("",)) -> Clock:
        clock: Clock = HurriedClock(self.timing.bind(clients, seed, tasks), self.speeds)
        return clock


class HurriedClock:
    """Everything but compute times is the inner clock's."""

    def __init__(self, clock: Clock, speeds: Mapping[int, float]) -> None:
        self._clock, self._speeds = clock, speeds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_clock"], name)

    @property
    def rates(self) -> list[float]:
        """λ_i, as the inner clock's: a server tuned to them does not know who hurries."""
        found: list[float] = self._clock.rates  # type: ignore[attr-defined]
        return found

    def durations(self, job: Job, down: int, up: int) -> Durations:
        found = self._clock.durations(job, down, up)
        speed = self._speeds.get(job.client)
        return found if speed is None else found._replace(compute=found.compute / speed)
