"""Those who should not be there, at a real broker: each is kept out, or refused and counted."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from served import Served, staged as played, until
from worlds import Line

from offbeat.algorithms import FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import FolderError, OffbeatError, SettingError
from offbeat.core.until import Until
from offbeat.deploy import encoding, identity, keys
from offbeat.deploy.admission import Limits
from offbeat.deploy.board import BoardSerial, change_board, read_board
from offbeat.deploy.broker import Broker
from offbeat.deploy.client import Party, RunClient
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import digest_of
from offbeat.deploy.gate import BYTES, PARTED, USELESS, write_parts
from offbeat.deploy.jwt import MAX_PAYLOAD
from offbeat.deploy.link import Link
from offbeat.deploy.plan import Plan
from offbeat.deploy.push import push
from offbeat.deploy.questions import SERVER, Asking, CopyPiece, Question, channel_of, copy_name, write
from offbeat.deploy.refold import mended
from offbeat.deploy.server import RunServer
from offbeat.deploy.uplink import Uplink
from offbeat.local import SGD

PROBLEM = Line([1.0, 2.0])


class Scene:
    """A broker, a server and the connections of two clients, of which one means harm."""

    def __init__(self, folder: Path, tls: bool) -> None:
        self.folder = folder
        self.roster = keys.init(folder / "fed", ["alice", "mallory"], tls=tls)
        self.broker = Broker(folder / "broker", folder / "fed")

    def link(self, name: str) -> Link:
        return Link(identity.read_creds(self.folder / "fed" / f"{name}.creds"), self.broker.url)

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
        run_server = RunServer(plan, server, self.folder / "run", {"run": "r1"}, self.roster)
        serving = asyncio.create_task(run_server.run())
        await until(lambda: run_server.ready)
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


def sealed(link: Link, kind: str, **header: Any) -> bytes:
    """An envelope as its sender would send it."""
    message = encoding.pack(kind, {"run": "r1", "client": link.creds.client, **header})
    return channel_of(link.creds, "r1").seal("entry", message)


def test_a_key_that_is_not_on_the_roster_gets_no_connection(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        keys.init(scene.folder / "other", ["alice"])
        other = identity.read_creds(scene.folder / "other" / "alice.creds")
        stranger = Link(replace(other, ca=mallory.creds.ca), scene.broker.url)
        with pytest.raises(OffbeatError, match="refuses these keys") as caught:
            await stranger.connect(2)
        assert stranger.creds.seed not in str(caught.value)

    staged(tmp_path, act, tls=True)


def test_a_key_that_was_replaced_gets_no_connection_and_the_new_one_does(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        fed, before = scene.folder / "fed", scene.link("alice")
        roster = keys.rotate(fed, ["alice"])
        assert list(roster.clients) == ["alice", "mallory"]
        await push(fed, scene.broker.url)
        with pytest.raises(OffbeatError, match="refuses these keys"):
            await before.connect(2)
        after = scene.link("alice")
        await after.connect(5)
        await after.close()

    staged(tmp_path, act, tls=True)
    with pytest.raises(SettingError, match="not on the roster"):
        keys.rotate(tmp_path / "fed", ["bob"])


def test_a_client_reaches_neither_another_s_subjects_nor_the_server_s(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        alice, before = scene.roster.client("alice").account, run_server.ledger.position
        up = sealed(mallory, "bye", epoch=1)
        theirs = [f"{what}.{alice}.r1" for what in ("up", "part", "mirror", "beat", "ask", "desk", "tell")]
        streams = ("IN", "PART", "MIRROR", "LOG", "BODY")
        api = [f"$JS.API.STREAM.{what}.{each}-r1" for what in ("DELETE", "PURGE", "INFO") for each in streams]
        for subject in (
            *theirs,
            "log.r1",
            "body.r1.x.0",
            "model.r1.x.0",
            "board",
            "roster",
            "pulse.r1",
            "desk.r1",
            *api,
        ):
            mallory.trouble = ""
            await mallory.say(subject, up)
            await until(lambda: "permissions violation" in mallory.trouble)
        for subject in (*theirs, "log.r1", "up.*.r1", ">", "_INBOX.>", "_INBOX.alice.>", "$SYS.>"):
            mallory.trouble = ""
            await mallory.client.subscribe(subject)
            await until(lambda: "permissions violation" in mallory.trouble)
        assert run_server.ledger.position == before
        assert not run_server.refused

    staged(tmp_path, act)


def test_rubbish_is_refused_under_its_code_counted_and_the_server_goes_on(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        channel = channel_of(mallory.creds, "r1")
        header = {"run": "r1", "client": "mallory", "epoch": 1}
        big = encoding.pack("trained", {**header, "seq": 1, "job": 0, "steps": 1}, {"delta": torch.zeros(60_000)})
        vast = b'{"numbers":[1,2,3],"size":1099511627776,"digest":"%s"}' % (b"0" * 64)
        gone = write_parts([7, 8, 9], 27, digest_of(b"pieces that were never sent"))
        for data in (
            b"",
            b"rubbish",
            channel.seal("entry", big),
            PARTED + channel.seal("parts", vast),
            PARTED + channel.seal("parts", gone),
            PARTED + channel.seal("parts", b"[[[[[[[["),
            PARTED + channel.seal("entry", b"{}"),
            channel.seal("beat", b"not an entry"),
            channel_of(mallory.creds, "r2").seal("entry", b"for another run"),
        ):
            await mallory.store("up.r1", data)
        await mallory.store("up.r1", sealed(mallory, "bye", client="alice", epoch=1))
        await mallory.store("up.r1", channel.seal("entry", b"rubbish"))
        await mallory.store("up.r1", sealed(mallory, "hello", epoch=1, nonce="m"))
        await until(lambda: run_server.ledger.clients[1].present)
        before_the_log = {"malformed": 3, "oversized": 2, "damaged": 1, "forged": 3}
        assert run_server.gate.refused == before_the_log
        assert run_server.ledger.tally.refused == {"identity": 1, "malformed": 1}
        assert run_server.ledger.position == 6  # the server's own three, and what could be opened
        assert run_server.refused["malformed"] == 4

    staged(tmp_path, act)


def test_the_broker_cannot_be_made_to_speak_for_the_server(tmp_path: Path) -> None:
    """A request's reply may be addressed to any subject: its answer stays in the account that asked."""

    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        alice, before = scene.roster.client("alice").account, run_server.ledger.position
        desk = await mallory.get("get.desk.r1")
        assert desk is not None
        for reply in ("log.r1", f"desk.{alice}.r1", f"up.{alice}.r1", "board", "$JS.API.STREAM.DELETE.LOG-r1"):
            for ask in ("get.desk.r1", "get.board"):
                await mallory.client.publish(ask, b"", reply=reply)
        await mallory.client.publish("ask.r1", channel_of(mallory.creds, "r1").seal("ask", b""), reply="log.r1")
        await mallory.client.flush()
        await asyncio.sleep(0.3)
        assert run_server.ledger.stopped == ""
        assert run_server.ledger.position == before
        assert await run_server.link.end("LOG-r1") == before

    staged(tmp_path, act)


def test_what_a_broker_s_administrator_forges_counts_nowhere(tmp_path: Path) -> None:
    """Whoever may write to every subject of the server's account, but has none of the keys that sign."""

    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        admin, alice = run_server.link, scene.link("alice")
        await alice.connect(5)
        account = alice.creds.account
        party = Party("r1", "alice", 0, [PROBLEM], run_server.plan.locals, 0)
        client = RunClient(party, alice, scene.folder / "state")
        running = asyncio.create_task(client.run())
        await until(lambda: run_server.ledger.clients[0].present)
        entry = sealed(mallory, "hello", epoch=1, nonce="m")  # mallory's, as if alice had sent it
        await admin.store(f"up.{account}.r1", entry)
        await until(lambda: run_server.gate.refused["forged"] == 1)
        stale = await admin.last("DESK", f"desk.{account}.r1")
        assert stale is not None
        forged = channel_of(mallory.creds, "r1").seal("entry", b"x")
        for data in (b"", b"rubbish", forged, stale.data[:-1] + bytes([stale.data[-1] ^ 1])):
            await admin.store(f"desk.{account}.r1", data)
            await admin.store("board", data)
            await admin.say("pulse.r1", data)
            with pytest.raises(RefusedError):
                await read_board(alice)
        assert client.core.assignment is not None
        assert client.core.assignment.run == "r1"
        client.leave()
        await running
        await alice.close()
        assert "forged" in run_server.refused

    staged(tmp_path, act)


def test_an_older_board_does_not_come_back(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        seen = BoardSerial(scene.folder / "state", b"server")
        old = await mallory.get("get.board")
        assert old is not None
        await change_board(run_server.link, lambda board: board.with_run("r2", {"run": "r2"}))
        board = await read_board(mallory, seen)
        assert board is not None
        assert board.runs["r2"] == {"run": "r2"}
        await run_server.link.store("board", old.data)
        for known in (
            seen,
            BoardSerial(scene.folder / "state", b"server"),
        ):  # also in another process with the same disk
            with pytest.raises(RefusedError, match="old"):
                await read_board(mallory, known)

    staged(tmp_path, act)


def test_a_client_gets_its_own_copy_and_the_state_of_the_run_and_nobody_else_s(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        alice = scene.link("alice")
        await alice.connect(5)
        for name, content in (("first", b"1" * 10), ("second", b"2" * 10)):
            await alice.store("mirror.r1", write("copy", CopyPiece("nonce", name, 0, 1), content))
        await alice.store("mirror.r1", write("copy", CopyPiece("nonce", "half", 0, 2), b"half"))
        asking = [Asking(link, "r1") for link in (alice, mallory)]
        for each in asking:
            await each.listen()
        assert await asking[0].ask("copy", "nonce") == b"2" * 10
        assert await asking[0].ask("copy", "nonce", skip=1) == b"1" * 10
        assert await asking[0].ask("copy", "nonce", skip=2) is None
        assert await asking[1].ask("copy", "nonce") is None
        status = json.loads(await asking[1].ask("status"))
        assert (status["run"], status["state"]) == ("r1", "waiting for clients")
        with pytest.raises(TimeoutError):
            await asking[1].ask("append", piece=encoding.pack("halted", {"run": "r1", "reason": "mine"}), patience=0.5)
        assert run_server.ledger.stopped == ""
        await alice.close()

    staged(tmp_path, act)


def test_a_copy_that_comes_late_or_twice_does_not_stand_for_a_newer_one(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        old, new = copy_name((15, (1, 14), 0, 0, False)), copy_name((16, (1, 15), 0, 0, False))
        for name in (old, new, old):  # the last one has waited in a broker that was halted
            await mallory.store("mirror.r1", write("copy", CopyPiece("nonce", name, 0, 1), name.encode()))
        asking = Asking(mallory, "r1")
        await asking.listen()
        assert await asking.ask("copy", "nonce") == new.encode()
        assert await asking.ask("copy", "nonce", skip=1) == old.encode()

    staged(tmp_path, act)


def test_a_large_update_that_waits_for_a_busy_server_keeps_its_pieces(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        uplink = Uplink(mallory, channel_of(mallory.creds, "r1"), "r1", retry=0.01)
        for _ in range(3):  # as often as a client without a verdict says it
            await uplink.tell(bytes(2 * mallory.piece), "large")
            await asyncio.sleep(0.05)
        admin = scene.link("server")
        await admin.connect(5)
        assert await admin.end("PART-r1") == 3
        uplink.told.clear()  # the connection was lost: the broker may have forgotten them
        await uplink.tell(bytes(2 * mallory.piece), "large")
        assert await admin.end("PART-r1") == 6
        await admin.close()

    staged(tmp_path, act)


def test_questions_about_the_run_cost_the_asker_what_the_answers_weigh(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        asking = Asking(mallory, "r1")
        await asking.listen()
        answers = [await asking.ask("status") for _ in range(2)]
        assert answers[0] == answers[1]  # made once a second: of 10,000 clients it is long
        budget = run_server.gate.budgets["mallory"]
        assert budget.bytes <= budget.most - USELESS * len(answers[0])
        budget.bytes = -BYTES
        with pytest.raises(TimeoutError):
            await asking.ask("status", patience=0.3)

    staged(tmp_path, act)


def test_a_client_neither_has_records_copied_nor_writes_copies_or_the_board(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        admin = scene.link("server")
        await admin.connect(5)
        asking, before = Asking(mallory, "r1"), await read_board(admin)
        await asking.listen()
        with pytest.raises(TimeoutError):  # a copy of a record that every client could have made as often as it likes
            await asking.put(Question("mend", "id", time.time(), seq=1), patience=0.5)
        known, account = run_server.tail.known()[1], mallory.creds.account
        for subject in ("body.r1.record.1", f"up.r1.body.r1.record.1.{account}", "board", f"ask.{SERVER}.r1"):
            with contextlib.suppress(*FAILURES):
                await mallory.say(subject, known)
            with contextlib.suppress(*FAILURES):
                await mallory.client.request(subject, known, timeout=0.3)
        assert await mended(admin, "r1", 1) is None
        assert await read_board(admin) == before
        await admin.close()

    staged(tmp_path, act)


def test_a_message_beyond_the_broker_s_limit_does_not_leave(tmp_path: Path) -> None:
    async def act(scene: Scene, run_server: RunServer, mallory: Link) -> None:
        with pytest.raises(Exception, match="payload"):
            await mallory.say("up.r1", b"x" * (MAX_PAYLOAD + 1))

    staged(tmp_path, act)


# Keys


def test_no_secret_reaches_a_log_however_much_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one")
        for name in served.names[:2]:
            await served.join(name)
        await until(lambda: server.ledger.tally.updates > 5)
        creds = identity.read_creds(tmp_path / "fed" / "alice.creds")
        for wrong in (replace(creds, jwt=creds.jwt[:-3] + "abc"), replace(creds, jwt="")):  # what is refused is logged
            with contextlib.suppress(OffbeatError, *FAILURES):
                await Link(wrong, served.broker.url).connect(2)
        await served.links[0].store(f"up.{creds.account}.run", b"rubbish")
        await until(lambda: server.refused)
        server.leave()

    caplog.set_level(0)
    played(Served(tmp_path), act)
    said = caplog.text + repr([vars(record) for record in caplog.records])
    assert "refused" in said
    for creds in (
        identity.read_creds(tmp_path / "fed" / f"{name}.creds") for name in ("alice", "bob", "carol", "server")
    ):
        for secret in (creds.seed.encode(), creds.jwt.encode(), creds.sign, creds.seal, creds.copy):
            forms = secret.decode("latin-1"), secret.hex(), base64.b64encode(secret).decode(), repr(secret)
            assert not secret or not any(form in said for form in forms)


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    path = tmp_path / "fed" / "a.creds"
    assert path.stat().st_mode & 0o077 == 0
    creds = identity.read_creds(path)
    assert creds.seed not in repr(creds)
    path.chmod(0o644)
    with pytest.raises(FolderError, match="can be read by others"):
        identity.read_creds(path)


@pytest.mark.parametrize("name", ["", "a b", "../x", "a.b", "a*", ">", "ü", "-x", "x" * 65])
def test_names_that_could_be_paths_or_patterns_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError):
        keys.init(tmp_path / "fed", [name])


def test_a_roster_grows_and_nobody_is_on_it_twice(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    assert list(keys.add(tmp_path / "fed", ["b"]).clients) == ["a", "b"]
    assert identity.read_creds(tmp_path / "fed" / "b.creds").client == "b"
    with pytest.raises(SettingError, match="already"):
        keys.add(tmp_path / "fed", ["b"])
    with pytest.raises(FolderError, match="already holds keys"):
        keys.init(tmp_path / "fed", ["c"])
