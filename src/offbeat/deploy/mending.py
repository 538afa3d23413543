"""Records of the log that the broker has lost or damaged: which one belongs in a hole, and who may put it there.

The rules, before the code. The broker gives a number once, so that exactly one record belongs in a hole. Its copy is
stored beside the log, for all. The danger is a server that has sent a record of that number and never heard of it:
another server may have been faster, and the two would go on from different pasts.

1. What follows decides. The next record that the log still has names the digest of the one before it. A copy that it
   names is the lost record; one that it does not name is not, whoever has it. So there is one past behind every record.
2. If nothing follows, a server *knows* a record that it has read in the log, or that the broker has acknowledged: its
   tail has a mark behind it. Only known records are left for others, and a server uses those that it knows at once.
3. Otherwise it asks. The leader answers with what it knows, and looks for holes by itself once a second.
4. A record that a server has sent and does not know is a *guess*. It is used only at the end of the log, and only if
   nobody can have acted on another one:
   - the record before it is this server's own, so that no other server led then;
   - the board names no later term: a leader writes its term there before it acts on the record that began it;
   - no server has left a copy or given a sign of life for `BRIEF` seconds, in which one that stands by takes over.
   The first guess that is stored beside the log counts, for its sender, too.
5. Whatever cannot be told stops the server, with an error that names the record and what to do.

So the log does not fork: of two servers that fill a hole differently, only one can add the next record, which settles
it (1); the other one has acted on nothing (4), stops, and takes the right one when it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path

from nats.js.errors import APIError

from offbeat.core.errors import OffbeatError
from offbeat.deploy.board import WRONG_LAST, read_board
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.journal import AGAIN, SILENCE, BrokenLogError, Chain, LogAudit, Scribe, Tail
from offbeat.deploy.link import Link
from offbeat.deploy.logs import note
from offbeat.deploy.questions import ask_server
from offbeat.deploy.refold import copy_of, mended
from offbeat.deploy.streams import BrokerLog

BRIEF = SILENCE + 2.0  # seconds of silence after which nobody else leads
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
        """If the broker has lost the last record that we know of, other readers miss it."""
        if self.chain.seq and await self.stream.read(self.chain.seq) is None:
            await self.leave(self.chain.seq)

    async def leave(self, seq: int) -> None:
        """Another server misses a record, which we may know."""
        raw = self.tail.known().get(seq)
        if raw is not None and await self._named(seq, {seq: raw}) is not False:
            await self.link.store(copy_of(self.run, seq), raw)

    async def look(self) -> None:
        """Leave copies of what the broker has lost since the last look, as far as we know it."""
        holes = await self.stream.holes()
        if fresh := holes - self.holes:
            for seq in sorted(fresh & self.tail.known().keys()):
                note("the broker has lost a record; a copy is left beside the log", "warning", run=self.run, record=seq)
                await self.leave(seq)
        self.holes = holes - self.tail.under_way.keys()  # of which we may hear yet that they were in the log

    # For ourselves

    async def mend(self, seq: int, audit: LogAudit) -> bytes | None:
        """The record that belongs in the place of one that the broker has lost or damaged; None: nobody can tell."""
        insist, known, sent = self.link.insist, self.tail.known(), self.tail.read()
        for ours in (known, sent):
            raw = ours.get(seq, b"")
            named = await insist(partial(self._named, seq, ours)) if audit.fits(raw) else False
            if named or (named is None and ours is known):
                await insist(partial(self.link.store, copy_of(self.run, seq), raw))
                return raw
        found, guess = await self._copy(seq, audit) or await self._asked_for(seq, audit), sent.get(seq, b"")
        if (
            found is None
            and audit.fits(guess)
            and not self.asked()
            and await insist(partial(self._unseen_by_others, seq, sent))
        ):
            await insist(partial(self._guessed, seq, guess))
            found = await self._copy(seq, audit)
        return found

    async def _named(self, seq: int, ours: Mapping[int, bytes]) -> bool | None:
        """Whether the next record that the log has names ours, if need be by others of ours; None: it does not say."""
        raw, end = ours[seq], await self.stream.end()
        for number in range(seq + 1, end + 1):
            digest = sha256(raw).hexdigest()
            there = self._before(number, await self.stream.read(number))
            if there is not None:
                return there == digest
            raw = ours.get(number, b"")
            if self._before(number, raw) != digest:
                return None
        return None

    def _before(self, number: int, raw: bytes | None) -> str | None:
        """The digest of the record before this one; None if this is not the record of that number."""
        with contextlib.suppress(RefusedError):
            if raw is not None and (record := self.scribe.read(raw)).seq == number:
                return record.prev
        return None

    async def _unseen_by_others(self, seq: int, sent: Mapping[int, bytes]) -> bool:
        """Whether no other server can have acted on a record of this number, with which the log's end is lost."""
        missing = range(seq, await self.stream.end() + 1)
        lost = [number for number in missing if number in sent and await self.stream.read(number) is None]
        return len(lost) == len(missing) and await self._alone()

    async def _guessed(self, seq: int, raw: bytes) -> None:
        """Leave a copy where there is none."""
        try:
            await self.link.store(copy_of(self.run, seq), raw, {"Nats-Expected-Last-Subject-Sequence": "0"})
        except APIError as error:
            if error.err_code != WRONG_LAST:
                raise

    async def _copy(self, seq: int, audit: LogAudit) -> bytes | None:
        """The copy beside the log, unless the broker has made that up or what follows names another record."""
        found = await mended(self.link, self.run, seq)
        if found is None or not audit.fits(found):
            return None
        return None if await self.link.insist(partial(self._named, seq, {seq: found})) is False else found

    async def _asked_for(self, seq: int, audit: LogAudit) -> bytes | None:
        """A record of which the server that leads leaves a copy for us.

        It may be slow, cut off, or about to be started again. Without the record we can neither go on nor lead, so we
        ask until it answers, or has been silent for long.
        """
        began, found, answered = time.monotonic(), None, False
        patience = BRIEF if await self.link.insist(self._alone) else ABSENT
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
        """Whether no other server can be the one that leads: the last record that there is is ours or no server's, and
        the board names no later term."""
        leader, term = self.chain.leader, self.chain.term
        try:
            for number in range(await self.stream.end(), self.chain.seq, -1):
                if (raw := await self.stream.read(number)) is not None:
                    leader, term = (last := self.scribe.read(raw)).leader, last.term
                    break
        except RefusedError:
            return True  # nobody can add a record behind this one
        with contextlib.suppress(RefusedError):
            board = await read_board(self.link)
            return leader == self.name and (board is None or board.term(self.run) <= term)
        return False

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
