"""A server's checkpoints, written beside the run, and the removal of what the log needs no more once they are there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offbeat.deploy.connection import FAILURES
from offbeat.deploy.journal import Chain, Record, Tail, body_of
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import Link
from offbeat.watch import checkpoint

KEPT = 64  # of the last records, at least, that a leader has copies of


class Saving:
    """The checkpoints of one server of a run.

    noted: the state, and what a checkpoint says besides it and the end of the log.   every: seconds between two.
    trims: whether entries that the checkpoints have behind them are to be removed from the log now.
    """

    def __init__(
        self,
        folder: Path,
        link: Link,
        run: str,
        chain: Chain,
        tail: Tail,
        noted: Callable[[], tuple[Ledger, Mapping[str, Any]]],
        *,
        every: float,
        trims: Callable[[], bool],
    ) -> None:
        self.link, self.run, self.chain, self.tail = link, run, chain, tail
        self.noted, self.every, self.trims = noted, every, trims
        self.checkpoints = checkpoint.Checkpoints(folder)
        self.last = time.monotonic()
        self.under_way: asyncio.Task[None] | None = None
        self.whole = True  # the last checkpoint that was begun is on disk
        self.safe = [(0, 0)]  # the positions of the last two checkpoints, and the terms there
        self.bodies: deque[Record] = deque()  # those with large envelopes beside the log, while it is trimmed
        self.cleared = 1  # the first term of which there may be such envelopes

    def begin(self) -> None:
        """Begin a checkpoint if it is time, unless one is being written. The state is noted at once, between two
        records, and written by another thread while the run goes on."""
        if self.under_way is not None and self.under_way.done():
            self.under_way.result()
            self.under_way = None
        if self.under_way is None and time.monotonic() - self.last > self.every:
            self.under_way = asyncio.create_task(self._write(*self._snapshot()))

    async def end(self) -> None:
        """Write the last checkpoint."""
        if self.under_way is not None:
            await self.under_way
        await self._write(*self._snapshot())
        self.tail.close()

    def _snapshot(self) -> tuple[checkpoint.Snapshot, tuple[int, int]]:
        """What a checkpoint has to say now, and its position in the log, with the term there."""
        self.last = time.monotonic()
        ledger, extra = self.noted()
        if self.whole:
            self.tail.rotate(KEPT)
        self.whole = False
        snapshot = self.checkpoints.snapshot(ledger, {**extra, "chain": vars(self.chain)})
        return snapshot, (ledger.position, self.chain.term)

    async def _write(self, snapshot: checkpoint.Snapshot, position: tuple[int, int]) -> None:
        if await asyncio.to_thread(self.checkpoints.write, snapshot) is not None:
            self.whole = True
            self.safe = [*self.safe[-1:], position]
            if self.trims():
                await self.trim()

    async def trim(self) -> None:
        """Remove from the broker what both checkpoints have behind them, except the record that others may follow.

        Another server may lead by now, or before the broker hears of it: nothing is removed that a later record names.
        """
        (position, term), run, purge = self.safe[0], self.run, self.link.js.purge_stream
        with contextlib.suppress(*FAILURES):
            if position:
                await purge(f"LOG-{run}", seq=position)
            while self.cleared < term:  # also what was stored and never recorded
                await purge(f"BODY-{run}", subject=f"body.{run}.{self.cleared}.>")
                self.cleared += 1
            while self.bodies and self.bodies[0].seq < position:
                record = self.bodies[0]
                if record.body is not None and record.term >= self.cleared:
                    await purge(f"BODY-{run}", subject=f"{body_of(run, record.term, record.body.number)}.*")
                self.bodies.popleft()
