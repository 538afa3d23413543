"""A broker that loses or changes what it keeps: noticed at once, named, and mended from the server's own copy."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served import Served, cancel, kill, staged, until
from worlds import Line

from offbeat.deploy import link as link_module, mending, questions, server as server_module
from offbeat.deploy.board import change_board, read_board
from offbeat.deploy.intake import acknowledge
from offbeat.deploy.journal import Appender, BrokenLogError, Record, Tail
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.mending import NAME
from offbeat.deploy.refold import copy_of, fingerprint, mended, read_body, refold
from offbeat.deploy.server import RunServer
from offbeat.deploy.streams import BrokerLog
from offbeat.watch import checkpoint


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that misses a record does not wait long for another one."""
    for module, name in ((mending, "BRIEF"), (mending, "ABSENT"), (questions, "SLOW")):
        monkeypatch.setattr(module, name, 1.0)


async def written(served: Served, records: int = 30) -> None:
    """A run whose log has so many records, whose server is dead and has no checkpoint."""
    server, task = await served.serve("one", save_every=1e9)
    for name in served.names:
        await served.join(name)
    await until(lambda: server.ledger.position > records)
    await kill(server, task)


async def goes_on(served: Served) -> RunServer:
    """The server, started again, mends its log; and folded again from the start, the log gives its state."""
    server, _ = await served.serve("one", save_every=1e9)
    before = server.ledger.position
    await until(lambda: server.ledger.position > before + 10)
    server.leave()
    await until(lambda: not server.leading)
    link = await served.link("server")
    assert fingerprint(await refold(link, served.plan(), server.ledger.position)) == fingerprint(server.ledger)
    return server


async def delete(served: Served, *numbers: int) -> None:
    link = await served.link("server")
    for number in numbers:
        await link.forget("LOG-run", number)


def test_a_record_that_was_deleted_is_taken_from_the_server_s_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(served: Served) -> None:
        await written(served)
        await delete(served, 1, 10, 11)
        await goes_on(served)
        assert "record 10 of run is missing; it is taken from a copy" in caplog.text
        # another server, which has no copy of its own, reads the one that was left beside the log
        other, _ = await served.serve("two", ready=False)
        await until(lambda: other.ledger.position > 20)

    staged(Served(tmp_path), act)


@pytest.mark.usefixtures("brief")
def test_a_record_that_was_deleted_and_of_which_there_is_no_copy_stops_the_run_and_is_named(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        await written(served)
        await delete(served, 10)
        for path in (tmp_path / "one").glob("log.tail*"):
            path.unlink()
        with pytest.raises(BrokenLogError, match=r"record 10 of the log of run is missing.*backup"):
            await served.serve("one")

    staged(Served(tmp_path), act)


def test_a_leader_notices_that_the_broker_has_lost_a_record_and_leaves_a_copy(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one", save_every=1e9)
        for name in served.names:
            await served.join(name)
        await until(lambda: server.ledger.position > 12)
        await delete(served, 3, 10)
        link = await served.link("server")
        await until(lambda: server.mending.holes == {3, 10})
        ours = server.tail.read()
        assert [await mended(link, "run", number) for number in (3, 4, 10)] == [ours[3], None, ours[10]]

    staged(Served(tmp_path), act)


def test_the_last_record_is_missed_too(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        await written(served)
        link = await served.link("server")
        await delete(served, await link.end("LOG-run"))
        await goes_on(served)

    staged(Served(tmp_path), act)


def unheard(folder: Path, seq: int) -> None:
    """The server was killed before it heard that this record was stored."""
    tail = Tail(folder)
    frames = [(number, raw) for number, raw in tail._frames(*tail.paths) if (number, raw) != (seq, b"")]
    tail.close()
    tail.paths[1].write_bytes(b"".join(Tail.FRAME.pack(number, len(raw)) + raw for number, raw in frames))
    tail.paths[0].unlink(missing_ok=True)


@pytest.mark.usefixtures("brief")
def test_a_single_server_s_last_record_of_which_it_never_heard_is_used_after_a_short_silence(
    tmp_path: Path,
) -> None:
    async def act(served: Served) -> None:
        await written(served)
        end = await (await served.link("server")).end("LOG-run")
        unheard(tmp_path / "one", end)
        await delete(served, end)
        assert (await goes_on(served)).ledger.position > end

    staged(Served(tmp_path), act)


@pytest.mark.usefixtures("brief")
def test_a_record_of_which_its_sender_never_heard_is_not_used_if_another_server_has_led(
    tmp_path: Path,
) -> None:
    async def act(served: Served) -> None:
        await written(served)
        link = await served.link("server")
        end = await link.end("LOG-run")
        unheard(tmp_path / "one", end)
        await delete(served, end)
        board = await read_board(link)
        assert board is not None
        assert board.term("run") == 1
        await change_board(link, lambda board: board.with_run("run", {**board.runs["run"], "term": 2}))
        with pytest.raises(BrokenLogError, match=rf"record {end} of the log of run is missing.*no other copy"):
            await served.serve("one")
        assert await mended(link, "run", end) is None

    staged(Served(tmp_path), act)


def test_a_server_that_stands_by_takes_over_although_the_broker_has_lost_the_log_s_end(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        one, task = await served.serve("one", save_every=1e9)
        two, _ = await served.serve("two", save_every=1e9)
        for name in served.names:
            await served.join(name)
        await until(lambda: two.ledger.position > 20)
        await two.following.reader.stop()  # it has not read the last records yet
        await until(lambda: one.ledger.position > two.chain.seq + 2)
        await kill(one, task)
        link = await served.link("server")
        end = await link.end("LOG-run")
        for seq in range(two.chain.seq + 1, end + 1):
            lost = await BrokerLog(link, "run").read(seq)  # the last may be one of which its sender has not heard
            assert lost is not None
            await delete(served, seq)
            await link.store(copy_of("run", seq), lost)
        await until(lambda: two.leading, 30.0)
        await until(lambda: two.ledger.position > end + 5)

    staged(Served(tmp_path), act)


def test_a_record_that_the_broker_loses_before_its_sender_has_heard_of_it_is_mended(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, task = await served.serve("one", save_every=1e9)
        for name in served.names:
            await served.join(name)
        await until(lambda: server.ledger.position > 30)
        assert server.appender is not None
        server.appender.settle = lambda: asyncio.sleep(1e9)  # type: ignore[assignment, method-assign, return-value]
        await until(lambda: len(server.appender.under_way) > 2)  # type: ignore[union-attr]
        first, admin = server.appender.under_way[0].record.seq, await served.link("server")
        while await admin.end("LOG-run") < first:
            await asyncio.sleep(0.02)
        await kill(server, task)
        await delete(served, first)
        assert (await goes_on(served)).ledger.position > first

    staged(Served(tmp_path), act)


def test_a_leader_leaves_a_copy_of_a_lost_record_as_soon_as_it_has_heard_of_it(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one", save_every=1e9)
        appender = server.appender
        assert appender is not None
        appender.settle = lambda: asyncio.sleep(1e9)  # type: ignore[assignment, method-assign, return-value]
        for name in served.names:
            await served.join(name)
        await until(lambda: len(appender.under_way) > 1)
        first, admin = appender.under_way[0], await served.link("server")
        while await admin.end("LOG-run") < first.record.seq + 1:
            await asyncio.sleep(0.02)
        await delete(served, first.record.seq)
        await server.mending.look()
        assert await mended(admin, "run", first.record.seq) is None  # it does not know yet whose record was there
        assert await Appender.settle(appender) is first
        await server.mending.look()
        assert await mended(admin, "run", first.record.seq) == first.raw

    staged(Served(tmp_path), act)


def test_a_record_that_was_never_acknowledged_and_is_not_in_the_log_never_was(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        await written(served)
        end = await (await served.link("server")).end("LOG-run")
        tail = Tail(tmp_path / "one")
        for number in range(1, 4):
            tail.send(end + number, b"lost on its way to the broker")
        tail.close()
        await goes_on(served)

    staged(Served(tmp_path), act)


def test_a_server_that_comes_too_late_for_a_trimmed_log_says_what_to_copy_and_that_helps(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one", save_every=0.3, trim=True)
        for name in served.names:
            await served.join(name)
        link = await served.link("server")
        while (await link.js.stream_info("LOG-run")).state.first_seq < 20:
            await asyncio.sleep(0.1)
        with pytest.raises(BrokenLogError, match=r"begins at record \d+: older .*`rsync -a .* LEADER:RUN-FOLDER/ "):
            await served.serve("two", trim=True)
        server.saving.every = 1e9
        await until(lambda: server.saving.under_way is None)
        shutil.copytree(
            tmp_path / "one", tmp_path / "two", ignore=shutil.ignore_patterns("log.tail*", NAME), dirs_exist_ok=True
        )
        other, _ = await served.serve("two", trim=True)
        await until(lambda: other.ledger.position > server.saving.safe[-1][0])
        assert not other.leading

    staged(Served(tmp_path), act)


def test_a_server_that_was_overtaken_trims_nothing_that_the_next_one_has_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PIECE", link_module.MARGIN + 1400)  # updates are too large for one message

    taken: list[Any] = []

    async def noted(message: Any) -> None:
        taken.append(message)
        await acknowledge(message)

    monkeypatch.setattr(server_module, "acknowledge", noted)

    async def act(served: Served) -> None:
        one, task = await served.serve("one", save_every=1e9, trim=True)
        clients = [await served.join(name) for name in served.names]
        await until(lambda: len(one.saving.bodies) > 5)
        two, _ = await served.serve("two", save_every=1e9, trim=True)
        await cancel(*(client for _, client in clients))
        admin = await served.link("server")
        while (await admin.js.stream_info("IN-run")).state.messages:  # whatever they have sent is taken
            await asyncio.sleep(0.02)
        await cancel(task)
        await until(lambda: two.leading and two.intake is not None)
        last = next(message for message in reversed(taken) if message.data.startswith(b"P"))
        again = SimpleNamespace(subject=last.subject, data=last.data, ack=partial(asyncio.sleep, 0.0))
        for _ in range(2):  # the broker has not heard that it was taken
            await two.intake.take(again)  # type: ignore[union-attr]
        await until(lambda: [record.term for record in two.saving.bodies][-2:] == [2, 2])
        assert len({record.body.digest for record in [*two.saving.bodies][-3:] if record.body}) == 1
        of_one, of_two = [[record for record in two.saving.bodies if record.term == term] for term in (1, 2)]

        async def kept(records: list[Record]) -> list[bool]:
            return [await read_body(two.link, "run", record) is not None for record in records]

        assert all(await kept([of_one[0], of_one[-1], *of_two]))
        one.saving.safe = [(of_one[-1].seq, 1)]
        await one.saving.trim()
        assert await kept([of_one[0], of_one[-1]]) == [False, True]
        assert all(await kept(of_two))
        await two.link.store("body.run.1.99.0", b"stored and never recorded")
        two.saving.safe = [(of_two[-1].seq, 2)]
        await two.saving.trim()
        assert await kept([of_one[-1], *of_two]) == [False, False, True]
        assert await two.link.last("BODY-run", "body.run.1.99.0") is None

    staged(Served(tmp_path, problem=Line([1.0, 2.0, 4.0], dim=300)), act)


def test_a_checkpoint_is_of_one_moment_though_a_record_s_envelope_is_being_read(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one", save_every=1e9)
        server.saving.every = -1.0
        server.saving.begin()
        assert server.saving.under_way is not None
        saved = server.chain.seq, server.ledger.position
        server.chain.seq += 1  # before the task has begun: the next record is verified and not folded yet
        server.saving.every = 1e9
        await server.saving.under_way
        server.chain.seq -= 1
        found = checkpoint.restore(Ledger, tmp_path / "one")
        assert found is not None
        assert (found[1]["chain"]["seq"], found[0].position) == saved

    staged(Served(tmp_path), act)


def test_a_byte_that_changes_in_the_broker_s_store_is_noticed_and_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(served: Served) -> None:
        await written(served, 60)
        served.broker.stop()
        (block,) = (tmp_path / "broker").rglob("LOG-run/msgs/1.blk")
        content = bytearray(block.read_bytes())
        content[len(content) // 2] ^= 1
        block.write_bytes(content)
        for index in block.parent.glob("index.db"):
            index.unlink()  # as if the broker had died: it reads the block again
        served.broker.start()
        await goes_on(served)
        assert "it is taken from a copy" in caplog.text or "they are added again" in caplog.text

    staged(Served(tmp_path), act)


def test_records_that_a_broker_has_lost_at_its_end_are_added_again_while_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one")
        for name in served.names:
            await served.join(name)
        await until(lambda: server.ledger.position > 20)
        served.broker.stop()
        old = shutil.copytree(tmp_path / "broker" / "jetstream", tmp_path / "backup")
        served.broker.start()
        before = server.ledger.position
        await until(lambda: server.ledger.position > before + 20)
        served.broker.stop()
        shutil.rmtree(tmp_path / "broker" / "jetstream")
        shutil.copytree(old, tmp_path / "broker" / "jetstream")
        served.broker.start()
        before = server.ledger.position
        await until(lambda: server.ledger.position > before + 20)
        assert "they are added again" in caplog.text
        server.leave()
        await until(lambda: not server.leading)
        link = await served.link("server")
        assert fingerprint(await refold(link, served.plan(), server.ledger.position)) == fingerprint(server.ledger)

    staged(Served(tmp_path), act)


def test_a_message_stays_in_the_inbox_until_its_record_is_applied(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one")
        admin = await served.link("server")
        await until(lambda: server.leading)

        async def waiting() -> int:
            return (await admin.js.stream_info("IN-run")).state.messages

        assert server.appender is not None
        async with server.appender.lock:  # nothing is added to the log
            before = server.ledger.position
            await served.join("alice")
            while not await waiting():
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
            assert (await waiting(), server.ledger.position) == (1, before)
        await until(lambda: server.ledger.clients[0].present and server.ledger.tally.updates > 3)

    staged(Served(tmp_path), act)


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one")
        for name in served.names:
            await served.join(name)
        for _ in range(2):
            before = server.ledger.tally.updates
            await until(lambda before=before: server.ledger.tally.updates > before + 10)
            assert served.broker.process is not None
            served.broker.process.kill()
            served.broker.process.wait()
            await asyncio.sleep(0.5)
            served.broker.start()
        before = server.ledger.tally.updates
        await until(lambda: server.ledger.tally.updates > before + 10)
        server.leave()
        await until(lambda: not server.leading)
        link = await served.link("server")
        assert fingerprint(await refold(link, served.plan(), server.ledger.position)) == fingerprint(server.ledger)

    staged(Served(tmp_path), act)
