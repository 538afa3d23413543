"""What an operator is told: a broker without room, a disk without room, and how far a server is behind."""

from __future__ import annotations

import asyncio
import errno
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served import Served, staged, until
from sites import running, served, site

from offbeat.core.errors import FolderError, OffbeatError, SettingError
from offbeat.deploy import identity, keys, questions
from offbeat.deploy.board import BoardSerial, change_board
from offbeat.deploy.broker import Broker
from offbeat.deploy.journal import BrokenLogError
from offbeat.deploy.logs import logged
from offbeat.deploy.mending import NAME
from offbeat.deploy.server import RunServer, _own_name
from offbeat.experiment import admin, serving
from offbeat.experiment.admin import connected
from offbeat.experiment.experiment import Spec
from offbeat.experiment.real import RunIdentity, new_identity, save_identity, saved_identity


class Small(Broker):
    """A broker whose disk has so little room."""

    room = "400KB"

    def _configure(self) -> None:
        super()._configure()
        if self.room:
            text = self.config.read_text().replace("jetstream {", f"jetstream {{\n  max_file_store: {self.room}", 1)
            self.config.write_text(text)


def test_a_broker_without_room_is_said_and_the_run_goes_on_once_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(served: Served) -> None:
        server, task = await served.serve("one")
        for name in served.names:
            await served.join(name)
        await until(lambda: "no room for" in caplog.text)
        assert not task.done()
        served.broker.stop()
        assert isinstance(served.broker, Small)
        served.broker.room = ""
        before = server.ledger.tally.updates
        served.broker.start()
        await until(lambda: server.ledger.tally.updates > before + 20)
        assert not server.refused

    made = Served(tmp_path)
    made.broker = Small(tmp_path / "broker", tmp_path / "fed", sync=False)
    staged(made, act)


def test_a_broker_of_our_own_that_was_killed_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fed = tmp_path / "fed"
    keys.init(fed, ["a"], tls=False)
    broker = Broker(tmp_path / "broker", fed, sync=False)

    async def play() -> None:
        async with connected(identity.read_creds(fed / "server.creds"), "", broker, 20) as link:
            watch, first = asyncio.create_task(serving.look_after(broker)), broker.process
            await link.make_board()
            assert first is not None
            first.kill()
            await until(lambda: broker.process is not first and link.client.is_connected)
            assert await link.insist(lambda: link.end("BOARD")) == 0  # the same store
            watch.cancel()

    asyncio.run(play())
    assert "the broker has ended with -9; it is started again" in caplog.text


def test_how_far_a_server_is_behind_is_how_long_the_oldest_message_has_waited(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one")
        await served.join("alice")
        await until(lambda: server.ledger.tally.updates > 5 and server.lag < 1)
        assert server.appender is not None
        async with server.appender.lock:  # nothing is added to the log
            await until(lambda: server.lag > 2)
            assert server.backlog[0] >= 1
        await until(lambda: server.lag < 1)

    staged(Served(tmp_path), act)


def test_a_disk_without_room_is_said_by_join_and_by_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    broker, told = Broker(tmp_path / "broker", tmp_path / "fed"), tmp_path / "told"
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=900 << 20))

    async def play() -> None:
        with logged(told), site(tmp_path, tmp_path / "fed" / "a.creds", broker.url) as a:
            async with a, served(tmp_path, broker.url, "run", 10**6) as (server, _):
                await a.says("a: warning: only 0.9 GB free in ", 60)
                watching = asyncio.create_task(serving._watch(server.folder))
                await until(lambda: f"only 0.9 GB free in {server.folder}; make room" in told.read_text())
                watching.cancel()

    with running(broker):
        asyncio.run(play())


def test_a_server_whose_disk_is_full_stops_and_goes_on_from_there_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(served: Served) -> None:
        server, task = await served.serve("one")
        await served.join("alice")
        await until(lambda: server.ledger.tally.updates > 5)
        write, tail = os.write, server.tail.file

        def full(file: int, data: Any) -> int:
            if file != tail:
                return write(file, data)
            if len(data) > 100:  # some of a record fits, and then nothing does
                return write(file, data[:50])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as disk:
            disk.setattr(os, "write", full)
            await until(task.done)
        with pytest.raises(FolderError, match=r"cannot write .*log.tail \(No space left on device\); put that right"):
            task.result()
        before = server.ledger.tally.updates
        again, _ = await served.serve("one")
        await until(lambda: again.ledger.tally.updates > before + 5)

    staged(Served(tmp_path), act)


def test_what_an_operator_asks_for_in_vain_is_one_line(tmp_path: Path) -> None:
    fed, run = tmp_path / "fed", tmp_path / "out" / "area-0"
    keys.init(fed, ["a"], tls=False)
    save_identity(run, RunIdentity("area-0-12345678", ["a"]))
    (tmp_path / "out" / "experiment.json").write_text("{}")
    broker, creds, client = Broker(tmp_path / "broker", fed), fed / identity.SERVER, fed / "a.creds"
    with running(broker):
        assert admin.runs(creds, broker.url) == []
        for asked in (
            lambda: admin.status(creds, broker.url),
            lambda: admin.status(client, broker.url),
            lambda: admin.retire("a", creds, broker.url),
        ):
            with pytest.raises(OffbeatError, match="this federation has no active run"):
                asked()
        with pytest.raises(SettingError, match="are the keys of the client a; the server's are in"):
            admin.retire("a", client, broker.url)
        with pytest.raises(OffbeatError, match=r"the broker has no log of area-0-12345678, which is in .*area-0; "):
            admin.backup(run, tmp_path / "area.tar", creds, broker.url)
        (tmp_path / "file").write_text("")
        with pytest.raises(FolderError, match=r"cannot read or write .*out \(Not a directory\)"):
            admin.restore(tmp_path / "area.tar", tmp_path / "file" / "out", creds, broker.url)


def _further(server: RunServer, seq: int) -> bool:
    return server.chain.seq > seq


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_run_is_not_served_with_the_keys_of_another_federation(tmp_path: Path, trimmed: bool) -> None:
    async def begun(served: Served) -> None:
        server, _ = await served.serve("one")
        await served.join("alice")
        await until(lambda: server.ledger.tally.updates > 5)
        if trimmed:
            for _ in range(2):  # as two checkpoints do: the first records are not in its copy any more
                server.tail.rotate()
                await until(partial(_further, server, server.chain.seq))

    async def other(served: Served) -> None:
        with pytest.raises(BrokenLogError, match="the records of run in this folder were not written with these keys"):
            await served.serve(str(tmp_path / "first" / "one"))

    staged(Served(tmp_path / "first"), begun)
    staged(Served(tmp_path / "second"), other)


def test_boards_of_two_federations_with_one_name_are_told_apart(tmp_path: Path) -> None:
    BoardSerial(tmp_path, b"one server").see(7)
    assert (BoardSerial(tmp_path, b"one server").highest, BoardSerial(tmp_path, b"another").highest) == (7, 0)


@pytest.mark.parametrize("label", ["area", "über", "模型", "_own", "-", "模" * 80])
def test_a_run_has_a_name_whatever_its_algorithm_is_called(tmp_path: Path, label: str) -> None:
    assert new_identity(Spec(label, 0), tmp_path, ["a"]) == saved_identity(tmp_path)


def test_an_operator_hears_within_two_seconds_that_nobody_answers_yet(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    broker, creds = Broker(tmp_path / "broker", tmp_path / "fed"), tmp_path / "fed" / identity.SERVER

    async def abandoned() -> None:
        async with admin.connected(identity.read_creds(creds), broker.url) as link:
            await link.make_board()
            await change_board(link, lambda board: board.with_run("run", {"run": "run"}))

    with running(broker), logged(tmp_path / "told"), pytest.MonkeyPatch.context() as patience:
        asyncio.run(abandoned())
        patience.setattr(admin, "SOON", 0.05)
        patience.setattr(questions, "SLOW", 0.2)
        with pytest.raises(OffbeatError, match="no server is running run now"):
            admin.status(creds, broker.url)
    assert "warning: the server of run does not answer yet; waiting" in (tmp_path / "told").read_text()


def test_an_empty_file_is_no_name_of_a_server(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    assert len(_own_name(tmp_path)) == 16
    assert _own_name(tmp_path) == _own_name(tmp_path)
