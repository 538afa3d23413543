"""Those who should not be there, at a real broker: each is kept out, or refused and counted."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from worlds import Line

from offbeat.algorithms import FedAsync
from offbeat.core.course import Until
from offbeat.core.errors import FolderError, OffbeatError, SettingError
from offbeat.core.server import Algorithm
from offbeat.deploy import keys, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.broker import Broker
from offbeat.deploy.link import Link
from offbeat.deploy.plan import Plan
from offbeat.deploy.server import RunServer
from offbeat.local import SGD

PROBLEM = Line([1.0, 2.0])


class Scene:
    """A broker, a server and the connections of two clients, of which one means harm."""

    def __init__(self, folder: Path, tls: bool) -> None:
        self.folder = folder
        self.roster = keys.init(folder / "fed", ["alice", "mallory"], tls=tls)
        self.broker = Broker(folder / "broker", self.roster, folder / "fed" if tls else None)

    def link(self, name: str) -> Link:
        return Link(keys.read_creds(self.folder / "fed" / f"{name}.creds"), self.broker.url)

    async def play(self, act: Callable[[Scene, RunServer, Link], Awaitable[None]]) -> None:
        made = Algorithm(FedAsync(lr=0.1), SGD(lr=0.5))
        plan = Plan(
            "r1",
            list(self.roster.clients),
            made.server,
            made.locals(1),
            [PROBLEM.initial()],
            Until(updates=100),
            limits=Limits(size=100_000),
        )
        server, mallory = self.link("server"), self.link("mallory")
        await server.connect(5)
        await mallory.connect(5)
        run_server = RunServer(plan, server, self.folder / "run", {"run": "r1"})
        serving = asyncio.create_task(run_server.run())
        await asyncio.sleep(0.3)
        try:
            await act(self, run_server, mallory)
        finally:
            run_server.leave()
            await serving
            await mallory.close()
            await server.close()


def staged(folder: Path, act: Callable[[Scene, RunServer, Link], Awaitable[None]], tls: bool = False) -> None:
    scene = Scene(folder, tls)
    scene.broker.start()
    try:
        asyncio.run(scene.play(act))
    finally:
        scene.broker.stop()


async def until(what: Callable[[], bool]) -> None:
    for _ in range(200):
        if what():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


def test_a_key_that_is_not_on_the_roster_gets_no_connection(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        stranger = Link(keys.new_creds("fed", "alice", mallory.creds.ca), scene.broker.url)
        with pytest.raises(OffbeatError, match="does not know this key") as caught:
            await stranger.connect(2)
        assert stranger.creds.seed not in str(caught.value)

    staged(tmp_path, act, tls=True)


def test_a_key_that_was_replaced_gets_no_connection_and_the_new_one_does(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        fed, before = scene.folder / "fed", scene.link("alice")
        roster = keys.rotate(fed, ["alice"])
        assert list(roster.clients) == ["alice", "mallory"]
        assert f"listen: {json.dumps('0.0.0.0:4222')}" in (fed / keys.BROKER).read_text()
        Broker(scene.broker.folder, roster, scene.broker.tls, port=scene.broker.port)  # writes its configuration
        assert scene.broker.process is not None
        scene.broker.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.5)
        with pytest.raises(OffbeatError, match="does not know this key"):
            await before.connect(2)
        after = scene.link("alice")
        await after.connect(5)
        await after.close()

    staged(tmp_path, act, tls=True)
    with pytest.raises(SettingError, match="not on the roster"):
        keys.rotate(tmp_path / "fed", ["bob"])


def test_a_client_reaches_neither_another_s_subjects_nor_the_server_s(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        bye = wire.pack("bye", {"run": "r1", "client": "alice", "epoch": 1})
        for subject in (
            "r1.up.alice",
            "r1.log",
            "r1.assignment.mallory",
            "r1.mirror.alice.x.head",
            "charter",
            "r1.beat.alice",
        ):
            mallory.trouble = ""
            await mallory.say(subject, bye)
            await until(lambda: "permissions violation" in mallory.trouble)
        for subject in ("r1.assignment.alice", "r1.up.alice", "r1.log", ">"):
            mallory.trouble = ""
            await mallory.client.subscribe(f"{mallory.root}.{subject}")
            await until(lambda: "permissions violation" in mallory.trouble)
        mallory.trouble = ""
        await mallory.client.publish(f"$JS.API.STREAM.DELETE.{mallory.stream('r1', 'log')}")
        await until(lambda: "permissions violation" in mallory.trouble)
        assert run_server.ledger.position == 0

    staged(tmp_path, act)


def test_rubbish_is_refused_under_its_code_counted_and_the_server_goes_on(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        header = {"run": "r1", "client": "mallory", "epoch": 1}
        big = wire.pack("trained", {**header, "seq": 1, "job": 0, "steps": 1}, {"delta": torch.zeros(60_000)})
        parted = wire.pack("parted", {"run": "r1", "client": "mallory", "name": "0" * 32, "count": 9, "size": 1 << 40})
        for data in (b"rubbish", big, wire.pack("bye", {**header, "client": "alice"}), parted):
            await mallory.store("r1.up.mallory", data)
        await mallory.store("r1.up.mallory", wire.pack("hello", {**header, "nonce": "m"}))
        await until(lambda: run_server.ledger.position >= 5)
        assert run_server.ledger.tally.refused == {"malformed": 1, "oversized": 2, "identity": 1}
        assert run_server.ledger.clients[1].present

    staged(tmp_path, act)


def test_the_broker_cannot_be_made_to_speak_for_the_server(tmp_path: Path) -> None:
    """A request's reply may be addressed to any subject: its answer must not count as the server's word."""

    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        forged = wire.pack("halted", {"run": "r1", "reason": "by mallory"})
        await mallory.store("r1.mirror.mallory.x.head", forged)
        get = f"$JS.API.DIRECT.GET.{mallory.stream('r1', 'assignment')}.{mallory.root}.r1.mirror.mallory.x.head"
        await mallory.client.publish(get, b"", reply=f"{mallory.root}.r1.log")
        await until(lambda: run_server.ledger.position >= 1)
        assert run_server.ledger.stopped == ""
        assert run_server.ledger.tally.refused == {"identity": 1}

    staged(tmp_path, act)


def test_a_message_beyond_the_broker_s_limit_does_not_leave(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        with pytest.raises(Exception, match="payload"):
            await mallory.say("r1.up.mallory", b"x" * (keys.MAX_PAYLOAD + 1))

    staged(tmp_path, act)


# Keys


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    path = tmp_path / "fed" / "a.creds"
    assert path.stat().st_mode & 0o077 == 0
    creds = keys.read_creds(path)
    assert creds.seed not in repr(creds)
    path.chmod(0o644)
    with pytest.raises(FolderError, match="can be read by others"):
        keys.read_creds(path)


def test_what_is_sealed_opens_only_with_the_same_key_and_label() -> None:
    mine, other = keys.new_creds("fed", "a"), keys.new_creds("fed", "a")
    sealed = keys.Seal(mine).close(b"memory", "run 1")
    assert b"memory" not in sealed
    assert keys.Seal(mine).open(sealed, "run 1") == b"memory"
    assert keys.Seal(mine).open(sealed, "run 2") is None
    assert keys.Seal(other).open(sealed, "run 1") is None
    assert keys.Seal(mine).open(sealed[:-1], "run 1") is None


@pytest.mark.parametrize("name", ["", "a b", "../x", "a.b", "a*", ">", "ü", "-x", "x" * 65])
def test_names_that_could_be_paths_or_patterns_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError):
        keys.init(tmp_path / "fed", [name])


def test_a_roster_grows_and_nobody_is_on_it_twice(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    assert list(keys.add(tmp_path / "fed", ["b"]).clients) == ["a", "b"]
    assert keys.read_creds(tmp_path / "fed" / "b.creds").client == "b"
    with pytest.raises(SettingError, match="already"):
        keys.add(tmp_path / "fed", ["b"])
    with pytest.raises(FolderError, match="holds keys already"):
        keys.init(tmp_path / "fed", ["c"])
