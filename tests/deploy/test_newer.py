"""Attacks on what came later than the log and the accounts: cancelled jobs, secure sums and their helper, privacy,
backups, members that change while nobody leads, `offbeat doctor`. `goes_on` is explained in `test_attacks`."""

from __future__ import annotations

import asyncio
import json
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from attacked import Place, Scene, heard, opened
from served import until

from offbeat.algorithms import FedBuff, Ringmaster
from offbeat.core.errors import FolderError, OffbeatError
from offbeat.core.sums import Secure
from offbeat.deploy import effects, encoding, identity, keys, server as server_module, wire
from offbeat.deploy.connection import Connection
from offbeat.deploy.doctor import session
from offbeat.deploy.envelope import SIGNATURE, STATEMENT, public_seal, sign
from offbeat.deploy.helper import RunHelper
from offbeat.deploy.helper_core import HelperCore
from offbeat.deploy.helping import HelpingHeader
from offbeat.deploy.push import push
from offbeat.deploy.questions import Asking, channel_of
from offbeat.deploy.shelf import Shelf
from offbeat.experiment import backup
from offbeat.experiment.real import RunIdentity, save_identity
from offbeat.local import Gradient
from offbeat.privacy.differential import Noise, Privacy
from offbeat.privacy.secure.tickets import MaskContext, MaskTicket, SumRequest

FAR = (1 << 53) - 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("place"), helper=True) as made:
        yield made


async def greeted(scene: Scene) -> int:
    """The thief takes mallory's place; gives its job."""
    await scene.up(scene.says("hello", epoch=1, nonce="n"))
    await until(lambda: scene.server.ledger.clients[2].queue)
    return int(next(iter(scene.server.ledger.clients[2].queue)))


# Cancelled jobs


def test_a_cancelled_job_is_answered_once_and_moves_nothing(place: Place) -> None:
    async def act(scene: Scene) -> None:
        job = await greeted(scene)
        await scene.join("alice")
        await until(lambda: job in scene.server.ledger.clients[2].cancelled)
        answer = {"epoch": 1, "job": job, "steps": 1, "parts": {"gradient": torch.ones(1, dtype=torch.float64)}}
        result = [scene.says("trained", seq=seq, **answer) for seq in (1, 2, 3)]
        await scene.up(result[0], result[0], result[1], result[2])
        record = scene.server.ledger.clients[2]
        assert scene.server.refused == {"cancelled": 1, "late": 2}
        assert (record.applied, record.strikes, record.seq) == (0, 0, 3)
        await scene.goes_on()

    place.play(act, server=Ringmaster(threshold=2, stop=True), local=Gradient(), patience=60.0)


# Heartbeats


def test_heartbeats_that_answer_to_pulses_to_come_keep_nobody_alive(place: Place) -> None:
    """A client could leave them with the broker's administrator, who says them when it is gone."""

    async def act(scene: Scene) -> None:
        await greeted(scene)
        term = scene.server.chain.term
        beat = scene.sealed(wire.say(wire.Beat(scene.run, "mallory", 1, FAR, term=term, pulse=FAR)), "beat")
        end = asyncio.get_running_loop().time() + 20
        while scene.server.ledger.clients[2].present:
            assert asyncio.get_running_loop().time() < end
            await scene.admin.say(f"beat.{scene.account}.{scene.run}", beat)
            await asyncio.sleep(0.1)
        await scene.goes_on()

    place.play(act, patience=1.0)


def test_heartbeats_that_have_missed_everything_get_an_assignment_a_second(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await greeted(scene)
        desks = await heard(scene.admin, f"desk.{scene.account}.{scene.run}")
        beat = scene.sealed(wire.say(wire.Beat(scene.run, "mallory", 1, 0)), "beat")
        began = asyncio.get_running_loop().time()
        for _ in range(150):
            await scene.thief.say(f"beat.{scene.run}", beat)
            await asyncio.sleep(0.005)
        took = asyncio.get_running_loop().time() - began
        assert len(await desks.so_far()) <= 2 + took
        await scene.goes_on()

    place.play(act)


# Secure sums

SECURE: dict[str, Any] = {"server": FedBuff(size=2), "secure": Secure(cohort=2)}


async def helping(scene: Scene) -> RunHelper:
    helper = RunHelper(await scene.link("helper"), scene.run, scene.folder / "helper", 2, retry=0.3)
    scene.tasks.append(asyncio.create_task(helper.run()))
    return helper


async def both(scene: Scene) -> None:
    """The honest clients go on, and sums of theirs are opened."""
    for name in ("alice", "bob"):
        if name not in scene.clients:
            await scene.join(name)
    await scene.goes_on(4)


def test_a_client_neither_speaks_for_the_helper_nor_hears_what_it_is_asked(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await greeted(scene)
        await helping(scene)
        masks = {"masks": bytes(4)}
        for name in ("mallory", "helper"):
            said = encoding.pack("unmasked", {"run": scene.run, "client": name, "number": 1, "error": ""}, masks)
            await scene.up(scene.sealed(said))
        assert scene.server.refused == {"malformed": 1, "identity": 1}
        account = identity.read_creds(place.folder / "fed" / "helper.creds").account
        for subject in (f"desk.{account}.{scene.run}", f"up.{account}.{scene.run}", f"get.desk.{account}.{scene.run}"):
            listened = await heard(scene.thief, subject)
            await scene.thief.client.publish(subject, b"x")
            assert not await listened.so_far()
        await both(scene)

    place.play(act, **SECURE)


def test_an_update_without_a_mask_or_with_half_of_one_is_in_no_sum(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await greeted(scene)
        record = scene.server.ledger.clients[2]
        key = public_seal(bytes([7]) * 32)
        wrong: list[dict[str, Any]] = [
            {"delta": torch.full((1,), 9.0)},
            {"delta": torch.full((1,), 9.0), "once": key},
            {"delta": bytes(4)},
            {"delta": bytes(8), "once": key},
            {"delta": bytes(4), "once": bytes(32)},  # a point of small order: no helper could share a secret with it
        ]
        for seq, parts in enumerate(wrong, 1):
            await until(lambda: record.queue and not record.paused)
            await scene.up(scene.says("trained", parts, epoch=1, seq=seq, job=next(iter(record.queue)), steps=1))
        assert record.applied == 0
        assert not scene.server.ledger.cohorts
        assert sum(scene.server.refused.values()) == len(wrong)
        await helping(scene)
        await both(scene)

    place.play(act, patience=60.0, **SECURE)


def test_who_has_the_helper_s_keys_is_no_client_and_no_operator(place: Place) -> None:
    async def act(scene: Scene) -> None:
        link = await scene.link("helper")
        channel = channel_of(link.creds, scene.run)

        def said(kind: str, **header: Any) -> bytes:
            return channel.seal("entry", encoding.pack(kind, {"run": scene.run, **header}))

        forged = [
            said("hello", client="helper", epoch=1, nonce="n"),
            said("hello", client="alice", epoch=1, nonce="n"),
            said("bye", client="helper", epoch=1),
            said("halted", reason="mine"),
        ]
        for data in forged:
            await link.store(f"up.{scene.run}", data)
        await scene.taken()
        assert sum(scene.server.refused.values()) == len(forged)
        assert not any(record.present for record in scene.server.ledger.clients)
        asking = Asking(link, scene.run)
        await asking.listen()
        with pytest.raises(TimeoutError):
            await asking.ask("append", piece=wire.say(wire.Halted(scene.run, "mine")), patience=0.3)
        await helping(scene)
        await both(scene)

    place.play(act, **SECURE)


def test_masks_that_nobody_asked_for_or_that_do_not_fit_open_nothing(place: Place) -> None:
    """Of a helper that lies: it can spoil a sum, whose members then wait until others have moved the model."""

    async def act(scene: Scene) -> None:
        for name in ("alice", "bob"):
            await scene.join(name)
        await until(lambda: scene.server.ledger.closed)
        link, before = await scene.link("helper"), scene.server.ledger.server.model.version
        channel, number = channel_of(link.creds, scene.run), min(scene.server.ledger.closed)

        async def say(n: int, masks: bytes) -> None:
            header = {"run": scene.run, "client": "helper", "number": n, "error": ""}
            await link.store(
                f"up.{scene.run}", channel.seal("entry", encoding.pack("unmasked", header, {"masks": masks}))
            )
            await scene.taken()

        await say(FAR, bytes(4))  # of a sum that there is not
        await say(number, bytes(400))
        assert number in scene.server.ledger.closed
        await say(number, bytes(4))  # not the masks: what is left is no sum of two updates, but for 1 in 64
        await say(number, bytes(4))
        assert scene.server.ledger.server.model.version <= before + 1
        assert number not in scene.server.ledger.closed
        assert not scene.serving.done()

    place.play(act, **SECURE)


def test_a_helper_that_was_away_while_keys_were_rotated_opens_what_was_sent_before(tmp_path: Path) -> None:
    keys.init(tmp_path, ["a", "b"], tls=False)
    keys.add_helper(tmp_path)
    seals = [identity.read_roster(tmp_path).client(name).seal for name in "ab"]
    keys.rotate(tmp_path, ["a"])
    keys.revoke(tmp_path, ["b"])
    roster, creds = identity.read_roster(tmp_path), identity.read_any_creds(tmp_path / "helper.creds")
    assert roster.client("a").seal != seals[0]
    tickets = tuple(
        MaskTicket(n, 1, 1, seal, public_seal(bytes([3]) * 32)) for n, seal in zip("ab", seals, strict=True)
    )
    request = SumRequest(1, MaskContext("fed", "run", 0, 3, 2, 20), tickets)
    asked = encoding.pack(
        "helping", vars(HelpingHeader("run", 9)), {"roster": roster.to_json(), "1": request.to_bytes()}
    )
    helper = HelperCore("fed", "run", creds.seal, creds.coordinator)
    (answer,) = [each for each in helper.hear(asked, 0.0) if isinstance(each, effects.Tell)]
    assert wire.heard(encoding.unpack(answer.data)).error == ""
    for _ in range(2 * identity.BEFORE):
        keys.rotate(tmp_path, ["a"])
    assert len(identity.read_roster(tmp_path).client("a").before) == identity.BEFORE


# Privacy

PRIVATE = {"server": FedBuff(size=1, lr=1.0, guard=Privacy(1.0, Noise(2, multiplier=1e-6)))}


def test_under_privacy_one_update_moves_the_model_by_its_clip_and_lives_are_counted_together(place: Place) -> None:
    """However long it is, and however often its client begins a new life."""

    async def act(scene: Scene) -> None:
        ledger = scene.server.ledger
        for epoch, length in ((1, 1e300), (2, 50.0), (3, 50.0)):
            before = {"after_epoch": epoch - 1, "after_seq": min(epoch - 1, 1), "seen": ledger.position + 99}
            hello = {"epoch": epoch, "nonce": f"n{epoch}"}
            await scene.up(scene.says("hello", **hello, **before) if epoch > 1 else scene.says("hello", **hello))
            assert ledger.clients[2].epoch == epoch
            if epoch == 3:
                break
            await until(lambda: ledger.clients[2].queue)
            parts = {"delta": torch.full((1,), length, dtype=torch.float64)}
            job = next(iter(ledger.clients[2].queue))
            start = float(ledger.server.model.vector)
            await scene.up(scene.says("trained", parts, epoch=epoch, seq=1, job=job, steps=1))
            assert abs(float(ledger.server.model.vector) - start) <= 1.0 + 1e-3
        assert ledger.server.model.contributions.count == {2: 2}
        assert not ledger.clients[2].queue  # it has spent what it may
        await scene.goes_on(2)

    place.play(act, **PRIVATE)


def test_nobody_is_told_the_secret_of_the_noise(place: Place) -> None:
    async def act(scene: Scene) -> None:
        desks = await heard(scene.admin, f"desk.{scene.account}.{scene.run}")
        await greeted(scene)
        secret = scene.server.ledger.secret
        assert len(secret) == 64
        asking = Asking(scene.thief, scene.run)
        await asking.listen()
        status = bytes(await asking.ask("status"))
        channel = channel_of(scene.thief.creds, scene.run)
        told = [status, *(channel.open("desk", each.data) for each in await desks.so_far())]
        assert len(told) > 1
        assert not any(secret.encode() in each or bytes.fromhex(secret) in each for each in told)
        await scene.goes_on(1)

    place.play(act, **PRIVATE)


# Backups


def rewritten(file: Path, to: Path, **changed: bytes) -> Path:
    """The backup with some of its files replaced or added. A name's _ stands for a dot."""
    with tarfile.open(file) as old, tarfile.open(to, "w") as new:
        contents = {each.name: old.extractfile(each).read() for each in old if each.isfile()}  # type: ignore[union-attr]
        for name, data in {**contents, **{name.replace("_", "."): data for name, data in changed.items()}}.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            new.addfile(about, BytesIO(data))
    return to


def test_a_backup_that_somebody_has_changed_is_refused_before_anything_is_done(place: Place) -> None:
    """Its messages would be published, and its streams made, with all the rights of the server."""

    async def act(scene: Scene) -> None:
        await scene.join("alice")
        await until(lambda: scene.server.ledger.tally.updates > 3)
        save_identity(scene.folder, RunIdentity(scene.run, list(scene.plan().roster)))
        (scene.folder.parent / "experiment.json").write_text("{}")
        file = place.folder / "good.tar"
        await backup.backup(scene.admin, scene.folder, file)
        with tarfile.open(file) as tar:
            signed = tar.extractfile("backup.json").read()  # type: ignore[union-attr]
        about = json.loads(signed[len(STATEMENT) : -SIGNATURE])
        about["streams"]["BODY"]["republish"] = {"src": ">", "dest": "pulse.>"}
        order = backup._frame(1, f"$JS.API.STREAM.DELETE.LOG-{scene.run}", b"{}")
        own = sign(scene.thief.creds.sign, ("backup", "fed"), json.dumps(about).encode())
        tried = {"MIRROR": order, "BODY": order, "backup_json": own, "more": b"x", "experiment_json": b'{"a": 1}'}
        tried["backup_json2"] = signed[:4] + json.dumps(about).encode() + signed[-SIGNATURE:]
        for number, (name, data) in enumerate(tried.items()):
            bad = rewritten(file, place.folder / f"bad{number}.tar", **{name.rstrip("2"): data})
            with pytest.MonkeyPatch.context() as disk:
                disk.delattr(tarfile.TarFile, "extractall")  # none of it is unpacked, however large it is
                with pytest.raises(FolderError, match="was changed"):
                    await backup.restore(scene.admin, bad, place.folder / f"out{number}")
        moving, whole = place.folder / "moving.tar", tarfile.TarFile.extractall

        def swapped(tar: tarfile.TarFile, *args: Any, **options: Any) -> None:
            """While it is being restored, somebody writes into the file that was looked at."""
            with moving.open("r+b") as out:
                out.write((place.folder / "bad0.tar").read_bytes())
            with tarfile.open(moving) as now:
                whole(now, *args, **options)

        moving.write_bytes(file.read_bytes())
        with pytest.MonkeyPatch.context() as disk:
            disk.setattr(tarfile.TarFile, "extractall", swapped)
            with pytest.raises(FolderError, match="was changed or is damaged: MIRROR"):
                await backup.restore(scene.admin, moving, place.folder / "swapped")
        assert await scene.admin.end(f"LOG-{scene.run}") >= scene.server.ledger.position
        await scene.goes_on()

    place.play(act)


# Members that change while nobody leads


def test_what_a_client_that_was_removed_while_nobody_led_has_left_in_the_inbox_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SILENCE", 0.2)

    async def act(scene: Scene) -> None:
        job, fed = await greeted(scene), scene.place.folder / "fed"
        await scene.stop()
        parts = {"delta": torch.ones(1, dtype=torch.float64)}
        await scene.thief.store(f"up.{scene.run}", scene.says("trained", parts, epoch=1, seq=1, job=job, steps=1))
        await scene.thief.store(f"up.{scene.run}", scene.says("hello", epoch=2, nonce="m", after_epoch=1, after_seq=1))
        keys.remove(fed, ["mallory"])
        await push(fed, scene.place.broker.url)
        scene.folder = scene.place.folder / "standby"  # another server, which has read the old roster
        await scene.serve()
        await scene.taken()
        record = scene.server.ledger.clients[2]
        assert (record.removed, record.applied, record.epoch) == (True, 0, 1)
        await scene.goes_on()

    with opened(tmp_path) as made:
        made.play(act)


@pytest.mark.parametrize("change", [keys.remove, keys.rotate, keys.revoke])
def test_later_models_are_sealed_under_a_key_that_withdrawn_keys_have_never_seen(
    tmp_path: Path, change: Callable[[Path, list[str]], Any]
) -> None:
    """The broker's administrator could show them to whoever has the keys."""

    async def act(scene: Scene) -> None:
        await greeted(scene)
        alice = await scene.join("alice")
        await until(lambda: alice.models is not None)
        before = alice.models
        change(scene.place.folder / "fed", ["mallory"])
        await push(scene.place.folder / "fed", scene.place.broker.url)
        await until(lambda: alice.models is not None and before is not None and alice.models.key != before.key)
        await scene.goes_on()
        assert alice.models is not None
        assert scene.server.posting.shelf.seal.key == alice.models.key

    with opened(tmp_path) as made:
        made.play(act)


def test_models_under_a_former_key_are_removed_from_the_broker_like_others(place: Place) -> None:
    async def act(scene: Scene) -> None:
        async def kept() -> int:
            return int((await scene.admin.js.stream_info("MODEL")).state.messages)

        shelf, before = Shelf(scene.admin, "other", 0), await kept()
        await shelf.put("a", b"model")
        assert shelf.renew(1)
        assert not shelf.renew(1)
        await shelf.put("a", b"model")
        assert await kept() == before + 2
        await shelf.drop("a")
        assert await kept() == before
        await shelf.put("a", b"model")
        await shelf.put("b", b"another")
        await shelf.drop("b")
        assert await kept() == before + 1

    place.play(act)


def test_a_client_that_was_added_while_nobody_led_has_its_own_place_and_nobody_else_s(tmp_path: Path) -> None:
    """Its first words waited in the inbox before any server knew it."""

    async def act(scene: Scene) -> None:
        fed = scene.place.folder / "fed"
        await scene.stop()
        keys.add(fed, ["eve"])
        await push(fed, scene.place.broker.url)
        link = await scene.link("eve")
        channel = channel_of(link.creds, scene.run)
        for name in ("alice", "eve"):
            hello = encoding.pack("hello", {"run": scene.run, "client": name, "epoch": 1, "nonce": "n"})
            await link.store(f"up.{scene.run}", channel.seal("entry", hello))
        await scene.serve()
        await scene.taken()
        there = {record.name: record.present for record in scene.server.ledger.clients}
        assert there == {"alice": False, "bob": False, "mallory": False, "eve": True}
        assert scene.server.refused == {"identity": 1}
        await scene.goes_on()

    with opened(tmp_path) as made:
        made.play(act)


# What an operator looks at


def test_a_broker_s_words_move_no_terminal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of `doctor`, and of every other command that connects."""
    keys.init(tmp_path, ["a"], tls=False)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def broker() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.sendall(b'INFO {"server_id":"\\u001b[2J","max_payload":1048576,"nonce":"abc"}\r\n')
                peer.sendall(b"-ERR '\x1b]0;owned\x07\x1b[2J all is well'\r\n")
                peer.recv(1 << 16)

    threading.Thread(target=broker, daemon=True).start()
    try:
        creds, url = identity.read_creds(tmp_path / "a.creds"), f"nats://127.0.0.1:{port}"
        found = asyncio.run(session(creds, url, 1.0))
        with pytest.raises(OffbeatError, match="owned") as caught:  # of `join` and `serve`
            asyncio.run(Connection(creds, url).connect(1.0))
    finally:
        listener.close()
    assert [each.level for each in found] == ["problem"]
    assert all(each.line.isprintable() for each in found)
    assert str(caught.value).isprintable()
    assert caplog.messages
    assert all(message.isprintable() for message in caplog.messages)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '"x"', "{}", "1e999", '{"federation": []}', "\udcff"])
def test_any_file_is_keys_or_is_said_to_hold_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.creds"
    path.write_bytes(text.encode(errors="surrogateescape"))
    path.chmod(0o600)
    with pytest.raises(FolderError, match="does not hold keys"):
        identity.read_creds(path)


def test_a_key_of_any_other_length_or_kind_is_no_key(tmp_path: Path) -> None:
    keys.init(tmp_path, ["a"], tls=False)
    good = json.loads((tmp_path / "a.creds").read_text())
    for name, value in [("sign", "00"), ("seal", 7), ("copies_before", 3), ("client", "../x"), ("helper", "zz")]:
        (tmp_path / "a.creds").write_text(json.dumps({**good, name: value}))
        with pytest.raises(FolderError, match="does not hold keys"):
            identity.read_creds(tmp_path / "a.creds")
