"""A connection verifies who the broker is before it says a word, and says within two seconds what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.errors import FlushTimeoutError
from served import until
from sites import Stopwatch
from virtual import simulated

from offbeat.core.errors import OffbeatError, SettingError
from offbeat.deploy import identity, keys
from offbeat.deploy.broker import Broker, free_port
from offbeat.deploy.connection import Connection


class Place:
    """Two federations with brokers of their own, one with TLS and one without."""

    def __init__(self, folder: Path) -> None:
        self.fed, self.plain = folder / "fed", folder / "plain"
        keys.init(self.fed, ["a"])
        keys.init(self.plain, ["a"], tls=False)
        self.secure = Broker(folder / "secure", self.fed, sync=False)
        self.open = Broker(folder / "open", self.plain, sync=False)

    @property
    def creds(self) -> identity.Creds:
        return identity.read_creds(self.fed / "a.creds")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"))
    for broker in (made.secure, made.open):
        broker.start()
    try:
        yield made
    finally:
        for broker in (made.secure, made.open):
            broker.stop()


def error_of(creds: identity.Creds, url: str) -> str:
    """What connecting says, within two seconds."""

    async def connect() -> str:
        async with Stopwatch() as watch:
            with pytest.raises(OffbeatError) as caught:
                await Connection(creds, url).connect(2)
        assert watch.seconds < 2.5
        return str(caught.value)

    return asyncio.run(connect())


def test_a_dead_port_is_said(place: Place) -> None:
    assert "nothing listens there" in error_of(place.creds, f"tls://127.0.0.1:{free_port()}")


def test_a_broker_of_another_authority_is_said(place: Place, tmp_path: Path) -> None:
    keys.init(tmp_path / "other", ["a"])
    other = identity.read_creds(tmp_path / "other" / "a.creds")
    assert "not vouched for by this federation's authority" in error_of(other, place.secure.url)
    assert "not vouched for" in error_of(replace(place.creds, ca=""), place.secure.url)


def test_a_certificate_for_another_host_is_said_with_its_remedy(place: Place) -> None:
    said = error_of(place.creds, place.secure.url.replace("127.0.0.1", "127.0.0.2"))
    assert "nothing listens there" in said or "for another host" in said
    said = error_of(place.creds, place.secure.url.replace("127.0.0.1", "[::ffff:127.0.0.1]"))
    assert "for another host" in said
    assert "offbeat keys renew" in said


def test_a_plain_address_for_a_broker_with_tls_is_said(place: Place) -> None:
    with pytest.raises(SettingError, match=r"this federation uses TLS; write tls://127\.0"):
        Connection(place.creds, place.secure.url.replace("tls:", "nats:"))
    said = error_of(replace(place.creds, ca=""), place.secure.url.replace("tls:", "nats:"))
    assert "tls://" in said


def test_tls_for_a_broker_without_it_is_said(place: Place) -> None:
    assert "does not begin with TLS" in error_of(place.creds, place.open.url.replace("nats:", "tls:"))


@pytest.mark.parametrize("most", [0, 4096, -1, "many", None, [1 << 20]])
def test_a_broker_that_takes_only_small_messages_or_says_nonsense_about_them_is_said(place: Place, most: Any) -> None:
    async def play() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(
                b"INFO " + json.dumps({"server_id": "x", "nonce": "abc", "max_payload": most}).encode() + b"\r\n"
            )
            await reader.read(1 << 16)
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(OffbeatError, match="takes no messages of 64 KB, which a run needs; raise its max_payload"):
            await Connection(identity.read_creds(place.plain / "a.creds"), url).connect(2)
        server.close()

    asyncio.run(play())


def test_keys_of_another_federation_are_said(place: Place) -> None:
    creds = identity.read_creds(place.plain / "a.creds")
    said = error_of(replace(creds, ca=place.creds.ca), place.secure.url)
    assert "refuses these keys" in said
    assert creds.seed not in said


@pytest.mark.parametrize("url", ["", "broker:4222", "http://x:1", "tls://x", "tls://x:y", "tls://a:1,nats://b:1"])
def test_an_address_that_is_none_is_said(place: Place, url: str) -> None:
    with pytest.raises(SettingError, match="--nats"):
        Connection(place.creds, url)


class Stripper:
    """A proxy before a broker with TLS. When it strips, it greets clients as a broker without TLS does.

    heard: what clients have told it then.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.strips = False
        self.heard = b""
        self.attempts = 0
        self.open: list[asyncio.StreamWriter] = []
        self.rate = float("inf")  # bytes a second that it passes on; 0: it is halted

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"tls://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        if self.strips:
            self.attempts += 1
            greeting = {"server_id": "x", "version": "2.15.1", "nonce": "abc", "auth_required": True, "headers": True}
            writer.write(b"INFO " + json.dumps({**greeting, "max_payload": 1 << 20}).encode() + b"\r\n")
            while data := await reader.read(1 << 16):
                self.heard += data
            writer.close()
            return
        other, to = await asyncio.open_connection("127.0.0.1", self.broker.port)
        self.open.append(to)
        await asyncio.gather(self._pass(reader, to), self._pass(other, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 14):
                while not self.rate:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(len(data) / self.rate)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def cut(self) -> None:
        for writer in self.open:
            writer.transport.abort()
        self.open.clear()

    async def stop(self) -> None:
        self.cut()
        self.server.close()
        await asyncio.sleep(0.05)


def test_a_proxy_that_takes_tls_away_hears_nothing(place: Place) -> None:
    async def play() -> None:
        proxy = Stripper(place.secure)
        url = await proxy.start()
        proxy.strips = True
        with pytest.raises(OffbeatError, match="does not begin with TLS"):
            await Connection(place.creds, url).connect(2)
        for word in (b"CONNECT", b"PUB", place.creds.jwt.encode()):
            assert word not in proxy.heard
        await proxy.stop()

    asyncio.run(play())


def test_a_proxy_that_takes_tls_away_at_a_reconnect_hears_nothing(place: Place) -> None:
    async def play() -> None:
        proxy = Stripper(place.secure)
        connection = Connection(place.creds, await proxy.start())
        await connection.connect(60)
        await connection.client.publish("beat.r", b"fine")
        proxy.strips = True
        proxy.cut()
        for _ in range(1200):
            await connection.client.publish("beat.r", b"secret")
            if proxy.attempts >= 2:
                break
            await asyncio.sleep(0.05)
        assert proxy.attempts >= 2
        for word in (b"CONNECT", b"PUB", b"secret", place.creds.jwt.encode()):
            assert word not in proxy.heard
        proxy.strips = False
        await until(lambda: connection.client.is_connected)
        await connection.close()
        await proxy.stop()

    asyncio.run(play())


async def pinging(place: Place, proxies: list[Stripper]) -> Connection:
    """A server's connection that asks its broker for a sign of life ten times a second."""
    url = ",".join([await proxy.start() for proxy in proxies])
    connection = Connection(identity.read_creds(place.fed / identity.SERVER), url)
    await connection.connect(60)
    assert connection.client.options["ping_interval"] == (1 if len(proxies) > 1 else 10)
    connection.client.options["ping_interval"] = 0.1
    for proxy in proxies:
        proxy.cut()
    await until(lambda: connection.client.stats["reconnects"] and connection.client.is_connected)
    return connection


def test_a_server_turns_from_a_halted_broker_to_the_next_one(place: Place) -> None:
    async def play() -> None:
        proxies = [Stripper(place.secure), Stripper(place.secure)]
        connection = await pinging(place, proxies)
        at = connection.client.connected_url
        halted = next(proxy for proxy in proxies if proxy.server.sockets[0].getsockname()[1] == at.port)
        halted.rate = 0.0
        async with Stopwatch() as watch:
            await until(lambda: connection.client.is_connected and connection.client.connected_url != at)
        assert watch.seconds < 2.0
        await connection.close()
        for proxy in proxies:
            await proxy.stop()

    asyncio.run(play())


class Line:
    """Stands for the line to a broker, in virtual time: it passes on so many bytes a second; answers come at once."""

    rate = float("inf")

    async def open(self, *_: object) -> None:
        self.free, self.answers = 0.0, asyncio.Queue[bytes]()
        greeting = {"server_id": "x", "nonce": "abc", "max_payload": 1 << 26, "headers": True}
        self.answers.put_nowait(b"INFO " + json.dumps(greeting).encode() + b"\r\n")

    def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.free = max(self.free, loop.time()) + len(data) / self.rate
        if data == b"PING\r\n":
            loop.call_at(self.free, self.answers.put_nowait, b"PONG\r\n")

    def writelines(self, lines: list[bytes]) -> None:
        for data in lines:
            self.write(data)

    async def read(self, _: int = 0) -> bytes:
        return await self.answers.get()

    readline = read

    def at_eof(self) -> bool:
        return False

    async def drain(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def close(self) -> None: ...

    abort = close


Act = Callable[[Connection, Line], Awaitable[None]]


@pytest.fixture
def line(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """To act, in virtual time, with a connection and the line that it uses."""

    def played(act: Act) -> None:
        async def play() -> None:
            connection = Connection(identity.read_creds(place.plain / "a.creds"), "nats://127.0.0.1:1")
            await connection.connect(60)
            await act(connection, connection.client._transport)
            await connection.close()

        with simulated("a line") as (loop, _):
            loop.run_until_complete(play())

    monkeypatch.setattr("offbeat.deploy.connection._Transport", Line)
    return played


MUCH = bytes(20_000_000)


@pytest.mark.parametrize("rate", [140_000, 300_000])
def test_a_slow_line_on_which_pings_wait_behind_much_else_is_not_given_up(line: Any, rate: float) -> None:
    async def act(connection: Connection, line: Line) -> None:
        line.rate = rate
        await connection.client._send_ping()  # its answer comes after the next line, and says nothing about it
        await connection.client.publish("nobody", MUCH)
        await asyncio.sleep(0.9 * len(MUCH) / rate)
        assert connection.client._pings_outstanding > 4
        await asyncio.sleep(0.2 * len(MUCH) / rate)
        assert connection.client._pings_outstanding < 2
        assert connection.client._transport is line

    line(act)


def test_a_line_that_is_halted_is_given_up_after_the_time_that_a_slow_one_would_take(line: Any) -> None:
    async def act(connection: Connection, line: Line) -> None:
        line.rate = 1e-3
        await connection.client.publish("nobody", MUCH)
        await asyncio.sleep(170)
        assert connection.client._transport is line
        await asyncio.sleep(20)
        assert connection.client._transport is not line
        assert connection.client.is_connected

    line(act)


def test_a_flush_that_was_given_up_is_no_reason_to_give_up_the_line(line: Any) -> None:
    async def act(connection: Connection, line: Line) -> None:
        line.rate = 300_000
        await connection.client.publish("nobody", MUCH)
        await asyncio.sleep(1)  # on its way, before the ping
        with pytest.raises(FlushTimeoutError):
            await connection.client.flush(2)
        await asyncio.sleep(1000)
        assert connection.client._transport is line

    line(act)
