"""Attacks on a run with a real broker: from stolen keys, from none, and by the broker's administrator.

Each test says what came of it. `goes_on` means: work of an honest client is applied afterwards, nothing has stopped,
and the log folded again gives the server's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from attacked import Place, Scene, heard, opened
from nats.js.errors import APIError
from served import cancel, until

from offbeat.algorithms import AREA, FedAsync
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.deploy import encoding, keys, server_core, wire
from offbeat.deploy.board import BoardSerial, Pulse, write_pulse
from offbeat.deploy.effects import Judgement
from offbeat.deploy.envelope import digest_of, sign
from offbeat.deploy.gate import PARTED, write_parts
from offbeat.deploy.journal import BrokenLogError
from offbeat.deploy.link import Kept, Link
from offbeat.deploy.questions import Answering, Asking, CopyPiece, Question, ask_server, read_answer, rest, write
from offbeat.deploy.refold import fingerprint, refold
from offbeat.deploy.roll import members_of
from offbeat.experiment.admin import served_runs
from offbeat.experiment.joining import Bulletin


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("place")) as made:
        yield made


async def raw(link: Link, subject: str, header: bytes, data: bytes = b"", reply: str = "") -> None:
    """Publish a message with a header as it is, which no client library would send."""
    words = f"HPUB {subject} {reply} {len(header)} {len(header) + len(data)}\r\n".encode()
    await link.client._send_command(words + header + data + b"\r\n")
    await link.client.flush()


HEADERS = [
    b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    b"NATS/1.0 100 \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\n: : :\r\n\xff\xff\r\n\r\n",
    b"\r\n\r\n",
    b"N",
]


def test_headers_that_are_none_leave_nobody_deaf(place: Place) -> None:
    """The library that we speak to the broker with stops reading, for good, where a header has no meaning."""

    async def act(scene: Scene) -> None:
        for header in HEADERS:
            for subject in ("beat", "ask", "up"):
                await raw(scene.thief, f"{subject}.{scene.run}", header, b"x")
        await scene.taken()
        assert scene.server.link.client.stats["reconnects"] == 0
        assert set(scene.server.refused) == {"malformed"}
        await scene.goes_on()

    place.play(act)


# With stolen keys: what the fold is fed


def trained(**changed: Any) -> dict[str, Any]:
    return {"client": "mallory", "epoch": 1, "seq": 1, "job": 0, "steps": 1, **changed}


ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "an integer of 400 digits": ("trained", trained(compute=10**400)),
    "a negative time": ("trained", trained(compute=-1.0)),
    "infinity": ("trained", trained(wait=float("inf"))),
    "a lone surrogate": ("trained", trained(error="\ud800")),
    "an error of a million letters": ("trained", trained(error="x" * 900_000)),
    "a number beyond 2**53": ("trained", trained(seq=2**63)),
    "a job that is a list": ("trained", trained(job=[[[]]])),
    "a name of 4,008 letters": ("hello", {"client": "mallory", "epoch": 1, "nonce": "n" * 4008}),
    "a field too many": ("hello", {"client": "mallory", "epoch": 1, "nonce": "n", "rank": "first"}),
    "another's name": ("hello", {"client": "alice", "epoch": 1, "nonce": "n"}),
    "another run": ("hello", {"run": "other", "client": "mallory", "epoch": 1, "nonce": "n"}),
    "the first epoch but one": ("hello", {"client": "mallory", "epoch": 2**53 - 1, "nonce": "n"}),
    "halted": ("halted", {"reason": "mine"}),
    "retired": ("removed", {"client": 0}),
    "led": ("led", {"term": 99, "server": "mine"}),
    "limits": ("limited", {"limits": {"size": 1.0}}),
    "keys": ("rekeyed", {"client": 0, "account": "A", "sign": "00", "seal": "00"}),
    "gone": ("gone", {"client": 0, "epoch": 1}),
    "expired": ("expired", {"job": 0}),
    "a score": ("scored", {"task": 0, "time": 0.0, "updates": 1, "version": 1, "metrics": {"accuracy": 1.0}}),
    "a kind that does not exist": ("drop", {}),
}


def test_no_entry_stops_the_fold_or_speaks_for_the_server(place: Place) -> None:
    async def act(scene: Scene) -> None:
        for number, (what, (kind, header)) in enumerate(ENTRIES.items(), 1):
            await scene.up(scene.entry(kind, header))
            refused = scene.server.refused
            assert sum(refused.values()) == number, f"{what}: {refused}"
        assert "quarantined" not in refused
        ledger = scene.server.ledger
        assert [record.removed for record in ledger.clients] == [False] * 3
        assert (ledger.limits, ledger.stopped, ledger.clients[0].present) == (scene.limits, "", False)
        await scene.goes_on()

    place.play(act)


def test_an_update_as_large_as_numbers_go_is_refused(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await scene.up(scene.says("hello", epoch=1, nonce="n"))
        await until(lambda: scene.server.ledger.clients[2].queue)
        job = next(iter(scene.server.ledger.clients[2].queue))
        (name,) = scene.server.core.reducer.expected[0]
        await scene.up(scene.says("trained", {name: torch.tensor([3e38]).double()}, **trained(job=job)))
        assert scene.server.refused == {"norm": 1}
        assert abs(float(scene.server.ledger.server.model.vector)) < 100
        await scene.goes_on()

    place.play(act)


def test_one_client_s_claims_end_no_run(place: Place) -> None:
    async def act(scene: Scene) -> None:
        for name in ("alice", "bob"):
            await scene.join(name, judge=lambda *_: Judgement(10, 1.0, {"accuracy": [0, 10]}))
        await scene.up(scene.says("hello", epoch=1, nonce="n"))
        said, ledger = set[int](), scene.server.ledger
        while len(scene.server.recorder.measurements) < 1:
            for number in {each.number for each in ledger.judging.values()} - said:
                said.add(number)
                await scene.up(
                    scene.says("judged", epoch=1, number=number, total=2**53 - 1, sums={"accuracy": [2**53 - 1] * 2})
                )
            await asyncio.sleep(0.02)
        assert said
        assert not scene.server.refused
        assert 0 < scene.server.recorder.measurements[-1].metrics["accuracy"] < 0.9
        await scene.goes_on()

    place.play(act, until=Until(updates=10**6, accuracy=0.9), every=0.1)


# With stolen keys: pieces, copies and questions


def test_pieces_are_one_s_own_and_each_counts_once(place: Place) -> None:
    """A message of 20 KB that names one piece 4,000 times would have the server read 4 GB."""

    async def act(scene: Scene) -> None:
        alice = await scene.link("alice")
        theirs = await alice.store(f"part.{scene.run}", b"alice's")
        own = await scene.thief.store(f"part.{scene.run}", b"own")
        for numbers, code in (([own] * 4000, "malformed"), ([theirs], "damaged"), ([own, 10**6], "damaged")):
            before = scene.server.refused.get(code, 0)
            await scene.up(PARTED + scene.sealed(write_parts(numbers, 7, digest_of(b"alice's")), "parts"))
            assert scene.server.refused[code] == before + 1
        await scene.goes_on()

    place.play(act)


@pytest.mark.parametrize("header", ["Status: 500", "Status: 404", "Nats-Sequence: x", "Nats-Sequence: 1"])
def test_headers_of_a_piece_do_not_pass_for_the_broker_s(place: Place, header: str) -> None:
    async def act(scene: Scene) -> None:
        run, thief, words = scene.run, scene.thief, dict([header.split(": ")])
        envelope = scene.says("hello", epoch=1, nonce="n")
        number = await thief.store(f"part.{run}", envelope, words)
        await scene.up(
            PARTED + scene.sealed(write_parts([number], len(envelope), digest_of(envelope)), "parts"), headers=words
        )
        await until(lambda: scene.server.ledger.clients[2].present)
        for _ in range(2):
            await thief.store(f"mirror.{run}", write("copy", CopyPiece("n", "c", 0, 1), b"state"), words)
        asking = Asking(thief, run)
        await asking.listen()
        assert await asking.ask("copy", "n", patience=60) == b"state"
        await scene.goes_on()

    place.play(act)


def test_a_megabyte_of_headers_is_not_read_and_hides_nothing(place: Place) -> None:
    """It would take a third of a second of the server's time, also on signs of life that are over a budget."""

    def forged(many: int) -> bytes:
        lines = b"".join(b"a%d: b\r\n" % number for number in range(many))
        return b"NATS/1.0\r\nNats-Sequence: 7\r\n" + lines + b"Nats-Subject: x\r\n\r\n"

    long = forged(6000)  # as long as a stream keeps

    async def act(scene: Scene) -> None:
        run, thief = scene.run, scene.thief
        found = await thief.client._process_headers(forged(100_000))
        assert found is not None
        assert len(found) < 1000
        assert "Nats-Sequence" not in found
        for what in ("beat", "ask"):
            await raw(thief, f"{what}.{run}", forged(100_000), b"x")
        await raw(thief, f"up.{run}", long, b"x")
        await until(lambda: scene.server.refused == {"malformed": 2})
        envelope = scene.says("hello", epoch=1, nonce="n")
        await raw(thief, f"part.{run}", long, envelope)
        while not (number := await scene.admin.end(f"PART-{run}")):
            await asyncio.sleep(0.02)
        await scene.up(PARTED + scene.sealed(write_parts([number], len(envelope), digest_of(envelope)), "parts"))
        await until(lambda: scene.server.ledger.clients[2].present)
        await raw(thief, f"mirror.{run}", long, write("copy", CopyPiece("n", "c", 0, 1), b"state"))
        asking = Asking(thief, run)
        await asking.listen()
        assert await asking.ask("copy", "n", patience=60) == b"state"
        await scene.goes_on()

    place.play(act)


def test_a_long_header_costs_what_it_takes_to_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a megabyte of braces takes 50 ms: 50 such messages a second would leave no time for others."""
    read, lengths = encoding.read_json, list[int]()

    def measured(data: bytes) -> Any:
        lengths.append(len(data))
        return read(data)

    def full(kind: str) -> bytes:
        text = b'{"kind":"%s","x":[%s1]}' % (kind.encode(), b"{}," * 87_000)
        return encoding.MAGIC + struct.pack("<I", len(text)) + text

    async def act(scene: Scene) -> None:
        run, thief = scene.run, scene.thief
        monkeypatch.setattr(encoding, "read_json", measured)
        await thief.say(f"beat.{run}", scene.sealed(full("beat"), "beat"))
        await thief.say(f"ask.{run}", scene.sealed(full("question"), "ask"))
        await thief.store(f"mirror.{run}", full("copy"))
        await scene.up(PARTED + scene.sealed(b'{"numbers":[%s1]}' % (b"1," * 400_000), "parts"))
        asking = Asking(thief, run)
        await asking.listen()
        assert await asking.ask("copy", "n", patience=60) is None
        assert max(lengths) < 5000
        budget = scene.server.gate.budgets["mallory"]
        before = budget.messages
        await scene.up(scene.sealed(full("hello")))
        assert max(lengths) > 250_000
        assert budget.messages < before - 4500  # more than four seconds of what it may send
        monkeypatch.undo()
        await scene.goes_on()

    place.play(act)


def test_a_message_that_looks_like_the_broker_s_heartbeat_is_a_message(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await scene.up(scene.says("hello", epoch=1, nonce="n"), headers={"Status": "100"})
        assert scene.server.ledger.clients[2].present
        await scene.goes_on()

    place.play(act)


def test_copies_that_make_no_sense_are_no_copies(place: Place) -> None:
    async def act(scene: Scene) -> None:
        pieces = [(5, 2), (9, 2), (-1, 1), (0, 2**53 - 1), (0, 0)]
        for at, (number, many) in enumerate(pieces):
            name = "a" if at < 2 else str(at)
            with contextlib.suppress(Exception):
                await scene.thief.store(f"mirror.{scene.run}", write("copy", CopyPiece("n", name, number, many), b"x"))
        asking = Asking(scene.thief, scene.run)
        await asking.listen()
        for skip in (0, 7):
            assert await asking.ask("copy", "n", skip=skip, patience=60) is None
        with pytest.raises(TimeoutError):  # not a question
            await asking.ask("copy", "n", skip=-1, patience=0.2)
        await scene.goes_on()

    place.play(act)


def test_a_copy_is_handed_back_one_piece_at_a_time_however_many_there_are() -> None:
    """The broker keeps three copies of each client, and one may be as large as several models."""
    size, told = 1 << 20, list[int]()

    class Broker:
        async def kept(self, stream: str, number: int, subject: str = "") -> Kept | None:
            copy, place = divmod(number - 1, 10)
            data = write("copy", CopyPiece("n", f"c{copy}", place, 10), bytes([number]) * size)
            return Kept(number, subject, data) if number <= 30 else None

    async def say(answer: bytes) -> None:
        told.append(read_answer(answer)[1][0])

    asked: Any = Answering.__new__(Answering)
    asked.link, asked.run = Broker(), "run"
    tracemalloc.start()
    try:
        asyncio.run(asked._copy(say, "account", Question("copy", "id", nonce="n")))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told == list(range(21, 31))  # the newest
    assert most < 8 * size


def test_questions_for_copies_are_answered_one_at_a_time_with_a_rest_between(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, times = Answering._copy, list[tuple[float, float]]()

    async def timed(self: Answering, *given: Any) -> int:
        began = time.monotonic()
        handled = await copy(self, *given)
        times.append((began, time.monotonic()))
        return handled

    monkeypatch.setattr(Answering, "_copy", timed)

    async def act(scene: Scene) -> None:
        await scene.thief.store(f"mirror.{scene.run}", write("copy", CopyPiece("n", "c", 0, 1), bytes(1 << 20)))
        question = scene.sealed(write("question", Question("copy", "id", nonce="n")), "ask")
        for _ in range(80):
            await scene.thief.say(f"ask.{scene.run}", question)
            await asyncio.sleep(0.01)
        await scene.goes_on()

    place.play(act)
    assert len(times) > 1
    assert all(after[0] - before[1] > min(0.9, 8 * (before[1] - before[0])) for before, after in pairwise(times))


def test_a_large_copy_has_a_long_rest_and_a_slow_line_has_none() -> None:
    """Of a client that has lost its disk on a slow line, the wait for the network is not the server's work."""
    assert rest(took=1.0, handled=100_000_000) == 9.0
    assert rest(took=0.01, handled=100_000) == pytest.approx(0.09)
    assert rest(took=15.0, handled=100_000) < 1.1


def test_after_a_rest_a_client_gets_the_copy_that_it_asks_for_by_then(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives a question up after a while, and asks another one."""
    copy = Answering._copy

    async def slow(self: Answering, *given: Any) -> int:
        await asyncio.sleep(0.4)
        return await copy(self, *given)

    monkeypatch.setattr(Answering, "_copy", slow)

    async def act(scene: Scene) -> None:
        await scene.thief.store(f"mirror.{scene.run}", write("copy", CopyPiece("n", "c", 0, 1), b"state"))
        asking = Asking(scene.thief, scene.run)
        await asking.listen()
        assert await asking.ask("copy", "n", patience=60) == b"state"
        with pytest.raises(TimeoutError):
            await asking.ask("copy", "n", patience=0.5)
        assert await asking.ask("copy", "n", patience=30) == b"state"
        await scene.goes_on()

    place.play(act)


def test_pieces_that_are_read_in_vain_cost_as_much_as_their_bytes_in_a_message_would(place: Place) -> None:
    """A few words that name a client's own pieces, again and again, would keep the server reading and hashing."""

    async def act(scene: Scene) -> None:
        own = await scene.thief.store(f"part.{scene.run}", bytes(1 << 20))
        parts = scene.sealed(write_parts([own], 1 << 20, digest_of(b"something else")), "parts")
        await scene.up(PARTED + parts)
        assert scene.server.refused == {"damaged": 1}
        budget = scene.server.gate.budgets["mallory"]
        assert budget.bytes < budget.most - 18 * (1 << 20)
        await scene.goes_on()

    place.play(act)


def test_pieces_cost_what_was_read_whatever_size_was_named(place: Place) -> None:
    """Words that name one byte, and pieces of megabytes: their sender's own, or another client's."""

    async def act(scene: Scene) -> None:
        own = [await scene.thief.store(f"part.{scene.run}", bytes(1 << 20)) for _ in range(2)]
        theirs = await (await scene.link("alice")).store(f"part.{scene.run}", bytes(1 << 20))
        for count, numbers in enumerate((own, [theirs]), 1):
            await scene.up(PARTED + scene.sealed(write_parts(numbers, 1, digest_of(bytes(100))), "parts"))
            assert scene.server.refused == {"damaged": count}
            budget = scene.server.gate.budgets["mallory"]
            assert budget.bytes < budget.most - 18 * (1 << 20) * len(numbers)
        await scene.goes_on()

    place.play(act)


# With stolen keys: floods


FLOODS = {
    "40,000 tiny messages": ("up", 40_000, 1),
    "20,000 questions": ("ask", 20_000, 100),
    "20,000 signs of life": ("beat", 20_000, 100),
    "120 MB of pieces": ("part", 120, 1 << 20),
    "120 MB of copies": ("mirror", 120, 1 << 20),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_drowns_nobody_else(place: Place, flood: str) -> None:
    what, many, size = FLOODS[flood]

    async def act(scene: Scene) -> None:
        clock = asyncio.get_running_loop().time
        await scene.join("alice")
        await until(lambda: scene.server.ledger.tally.updates > 5)
        before, began = scene.server.ledger.tally.updates, clock()
        await until(lambda: scene.server.ledger.tally.updates > before + 20)
        calm, data = clock() - began, bytes(size)  # what as many updates take on a machine as busy as this one
        if what == "beat":
            beat = wire.say(wire.Beat(scene.run, "mallory", 0, 0))
            data = scene.sealed(beat, "beat")
        before, began = scene.server.ledger.tally.updates, clock()
        for number in range(many):
            await scene.thief.client.publish(f"{what}.{scene.run}", data)
            if number % 500 == 0 or size > 1000:
                await scene.thief.client.flush()
        await until(lambda: scene.server.ledger.tally.updates > before + 20, 5 + 20 * calm)
        assert clock() - began < 15 + 20 * calm
        kept = 0
        for stream in ("IN", "PART", "MIRROR"):
            info = await scene.admin.js.stream_info(f"{stream}-{scene.run}")
            kept += info.state.bytes
        assert kept < 16 << 20
        await scene.goes_on()

    place.play(act)


def test_whoever_uses_a_client_s_keys_elsewhere_takes_its_place_and_is_not_a_second_one(place: Place) -> None:
    """The thief may be this client, as long as its keys count; the one that was there stops and says why."""

    async def act(scene: Scene) -> None:
        await scene.join("mallory")
        first = scene.ends
        await until(lambda: scene.server.ledger.clients[2].seq > 2)
        hello = {"epoch": 2, "nonce": "stolen", "after_epoch": 1, "after_seq": scene.server.ledger.clients[2].seq}
        while not first.done():
            hello["after_seq"] = scene.server.ledger.clients[2].seq
            await scene.up(scene.says("hello", **hello))
        reason = await first
        assert "fenced" in reason
        assert "move this one's state folder away" in reason
        assert scene.server.ledger.clients[2].nonce == "stolen"
        await scene.goes_on()

    place.play(act)


# Without keys


def test_without_keys_nothing_is_said_to_the_broker(place: Place) -> None:
    async def act(scene: Scene) -> None:
        before = scene.server.ledger.position
        for words in (
            b'CONNECT {"verbose":false}\r\nPUB up.x 1\r\nx\r\n',
            b'CONNECT {"user":"server","pass":"server"}\r\nSUB > 1\r\n',
            f'CONNECT {{"jwt":"{scene.thief.creds.jwt}"}}\r\nPUB up.{scene.run} 1\r\nx\r\n'.encode(),
            f'CONNECT {{"jwt":"{scene.thief.creds.jwt}","sig":"AAAA"}}\r\nSUB > 1\r\n'.encode(),
            b"PUB log.r 1\r\nx\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(100_000),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.place.broker.port)
            with contextlib.suppress(ConnectionError):
                writer.write(words)
                answer = await asyncio.wait_for(reader.read(), 60)
                assert b"-ERR" in answer or not answer.count(b"\r\n") > 1, answer
                assert b"MSG" not in answer
            writer.close()
        assert scene.server.ledger.position == before
        await scene.goes_on()

    place.play(act)


# The broker's administrator: everything on the broker, none of the keys that sign and seal


def test_what_crosses_the_broker_shows_no_names_and_no_numbers(place: Place) -> None:
    async def act(scene: Scene) -> None:
        up = await heard(scene.admin, f"up.*.{scene.run}")
        desk = await heard(scene.admin, f"desk.*.{scene.run}")
        log = await heard(scene.admin, f"log.{scene.run}.*")
        await scene.join("alice")
        await until(lambda: len(up) > 5)
        for message in (*up, *desk):
            for word in (b"alice", b"trained", b"delta", b"hello", scene.run.encode()):
                assert word not in message.data
        assert b"trained" not in b"".join(message.data for message in log)  # who has sent it is not sealed there
        await scene.goes_on()

    place.play(act)


def test_assignments_of_two_clients_exchanged_are_nobody_s(place: Place) -> None:
    async def act(scene: Scene) -> None:
        alice, bob = await scene.join("alice"), await scene.join("bob")
        await until(lambda: min(alice.applied, bob.applied) > 2)
        names = [scene.place.roster.client(name).account for name in ("alice", "bob")]
        desks = [await scene.admin.last("DESK", f"desk.{name}.{scene.run}") for name in names]
        before = alice.desk, bob.desk
        await scene.stop()
        for name, desk in zip(names, reversed(desks), strict=True):
            assert desk is not None
            await scene.admin.store(f"desk.{name}.{scene.run}", desk.data)
        await asyncio.sleep(0.1)
        assert alice.core.assignment is not None
        for client, known in zip((alice, bob), before, strict=True):
            await client._look()
            assert client.desk[:32] == known[:32]
            assert client.core.assignment is not None
            assert client.core.assignment.nonce == client.core.state.nonce  # type: ignore[union-attr]
        await scene.serve()
        await scene.goes_on()

    place.play(act)


@pytest.mark.parametrize("server", [FedAsync(lr=0.1), AREA(size=1)])
def test_an_old_assignment_changes_nothing_for_a_client_that_runs(place: Place, server: Server[Any]) -> None:
    async def act(scene: Scene) -> None:
        desks = await heard(scene.admin, f"desk.{scene.alice}.{scene.run}")
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 5)
        for message in list(await desks.so_far()):
            await scene.admin.store(message.subject, message.data)
        await scene.goes_on()
        assert alice.ended is None
        assert scene.server.ledger.clients[0].refused == 0

    place.play(act, server=server)


@pytest.mark.parametrize("server", [FedAsync(lr=0.1), AREA(size=1)])
@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_an_old_assignment_after_a_restart_is_put_right_by_the_next_one(
    place: Place, server: Server[Any], disk: str
) -> None:
    """A client that starts has nothing to compare an assignment with but its own disk and its copy."""

    async def act(scene: Scene) -> None:
        desks = await heard(scene.admin, f"desk.{scene.alice}.{scene.run}")
        first = await scene.join("alice")
        await until(lambda: first.applied > 5)
        await cancel(scene.ends)
        await desks.so_far()
        old = desks[len(desks) // 2]
        await scene.admin.store(old.subject, old.data)
        await scene.join("alice", "" if disk == "kept" else "elsewhere")
        await asyncio.sleep(0.3)
        assert not scene.ends.done()
        await scene.goes_on()

    place.play(act, server=server)


def test_everything_that_clients_sent_sent_again_is_applied_once(place: Place) -> None:
    async def act(scene: Scene) -> None:
        ups = await heard(scene.admin, f"up.*.{scene.run}")
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 10)
        for message in list(await ups.so_far()):
            with contextlib.suppress(APIError):  # the inbox is full
                await scene.admin.store(message.subject, message.data)
        await scene.taken()
        await cancel(scene.ends)
        await scene.taken()
        record, tally = scene.server.ledger.clients[0], scene.server.ledger.tally
        assert tally.updates <= record.seq  # each number once
        assert tally.repeated + tally.refused.get("replay", 0) > 5
        scene.clients.clear()
        await scene.goes_on()

    place.play(act)


def test_a_greeting_or_a_farewell_said_again_changes_nothing(place: Place) -> None:
    async def act(scene: Scene) -> None:
        ups = await heard(scene.admin, f"up.*.{scene.run}")
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 2)
        alice.leave()
        await scene.ends
        await until(lambda: not scene.server.ledger.clients[0].present)
        await ups.so_far()
        bye, hello = ups[-1], ups[0]
        await scene.admin.store(hello.subject, hello.data)
        await scene.taken()
        assert not scene.server.ledger.clients[0].present
        before = scene.server.ledger.clients[0].applied
        alice = await scene.join("alice")
        await until(lambda: scene.server.ledger.clients[0].applied > before + 2)
        for message in (bye, hello):
            await scene.admin.store(message.subject, message.data)
        await scene.taken()
        assert scene.server.refused["replay"] == 2  # one greeting and one farewell
        assert scene.server.ledger.tally.lost <= 1  # when it left
        await scene.goes_on()
        assert alice.ended is None

    place.play(act)


def test_a_dead_client_is_gone_although_all_that_it_said_is_said_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_core, "PULSES", 2)

    async def act(scene: Scene) -> None:
        said = [await heard(scene.admin, f"{what}.*.{scene.run}") for what in ("beat", "up")]
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 5 and len(said[0]) > 2)
        await alice.link.client.close()
        await cancel(scene.ends)
        beats, ups = [list(await each.so_far()) for each in said]
        for _ in range(300):
            for message in beats:
                await scene.admin.say(message.subject, message.data)
            for message in ups[-5:]:
                with contextlib.suppress(APIError):
                    await scene.admin.store(message.subject, message.data)
            await asyncio.sleep(0.2)
            if not scene.server.ledger.clients[0].present:
                break
        assert not scene.server.ledger.clients[0].present
        scene.clients.clear()
        await scene.goes_on()

    place.play(act, patience=1.5)


def test_an_envelope_counts_for_its_sender_and_its_run(place: Place) -> None:
    async def act(scene: Scene) -> None:
        ups = await heard(scene.admin, f"up.*.{scene.run}")
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 2)
        bob, before = scene.place.roster.client("bob").account, scene.server.ledger.clients[1].epoch
        for message in (await ups.so_far())[:3]:
            await scene.admin.store(f"up.{bob}.{scene.run}", message.data)
        await scene.admin.store(f"up.nobody.{scene.run}", ups[0].data)
        await scene.taken()
        assert scene.server.refused == {"forged": 3, "identity": 1}
        assert scene.server.ledger.clients[1].epoch == before
        await scene.stop()
        other = Scene(scene.place, f"{scene.run}x")
        try:
            await other.begin()
            for message in ups[:3]:
                await other.admin.store(f"up.{scene.alice}.{other.run}", message.data)
            await other.taken()
            assert other.server.refused == {"forged": 3}
            await other.goes_on()
        finally:
            await other.end()

    place.play(act)


def test_a_record_counts_with_the_keys_that_the_log_has_for_its_client(place: Place) -> None:
    """A server that believes otherwise may write it, but nobody folds it."""

    async def act(scene: Scene) -> None:
        assert scene.server.appender is not None
        hello = wire.say(wire.Hello(scene.run, "alice", 1, "mine"))
        mine = members_of(scene.place.roster)["mallory"]
        await scene.server.appender.add("alice", mine, scene.sealed(hello), hello)
        await until(lambda: scene.server.refused == {"keys": 1})
        assert scene.server.ledger.clients[0].epoch == 0
        await scene.goes_on()

    place.play(act)


async def broken(scene: Scene, *records: bytes) -> str:
    """What becomes of a run to whose log this is added."""
    await scene.join("alice")
    await until(lambda: scene.server.ledger.tally.updates > 3)
    state, position = scene.server, 0
    for data in records:
        position = await scene.admin.store(f"log.{scene.run}.1", data)
    await until(scene.serving.done)
    assert state.ledger.position == position - 1
    with pytest.raises(BrokenLogError) as caught:
        scene.serving.result()
    return str(caught.value)


def test_a_record_that_the_administrator_adds_is_not_folded_and_stops_the_run(place: Place) -> None:
    async def act(scene: Scene) -> None:
        said = await broken(scene, b"rubbish")
        assert "was changed" in said
        assert "backup" in said

    place.play(act)


def test_a_record_of_the_same_log_again_is_not_folded_and_stops_the_run(place: Place) -> None:
    async def act(scene: Scene) -> None:
        record = await scene.admin.kept(f"LOG-{scene.run}", 2)
        assert record is not None
        assert "does not follow record" in await broken(scene, record.data)

    place.play(act)


def test_a_log_that_was_deleted_is_written_again_from_the_server_s_copy(place: Place) -> None:
    async def act(scene: Scene) -> None:
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 3)
        await scene.admin.js.delete_stream(f"LOG-{scene.run}")
        await asyncio.sleep(0.3)
        assert not scene.serving.done()
        await scene.server.link.client.close()
        await cancel(scene.serving)
        await scene.serve()
        assert scene.server.ledger.tally.updates >= alice.applied
        await scene.goes_on()

    place.play(act)


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]", b'{"seq":1e400}', b'{"error":"no"}', b'{"seq":7}', b"\xff"])
def test_a_forged_acknowledgement_is_looked_into(place: Place, answer: bytes) -> None:
    async def act(scene: Scene) -> None:
        async def forge(message: Any) -> None:
            await scene.admin.client.publish(message.reply, answer)

        await scene.admin.client.subscribe(f"log.{scene.run}.*", cb=forge)
        await scene.goes_on()

    place.play(act)


def test_a_question_to_the_server_counts_once_and_for_one_run(place: Place) -> None:
    async def act(scene: Scene) -> None:
        asked = await heard(scene.admin, f"ask.*.{scene.run}")
        await ask_server(await scene.link("server"), scene.run, "append", wire.say(wire.Asked(scene.run, 0)))
        await until(lambda: not scene.server.appender.under_way)  # type: ignore[union-attr]
        before = scene.server.ledger.position
        await asked.so_far()
        for _ in range(3):
            await scene.admin.say(asked[0].subject, asked[0].data)
            await scene.admin.say(f"ask.{scene.alice}.{scene.run}", asked[0].data)
        await scene.admin.client.flush()
        await asyncio.sleep(0.2)
        assert scene.server.ledger.position == before
        await scene.goes_on()

    place.play(act)


def test_a_question_to_the_server_counts_once_although_another_server_leads_by_then(place: Place) -> None:
    async def act(scene: Scene) -> None:
        asked = await heard(scene.admin, f"ask.*.{scene.run}")
        await ask_server(await scene.link("server"), scene.run, "append", wire.say(wire.Asked(scene.run, 0)))
        await asked.so_far()
        await scene.stop()
        scene.folder = scene.place.folder / f"{scene.run}-standby"
        await scene.serve()
        await until(lambda: scene.server.leading)
        before = scene.server.ledger.asked, scene.server.ledger.position
        assert before[0] == 1
        await scene.admin.say(asked[0].subject, asked[0].data)
        await asyncio.sleep(0.3)
        assert (scene.server.ledger.asked, scene.server.ledger.position) == before
        # even if a server writes it into the log once more
        again = wire.Ordered(scene.run, scene.server.ledger.orders[0])
        assert scene.server.appender is not None
        await scene.server.appender.add_own(wire.say(again, {"entry": wire.say(wire.Asked(scene.run, 0))}))
        await until(lambda: scene.server.ledger.position > before[1])
        assert scene.server.ledger.asked == 1
        assert not scene.server.refused
        await scene.goes_on()

    place.play(act)


def test_an_answer_for_one_client_is_none_for_another(place: Place) -> None:
    async def act(scene: Scene) -> None:
        told = await heard(scene.admin, f"tell.{scene.account}.{scene.run}")
        thief, alice = Asking(scene.thief, scene.run), Asking(await scene.link("alice"), scene.run)
        for asking in (thief, alice):
            await asking.listen()
        await thief.ask("status")
        await told.so_far()
        question = asyncio.create_task(alice.ask("status", patience=30))
        await scene.admin.say(f"tell.{scene.alice}.{scene.run}", told[0].data)
        status = json.loads(await question)
        assert status["run"] == scene.run
        await scene.goes_on()

    place.play(act)


def test_a_pulse_of_another_run_or_a_forged_one_overtakes_nobody(place: Place) -> None:
    async def act(scene: Scene) -> None:
        other = write_pulse(scene.admin.creds, "another", Pulse(99, "other", 0, 0, 0.0))
        forged = sign(bytes(32), ("pulse", "fed", scene.run), b'{"term":99}')
        for data in (other, forged, b"", b"OBS1"):
            await scene.admin.say(f"pulse.{scene.run}", data)
        await asyncio.sleep(0.1)
        assert scene.server.overtaken == ""
        await scene.goes_on()

    place.play(act)


def test_pulses_said_again_keep_no_site_in_a_dead_run(place: Place) -> None:
    async def act(scene: Scene) -> None:
        pulses = await heard(scene.admin, f"pulse.{scene.run}")
        bulletin = Bulletin(await scene.link("alice"), BoardSerial())
        await bulletin.open()
        await until(lambda: len(pulses) > 2)
        await asyncio.sleep(0.2)
        await until(lambda: bulletin.silent(scene.run) < 1.0)
        while await served_runs(scene.admin, [scene.run]) != {scene.run}:
            await asyncio.sleep(0.1)  # a busy machine: its server has not answered in time
        await scene.stop()
        served = asyncio.create_task(served_runs(scene.admin, [scene.run]))
        for turn in range(100):
            for message in list(pulses)[:20]:
                await scene.admin.say(message.subject, message.data)
            await asyncio.sleep(0.5)
            if turn >= 4 and bulletin.silent(scene.run) > 2.0:  # the last true ones may have come late
                break
        assert bulletin.silent(scene.run) > 2.0
        assert await served == set()  # nor does its operator take it for one that is served
        await scene.serve()  # a new term: its pulses count
        await until(lambda: bulletin.silent(scene.run) < 1.0)
        await scene.goes_on()

    place.play(act)


def test_a_roster_that_is_older_or_another_s_is_not_taken(place: Place, tmp_path: Path) -> None:
    other = keys.init(tmp_path / "other", ["alice", "eve"], tls=False)

    async def act(scene: Scene) -> None:
        before = scene.server.roll.roster
        for roster in (other.to_json(), before.to_json(), b"", b"{}", before.to_json().replace(b"mallory", b"malory!")):
            await scene.admin.store("roster", roster)
            assert not await scene.server.roll.read()
        assert scene.server.roll.roster == before
        await scene.admin.js.purge_stream("BOARD", subject="roster")
        await scene.goes_on()

    place.play(act)


def test_other_limits_at_a_restart_are_an_entry_of_the_log(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await scene.join("alice")
        await until(lambda: scene.server.ledger.tally.updates > 3)
        await scene.stop()
        scene.limits = replace(scene.limits, norm=1e-6)
        await scene.serve()
        await until(lambda: scene.server.refused.get("norm"))
        await scene.stop()
        again = await refold(scene.admin, scene.plan(), scene.server.ledger.position)
        assert fingerprint(again) == fingerprint(scene.server.ledger)

    place.play(act)


def test_copies_of_two_clients_exchanged_open_for_neither(place: Place) -> None:
    async def act(scene: Scene) -> None:
        copies = await heard(scene.admin, f"mirror.*.{scene.run}")
        alice, bob = await scene.join("alice"), await scene.join("bob")
        await until(lambda: min(alice.applied, bob.applied) > 2)
        await cancel(*scene.tasks[-2:])
        theirs = [message for message in await copies.so_far() if scene.alice not in message.subject]
        await scene.admin.js.purge_stream(f"MIRROR-{scene.run}")
        for message in theirs:
            await scene.admin.store(f"mirror.{scene.alice}.{scene.run}", message.data)
        await scene.join("alice", "a new disk")
        assert "retire" in await asyncio.wait_for(scene.ends, 60)
        await scene.join("bob")
        await scene.goes_on()

    place.play(act, server=AREA(size=1))
