"""When the server aggregates what has arrived (AREA, remark 2): after so many messages, or by the clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, runtime_checkable

from offbeat.core.errors import Checked, Count, Positive, SettingError
from offbeat.core.events import Alarm
from offbeat.core.periods import following
from offbeat.core.random import Stream
from offbeat.core.server import View

AGGREGATE = "aggregate"


@runtime_checkable
class Criterion(Protocol):
    """When the server aggregates. One that depends on the clients' speeds has `fit(clock)`, too (`Server.fit`)."""

    def due(self, messages: int, /) -> bool:
        """Whether to aggregate now that so many messages have come since the last time."""

    def wait(self, rng: Stream, /) -> float | None:
        """Time until the next aggregation; None if the clock has no say in it."""


@dataclass(frozen=True)
class MessageCount(Checked):
    """Aggregate after a number of messages.

    count: messages per aggregation, Δ.
    """

    count: Count

    def due(self, messages: int, /) -> bool:
        return messages >= self.count

    def wait(self, rng: Stream, /) -> float | None:
        return None


@dataclass(frozen=True)
class Period(Checked):
    """Aggregate at regular times, the multiples of a period.

    time: time between two aggregations.
    """

    time: Positive

    def due(self, messages: int, /) -> bool:
        return False

    def wait(self, rng: Stream, /) -> float | None:
        return self.time


@dataclass(frozen=True)
class Poisson(Checked):
    """Aggregate at the random times of a Poisson process.

    rate: aggregations per unit of time, λ_s; "optimal": the rate that AREA recommends (§4.2), best for a number of
        iterations and not for a time, which needs exponential compute times and no network.
    """

    rate: Positive | Literal["optimal"]

    def due(self, messages: int, /) -> bool:
        return False

    def wait(self, rng: Stream, /) -> float | None:
        if self.rate == "optimal":
            raise SettingError('rate = "optimal": the server was not fitted to a clock; call `Server.fit`')
        return rng.exponential(1.0 / self.rate)

    def fit(self, clock: Any) -> Poisson:
        """With the optimal rate for the clients of this clock, if it was asked for."""
        if self.rate != "optimal":
            return self
        rates = getattr(clock, "rates", None)
        if rates is None:
            raise SettingError(
                'rate = "optimal": needs the clients\' rates, which [timing] exponential has; give a number'
            )
        return Poisson(optimal_rate(rates))


def criterion(size: int | Criterion) -> Criterion:
    """A plain number means so many messages."""
    return _messages(size) if isinstance(size, int) else size


_messages = lru_cache(MessageCount)  # asked for on every arrival


def fixed(size: int | Criterion) -> int | None:
    """How many messages every aggregation has; None if the clock decides."""
    return size if isinstance(size, int) else size.count if isinstance(size, MessageCount) else None


def message_count(size: int | Criterion) -> int:
    """The messages of an aggregation; raises `SettingError` for a criterion that goes by the clock."""
    found = criterion(size)
    if not isinstance(found, MessageCount):
        raise SettingError(f"size = {found}: [secure] opens a sum after a number of updates; give that number as size")
    return found.count


def alarm(when: Criterion, view: View) -> Iterator[Alarm]:
    """The alarm for the next aggregation, if the criterion goes by the clock."""
    wait = when.wait(view.rng)
    if isinstance(when, Period):
        wait = following(when.time, view.now) - view.now
    if wait is not None:
        yield Alarm(wait, AGGREGATE)


def optimal_rate(rates: Sequence[float]) -> float:
    """λ_s* = sqrt(Σλ_i / ((2/n) Σ 1/λ_i)): the rate that minimises theorem 8's bound after K iterations (AREA, §4.2).

    Iterations are messages and server steps. For the bound after a time, higher rates are better:
    `offbeat.theory.area.rate_within`.

    >>> round(optimal_rate([10.0] * 128), 3)     # equal rates: λ·sqrt(n/2)
    80.0
    """
    if not rates or min(rates) <= 0:
        raise SettingError(f"rates = {list(rates)[:4]}…: need one positive rate per client")
    return math.sqrt(sum(rates) / ((2.0 / len(rates)) * sum(1.0 / r for r in rates)))
