"""The connection of one identity to the broker: who we are, TLS before a word of ours, and what is wrong, in words.

nats-py does what a broker's greeting says. Ours does not: with a `tls://` address the handshake comes first and is
verified, at every reconnect too, and without it nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from itertools import count
from random import shuffle
from typing import Any, TypeVar
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError, StaleConnectionError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from offbeat.core.errors import OffbeatError, SettingError
from offbeat.deploy.identity import Creds
from offbeat.deploy.journal import UncertainError
from offbeat.deploy.logs import plain

log = logging.getLogger("offbeat.deploy")
# nats-py closes TLS connections in a way that asyncio warns of, at each one
logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())

T = TypeVar("T")
FAILURES = (NatsError, APIError, OSError, asyncio.TimeoutError, EOFError)
PATIENCE = 4.0  # seconds for an answer of the broker
BRIEFLY = 1.0  # the same at first, where another broker may be about to answer
SOON = 10  # attempts for which it stays so: what is asked while brokers choose one that leads may never be answered
_patience: ContextVar[float] = ContextVar("patience", default=PATIENCE)
_READ = 1 << 18  # bytes that are read at once
_UNANSWERED = 2  # pings, after which a broker is given up
_SLOW = 1 << 17  # bytes a second of a slow line: a ping waits behind what was sent before it
_REFUSALS = 5  # in a row, of a key that was accepted before: a broker that has just been started may not know all yet
_NO_TLS = "it does not begin with TLS, which tls:// requires; its tls block needs `handshake_first`"
_ASKS_FOR_TLS = "a broker with TLS has an address that begins with tls://"
_SILENT = f"it says nothing; {_ASKS_FOR_TLS}"
_HEADERS = 4096  # bytes of headers that are read: ours and the broker's have some hundreds
LEAST = 1 << 16  # bytes of a message that a broker has to take
_NARROW = f"it takes no messages of {LEAST >> 10} KB, which a run needs; raise its max_payload"
REFUSED = "it refuses these keys"
_CLOSED = "maximum account active connections exceeded"  # what the broker says about an account that was closed
_CUT = ("user authentication revoked", REFUSED)  # what it says then
_WAITING: dict[type[Exception], str] = {
    ConnectionRefusedError: "nothing listens there; start the broker, or correct the address",
    socket.gaierror: "there is no such host; check the address and the network's DNS",
    TimeoutError: "it does not answer; check the address and the firewalls on the way",
}
_OTHER_HOST, _OTHER_ADDRESS, _EXPIRED = 62, 64, 10  # OpenSSL's codes


def patience() -> float:
    """Seconds that the broker has for an answer."""
    return _patience.get()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Within, the broker has so many seconds for an answer."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # closed from elsewhere, when its task is gone: nothing to reset there
            _patience.reset(token)


class _Transport(TcpTransport):
    """A connection that is encrypted from its first byte on, if there is a context, and that ends when it is closed."""

    async def open(self, host: str, name: str, port: int, context: ssl.SSLContext | None, patience: float) -> None:
        """Connect. name: of the host in its certificate."""
        server = name if context else None
        opening = asyncio.open_connection(host, port, ssl=context, server_hostname=server, limit=_READ)
        self._io_reader, self._io_writer = await asyncio.wait_for(opening, patience)

    async def read(self, buffer_size: int) -> bytes:
        """nats-py asks for 32 KB at a time, and takes as long for a few bytes as for many."""
        return bytes(await super().read(_READ))

    async def connect_tls(self, *_: Any) -> None:
        self.check()

    def check(self) -> None:
        """An error unless it is encrypted."""
        if self._io_writer is None or self._io_writer.get_extra_info("ssl_object") is None:
            raise NatsError(_NO_TLS)

    async def wait_closed(self) -> None:  # after a handshake that failed, it might never be
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(super().wait_closed(), 0.5)  # type: ignore[no-untyped-call]
        self.abort()

    def abort(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class _Client(Client):
    """nats-py's client, which says nothing to a broker without TLS if TLS is required, and never gives up."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self.context = context
        self._sent = 0  # bytes before the last ping that the broker has answered
        self._sent_before: deque[int] = deque()  # bytes, for each ping that it has not answered yet
        self._begun: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """After closing: all that was begun ends. nats-py may be connecting twice at once, and forgets one of them."""
        own = asyncio.current_task()
        while tasks := [task for task in self._begun if not task.done() and task is not own]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)  # it may overlook that it was cancelled
        self.abort()

    async def _attempt_reconnect(self) -> None:
        self._keep(asyncio.current_task())
        await super()._attempt_reconnect()

    async def _process_connect_init(self) -> None:
        self._pings_outstanding, self._sent = 0, self.stats["out_bytes"]
        self._sent_before.clear()
        try:
            await super()._process_connect_init()
        finally:
            self._keep(self._reading_task, self._ping_interval_task, self._flusher_task)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self._sent_before.append(self.stats["out_bytes"] - self._pending_data_size)  # it overtakes what is pending
        await super()._send_ping(future)

    async def _process_pong(self) -> None:
        if self._sent_before:
            self._sent = self._sent_before.popleft()
        if self._pongs and self._pongs[0].done():  # who asked has given up waiting: nats-py would read nothing any more
            self._pongs[0] = asyncio.Future()
        await super()._process_pong()

    async def _ping_interval(self) -> None:
        """Give up a broker that does not answer: not by the clock, which goes on while this process is halted."""
        while True:
            seconds = self.options["ping_interval"]
            await asyncio.sleep(seconds)
            if not self.is_connected:
                continue
            self._pings_outstanding += 1
            slow = (self.stats["out_bytes"] - self._sent) / (_SLOW * seconds)
            if self._pings_outstanding > _UNANSWERED + slow:
                await self._process_op_err(StaleConnectionError())
                return
            await self._send_ping()

    def _keep(self, *tasks: asyncio.Task[Any] | None) -> None:
        self._begun = {task for task in (*self._begun, *tasks) if task is not None and not task.done()}

    def abort(self) -> None:
        if isinstance(self._transport, _Transport):
            self._transport.abort()

    async def _connect_to_server(self, s: Any) -> None:
        self.abort()
        self._transport = transport = _Transport()  # type: ignore[no-untyped-call]
        host, port, patience = s.uri.hostname, s.uri.port, self.options["connect_timeout"]
        await transport.open(host, s.tls_name or host, port, self.context, patience)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and info.get("tls_required") and self.context is None:
            raise NatsError(_ASKS_FOR_TLS)
        most = info.get("max_payload", LEAST)
        if initial_connection and (not isinstance(most, int) or most < LEAST):
            raise NatsError(_NARROW)
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        if self.context is not None:
            assert isinstance(self._transport, _Transport)
            self._transport.check()
        self._auth_configured = True  # our token, whatever the greeting says
        return bytes(super()._connect_command())

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        """Headers come from whoever has sent a message, and an error here would end all reading from the broker.

        A megabyte of them would take a third of a second before anybody could be charged for it: of long ones only the
        end counts, where the broker has put its own.
        """
        if headers and len(headers) > _HEADERS:
            first, _, rest = bytes(headers).partition(b"\r\n")
            _, _, last = rest[-_HEADERS:].partition(b"\r\n")
            headers = first[:_HEADERS] + b"\r\n" + last
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
            return found
        except (ValueError, IndexError) as error:
            log.debug("headers that are none: %s", error)
            return None

    async def _process_err(self, err_msg: str) -> None:
        """An error that the broker announces before it hangs up: connect again instead of closing for good."""
        error = NatsError("nats: " + err_msg.strip("'"))
        await self._error_cb(error)
        if "permissions violation" not in err_msg.lower():
            await self._process_op_err(error)


class Connection:
    """One identity's connection; it reconnects for ever. url: one broker's, or several of a cluster's, with commas.

    refused: set when the broker has accepted our keys before and does no longer; only other keys help.
    """

    def __init__(self, creds: Creds, url: str) -> None:
        self.creds, self.url = creds, url
        self.who = f"{creds.client}: " if creds.client else ""  # a process may be several clients
        self.addresses = addresses(creds, url)
        shuffle(self.addresses)  # each begins with another, and goes on with the next one
        self.client = _Client(_context(creds, self.addresses[0]))
        self.reconnected: list[Callable[[], Awaitable[None]]] = []
        self.trouble = ""  # the last thing that went wrong
        self.refused = asyncio.Event()
        self.accepted = False  # by the broker, once at least
        self._hopeless = asyncio.Event()  # before the first connection: trying again will not help
        self._in_vain = 0  # attempts in a row of which the same can be said

    async def connect(self, patience: float | None = None) -> None:
        """Connect; keep trying, for so long or for ever. What waiting will not change is an error at once."""
        connecting, hopeless = (asyncio.create_task(job) for job in (self._connect(), self._hopeless.wait()))
        await asyncio.wait([connecting, hopeless], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        hopeless.cancel()
        if not connecting.done():
            while not connecting.done():  # nats-py may overlook that it was cancelled
                connecting.cancel()
                await asyncio.wait([connecting], timeout=0.1)
            await self.close()
            silent = "it says nothing" if self.client.context else _SILENT
            raise OffbeatError(f"cannot connect to {self.url}: {self.trouble or silent}")
        connecting.result()
        self._in_vain, self.accepted = 0, True

    @property
    def js(self) -> JetStreamContext:
        """The broker's streams."""
        return self.client.jetstream(timeout=patience())

    async def _connect(self) -> None:
        # a server of several brokers soon turns to another, so that it can lead; clients may have slow lines
        hurry = not self.creds.client and len(self.addresses) > 1
        await self.client.connect(
            self.addresses,
            user_jwt_cb=self.creds.jwt.encode,
            signature_cb=self.creds.answer,
            tls=self.client.context,
            tls_handshake_first=self.client.context is not None,
            inbox_prefix=self.creds.inbox,
            name=self.creds.client or "server",
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            connect_timeout=2 if hurry else 5,
            ping_interval=1 if hurry else 10,
            dont_randomize=True,
            pending_size=256 << 20,
            error_cb=self._error,
            disconnected_cb=self._lost,
            reconnected_cb=self._again,
        )

    async def _error(self, error: Exception) -> None:
        """Called for what the broker complains about, and at every attempt to connect that fails."""
        log.debug("broker: %s", plain(str(error)))
        if self._hopeless.is_set() or self.client.is_closed:
            return
        before = self.trouble
        self.trouble, final = self._explain(error)
        if self.client.is_connected:
            return
        self._in_vain = self._in_vain + 1 if final else 0
        if not self.accepted:
            if self._in_vain >= len(self.addresses):
                self._hopeless.set()
        elif self._in_vain >= _REFUSALS * len(self.addresses) and REFUSED in self.trouble:
            self.refused.set()
        if self.trouble != before and not self._hopeless.is_set():
            log.warning("%scannot connect to %s: %s; trying again", self.who, self.url, self.trouble)

    def _explain(self, error: Exception) -> tuple[str, bool]:
        """(what is wrong, whether trying again is pointless)."""
        text = plain(str(error)) or type(error).__name__  # a broker's own words may be meant for a terminal
        if isinstance(error, ssl.SSLCertVerificationError):
            return _certificate_trouble(error), True
        if isinstance(error, ssl.SSLError) or text == _NO_TLS:
            return _NO_TLS, True
        if "authorization violation" in text.lower():
            who = f"{self.creds.client or 'the server'} of {self.creds.federation}"
            return f"{REFUSED}, which were replaced or revoked, or are another federation's: {who}", True
        if _CLOSED in text.lower():
            return f"{REFUSED}: {removed(self.creds)}", True
        if text in (_ASKS_FOR_TLS, _NARROW):
            return text, True
        if "expecting INFO" in text:  # it waits for our handshake
            return _SILENT, True
        for kind, why in _WAITING.items():
            if isinstance(error, kind):
                return why, False
        return text, False

    async def _lost(self) -> None:
        if not self.client.is_closed:
            why = self.trouble or "it was closed"
            if removed(self.creds) in why:
                why = removed(self.creds)
            elif any(each in why for each in _CUT):
                why = "the broker has withdrawn these keys"
            log.warning("%slost the connection to %s (%s); connecting again", self.who, self.url, why)

    async def _again(self) -> None:
        self._in_vain = 0
        self.trouble = ""
        self.refused.clear()
        log.info("%sconnected to %s again", self.who, self.url)
        for action in self.reconnected:
            with contextlib.suppress(*FAILURES):
                await action()

    async def close(self) -> None:
        """Say what is still to be said and go."""
        if self.client._flush_queue is None:  # it never began to connect
            return
        if self.client.is_connected:
            with contextlib.suppress(*FAILURES):
                await asyncio.wait_for(self.client.flush(), 2)
        with contextlib.suppress(*FAILURES, AttributeError, RuntimeError):  # of a TLS connection that has broken down
            await self.client.close()
        await self.client.stop()

    async def insist(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do this, again and again until the broker answers; an error if it refuses our keys by now."""
        first = patience()
        for attempt in count():
            try:
                with within(first if attempt < SOON else PATIENCE):
                    return await action()
            except (*FAILURES, UncertainError) as error:
                if self.refused.is_set():
                    raise OffbeatError(f"{self.url}: {self.trouble}") from None
                log.warning("%sthe broker does not answer (%s); trying again", self.who, error)
                await asyncio.sleep(min(0.5, first / 4))
        raise AssertionError


def removed(creds: Creds) -> str:
    """What it means that the broker takes no connection from this account."""
    name, federation = creds.client or "the server", creds.federation
    return (
        f"{name} was removed from {federation} or revoked, or is connected several times already; ask the coordinator "
        f"of {federation}, who can add a removed site under another name"
    )


def addresses(creds: Creds, url: str) -> list[str]:
    """The addresses in a list with commas, checked."""
    found = [part.strip() for part in url.split(",")]
    for address in found:
        parts = urlsplit(address)
        if parts.scheme not in ("nats", "tls") or not parts.hostname or not _has_port(address):
            raise SettingError(f"--nats {address!r}: expected tls://HOST:PORT, or nats://HOST:PORT without TLS")
    if len({urlsplit(address).scheme for address in found}) > 1:
        raise SettingError(f"--nats {url!r}: all addresses must begin with tls://, or all with nats://")
    if creds.ca and not url.startswith("tls:"):
        raise SettingError(f"--nats {url!r}: this federation uses TLS; write {url.replace('nats:', 'tls:')}")
    return found


def _context(creds: Creds, address: str) -> ssl.SSLContext | None:
    return ssl.create_default_context(cadata=creds.ca or None) if address.startswith("tls:") else None


def _has_port(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return urlsplit(address).port is not None
    return False


def _certificate_trouble(error: ssl.SSLCertVerificationError) -> str:
    why = error.verify_message.rstrip(".")
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        return f"its certificate is for another host ({why}); `offbeat keys renew --host HOST` adds a name"
    if error.verify_code == _EXPIRED:
        return "its certificate has expired; `offbeat keys renew` makes another"
    return f"its certificate is not vouched for by this federation's authority ({why})"
