"""The read-only view of a simulated world that handlers get."""

from __future__ import annotations

from collections.abc import Iterable

from offbeat.core.random import SERVER, Stream, key
from offbeat.simulate.world import Pool, World
from offbeat.timing.base import Clock

_PATIENCE = 1000  # redraws for each client wanted before the answer is that too few take work


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
    def flying(self) -> int:
        return len(self.world.flights)

    def present(self, client: int) -> bool:
        return self.world.present.where[client] >= 0

    def everyone(self) -> Iterable[int]:
        return sorted(self.world.present.items)

    def idle(self, count: int) -> list[int]:
        pool = self.world.idle
        if count <= 0:
            return []
        if count > len(pool.items) // 2:  # most of them: shuffle instead of drawing the same ones again and again
            return self._shuffled(pool, count)
        chosen: dict[int, None] = {}
        for _ in range(_PATIENCE * count):
            client = pool.draw(self.rng)
            if client not in chosen and self._takes_work(client):
                chosen[client] = None
                if len(chosen) == count:
                    break
        return list(chosen)

    def _shuffled(self, pool: Pool, count: int) -> list[int]:
        items, chosen = list(pool.items), list[int]()
        for _ in range(_PATIENCE):
            refused = list[int]()
            while items and len(chosen) < count:
                at = self.rng.below(len(items))
                items[at], items[-1] = items[-1], items[at]
                client = items.pop()
                (chosen if self._takes_work(client) else refused).append(client)
            items += refused
            if not items or len(chosen) == count:
                break
        return chosen

    def available(self, count: int) -> list[int]:
        pool, chosen = self.world.present, list[int]()
        for _ in range(_PATIENCE * count if pool.items else 0):
            client = pool.draw(self.rng)
            if self._takes_work(client):
                chosen.append(client)
                if len(chosen) == count:
                    break
        return chosen

    def _takes_work(self, client: int) -> bool:
        return self._clock.always or self._clock.available(client, self.world.now, self.rng)
