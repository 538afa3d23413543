"""The log of a run as it is kept on the broker: signed records in a chain, which one server at a time adds to.

The rules, before the code:

1. Only servers write to the log. A record holds a client's envelope as it came, or the server's own message, sealed;
   its number is its place in the stream. It names the digest of the record before it and is signed by the server, so
   that a record that is missing, changed, exchanged or added by another party is noticed when the log is read.
2. A record is added with the number of the last record that its writer knows. The broker refuses it if there is a
   newer one: a server that does not know the newest record cannot add one. Records are sent before those ahead of them
   are acknowledged, and a number does not say whose record it is; so each term has a subject of its own, and a record
   is also refused if the last one of its term is another than its writer knows.
3. What was sent and not acknowledged may or may not be in the log. Whoever sent it looks: if it is there, it counts;
   if the log ends before it, the same bytes are sent again; if another server's record is in its place, this server
   has been overtaken, and what it had under way never was.
4. Nothing is folded before the broker has acknowledged it, and everything is folded in the order of the log.
5. Leading is a matter of the log. Each record has the term and the name of the server that wrote it. A server leads
   from its first record on (term + 1) until another server's first record. One that stands by reads, verifies and
   folds; after `SILENCE` seconds without a record or pulse of the leader it adds such a record, and if that is refused,
   somebody was faster: it reads on. A leader that is overtaken stands by. So two servers may believe that they lead,
   but only one of them can add a record, and what a server sends to clients follows from records that were added.
6. Time is the log's: the stamp before plus the seconds that have passed since on a clock that is never set. The
   machine's own time is only the stamp of the first record, and time in which nobody serves does not count.
7. A server keeps its records since its last two checkpoints, and at least the last few, in a file of its own (`Tail`):
   those that it sends before it sends them, with a mark once they are acknowledged. Records that the broker has lost
   or damaged are taken from there: those that were acknowledged are added again at the end of the log, and where the
   log has a hole they are stored beside it; `mending` has the rules. What cannot be mended stops the server, with an
   error that names the record.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from offbeat.core.errors import FolderError, OffbeatError
from offbeat.deploy import envelope
from offbeat.deploy.encoding import RefusedError, write_json
from offbeat.deploy.envelope import Channel, Ours, PrivateSeal, Theirs, derive, digest_of, public_sign
from offbeat.deploy.wire import LogEntry

log = logging.getLogger("offbeat.deploy")

SILENCE = 4.0  # seconds without a sign of the leader after which another server takes over
AGAIN = 0.5  # seconds between two attempts
DEEP, WIDE = 256, 32 << 20  # records and bytes that are under way at most before clients have to wait
_HEADER = 1 << 16


class BrokenLogError(OffbeatError):
    """The log is not what was written, and cannot be mended."""


class OvertakenError(OffbeatError):
    """Another server leads."""


class UncertainError(OffbeatError):
    """A record may have been stored or not."""


class StorageFullError(UncertainError):
    """The broker has no room."""


# Records


class MemberKeys(NamedTuple):
    """A client's public keys: of its account, for its signatures, for sealing; the latter two in hexadecimal."""

    account: str
    sign: str
    seal: str


NO_KEYS = MemberKeys("", "", "")  # of the server, whose entries are its own


class Body(NamedTuple):
    """Where a large envelope lies: beside the log, in so many pieces. digest: its `digest_of`.

    number: of those that were stored in the record's term. No two records name the same body, also not if a message
    came twice: removing an old record's body can never remove a newer one's, however late it happens.
    """

    digest: str
    pieces: int
    size: int
    number: int


class Record(NamedTuple):
    """One record. sender: a client's name, "" for the server.   keys: the client's, with which the envelope opens."""

    seq: int
    prev: str
    stamp: float
    term: int
    leader: str
    sender: str
    keys: MemberKeys | None
    body: Body | None
    content: bytes  # the client's envelope, unless it lies beside the log; the server's own message, sealed


@dataclass
class Chain:
    """The end of a log as far as it is known: what the next record has to follow."""

    seq: int = 0
    digest: str = ""
    stamp: float = 0.0
    term: int = 0
    leader: str = ""

    def check(self, record: Record) -> None:
        """Whether this is the next record; raises `RefusedError`."""
        if (record.seq, record.prev) != (self.seq + 1, self.digest):
            raise RefusedError("chain", f"does not follow record {self.seq}")
        same = (record.term, record.leader) == (self.term, self.leader)
        if record.stamp < self.stamp or not (same or record.term > self.term):
            raise RefusedError("chain", "goes back in time or to a former leader")

    def follow(self, record: Record, raw: bytes) -> None:
        """This is the newest record now."""
        self.seq, self.digest = record.seq, sha256(raw).hexdigest()
        self.stamp, self.term, self.leader = record.stamp, record.term, record.leader


class Scribe:
    """Writes and reads the records of one run with the server's keys."""

    def __init__(self, federation: str, run: str, ours: Ours) -> None:
        self.federation, self.run, self.ours = federation, run, ours
        self.about = ("record", federation, run)
        self.own = PrivateSeal(derive(ours.seal, "log", federation, run))
        self.channels: dict[MemberKeys, Channel] = {}

    @cached_property
    def public(self) -> bytes:
        return public_sign(self.ours.sign)

    def channel(self, keys: MemberKeys) -> Channel:
        """The server's end of what is said with a client; raises `RefusedError` if these are no keys."""
        if keys not in self.channels:
            try:
                theirs = Theirs(bytes.fromhex(keys.sign), bytes.fromhex(keys.seal))
            except ValueError:
                raise RefusedError("keys", f"the keys of {keys.account} are not keys") from None
            channel = Channel(self.federation, self.run, keys.account, self.ours, theirs, server=True)
            self.channels[keys] = channel
        return self.channels[keys]

    def write(self, record: Record) -> bytes:
        """A record as bytes."""
        header = write_json(record[:-1])
        return envelope.sign(self.ours.sign, self.about, struct.pack("<I", len(header)) + header + record.content)

    def read(self, raw: bytes) -> Record:
        """A record that the server has signed; raises `RefusedError` and nothing else."""
        content = envelope.verify(self.public, self.about, raw)
        try:
            (length,) = struct.unpack_from("<I", content)
            if length > _HEADER or 4 + length > len(content):
                raise ValueError
            seq, prev, stamp, term, leader, sender, keys, body = json.loads(content[4 : 4 + length])
            return Record(
                int(seq),
                str(prev),
                float(stamp),
                int(term),
                str(leader),
                str(sender),
                None if keys is None else MemberKeys(*map(str, keys)),
                None if body is None else Body(str(body[0]), int(body[1]), int(body[2]), int(body[3])),
                content[4 + length :],
            )
        except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError, OverflowError):
            raise RefusedError("malformed", "not a record of this version") from None

    def seal(self, message: bytes) -> bytes:
        """The server's own message, for a record."""
        return self.own.seal(message, *self.about)

    def entry(self, record: Record, body: bytes | None = None) -> LogEntry:
        """What is folded. body: the envelope, if it lies beside the log. Raises `RefusedError` and nothing else."""
        if record.keys is None:
            data = self.own.open(record.content, *self.about)
        else:
            if record.body is not None:
                check_body(record.body, body)
            known = None if record.body is None else record.body.digest
            data = self.channel(record.keys).open("entry", record.content if body is None else body, known)
        return LogEntry(record.seq, record.stamp, record.sender, data, record.keys or NO_KEYS)


def body_of(run: str, term: int, number: int) -> str:
    """The subjects of a body's pieces, without the piece's number."""
    return f"body.{run}.{term}.{number}"


def check_body(wanted: Body, found: bytes | None) -> None:
    """Whether this is the envelope that a record names; raises `RefusedError`."""
    if found is None or len(found) != wanted.size or digest_of(found) != wanted.digest:
        raise RefusedError("damaged", f"the {wanted.size} bytes stored outside the log are missing or have changed")


# Time


class LogClock:
    """The log's time: the last stamp, and the seconds since then on a clock that is never set."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self.wall, self.steady = wall, steady
        self.stamp, self.at = 0.0, steady()
        self.offset = wall() - steady()

    def start(self, last: float) -> None:
        """A server starts: a new log begins at the machine's time; another goes on where it stopped."""
        self.stamp, self.at = last or self.wall(), self.steady()

    def hear(self, stamp: float) -> None:
        """The leader has written this now."""
        self.stamp, self.at = stamp, self.steady()

    def now(self) -> float:
        """The log's time; it never goes back."""
        return self.stamp + max(0.0, self.steady() - self.at)

    def jumped(self) -> float:
        """By how many seconds the machine's clock was set since this was last asked, if by more than two."""
        offset = self.wall() - self.steady()
        by = offset - self.offset
        if abs(by) <= 2.0:
            return 0.0
        self.offset = offset
        return by


# The server's own copy of the end


class Tail:
    """Records since the last two checkpoints, in two files: `log.tail`, and `log.tail.old` up to the last checkpoint.
    A run in which little happens has checkpoints without new records, and keeps older ones.

    A record without content is a mark: the one of its number is in the log. They are written without waiting for the
    disk: they are there for when the broker, not this machine, loses data.
    """

    FRAME = struct.Struct("<QI")  # number, length

    def __init__(self, folder: Path) -> None:
        self.paths = folder / "log.tail.old", folder / "log.tail"
        self.file = self._open()
        frames = list(self._frames(self.paths[1]))
        os.truncate(self.file, sum(self.FRAME.size + len(raw) for _, raw in frames))
        self.fresh = sum(not raw for _, raw in frames)  # records of this file that are in the log
        self.under_way: dict[int, bytes] = {}  # records that were sent and are not acknowledged

    def _open(self) -> int:
        return os.open(self.paths[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def send(self, seq: int, raw: bytes) -> None:
        """This record is about to be sent."""
        self.under_way[seq] = raw
        self._write(self.FRAME.pack(seq, len(raw)) + raw)

    def acknowledge(self, seq: int) -> None:
        """The record of this number that was sent is in the log."""
        self.under_way.pop(seq, None)
        self.fresh += 1
        self._write(self.FRAME.pack(seq, 0))

    def write(self, seq: int, raw: bytes) -> None:
        """This record was read in the log, where whatever we may have sent after the one before it is not."""
        self.under_way.clear()
        self.fresh += 1
        self._write(self.FRAME.pack(seq, len(raw)) + raw + self.FRAME.pack(seq, 0))

    def _write(self, content: bytes) -> None:
        """Raises `FolderError`, which nobody takes for a broken connection: what is not here must not be sent."""
        frames = memoryview(content)
        try:
            while frames:
                frames = frames[os.write(self.file, frames) :]
        except OSError as error:
            raise FolderError(
                f"cannot write {self.paths[1]} ({error.strerror}); put that right and start this server again: the "
                f"run goes on where it was"
            ) from None

    def rotate(self, least: int = 0) -> None:
        """A checkpoint was written: what is older than the one before it is not needed any more. least: records that
        are kept all the same, for a server that stands by and has not read them when the broker loses them."""
        if self.fresh < least:
            return
        self.fresh = 0
        os.close(self.file)
        self.paths[1].replace(self.paths[0])
        self.file = self._open()
        for seq, raw in self.under_way.items():
            self._write(self.FRAME.pack(seq, len(raw)) + raw)

    def read(self) -> dict[int, bytes]:
        """All records by number, also such as were never acknowledged; of a number that was written twice the last."""
        return {seq: raw for seq, raw in self._frames(*self.paths) if raw}

    def known(self) -> dict[int, bytes]:
        """The records by number that are known to have been in the log as they are here: those with a mark behind."""
        sent: dict[int, bytes] = {}
        found: dict[int, bytes] = {}
        for seq, raw in self._frames(*self.paths):
            if raw:
                sent[seq] = raw
            elif seq in sent:
                found[seq] = sent[seq]
        return found

    def acknowledged(self) -> int:
        """The number of the last record that is known to have been in the log; 0: none is."""
        return max((seq for seq, raw in self._frames(*self.paths) if not raw), default=0)

    def _frames(self, *paths: Path) -> Iterator[tuple[int, bytes]]:
        for path in paths:
            content = memoryview(path.read_bytes() if path.exists() else b"")
            at = 0
            while at + self.FRAME.size <= len(content):
                seq, length = self.FRAME.unpack_from(content, at)
                at += self.FRAME.size
                if at + length > len(content):
                    break  # cut off in the midst of writing
                yield seq, bytes(content[at : at + length])
                at += length

    def close(self) -> None:
        os.close(self.file)


# Adding


class LogStream(Protocol):
    """The broker's side of a log. Each method raises `UncertainError` if there is no clear answer."""

    async def publish(self, raw: bytes, expected: int, term: int, own: int | None = None) -> asyncio.Future[int]:
        """Send this record of a term, if `expected` is the last one's number and, where given, `own` that of the last
        one of this term (0: there is none); the future gives its number, or raises."""

    async def read(self, seq: int) -> bytes | None:
        """The record of this number; None if there is none."""

    async def end(self) -> int:
        """The number of the last record."""


@dataclass
class Sent:
    """A record on its way. then: whatever is to be done when it is folded."""

    record: Record
    raw: bytes
    entry: LogEntry
    ack: asyncio.Future[int]
    then: Any = None


class Appender:
    """Adds records to the log, many at a time, and hands them back in order when the broker has them.

    chain: the end of the log, moved on with every record that is handed back.
    """

    def __init__(
        self, scribe: Scribe, stream: LogStream, chain: Chain, tail: Tail, clock: LogClock, leader: str
    ) -> None:
        self.scribe, self.stream, self.chain, self.tail, self.clock = scribe, stream, chain, tail, clock
        self.term, self.leader = chain.term + 1, leader
        self.head = replace(chain)  # as if all that is under way were in the log
        self.before = chain.seq  # the last record before this term
        self.under_way: deque[Sent] = deque()
        self.bytes = 0
        self.lock = asyncio.Lock()
        self.came, self.room = asyncio.Event(), asyncio.Event()
        self.trouble = ""  # why the broker does not take records just now
        self.failed: FolderError | None = None  # what has kept a record from being sent: none can follow it
        self.room.set()
        tail.under_way.clear()  # what another server has overtaken never was

    async def add_own(self, message: bytes) -> None:
        """Send a message of the server's own."""
        await self._add("", None, None, self.scribe.seal(message), message, None)

    async def add(
        self, sender: str, keys: MemberKeys, content: bytes, data: bytes, body: Body | None = None, then: Any = None
    ) -> None:
        """Send a client's envelope, which holds this data; waits while too much is under way."""
        await self.room.wait()
        await self._add(sender, keys, body, b"" if body else content, data, then)

    async def _add(
        self, sender: str, keys: MemberKeys | None, body: Body | None, content: bytes, data: bytes, then: Any
    ) -> None:
        """Completes even if its caller is cancelled: a record that was begun must be sent, or the log has a hole."""
        await asyncio.shield(asyncio.ensure_future(self._send(sender, keys, body, content, data, then)))

    async def _send(
        self, sender: str, keys: MemberKeys | None, body: Body | None, content: bytes, data: bytes, then: Any
    ) -> None:
        async with self.lock:
            head, stamp = self.head, max(self.head.stamp, self.clock.now())
            record = Record(head.seq + 1, head.digest, stamp, self.term, self.leader, sender, keys, body, content)
            raw = self.scribe.write(record)
            self._keep(record.seq, raw)
            head.follow(record, raw)
            ack = await self._publish(record.seq, raw)
            entry = LogEntry(record.seq, stamp, sender, data, keys or NO_KEYS)
            self.under_way.append(Sent(record, raw, entry, ack, then))
            self._count(len(raw) + len(data))

    def _keep(self, seq: int, raw: bytes) -> None:
        """Our own copy, without which nothing is sent. Whoever adds may be overheard; whoever settles is not."""
        try:
            if self.failed is None:
                return self.tail.send(seq, raw)
        except FolderError as error:
            self.failed = error
            self._count(0)
        assert self.failed is not None
        raise self.failed

    async def _publish(self, seq: int, raw: bytes) -> asyncio.Future[int]:
        return await self.stream.publish(raw, seq - 1, self.term, seq - 1 if seq - 1 > self.before else 0)

    def _count(self, size: int) -> None:
        self.bytes += size
        self.came.set() if self.under_way or self.failed else self.came.clear()
        if len(self.under_way) < DEEP and self.bytes < WIDE:
            self.room.set()
        else:
            self.room.clear()

    async def settle(self) -> Sent:
        """Wait until the oldest record under way is in the log, and hand it back. Raises `OvertakenError` if another
        server's record is in its place, `BrokenLogError` if the log has lost what cannot be added again, `FolderError`
        if our own disk takes no more."""
        await self.came.wait()
        if self.failed is not None:
            raise self.failed
        while True:
            first = self.under_way[0]
            try:
                if await first.ack == first.record.seq:
                    break
            except UncertainError as error:
                await self._troubled(error)
            await self._look()
        self.trouble = ""
        self.under_way.popleft()
        self._count(-len(first.raw) - len(first.entry.data))
        self.chain.follow(first.record, first.raw)
        self.tail.acknowledge(first.record.seq)
        return first

    async def _troubled(self, error: UncertainError) -> None:
        if self.trouble != str(error):
            self.trouble = str(error)
            advice = "if updates stop, look at the broker's log and at its disk"
            log.warning("a record was not acknowledged: %s; %s", error, advice)
        if isinstance(error, StorageFullError):
            await asyncio.sleep(2 * AGAIN)

    async def _look(self) -> None:
        """Find out what became of the records under way, and send again those that the log does not have."""
        async with self.lock:
            await asyncio.gather(*(_over(sent.ack) for sent in self.under_way))
            while True:
                try:
                    return await self._compare()
                except UncertainError as error:
                    await self._troubled(error)
                    await asyncio.sleep(AGAIN)

    async def _compare(self) -> None:
        end = await self.stream.end()
        first = self.under_way[0].record.seq
        if end < first - 1:
            await refill(self.stream, self.tail, end, first - 1, self.scribe)
        elif first - 1 > self.before and await self.stream.read(first - 1) is None:
            raise OvertakenError(f"the broker has lost record {first - 1} of {self.scribe.run}; a new term begins")
        lost = 0  # a record under way in whose place there is nothing: ours, if one of ours follows
        for sent in self.under_way:
            found = await self.stream.read(sent.record.seq) if sent.record.seq <= end else None
            if found is not None and found != sent.raw:
                raise OvertakenError(f"another server has written record {sent.record.seq} of {self.scribe.run}")
            if sent.record.seq <= end:
                lost = sent.record.seq if found is None else 0
        if lost:
            raise OvertakenError(f"the broker has lost record {lost} of {self.scribe.run}; a new term begins")
        for sent in self.under_way:
            if sent.record.seq <= end:
                sent.ack = _known(sent.record.seq)
            else:
                sent.ack = await self._publish(sent.record.seq, sent.raw)


async def refill(stream: LogStream, tail: Tail, end: int, wanted: int, scribe: Scribe) -> None:
    """Add to a log that ends too early what it had, from the server's own copy."""
    ours, run = tail.known(), scribe.run
    missing = [seq for seq in range(end + 1, wanted + 1) if seq not in ours]
    try:
        records = {seq: scribe.read(raw) for seq, raw in ours.items() if end < seq <= wanted}
    except RefusedError:
        raise BrokenLogError(
            f"the records of {run} in this folder were not written with these keys; serve it with the server.creds "
            f"that it was begun with"
        ) from None
    if missing:
        raise BrokenLogError(
            f"the broker's log of {run} ends at record {end}, but {wanted} were acknowledged, and this server has no "
            f"copy of record {missing[0]}: the broker has lost data. Restore its store from a backup that has them, "
            f"serve the run from another server's folder, or begin another run"
        )
    last = await stream.read(end) if end else None
    if last is not None and sha256(last).hexdigest() != records[end + 1].prev:
        raise BrokenLogError(
            f"the broker's log of {run} is not the one that this folder continues: the run was restored from a backup. "
            f"Serve it from the folder that `offbeat restore` has made"
        )
    log.warning("the broker has lost records %d to %d of %s; they are added again", end + 1, wanted, run)
    for seq in range(end + 1, wanted + 1):
        if await (await stream.publish(ours[seq], seq - 1, records[seq].term)) != seq:
            raise UncertainError(f"record {seq} was not taken again")


async def _over(ack: asyncio.Future[int]) -> None:
    try:
        await ack
    except UncertainError:
        return


def _known(seq: int) -> asyncio.Future[int]:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(seq)
    return done


# Reading


class LogAudit:
    """Takes raw records in order and gives them verified. mend: another copy of a record, or None."""

    def __init__(
        self, scribe: Scribe, chain: Chain, mend: Callable[[int], Awaitable[bytes | None]] | None = None
    ) -> None:
        self.scribe, self.chain, self.mend = scribe, chain, mend
        self.mended: list[tuple[int, str]] = []  # (number, what was wrong with it)

    async def take(self, seq: int, raw: bytes) -> list[tuple[Record, bytes]]:
        """The next record as it came, after those missing before it; raises `BrokenLogError` for what cannot be had."""
        found = []
        while self.chain.seq + 1 < seq:
            found.append(await self._mended(self.chain.seq + 1, "is missing"))
        if seq == self.chain.seq + 1:
            try:
                found.append((self._next(raw), raw))
            except RefusedError as error:
                found.append(await self._mended(seq, f"was changed ({error})"))
        return found

    async def missing(self) -> tuple[Record, bytes]:
        """The next record, which the log does not have."""
        return await self._mended(self.chain.seq + 1, "is missing")

    def fits(self, raw: bytes) -> bool:
        """Whether this is a record that may come next."""
        try:
            self.chain.check(self.scribe.read(raw))
        except RefusedError:
            return False
        return True

    def _next(self, raw: bytes) -> Record:
        record = self.scribe.read(raw)
        self.chain.check(record)
        self.chain.follow(record, raw)
        return record

    async def _mended(self, seq: int, wrong: str) -> tuple[Record, bytes]:
        raw = await self.mend(seq) if self.mend is not None else None
        try:
            if raw is not None:
                record = self._next(raw)
                self.mended.append((seq, wrong))
                log.warning("record %d of %s %s; it is taken from a copy", seq, self.scribe.run, wrong)
                return record, raw
        except RefusedError:
            wrong += ", as was its copy"
        raise BrokenLogError(
            f"record {seq} of the log of {self.scribe.run} {wrong}, and there is no other copy: restore the broker's "
            f"store from a backup, serve the run from a folder whose log.tail has it, or begin another run"
        )
