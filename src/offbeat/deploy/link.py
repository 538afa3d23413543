"""The connection to the broker, and what lies where on it.

offbeat.FED.charter              what is being run, for everybody (the last one counts)
offbeat.FED.RUN.up.CLIENT        what a client adds to the log
offbeat.FED.RUN.log              what the server adds to it
offbeat.FED.RUN.assignment.CLIENT  a client's assignment (the last one counts)
offbeat.FED.RUN.model.DIGEST.i   a large model, in pieces
offbeat.FED.RUN.part.CLIENT.DIGEST.i   a large update, in pieces that cannot be changed afterwards
offbeat.FED.RUN.mirror.CLIENT.NONCE.…  a client's sealed state
offbeat.FED.RUN.beat.CLIENT      signs of life, not kept
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError

from offbeat.core.errors import OffbeatError
from offbeat.deploy.keys import Creds
from offbeat.deploy.reducer import LogEntry
from offbeat.deploy.wire import digest

log = logging.getLogger("offbeat.deploy")
# nats-py closes TLS connections in a way that asyncio warns of, at each one
logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())

REFLECTED = "?"  # no client's name
T = TypeVar("T")
PIECE = 1 << 20
AT_ONCE = 4  # pieces that are asked for together
MARGIN = 4096  # bytes of a message that are not its content
NOT_A_CLUSTER, NO_PEERS = 10074, 10005  # the broker's codes
FAILURES = (NatsError, APIError, OSError, asyncio.TimeoutError, EOFError)


class Link:
    """One identity's connection; it reconnects for ever. url: one broker's, or several of a cluster's, with commas."""

    def __init__(self, creds: Creds, url: str) -> None:
        self.creds, self.url = creds, url
        self.client = Client()
        self.root = f"offbeat.{creds.federation}"
        self.reconnected: list[Callable[[], Awaitable[None]]] = []
        self.trouble = ""  # the last thing that went wrong
        self.unknown = asyncio.Event()  # the broker does not know our key
        self.bytes_in = self.bytes_out = 0

    async def connect(self, patience: float | None = None) -> None:
        """Connect; keep trying, for so long or for ever. A key that the broker does not know is an error at once."""
        self.client._public_nkey = self.creds.public
        connecting = asyncio.create_task(self._connect())
        unknown = asyncio.create_task(self.unknown.wait())
        await asyncio.wait([connecting, unknown], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        unknown.cancel()
        if not connecting.done():
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, *FAILURES):
                await connecting
            if self.unknown.is_set():
                raise OffbeatError(f"{self.url} does not know this key ({self.creds!r})")
            raise OffbeatError(f"cannot reach the broker at {self.url}: {self.trouble or 'no answer'}")
        try:
            connecting.result()
        except (*FAILURES, ssl.SSLError) as error:
            raise OffbeatError(f"cannot reach the broker at {self.url}: {error}") from None
        self.js: JetStreamContext = self.client.jetstream(timeout=4)

    async def _connect(self) -> None:
        context = ssl.create_default_context(cadata=self.creds.ca) if self.creds.ca else None
        await self.client.connect(
            self.url.split(","),
            signature_cb=self.creds.sign,
            tls=context,
            inbox_prefix=self.creds.inbox,
            name=self.creds.client or "server",
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            connect_timeout=5,
            ping_interval=10,
            pending_size=256 << 20,
            error_cb=self._error,
            reconnected_cb=self._again,
        )

    async def _error(self, error: Exception) -> None:
        self.trouble = str(error)
        if "authorization violation" in self.trouble.lower():
            self.unknown.set()
        log.debug("broker: %s", error)

    async def _again(self) -> None:
        log.info("connected to the broker again")
        for action in self.reconnected:
            with contextlib.suppress(*FAILURES):
                await action()

    async def close(self) -> None:
        """Say what is still to be said and go."""
        with contextlib.suppress(*FAILURES):
            await asyncio.wait_for(self.client.flush(), 2)
        with contextlib.suppress(*FAILURES, AttributeError, RuntimeError):  # of a TLS connection that has broken down
            await self.client.close()

    async def insist(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do this, again and again until the broker answers."""
        while True:
            try:
                return await action()
            except FAILURES as error:
                log.warning("the broker does not answer (%s); trying again", error)
                await asyncio.sleep(0.5)

    # Saying

    @property
    def piece(self) -> int:
        """Bytes of one message. Not more than PIECE: on a slow line signs of life would wait behind larger ones."""
        return min(self.client.max_payload or PIECE, PIECE) - MARGIN

    async def say(self, subject: str, data: bytes, name: str = "") -> None:
        """Send, without waiting for anything. `name`: a stream keeps it once, however often it is sent."""
        self.bytes_out += len(data)
        await self.client.publish(f"{self.root}.{subject}", data, headers={"Nats-Msg-Id": name} if name else None)

    async def store(self, subject: str, data: bytes, name: str = "", expect: int | None = None) -> int:
        """Send to a stream and wait until it is kept; gives its number. `name`: kept once, however often it is sent."""
        headers = {"Nats-Msg-Id": name} if name else {}
        if expect is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expect)
        self.bytes_out += len(data)
        ack = await self.js.publish(f"{self.root}.{subject}", data, headers=headers or None)
        return int(ack.seq)

    async def last(self, stream: str, subject: str) -> tuple[int, bytes] | None:
        """(number, content) of the last message on a subject."""
        try:
            found = await self.js.get_last_msg(stream, f"{self.root}.{subject}", direct=True)
        except NotFoundError:
            return None
        self.bytes_in += len(found.data or b"")
        return int(found.seq or 0), bytes(found.data or b"")

    async def stamped(self, stream: str, subject: str) -> tuple[float, bytes] | None:
        """(time, content) of the last message on a subject, as the stream's leader knows it."""
        for direct in (True, False):  # of a cluster's brokers, any may answer directly: also one that lags behind
            with contextlib.suppress(NotFoundError):
                found = await self.js.get_last_msg(stream, f"{self.root}.{subject}", direct=direct)
                when = found.time.timestamp() if found.time else float("inf")
                self.bytes_in += len(found.data or b"")
                return when, bytes(found.data or b"")
        return None

    async def listen(self, subject: str, heard: Callable[[str, bytes], Awaitable[None]]) -> None:
        """Call `heard` with (subject's last part, content) of whatever is said there from now on."""

        async def take(message: Any) -> None:
            self.bytes_in += len(message.data)
            await heard(message.subject.rsplit(".", 1)[-1], message.data)

        await self.client.subscribe(f"{self.root}.{subject}", cb=take, pending_bytes_limit=1 << 30)

    # In pieces

    async def put(self, subject: str, data: bytes, once: bool = False, done: set[int] | None = None) -> int:
        """Store something large under a subject; gives the number of pieces.

        once: they may be there already.   done: numbers of those that are; what is stored now is added.
        """
        size, done, view = self.piece, set() if done is None else done, memoryview(data)
        count = max(1, -(-len(data) // size))
        for number in range(count):
            if number in done:
                continue
            try:
                await self.store(f"{subject}.{number}", bytes(view[number * size : (number + 1) * size]))
            except APIError as error:
                if not (once and "maximum messages per subject" in str(error.description)):
                    raise
            done.add(number)
        return count

    async def get(self, stream: str, subject: str, count: int | None, name: str) -> bytes | None:
        """Something large, or None if it is not there or not what its name says. count: of its pieces, if known."""
        found = bytearray()
        for at in range(0, 4096 if count is None else count, AT_ONCE):
            numbers = range(at, at + AT_ONCE if count is None else min(at + AT_ONCE, count))
            pieces = await asyncio.gather(*(self.last(stream, f"{subject}.{number}") for number in numbers))
            for piece in pieces:
                found += b"" if piece is None else piece[1]
            if None in pieces:
                break
        return bytes(found) if digest(found) == name else None

    # Streams

    def stream(self, run: str, what: str) -> str:
        """The name of one of a run's streams."""
        return f"offbeat-{self.creds.federation}-{run}-{what}"

    @property
    def board(self) -> str:
        """The federation's own stream, for its charter."""
        return f"offbeat-{self.creds.federation}"

    async def make_streams(self, run: str, models: int, replicas: int = 1) -> None:
        """The streams of a run, where they are not there yet.

        models: bytes of large models that are kept.   replicas: brokers of a cluster that each keep everything.
        """
        ours = f"{self.root}.{run}"
        make = partial(self._make, num_replicas=replicas)
        newest = {"max_msgs_per_subject": 1, "discard": api.DiscardPolicy.OLD}
        await make(self.board, [f"{self.root}.charter"], **newest)
        await make(self.stream(run, "log"), [f"{ours}.up.*", f"{ours}.log"])
        await make(self.stream(run, "assignment"), [f"{ours}.assignment.*", f"{ours}.mirror.>"], **newest)
        await make(self.stream(run, "model"), [f"{ours}.model.>"], max_bytes=models, **newest)
        fixed = {"max_msgs_per_subject": 1, "discard": api.DiscardPolicy.NEW, "discard_new_per_subject": True}
        await make(self.stream(run, "part"), [f"{ours}.part.>"], **fixed)

    async def _make(self, name: str, subjects: list[str], **settings: Any) -> None:
        config = api.StreamConfig(
            name=name, subjects=subjects, storage=api.StorageType.FILE, allow_direct=True, max_msg_size=-1, **settings
        )
        with contextlib.suppress(NotFoundError):
            await self.js.stream_info(name)
            return
        try:
            await self.js.add_stream(config)
        except APIError as error:
            if error.err_code in (NOT_A_CLUSTER, NO_PEERS):
                raise OffbeatError(
                    f"the broker cannot keep {config.num_replicas} replicas ({error.description}); "
                    f"start as many brokers as one cluster, or ask for fewer with --replicas"
                ) from None
            raise


class LogReader:
    """Reads a run's log from a position on, in order, through broken connections.

    take: called with every entry.
    """

    def __init__(self, link: Link, run: str, take: Callable[[LogEntry], None]) -> None:
        self.link, self.run, self.take = link, run, take
        self.position = 0
        self.delivered = 0  # by the present consumer; a number left out means that something was lost
        self.generation = 0
        self.heard = 0.0
        self.subscription: Any = None

    async def start(self, after: int) -> None:
        """Begin behind this position, or begin again there."""
        link = self.link
        if self.subscription is not None:
            with contextlib.suppress(*FAILURES):
                await self.subscription.unsubscribe()
        self.position, self.delivered = after, 0
        inbox = link.client.new_inbox()
        self.generation += 1
        hear = partial(self._hear, self.generation)
        self.subscription = await link.client.subscribe(inbox, cb=hear, pending_bytes_limit=1 << 30)
        self.heard = asyncio.get_running_loop().time()
        await link.js.add_consumer(
            link.stream(self.run, "log"),
            api.ConsumerConfig(
                deliver_subject=inbox,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=after + 1,
                ack_policy=api.AckPolicy.NONE,
                idle_heartbeat=2,
                flow_control=True,
                inactive_threshold=60,
                mem_storage=True,
                num_replicas=1,
            ),
        )

    async def _hear(self, generation: int, message: Any) -> None:
        if generation != self.generation:
            return  # for a consumer that was given up
        self.heard = asyncio.get_running_loop().time()
        headers = message.headers or {}
        if headers.get("Status") == "100":
            if stalled := message.reply or headers.get("Nats-Consumer-Stalled"):  # flow control asks for an answer
                await self.link.client.publish(stalled)
            elif (last := headers.get("Nats-Last-Stream")) is not None and int(last) > self.position:
                await self.start(self.position)  # something was missed
            return
        data = message.metadata
        number = int(data.sequence.stream)
        if number <= self.position:
            return
        if data.sequence.consumer != self.delivered + 1:
            await self.start(self.position)  # something was lost on the way to us
            return
        self.position, self.delivered = number, self.delivered + 1
        subject = str(message.subject)
        sender = subject.rsplit(".", 1)[-1] if f".{self.run}.up." in subject else ""
        self.link.bytes_in += len(message.data)
        if "Nats-Subject" in headers or "Nats-Stream" in headers:
            # The broker's answer to somebody's request, which had asked for it to be sent here: nobody vouches for it.
            sender = REFLECTED
        self.take(LogEntry(number, data.timestamp.timestamp(), sender, message.data))

    async def watch(self) -> None:
        """Begin again if the broker has been silent for too long: it was restarted, and has forgotten us."""
        if asyncio.get_running_loop().time() - self.heard > 6 and self.link.client.is_connected:
            with contextlib.suppress(*FAILURES):
                await self.start(self.position)


def as_json(value: Any) -> bytes:
    """Plain data as bytes."""
    return json.dumps(value, separators=(",", ":")).encode()
