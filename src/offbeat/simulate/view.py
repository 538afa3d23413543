"""The read-only view of a simulated world that handlers get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offbeat.core.random import PRIVACY, SERVER, Stream, key, normal_numbers
from offbeat.core.vectors import Vector
from offbeat.simulate.world import World
from offbeat.timing.base import Clock

_PATIENCE = 1000  # times that everybody is asked before the answer is that nobody takes work


class WorldView:
    """One object for a whole run; its random numbers are renewed with every event."""

    __slots__ = ("_clock", "_key", "_rng", "_seed", "world")

    def __init__(self, world: World, clock: Clock, seed: int) -> None:
        self.world, self._clock, self._seed = world, clock, seed
        self._key = -1
        self._rng = Stream(0)

    @property
    def now(self) -> float:
        return self.world.now

    @property
    def rng(self) -> Stream:
        if self._key != self.world.events:
            self._key = self.world.events
            self._rng = Stream(key(self._seed, SERVER, self._key))
        return self._rng

    @property
    def clients(self) -> int:
        return len(self.world.numbers)

    @property
    def tasks(self) -> Sequence[int]:
        return self.world.open_tasks

    @property
    def flying(self) -> int:
        return len(self.world.flights) - self.world.surplus

    @property
    def sealed(self) -> bool:
        return self.world.sealed

    @property
    def complete(self) -> bool:
        return self.world.complete

    def barred(self, client: int, version: int, task: int = 0) -> bool:
        return self.world.barred(client, version, task)

    def waiting(self, task: int = 0) -> Sequence[int]:
        return self.world.waiting_for(task)

    def present(self, client: int) -> bool:
        return self.world.present.where[client] >= 0

    def everyone(self) -> Iterable[int]:
        return sorted(self.world.present.items)

    def idle(self, count: int) -> list[int]:
        pool = self.world.idle
        if count > len(pool.items) // 2:  # most of them: shuffle instead of drawing the same ones again and again
            return self._shuffled(pool.items, count)
        chosen: dict[int, None] = {}
        refused: set[int] = set()  # a client is asked once
        while len(chosen) < count and len(chosen) + len(refused) < len(pool.items):
            client = pool.draw(self.rng)
            if client in chosen or client in refused:
                continue
            if self._takes_work(client):
                chosen[client] = None
            else:
                refused.add(client)
        return list(chosen) or self._shuffled(pool.items, count)

    def _shuffled(self, clients: Sequence[int], count: int) -> list[int]:
        """Ask all in a random order, again if nobody takes work: a server that got nobody would wait for ever."""
        for _ in range(_PATIENCE if clients and count > 0 else 0):
            items, chosen = list(clients), list[int]()
            while items and len(chosen) < count:
                at = self.rng.below(len(items))
                items[at], items[-1] = items[-1], items[at]
                client = items.pop()
                if self._takes_work(client):
                    chosen.append(client)
            if chosen:
                return chosen
        return []

    def normal(self, about: Vector, number: int) -> Vector:
        return normal_numbers(key(self._seed, PRIVACY, self.world.events, number), about.numel()).to(about.device)

    def available(self, count: int) -> list[int]:
        pool, chosen = self.world.present, list[int]()
        answers: dict[int, bool] = {}
        while len(chosen) < count:
            if len(answers) == len(pool.items) and not any(answers.values()):
                return [client for _ in range(count) for client in self._shuffled(pool.items, 1)]
            client = pool.draw(self.rng)
            if client not in answers:
                answers[client] = self._takes_work(client)
            if answers[client]:
                chosen.append(client)
        return chosen

    def _takes_work(self, client: int) -> bool:
        return self._clock.always or self._clock.available(client, self.world.now, self.rng)
