"""Reading a run's log as a server does: in order, verified, mended, and to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from offbeat.deploy.journal import Chain, LogAudit, Record, Scribe, Tail, refill
from offbeat.deploy.link import Link
from offbeat.deploy.mending import Mending
from offbeat.deploy.streams import BrokerLog, StreamReader

MUTE = 2.5  # seconds in which a broker that sends us the log is heard, also if nothing is added to it

Raws: TypeAlias = asyncio.Queue[tuple[int, bytes]]  # records as they come: number and content


class Following:
    """One server's reading of the log of a run. chain: its end as far as it was read.

    take_in: called with every record that is verified, in order.
    """

    def __init__(
        self,
        link: Link,
        scribe: Scribe,
        chain: Chain,
        tail: Tail,
        mending: Mending,
        take_in: Callable[[Record, bytes], Awaitable[None]],
    ) -> None:
        self.link, self.scribe, self.chain, self.tail = link, scribe, chain, tail
        self.mending, self.take_in = mending, take_in
        self.stream = BrokerLog(link, scribe.run)

    async def catch_up(self) -> None:
        """Take in what the log has beyond what we know of it."""
        end, known = await self.link.insist(self.stream.end), max(self.chain.seq, self.tail.acknowledged())
        if end < known:
            await self.link.insist(lambda: refill(self.stream, self.tail, end, known, self.scribe))
            end = known
        async with self.reading() as raws:
            while self.chain.seq < end:
                came = await self.next(raws, 2.0)
                if not came and await self.link.insist(lambda: self.stream.read(self.chain.seq + 1)) is None:
                    await self.take_in(*await self.audit.missing())

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Raws]:
        """Within, what the log has from here on comes into this queue."""
        raws: Raws = asyncio.Queue()
        reader = StreamReader(self.link, self.stream.stream, lambda n, _, raw: raws.put_nowait((n, raw)))
        self.audit = LogAudit(self.scribe, self.chain, lambda seq: self.mending.mend(seq, self.audit))
        await self.link.insist(lambda: reader.start(self.chain.seq))
        self.reader = reader
        try:
            yield raws
        finally:
            await reader.stop()

    async def next(self, raws: Raws, patience: float) -> bool:
        """Take in the next record that comes; whether one came."""
        try:
            seq, raw = await asyncio.wait_for(raws.get(), patience)
        except TimeoutError:
            await self.reader.watch()
            return False
        for record, each in await self.audit.take(seq, raw):
            await self.take_in(record, each)
        return True

    async def complete(self, raws: Raws) -> bool:
        """Whether we have read all of the log; if the broker has lost its end, that is mended first."""
        end = await self.stream.end()
        if end == self.chain.seq:
            return True
        if end < self.chain.seq:
            await refill(self.stream, self.tail, end, self.chain.seq, self.scribe)
        elif await self.stream.read(self.chain.seq + 1) is None and raws.empty():
            await self.take_in(*await self.audit.missing())
        else:
            await self.reader.watch(MUTE)  # the broker that sends us the log may be the one that is down
        return False
