"""The log's records: chained and signed, added by one server at a time, mended or named when the broker loses them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offbeat.deploy import journal
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import Channel, Ours, Theirs, digest_of, public_seal, public_sign
from offbeat.deploy.journal import (
    Appender,
    Body,
    BrokenLogError,
    Chain,
    LogAudit,
    LogClock,
    MemberKeys,
    OvertakenError,
    Record,
    Scribe,
    StorageFullError,
    Tail,
    UncertainError,
)

SERVER, CLIENT = (Ours(os.urandom(32), os.urandom(32)) for _ in range(2))
KEYS = MemberKeys("AC", public_sign(CLIENT.sign).hex(), public_seal(CLIENT.seal).hex())
UP = Channel("fed", "run", "AC", CLIENT, Theirs(public_sign(SERVER.sign), public_seal(SERVER.seal)), server=False)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "AGAIN", 0.001)


class Stream:
    """A broker's stream in memory; `faults` says what happens to the next ones sent: "", "lost", "unheard", "full"."""

    def __init__(self, *faults: str) -> None:
        self.records: list[bytes | None] = []
        self.newest: dict[int, int] = {}  # by term
        self.faults = list(faults)

    async def publish(self, raw: bytes, expected: int, term: int, own: int | None = None) -> asyncio.Future[int]:
        fault = self.faults.pop(0) if self.faults else ""
        ack: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if fault == "full":
            ack.set_exception(StorageFullError("insufficient storage"))
        elif fault == "lost":
            ack.set_exception(UncertainError("no answer"))
        elif expected != len(self.records) or own not in (None, self.newest.get(term, 0)):
            ack.set_exception(UncertainError("wrong last sequence"))
        else:
            self.records.append(raw)
            self.newest[term] = len(self.records)
            if fault == "unheard":
                ack.set_exception(UncertainError("no answer"))
            else:
                ack.set_result(len(self.records))
        return ack

    async def read(self, seq: int) -> bytes | None:
        if self.faults and self.faults[0] == "away":
            self.faults.pop(0)
            raise UncertainError("away")
        return self.records[seq - 1] if seq <= len(self.records) else None

    async def end(self) -> int:
        return len(self.records)


def scribe() -> Scribe:
    return Scribe("fed", "run", SERVER)


def appender(folder: Path, stream: Stream, leader: str = "one", chain: Chain | None = None) -> Appender:
    folder.mkdir(exist_ok=True)
    return Appender(scribe(), stream, chain or Chain(), Tail(folder), LogClock(), leader)


async def audited(stream: Stream, mend: Any = None, chain: Chain | None = None) -> list[tuple[int, str, bytes]]:
    audit, found = LogAudit(scribe(), chain or Chain(), mend), []
    for seq, raw in enumerate(stream.records, 1):
        if raw is not None:
            for record, _ in await audit.take(seq, raw):
                entry = audit.scribe.entry(record)
                found.append((entry.seq, entry.sender, entry.data))
    return found


def make(folder: Path, stream: Stream, count: int) -> Appender:
    """A log of so many records."""

    async def write() -> Appender:
        writer = appender(folder, stream)
        for number in range(count):
            await writer.add_own(b"m%d" % number)
        for _ in range(count):
            await writer.settle()
        return writer

    return asyncio.run(write())


def test_what_is_added_comes_back_in_order_and_reads_the_same(tmp_path: Path) -> None:
    stream = Stream()

    async def act() -> None:
        writer = appender(tmp_path, stream)
        await writer.add_own(b"begun")
        await writer.add("alice", KEYS, UP.seal("entry", b"result"), b"result", then="ack me")
        first, second = await writer.settle(), await writer.settle()
        assert (first.entry.seq, first.entry.sender, first.entry.data) == (1, "", b"begun")
        assert (second.entry.sender, second.entry.data, second.then) == ("alice", b"result", "ack me")
        assert (writer.chain.seq, writer.chain.term, writer.chain.leader) == (2, 1, "one")
        assert await audited(stream) == [(1, "", b"begun"), (2, "alice", b"result")]
        assert b"begun" not in b"".join(raw or b"" for raw in stream.records)

    asyncio.run(act())


@pytest.mark.parametrize(
    "faults",
    [
        ["lost"],
        ["unheard"],
        ["full", "full"],
        ["", "lost", "unheard"],
        ["unheard", "lost", "away", "lost"],
        ["", "full"],
    ],
)
def test_a_record_whose_fate_is_unknown_is_in_the_log_once(tmp_path: Path, faults: list[str]) -> None:
    stream = Stream(*faults)
    make(tmp_path, stream, 5)
    assert [data for _, _, data in asyncio.run(audited(stream))] == [b"m0", b"m1", b"m2", b"m3", b"m4"]


@pytest.mark.parametrize("fault", ["", "lost", "unheard"])
def test_of_two_servers_one_writes_and_the_other_is_overtaken(tmp_path: Path, fault: str) -> None:
    stream = Stream()
    first = make(tmp_path / "1", stream, 2)

    async def act() -> None:
        second = appender(tmp_path / "2", stream, "two", Chain(**vars(first.chain)))
        await second.add_own(b"led")
        await second.settle()
        stream.faults = [fault]
        for _ in range(3):  # the second would fit behind the new leader's by its number
            await first.add_own(b"from the old leader")
        with pytest.raises(OvertakenError):
            await first.settle()
        assert [data for _, _, data in await audited(stream)] == [b"m0", b"m1", b"led"]
        assert (second.chain.term, second.chain.leader) == (2, "two")

    asyncio.run(act())


def test_a_record_that_is_lost_before_it_is_acknowledged_counts_if_the_next_one_names_it(tmp_path: Path) -> None:
    stream = Stream("", "unheard", "unheard")

    async def act() -> None:
        writer = appender(tmp_path, stream)
        for data in (b"one", b"two", b"three"):
            await writer.add_own(data)
        stream.records[1] = None
        assert [(await writer.settle()).entry.data for _ in range(3)] == [b"one", b"two", b"three"]
        assert set(writer.tail.known()) == {1, 2, 3}

    asyncio.run(act())


def test_a_record_that_is_lost_before_it_is_acknowledged_at_the_log_s_end_is_nobody_s_for_certain(
    tmp_path: Path,
) -> None:
    stream = Stream("", "unheard", "lost")

    async def act() -> None:
        writer = appender(tmp_path, stream)
        await writer.add_own(b"one")
        await writer.settle()
        for data in (b"two", b"three"):
            await writer.add_own(data)
        stream.records[1] = None  # the broker takes no other record of this number
        with pytest.raises(OvertakenError, match="the broker has lost record 2 of run; a new term begins"):
            await asyncio.wait_for(writer.settle(), 5.0)
        assert set(writer.tail.known()) == {1}
        assert set(writer.tail.read()) == {1, 2, 3}

    asyncio.run(act())


def test_clients_wait_while_too_much_is_under_way_and_the_server_itself_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "DEEP", 2)

    async def act() -> None:
        writer = appender(tmp_path, Stream())
        for _ in range(3):
            await writer.add_own(b"x")
        waiting = asyncio.create_task(writer.add("alice", KEYS, UP.seal("entry", b"r"), b"r"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await writer.settle()
        await writer.settle()
        await waiting

    asyncio.run(act())


def test_a_record_whose_sender_is_cancelled_is_added_all_the_same(tmp_path: Path) -> None:
    class Slow(Stream):
        async def publish(self, *arguments: Any, **options: Any) -> asyncio.Future[int]:
            await asyncio.sleep(0.02)
            return await super().publish(*arguments, **options)

    async def play() -> None:
        stream = Slow()
        ours = appender(tmp_path, stream)
        adding = asyncio.create_task(ours.add_own(b"one"))
        await asyncio.sleep(0.01)
        adding.cancel()  # as the broker's library does with what still waits on a subscription that is given up
        await ours.add_own(b"two")
        assert [(await ours.settle()).entry.data for _ in range(2)] == [b"one", b"two"]

    asyncio.run(play())


# Reading back


def test_every_changed_record_is_noticed(tmp_path: Path) -> None:
    stream = Stream()
    make(tmp_path, stream, 3)
    whole = list(stream.records)
    for seq, raw in enumerate(whole, 1):
        assert raw is not None
        for at in range(0, len(raw), 7):
            changed = raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]
            stream.records = [changed if number == seq else each for number, each in enumerate(whole, 1)]
            with pytest.raises(BrokenLogError, match=f"record {seq} .*was changed"):
                asyncio.run(audited(stream))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda records: records.__setitem__(1, None), "record 2 .* is missing"),
        (lambda records: records.__setitem__(0, None), "record 1 .* is missing"),
        (lambda records: records.__setitem__(2, records[1]), "record 3 .* was changed"),
        (lambda records: records.reverse(), "record 1 .* was changed"),
        (lambda records: records.pop(1), "record 2 .* was changed"),
    ],
)
def test_holes_and_exchanged_records_are_named(tmp_path: Path, harm: Callable[[Any], None], said: str) -> None:
    stream = Stream()
    make(tmp_path, stream, 4)
    harm(stream.records)
    with pytest.raises(BrokenLogError, match=said):
        asyncio.run(audited(stream))


def test_what_the_broker_lost_in_the_midst_is_taken_from_the_server_s_own_copy(tmp_path: Path) -> None:
    stream = Stream()
    copies = make(tmp_path, stream, 5).tail.read()
    stream.records[1] = None
    stream.records[3] = b"rubbish"

    async def mend(seq: int) -> bytes | None:
        return copies.get(seq)

    assert [seq for seq, _, _ in asyncio.run(audited(stream, mend))] == [1, 2, 3, 4, 5]
    copies[4] = copies[3]
    with pytest.raises(BrokenLogError, match="as was its copy"):
        asyncio.run(audited(stream, mend))


def test_an_end_that_the_broker_lost_is_added_again(tmp_path: Path) -> None:
    stream = Stream()
    writer = make(tmp_path, stream, 5)
    del stream.records[3:]

    async def act() -> None:
        await writer.add_own(b"m5")
        await writer.settle()
        assert [data for _, _, data in await audited(stream)] == [b"m%d" % n for n in range(6)]
        writer.tail.rotate()
        writer.tail.rotate()
        del stream.records[3:]
        await writer.add_own(b"m6")
        with pytest.raises(BrokenLogError, match="no copy of record 4"):
            await writer.settle()

    asyncio.run(act())


def test_a_former_leader_s_record_and_one_back_in_time_do_not_follow(tmp_path: Path) -> None:
    chain = Chain(3, "d", 10.0, 2, "two")
    good = Record(4, "d", 10.0, 2, "two", "", None, None, b"")
    chain.check(good)
    chain.check(good._replace(term=3, leader="three"))
    for wrong in (
        good._replace(seq=5),
        good._replace(prev="e"),
        good._replace(stamp=9.9),
        good._replace(term=1),
        good._replace(leader="one"),
    ):
        with pytest.raises(RefusedError):
            chain.check(wrong)


def test_a_large_envelope_beside_the_log_must_be_the_one_that_was_recorded(tmp_path: Path) -> None:
    sealed = UP.seal("entry", bytes(5000))
    body = Body(digest_of(sealed), 1, len(sealed), 1)
    record = Record(1, "", 0.0, 1, "one", "alice", KEYS, body, b"")
    assert scribe().read(scribe().write(record)) == record
    assert scribe().entry(record, sealed).data == bytes(5000)
    for found in (None, sealed[:-1], UP.seal("entry", bytes(5000))):
        with pytest.raises(RefusedError, match="damaged"):
            scribe().entry(record, found)
    with pytest.raises(RefusedError, match="forged"):
        scribe().entry(record, sealed[:-1] + bytes([sealed[-1] ^ 1]))


# The server's own copy, and its clock


def test_the_tail_keeps_what_is_newer_than_the_last_but_one_checkpoint(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    tail.write(1, b"one")
    tail.rotate()
    tail.write(2, b"two")
    assert tail.read() == {1: b"one", 2: b"two"}
    tail.rotate()
    tail.write(3, b"three")
    with tail.paths[1].open("ab") as file:
        file.write(tail.FRAME.pack(4, 100) + b"cut off")
    again = Tail(tmp_path)
    again.write(4, b"four")
    assert again.read() == {2: b"two", 3: b"three", 4: b"four"}


def test_the_tail_keeps_the_last_records_of_a_run_in_which_little_happens(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    for number in (1, 2):
        tail.write(number, b"record")
        for _ in range(3):  # checkpoints
            tail.rotate(2)
    assert set(tail.read()) == {1, 2}
    tail.close()
    again = Tail(tmp_path)
    again.write(3, b"record")
    again.rotate(2)
    assert set(again.read()) == {1, 2, 3}
    again.write(4, b"record")
    again.rotate(2)
    assert set(again.read()) == {3, 4}


def test_a_record_that_was_sent_and_never_acknowledged_is_no_copy_of_what_was_in_the_log(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    tail.write(1, b"one")
    tail.send(2, b"ours, of a former life")
    tail.send(2, b"ours")
    assert tail.known() == {1: b"one"}
    tail.acknowledge(2)
    tail.send(3, b"ours, too late")
    tail.write(3, b"another's")
    tail.send(4, b"ours, too late")
    tail.acknowledge(5)  # of which nothing is here
    assert tail.known() == {1: b"one", 2: b"ours", 3: b"another's"}


def test_the_tail_has_what_is_sent_before_it_is_sent_and_tells_what_was_acknowledged(tmp_path: Path) -> None:
    seen: list[dict[int, bytes]] = []

    class Watched(Stream):
        async def publish(self, raw: bytes, *others: Any, **options: Any) -> asyncio.Future[int]:
            seen.append(Tail(tmp_path).read())
            assert raw in seen[-1].values()
            return await super().publish(raw, *others, **options)

    writer = make(tmp_path, Watched(), 3)
    assert [len(each) for each in seen] == [1, 2, 3]
    assert writer.tail.acknowledged() == 3
    asyncio.run(writer.add_own(b"m3"))
    assert (writer.tail.acknowledged(), sorted(writer.tail.read())) == (3, [1, 2, 3, 4])
    for _ in range(3):  # however many checkpoints there are before it is acknowledged
        writer.tail.rotate()
    assert sorted(writer.tail.read()) == [4]
    writer.tail.write(4, b"another server's")
    writer.tail.rotate()
    assert (writer.tail.read(), writer.tail.acknowledged()) == ({4: b"another server's"}, 4)


def test_time_goes_on_with_the_steady_clock_never_back_and_not_while_nobody_serves() -> None:
    wall, steady = [1000.0], [5.0]
    clock = LogClock(lambda: wall[0], lambda: steady[0])
    clock.start(0.0)
    assert clock.now() == 1000.0
    wall[0], steady[0] = 4600.0, 6.0  # set an hour ahead
    assert clock.now() == 1001.0
    assert clock.jumped() == pytest.approx(3599.0)
    assert clock.jumped() == 0.0
    wall[0] = 0.0
    assert clock.now() == 1001.0
    for wall[0] in (0.0, 90_000.0):  # another start, with a clock that is behind, or a day later
        clock.start(1001.0)
        assert clock.now() == 1001.0
    clock.hear(1010.0)
    steady[0] += 2.0
    assert clock.now() == 1012.0
