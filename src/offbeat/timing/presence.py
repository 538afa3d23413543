"""Who is there when. A client's presence is a sequence of edges at which it comes or goes, fixed by the seed.

A client is there from the edge at which it comes, and no longer at the edge at which it goes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from offbeat.core.errors import Checked, NotNegative, Positive, SettingError, Share, finite, positive
from offbeat.core.random import PRESENCE, Stream, key
from offbeat.timing import laws


class Presence(Protocol):
    """Presence bound to its clients: functions of (client, time)."""

    def present(self, client: int, now: float) -> bool:
        """Whether the client is there."""

    def flip(self, client: int, after: float) -> float | None:
        """The first time later than `after` at which that changes; None: never."""


class Attendance(Protocol):
    """A description of presence."""

    def bind(self, clients: int, seed: int) -> Presence:
        """Draw what is fixed for a run."""


class Cyclic:
    """Presence that repeats with a period: the same edges, in [0, period), in every cycle.

    Client i follows pattern i modulo their number; `first` says whether it is there before a cycle's first edge.
    """

    def __init__(self, edges: Sequence[Sequence[float]], first: Sequence[bool], period: float) -> None:
        self.edges, self.first, self.period = edges, first, period

    def present(self, client: int, now: float) -> bool:
        pattern = client % len(self.edges)
        edges = self.edges[pattern]
        if not edges:
            return self.first[pattern]
        # Edges alternate and are even in number, so the parity of the last one passed says it all.
        return self.first[pattern] == bool(self._last(edges, now) % 2)

    def flip(self, client: int, after: float) -> float | None:
        edges = self.edges[client % len(self.edges)]
        return self._edge(edges, self._last(edges, after) + 1) if edges else None

    def _edge(self, edges: Sequence[float], i: int) -> float:
        cycle, place = divmod(i, len(edges))
        return edges[place] + cycle * self.period

    def _last(self, edges: Sequence[float], now: float) -> int:
        # The number of the last edge at or before now: guessed, then corrected for rounding.
        cycle = math.floor(now / self.period)
        i = cycle * len(edges) + bisect_right(edges, now - cycle * self.period) - 1
        while self._edge(edges, i) > now:
            i -= 1
        while self._edge(edges, i + 1) <= now:
            i += 1
        return i


class Alternating:
    """Presence by independent exponential stays and absences; edges are drawn only as far as needed.

    The edges kept are a cache: they are a function of (seed, client) and can be drawn again at any time.
    """

    def __init__(self, on: float, off: float, clients: int, seed: int) -> None:
        self.on, self.off, self.seed = on, off, seed
        self._edges: list[list[float]] = [[] for _ in range(clients)]

    def present(self, client: int, now: float) -> bool:
        return self._starts(client) ^ bool(bisect_right(self._until(client, now), now) % 2)

    def flip(self, client: int, after: float) -> float | None:
        edges = self._until(client, after)
        return edges[bisect_right(edges, after)]

    def _starts(self, client: int) -> bool:
        # Stationary from the start: draw 0 of a client says whether it is there at time 0.
        return Stream(key(self.seed, PRESENCE, client, 0)).uniform() < self.on / (self.on + self.off)

    def _until(self, client: int, now: float) -> list[float]:
        edges = self._edges[client]
        if edges and edges[-1] > now:
            return edges
        starts = self._starts(client)
        while not edges or edges[-1] <= now:
            stays = starts == (len(edges) % 2 == 0)
            stream = Stream(key(self.seed, PRESENCE, client, len(edges) + 1))
            edges.append((edges[-1] if edges else 0.0) + stream.exponential(self.on if stays else self.off))
        return edges


@dataclass(frozen=True)
class Diurnal(Checked):
    """Clients are online for one stretch of every day, each at its own hour.

    period: length of the day.
    on: share of the day that a client is online.
    spread: share of the day over which the clients' stretches begin evenly; 0: all begin at the same time.
    """

    period: Positive
    on: Share = 0.5
    spread: NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spread > 1:
            raise SettingError(f"spread = {self.spread!r}: must be a share of the day, from 0 to 1")

    def bind(self, clients: int, seed: int) -> Presence:
        if self.on == 1:
            return Cyclic([()], [True], self.period)
        begins = laws.each(laws.uniform(0.0, self.spread), clients, seed, laws.PHASE)
        edges, first = [], []
        for begin in begins:
            come, go = begin * self.period, (begin + self.on) % 1.0 * self.period
            edges.append((come, go) if come < go else (go, come))
            first.append(go < come)  # the stretch runs past midnight
        return Cyclic(edges, first, self.period)


@dataclass(frozen=True)
class OnOff(Checked):
    """Clients go online and offline at random; both phases are exponential, and stationary from the start.

    on: mean time online.
    off: mean time offline.
    """

    on: Positive
    off: Positive

    def bind(self, clients: int, seed: int) -> Presence:
        """Nothing is drawn before it is asked for."""
        return Alternating(float(self.on), float(self.off), clients, seed)


@dataclass(frozen=True)
class Intervals:
    """Recorded times online, repeated with a period.

    stays: for each recorded client, when it went online and offline, in order and apart; without any it is always
        online. Client i follows record i modulo their number.
    period: time after which they repeat.
    """

    stays: tuple[tuple[tuple[float, float], ...], ...]
    period: float

    def __post_init__(self) -> None:
        positive(period=self.period)
        if not self.stays:
            raise SettingError("stays = (): no client is recorded; give at least one")
        for client, stays in enumerate(self.stays):
            last = 0.0
            for begin, end in stays:
                finite(stays=begin)
                finite(stays=end)
                if begin < last or end <= begin or end > self.period:
                    raise SettingError(
                        f"stays[{client}] = ({begin!r}, {end!r}): stays are in order, do not overlap, "
                        f"and end by the period, {self.period!r}"
                    )
                last = end

    def bind(self, clients: int, seed: int) -> Presence:
        # A stay that ends with the period reaches into the next cycle: the client is there before its first edge.
        first = [not stays or stays[-1][1] == self.period for stays in self.stays]
        return Cyclic([_edges(stays, self.period) for stays in self.stays], first, self.period)


def _edges(stays: Sequence[tuple[float, float]], period: float) -> tuple[float, ...]:
    times = Counter(t % period for stay in stays for t in stay)
    # Where one stay begins as another ends nothing changes.
    return tuple(sorted(t for t, count in times.items() if count == 1))
