"""The large models of a run on the broker: each is sealed and stored once, however many assignments name it."""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial

from offbeat.deploy.connection import FAILURES
from offbeat.deploy.envelope import ModelSeal
from offbeat.deploy.link import Link


class Shelf:
    """Models that assignments name, and the newest of those that none names any more.

    kept: bytes of the latter that stay, because a client may be fetching one just now.
    """

    def __init__(self, link: Link, run: str, kept: int) -> None:
        self.link, self.run, self.kept = link, run, kept
        self.stored: dict[str, tuple[list[int], int]] = {}  # digest -> (numbers of its pieces, bytes)
        self.dropped: deque[tuple[list[int], int]] = deque()  # (numbers, bytes), the oldest first
        self.dropped_bytes = 0
        self.seal = self._seal(0)

    def renew(self, changes: int) -> bool:
        """Seal with another key after so many changes of who may know it; whether it is new."""
        before, self.seal = self.seal, self._seal(changes)
        if before.key == self.seal.key:
            return False
        for numbers, size in self.stored.values():  # a client that has not heard of the new key may be fetching one
            self.dropped.append((numbers, size))
            self.dropped_bytes += size
        self.stored.clear()
        return True

    def _seal(self, changes: int) -> ModelSeal:
        creds = self.link.creds
        return ModelSeal.of_run(creds.seal, creds.federation, self.run, 1 + changes)

    async def put(self, digest: str, data: bytes) -> None:
        """Store a model, whatever happens to the broker; an assignment may name it then."""
        done = dict[int, int]()
        address, pieces = self.seal.address(digest), self.link.pieces(self.seal.seal(digest, data))
        await self.link.insist(partial(self.link.put, pieces, lambda n: f"model.{self.run}.{address}.{n}", done))
        self.stored[digest] = list(done.values()), len(data)

    async def drop(self, digest: str) -> None:
        """No assignment names this model any more: remove it, or rather older ones, if they take too much room."""
        numbers, size = self.stored.pop(digest, ([], 0))
        self.dropped.append((numbers, size))
        self.dropped_bytes += size
        while self.dropped_bytes > self.kept:
            numbers, size = self.dropped.popleft()
            self.dropped_bytes -= size
            for number in numbers:
                with contextlib.suppress(*FAILURES):  # if it was stored again, under the same address, it has another
                    await self.link.forget("MODEL", number)
