"""Records of the log that the broker has lost or damaged: copies are left for others, and asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from offbeat.core.errors import OffbeatError
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.journal import AGAIN, SILENCE, BrokenLogError, Chain, LogAudit, Scribe, Tail
from offbeat.deploy.link import Link
from offbeat.deploy.logs import note
from offbeat.deploy.questions import ask_server
from offbeat.deploy.refold import copy_of, mended
from offbeat.deploy.streams import BrokerLog
from offbeat.deploy.wire import RefusedError

ABSENT = 60.0  # seconds that a server which misses a record waits for the one that leads to come back
NAME = "server.id"  # the file with a server's name


class Mending:
    """One server's part in mending the log of a run.

    heard: when there was last a sign of the leader.   asked: whether this server is to stop.
    """

    def __init__(
        self,
        link: Link,
        scribe: Scribe,
        folder: Path,
        name: str,
        chain: Chain,
        tail: Tail,
        heard: Callable[[], float],
        asked: Callable[[], bool],
    ) -> None:
        self.link, self.scribe, self.run, self.folder, self.name = link, scribe, scribe.run, folder, name
        self.chain, self.tail, self.heard, self.asked = chain, tail, heard, asked
        self.stream = BrokerLog(link, self.run)
        self.holes: set[int] = set()  # records that the broker has lost, as far as we have looked

    # For others

    async def leave_last(self) -> None:
        """If the broker has lost the last record that we know of, whoever reads on misses it."""
        if self.chain.seq and await self.stream.read(self.chain.seq) is None:
            await self.leave(self.chain.seq)

    async def leave(self, seq: int) -> None:
        """Another server misses a record of which we may have a copy."""
        raw = self.tail.read().get(seq) if seq <= self.chain.seq else None
        if raw is not None:
            await self.link.store(copy_of(self.run, seq), raw)

    async def look(self) -> None:
        """Leave copies of what the broker has lost since the last look, as long as we have them."""
        holes = await self.stream.holes()
        if fresh := holes - self.holes:
            ours = self.tail.read()
            for seq in sorted(seq for seq in fresh if seq in ours and seq <= self.chain.seq):
                note("the broker has lost a record; a copy is left beside the log", "warning", run=self.run, record=seq)
                await self.link.store(copy_of(self.run, seq), ours[seq])
        self.holes = holes

    # For ourselves

    async def mend(self, seq: int, audit: LogAudit) -> bytes | None:
        """Another copy of a record that the broker has lost or damaged: our own, which is left for others to read, or
        one that another server has left, if need be because we ask for it."""
        raw = self.tail.read().get(seq, b"")
        if seq > self.tail.acknowledged() and await self.link.insist(lambda: self.stream.read(seq)) is not None:
            raw = b""  # that we sent, and somebody else was faster
        if audit.fits(raw):
            await self.link.insist(lambda: self.link.store(copy_of(self.run, seq), raw))
            return raw
        return await self._copy(seq, audit) or await self._asked_for(seq, audit)

    async def _copy(self, seq: int, audit: LogAudit) -> bytes | None:
        """The copy beside the log, unless the broker has made that up."""
        found = await mended(self.link, self.run, seq)
        return found if found is not None and audit.fits(found) else None

    async def _asked_for(self, seq: int, audit: LogAudit) -> bytes | None:
        """A record of which the server that leads leaves a copy for us.

        It may be slow, cut off, or about to be started again. Without the record we can neither go on nor lead, so we
        ask until it answers, or has been silent for long.
        """
        began, found, answered = time.monotonic(), None, False
        patience = SILENCE if await self.link.insist(self._alone) else ABSENT
        note("asks the leading server for a record that is missing", "warning", run=self.run, record=seq)
        while found is None and not self.asked() and time.monotonic() - max(self.heard(), began) < patience:
            await self.still_kept(seq)
            with contextlib.suppress(OffbeatError, *FAILURES):
                answer = json.loads(await ask_server(self.link, self.run, "mend", seq=seq, tries=1))
                answered = int(answer["position"]) >= seq
            found = await self._copy(seq, audit)
            if answered and found is None:
                await self.still_kept(seq)
                raise BrokenLogError(
                    f"record {seq} of the log of {self.run} is missing, and the server that leads has no copy of it "
                    f"any more. {self._remedy()}"
                )
            await asyncio.sleep(0.0 if found else AGAIN)
        return found

    async def _alone(self) -> bool:
        """Whether no other server can be the one that leads: we wrote the last record, or it is no server's."""
        raw = await self.stream.read(await self.stream.end())
        try:
            return raw is not None and self.scribe.read(raw).leader == self.name
        except RefusedError:
            return True  # nobody can add a record behind this one

    async def still_kept(self, seq: int) -> None:
        """Raises `BrokenLogError` if the record of this number was removed because the log is trimmed."""
        if seq < (first := await self.link.insist(self._first)):
            raise BrokenLogError(
                f"the log of {self.run} begins at record {first}: older ones were removed (--trim), and this "
                f"server's folder has the first {seq - 1}. {self._remedy()}"
            )

    def _remedy(self) -> str:
        return (
            f"Copy the run folder of the server that leads: `rsync -a --delete --exclude {NAME} --exclude 'log.tail*' "
            f"LEADER:RUN-FOLDER/ {self.folder}/`, and start this one again"
        )

    async def _first(self) -> int:
        return int((await self.link.js.stream_info(f"LOG-{self.run}")).state.first_seq)
