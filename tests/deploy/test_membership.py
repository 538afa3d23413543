"""Adding, removing, revoking and rotating while the broker runs: it knows within a second, and no one else notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import offbeat
from nats.js import api
from served import until
from sites import Stopwatch

from offbeat.core.errors import FolderError, OffbeatError, SettingError
from offbeat.deploy import broker_config, certificates, identity, jwt, keys
from offbeat.deploy.broker import Broker, free_port, program
from offbeat.deploy.client import copy_seal
from offbeat.deploy.connection import Connection
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.link import Link
from offbeat.deploy.push import push


class Place:
    """A federation of its own with a running broker."""

    def __init__(self, folder: Path, tls: bool = False) -> None:
        self.fed = folder / "fed"
        keys.init(self.fed, ["alice", "bob"], tls=tls)
        self.broker = Broker(folder / "broker", self.fed)

    async def connected(self, name: str) -> Connection:
        connection = Connection(identity.read_creds(self.fed / f"{name}.creds"), self.broker.url)
        await connection.connect(2)
        return connection


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.broker.start()
    try:
        yield made
    finally:
        made.broker.stop()


async def within_a_second(what: Callable[[], Any]) -> None:
    async with Stopwatch() as watch:
        while not what():
            assert watch.seconds < 1
            await asyncio.sleep(0.01)


def test_a_client_that_is_added_connects_and_the_others_stay_connected(place: Place) -> None:
    async def play() -> None:
        alice, server = await place.connected("alice"), await place.connected("server")
        keys.add(place.fed, ["carol"])
        await push(place.fed, place.broker.url)
        carol = await place.connected("carol")
        await server.js.add_stream(api.StreamConfig(name="IN-r", subjects=["up.*.r"]))
        assert json.loads((await carol.client.request("up.r", b"hello")).data)["stream"] == "IN-r"
        assert json.loads((await alice.client.request("up.r", b"hello")).data)["stream"] == "IN-r"
        assert alice.client.stats["reconnects"] == server.client.stats["reconnects"] == 0
        for connection in (alice, server, carol):
            await connection.close()

    asyncio.run(play())


@pytest.mark.parametrize("change", [keys.rotate, keys.revoke, keys.remove])
def test_open_connections_with_keys_that_count_no_longer_are_cut(
    place: Place, change: Callable[[Path, list[str]], Any]
) -> None:
    async def play() -> None:
        alice, bob = await place.connected("alice"), await place.connected("bob")
        change(place.fed, ["alice"])
        await push(place.fed, place.broker.url)
        await within_a_second(lambda: not alice.client.is_connected)
        old = Connection(alice.creds, place.broker.url)
        with pytest.raises(OffbeatError, match="refuses these keys"):
            await old.connect(2)
        assert bob.client.is_connected
        if change is keys.rotate:
            await (await place.connected("alice")).close()
        await until(alice.refused.is_set)
        with pytest.raises(OffbeatError, match="refuses these keys"):
            await alice.insist(lambda: alice.client.request("ask.r", b"", timeout=0.2))
        for connection in (alice, bob):
            await connection.close()

    asyncio.run(play())


def test_keys_that_were_issued_while_the_coordinator_s_clock_was_ahead_can_be_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = tmp_path / "fed"
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda at=time.time: at() + 3600.0)
        keys.init(fed, ["alice"], tls=False)
    broker = Broker(tmp_path / "broker", fed, sync=False)

    async def play() -> None:
        alice = Connection(identity.read_creds(fed / "alice.creds"), broker.url)
        await alice.connect(5)
        keys.rotate(fed, ["alice"])
        await push(fed, broker.url, ["alice"])
        await within_a_second(lambda: not alice.client.is_connected)
        with pytest.raises(OffbeatError, match="refuses these keys"):
            await Connection(alice.creds, broker.url).connect(2)
        await alice.close()

    broker.start()
    try:
        asyncio.run(play())
    finally:
        broker.stop()


def test_a_broker_that_reads_the_folder_of_keys_itself_cuts_revoked_keys_off_too(tmp_path: Path) -> None:
    """One that was started with `fed/nats.conf`: it finds the newer token in its folder, and has to use it as well."""
    fed, port = tmp_path / "fed", free_port()
    keys.init(fed, ["alice"], tls=False)
    (tmp_path / "nats.conf").write_text(broker_config.configuration(fed, port, "127.0.0.1"))

    async def play() -> None:
        alice = Connection(identity.read_creds(fed / "alice.creds"), f"nats://127.0.0.1:{port}")
        await alice.insist(lambda: alice.connect(2))
        keys.revoke(fed, ["alice"])
        await push(fed, alice.url, ["alice"])
        await within_a_second(lambda: not alice.client.is_connected)
        with pytest.raises(OffbeatError, match="refuses these keys"):
            await Connection(alice.creds, alice.url).connect(2)
        await alice.close()

    with subprocess.Popen([program(), "-c", "nats.conf"], cwd=tmp_path, stderr=subprocess.DEVNULL) as broker:
        try:
            asyncio.run(play())
        finally:
            broker.terminate()


def test_a_revoked_client_comes_back_with_rotated_keys_and_a_removed_one_does_not(place: Place) -> None:
    before = identity.read_roster(place.fed)
    keys.revoke(place.fed, ["alice"])
    revoked = identity.read_roster(place.fed).client("alice")
    assert (revoked.state, revoked.user) == ("active", "")
    assert revoked.sign != before.client("alice").sign
    keys.rotate(place.fed, ["alice"])
    asyncio.run(push(place.fed, place.broker.url))
    asyncio.run(_touch(place, "alice"))
    removed = keys.remove(place.fed, ["alice"])
    assert list(removed.clients) == ["alice", "bob"]
    assert removed.active == ["bob"]
    for action in (keys.rotate, keys.revoke):
        with pytest.raises(SettingError, match="was removed"):
            action(place.fed, ["alice"])
    with pytest.raises(SettingError, match="was removed"):
        keys.add(place.fed, ["alice"])


async def _touch(place: Place, name: str) -> None:
    await (await place.connected(name)).close()


def test_what_was_pushed_outlives_the_broker(place: Place, tmp_path: Path) -> None:
    """Also if the folder that the broker is started with is older than what was pushed."""
    keys.rotate(place.fed, ["alice"])
    newer = {path: path.read_bytes() for path in (place.fed / identity.TOKENS).iterdir()}
    asyncio.run(push(place.fed, place.broker.url))
    place.broker.stop()
    place.broker.start()
    asyncio.run(_touch(place, "alice"))
    assert {path: path.read_bytes() for path in (place.fed / identity.TOKENS).iterdir()} == newer


def test_changes_without_a_push_count_when_an_embedded_broker_is_started_again(place: Place) -> None:
    old = identity.read_creds(place.fed / "alice.creds")
    keys.rotate(place.fed, ["alice"])
    keys.add(place.fed, ["carol"])
    place.broker.stop()
    place.broker.start()
    for name in ("alice", "bob", "carol", "server"):
        asyncio.run(_touch(place, name))
    with pytest.raises(OffbeatError, match="refuses these keys"):
        asyncio.run(Connection(old, place.broker.url).connect(2))


def test_the_roster_reaches_the_server_and_never_goes_back(place: Place, tmp_path: Path) -> None:
    async def play() -> None:
        server = await place.connected("server")
        await server.js.add_stream(api.StreamConfig(name="BOARD", subjects=["board", "roster"], max_msgs_per_subject=1))
        await push(place.fed, place.broker.url)
        old = (place.fed / identity.ROSTER).read_bytes()
        keys.add(place.fed, ["carol"])
        await push(place.fed, place.broker.url)
        found = (await server.js.get_last_msg("BOARD", "roster")).data
        assert found is not None
        assert list(identity.parse_roster(found, server.creds.coordinator).clients) == ["alice", "bob", "carol"]
        (place.fed / identity.ROSTER).write_bytes(old)
        with pytest.raises(OffbeatError, match="newer roster"):
            await push(place.fed, place.broker.url)
        await server.close()

    asyncio.run(play())


def test_an_account_that_the_operator_has_not_signed_is_not_pushed(place: Place) -> None:
    account = identity.read_roster(place.fed).client("alice").account
    path = place.fed / identity.TOKENS / f"{account}.jwt"
    good, stranger = path.read_text(), jwt.new_seed(jwt.OPERATOR)
    bob = identity.read_roster(place.fed).client("bob").account
    for bad in (jwt.issue(stranger, account, "alice", {"type": "account"}), good[:-4], "", _token(place, bob)):
        path.write_text(bad)
        with pytest.raises(FolderError):
            asyncio.run(push(place.fed, place.broker.url))
        place.broker.stop()
        with pytest.raises(FolderError):
            place.broker.start()
        path.write_text(good)
        place.broker.start()
        asyncio.run(_touch(place, "alice"))


def _token(place: Place, account: str) -> str:
    return (place.fed / identity.TOKENS / f"{account}.jwt").read_text()


def test_tokens_are_newer_with_every_change_however_fast_they_follow_each_other(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    account = identity.read_roster(tmp_path / "fed").client("a").account
    found = []
    for _ in range(4):
        keys.rotate(tmp_path / "fed", ["a"])
        found.append(jwt.issued_at((tmp_path / "fed" / identity.TOKENS / f"{account}.jwt").read_text()))
    assert found == sorted(set(found))


# A broker that belongs to another operator


def test_another_operator_s_broker_serves_a_federation_once_its_administrator_trusts_it(tmp_path: Path) -> None:
    """As docs/deploy.md tells the administrator of an existing cluster."""
    theirs, ours, port = tmp_path / "theirs", tmp_path / "ours", free_port()
    keys.init(theirs, ["tenant"], tls=False)
    keys.init(ours, ["alice"], tls=False)
    text = broker_config.configuration(theirs, port, "127.0.0.1", tmp_path)
    shutil.copytree(theirs / identity.TOKENS, tmp_path / identity.TOKENS)
    operators = [(folder / identity.OPERATOR_TOKEN).read_text() for folder in (theirs, ours)]
    text = text.replace(f"operator: {operators[0]}", f"operator: [{', '.join(operators)}]")
    (tmp_path / "nats.conf").write_text(text)
    system = identity.read_system(theirs)
    file = tmp_path / "admin.creds"
    token = f"-----BEGIN NATS USER JWT-----\n{system.jwt}\n------END NATS USER JWT------\n"
    file.write_text(f"{token}\n-----BEGIN USER NKEY SEED-----\n{system.seed}\n------END USER NKEY SEED------\n")
    file.chmod(0o600)
    url = f"nats://127.0.0.1:{port}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([program(), "-c", str(tmp_path / "nats.conf")], stdout=log, stderr=log)
    try:
        said = _again(lambda: offbeat("keys", "push", str(ours), "--nats", url, "--system", str(file)))
        assert said.code == 0, said.err
        assert "3 accounts" in said.out
        for creds in (identity.read_creds(ours / "alice.creds"), identity.read_creds(ours / identity.SERVER)):
            asyncio.run(_connects(creds, url))
        asyncio.run(
            _strangers(
                identity.read_creds(theirs / identity.SERVER), identity.read_creds(ours / identity.SERVER), url=url
            )
        )
    finally:
        process.terminate()
        process.wait()


def _again(action: Callable[[], Any], patience: float = 60.0) -> Any:
    until = time.monotonic() + patience
    while (found := action()).code and time.monotonic() < until:
        time.sleep(0.1)
    return found


async def _connects(creds: identity.Creds, url: str) -> None:
    connection = Connection(creds, url)
    await connection.connect(60)
    await connection.close()


async def _strangers(*parties: identity.Creds, url: str = "") -> None:
    """Of two federations on one broker, none hears the other or sees its streams."""
    links, heard = [Link(creds, url) for creds in parties], list[bytes]()
    for link in links:
        await link.connect(60)
        await link.make_board()
        await link.client.subscribe("board", cb=partial(_note, heard))
    await links[0].store("board", b"theirs")
    await links[1].client.flush()
    await asyncio.sleep(0.2)
    assert heard == [b"theirs"]
    assert await links[1].last("BOARD", "board") is None
    for link in links:
        await link.close()


async def _note(heard: list[bytes], message: Any) -> None:
    heard.append(message.data)


# Keys


def test_rotation_replaces_every_key_but_that_of_the_copies(tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    keys.init(fed, ["a"], tls=False)
    first = identity.read_creds(fed / "a.creds")
    sealed = copy_seal(first).seal(b"memory", "run")
    keys.rotate(fed, ["a"])
    second = identity.read_creds(fed / "a.creds")
    assert (second.account, second.copy, second.copies_before) == (first.account, first.copy, ())
    for name in ("seed", "sign", "seal", "jwt"):
        assert getattr(second, name) != getattr(first, name)
    keys.rotate(fed, ["a"], everything=True)
    third = identity.read_creds(fed / "a.creds")
    assert third.copy != first.copy
    assert third.copies_before == (first.copy,)
    assert copy_seal(third).open(sealed, "run") == b"memory"
    renewed = copy_seal(third).seal(b"new", "run")
    assert copy_seal(third).open(renewed, "run") == b"new"
    with pytest.raises(RefusedError, match="sealed"):
        copy_seal(second).open(renewed, "run")


def test_no_secret_is_used_twice_or_shown(tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    keys.init(fed, ["a", "b"], tls=False)
    found = [identity.read_creds(fed / f"{name}.creds") for name in ("a", "b", "server")]
    secrets = [value for creds in found for value in (creds.seed, creds.sign, creds.seal, creds.copy)]
    assert len(set(secrets)) == len(secrets)
    for creds in found:
        for value in (creds.seed, creds.sign.hex(), creds.seal.hex(), creds.copy.hex(), creds.jwt):
            assert value not in repr(creds)
    for path in (*fed.glob("*.creds"), fed / identity.OPERATOR):
        assert path.stat().st_mode & 0o077 == 0


def test_a_roster_that_was_changed_or_signed_by_another_is_refused(tmp_path: Path) -> None:
    fed, other = tmp_path / "fed", tmp_path / "other"
    keys.init(fed, ["a", "b"], tls=False)
    keys.init(other, ["a", "b"], tls=False)
    path = fed / identity.ROSTER
    good = path.read_text()
    table = json.loads(good)
    backwards = {**table, "clients": dict(reversed(table["clients"].items()))}
    exchanged = json.loads(good)
    exchanged["clients"]["a"]["sign"] = exchanged["clients"]["b"]["sign"]
    bad = [
        json.dumps(backwards),
        json.dumps(exchanged),
        json.dumps({**table, "serial": 9}),
        (other / identity.ROSTER).read_text(),
    ]
    bad += ["", "[]", "{}", "[" * 100_000, good[:-9], json.dumps({**table, "clients": []})]
    for text in bad:
        path.write_text(text)
        with pytest.raises(FolderError, match="roster"):
            identity.read_roster(fed)
    path.write_text(good)
    assert list(identity.read_roster(fed).clients) == ["a", "b"]


@pytest.mark.parametrize("name", ["server", "sys", "operator", "ca", "broker", "roster", "Server", "nats", "jwt"])
def test_a_client_with_the_name_of_a_file_of_the_federation_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match="choose another"):
        keys.init(tmp_path / "fed", [name])
    keys.init(tmp_path / "fed", ["a"])
    with pytest.raises(SettingError, match="choose another"):
        keys.add(tmp_path / "fed", [name])
    assert identity.read_creds(tmp_path / "fed" / identity.SERVER).client == ""


def test_names_that_are_one_file_on_some_disks_are_refused(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["site"], tls=False)
    with pytest.raises(SettingError, match="capitals"):
        keys.add(tmp_path / "fed", ["Site"])


def test_the_coordinator_s_own_keys_neither_serve_nor_join(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    with pytest.raises(FolderError, match="manages the broker"):
        identity.read_creds(tmp_path / "fed" / identity.SYSTEM)


# Certificates


def test_a_renewed_certificate_needs_no_new_credentials(tmp_path: Path) -> None:
    place = Place(tmp_path, tls=True)
    before = certificates.expiry((place.fed / identity.CERTIFICATE).read_text())
    place.broker.start()
    try:
        served = ssl.get_server_certificate(("127.0.0.1", place.broker.port))
        keys.renew(place.fed, ["broker.example.org"])
        pem = (place.fed / identity.CERTIFICATE).read_text()
        assert certificates.hosts_of(pem) == ["localhost", "127.0.0.1", "broker.example.org"]
        assert certificates.expiry(pem) >= before
        assert place.broker.process is not None
        place.broker.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 60
        while ssl.get_server_certificate(("127.0.0.1", place.broker.port)) == served:
            assert time.monotonic() < until
            time.sleep(0.05)
        asyncio.run(_touch(place, "alice"))
    finally:
        place.broker.stop()


# The broker's store


def test_a_second_broker_on_one_store_is_refused_and_names_the_first(place: Place) -> None:
    assert place.broker.process is not None
    second = Broker(place.broker.folder, place.fed)
    with pytest.raises(FolderError, match=f"process {place.broker.process.pid}"):
        second.start()
    asyncio.run(_touch(place, "alice"))
    place.broker.stop()
    second.start()
    second.stop()


def test_a_broker_that_was_started_by_hand_is_not_given_a_second_one_on_its_store(place: Place) -> None:
    place.broker.stop()
    by_hand = subprocess.Popen(
        [program(), "-c", "nats.conf"], cwd=place.broker.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(1200):
            time.sleep(0.05)
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", place.broker.port), 1):
                break
        other = Broker(place.broker.folder, place.fed)
        with pytest.raises(FolderError, match=f"runs already .process {by_hand.pid}."):
            other.start()
    finally:
        by_hand.terminate()
        by_hand.wait()
    place.broker.start()
    asyncio.run(_touch(place, "alice"))


def test_another_program_that_answers_on_the_broker_s_port_is_not_taken_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.broker.stop()
    check, calls = Broker._check_port, iter([True, False])
    monkeypatch.setattr(Broker, "_check_port", lambda broker: None if next(calls) else check(broker))
    named = pytest.raises(OffbeatError, match=f"Address already in use by process {os.getpid()}, ")
    with socket.create_server(("127.0.0.1", place.broker.port)), named:  # it comes after the port was looked at
        place.broker.start()
    monkeypatch.undo()
    place.broker.start()


# The command line


def test_the_commands_tell_a_running_broker_or_say_what_is_left_to_do(place: Place) -> None:
    fed, url = str(place.fed), place.broker.url
    said = offbeat("keys", "add", fed, "--clients", "carol")
    assert said.code == 0, said.err
    assert f"offbeat keys push {fed} --nats URL" in said.out
    said = offbeat("keys", "push", fed, "--nats", url)
    assert said.code == 0, said.err
    asyncio.run(_touch(place, "carol"))
    for words in (
        ("rotate", "--clients", "carol,bob"),
        ("revoke", "--clients", "carol"),
        ("remove", "--clients", "bob"),
    ):
        said = offbeat("keys", words[0], fed, *words[1:], "--nats", url)
        assert said.code == 0, said.err
        assert url in said.out
    said = offbeat("keys", "rotate", fed, "--clients", "carol", "--all", "--nats", f"nats://127.0.0.1:{free_port()}")
    assert said.code == 1
    assert "nothing listens there" in said.err
    assert "offbeat keys push" in said.err
