"""A broker in memory: NATS with accounts and JetStream as far as real runs use them, as nats-py's `Client` shows it.

Streams and named consumers on disk survive a restart; connections, subscriptions and other consumers do not. Streams
that do not sync forget the last moments before it: what was stored is gone, and what was removed is back. `Fate`
decides what becomes of every message.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from nats import errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from virtual import CURRENT, EPOCH, Process, VirtualLoop, current

from offbeat.deploy.jwt import SERVICES, STREAMS

DIRECT = "$JS.API.DIRECT.GET."
WRONG_LAST, TOO_MANY, NO_STREAM, NO_CONSUMER, NO_MESSAGE = 10071, 10077, 10059, 10014, 10037  # the broker's codes
Headers = dict[str, str]
Respond = Callable[[bytes, Headers | None], None]


class Stored(NamedTuple):
    """A message in a stream."""

    seq: int
    subject: str
    data: bytes
    at: float  # seconds of the simulation


class Fate:
    """What becomes of messages and calls; this one is kind."""

    def delays(self, what: str, client: StubClient) -> list[float]:
        """When the copies of a message come, in seconds from now. what: the kind of its subject."""
        return [0.001]

    def around(self, what: str) -> None:
        """Something is about to be sent or was just sent; may kill the process that does it."""

    def answer(self, client: StubClient, found: Stored | None, history: list[Stored]) -> Stored | None:
        """What the broker answers to a client's question for the last message of a subject."""
        return found

    def forgotten(self) -> float:
        """How many seconds before a restart streams that do not sync forget."""
        return 0.0


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with * and > stands for."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(given) > at
        if at >= len(given) or token not in ("*", given[at]):
            return False
    return len(wanted) == len(given)


def translated(table: Any, subject: str, account: str, back: bool = False) -> str | None:
    """A client's local name as a subject of the server's account, or the other way round; None: not imported."""
    for local, there in table.items():
        pattern, other = local, there.format(account)
        if back:
            pattern, other = other, pattern
        if matches(pattern, subject):
            stars = iter(
                [given for want, given in zip(pattern.split("."), subject.split("."), strict=True) if want == "*"]
            )
            return ".".join(next(stars) if token == "*" else token for token in other.split("."))
    return None


def stamp(at: float) -> str:
    return datetime.fromtimestamp(EPOCH + at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


class Stream:
    """One stream."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.kept: dict[int, Stored] = {}
        self.by_subject: dict[str, deque[int]] = defaultdict(deque)
        self.last = 0
        self.archive: dict[int, Stored] = {}  # whatever was ever stored
        self.removed: dict[int, float] = {}  # and when it was removed
        self.consumers: dict[str, Consumer] = {}

    @property
    def syncs(self) -> bool:
        return self.config.get("persist_mode") != "async"

    @property
    def first(self) -> int:
        return next(iter(self.kept), self.last + 1)

    @property
    def most(self) -> int:
        """Messages on one subject."""
        return int(self.config.get("max_msgs_per_subject") or -1)

    def refusal(self, subject: str, headers: Headers) -> tuple[int, str] | None:
        """(code, words) if a message cannot be stored."""
        expected = headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != self.last:
            return WRONG_LAST, f"wrong last sequence: {self.last}"
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        mine = self.by_subject[subject]
        if expected is not None and int(expected) != (mine[-1] if mine else 0):
            return WRONG_LAST, f"wrong last sequence: {mine[-1] if mine else 0}"
        if self.config.get("discard") == "new" and 0 < self.most <= len(mine):
            return TOO_MANY, "maximum messages per subject exceeded"
        return None

    def store(self, subject: str, data: bytes, at: float) -> int:
        self.last += 1
        found = Stored(self.last, subject, data, at)
        self.kept[self.last] = found
        self.removed.pop(self.last, None)
        before = self.archive.get(self.last)
        if before is None or before.data != data or not self.syncs:  # what is added again is as old as it was
            self.archive[self.last] = found
        mine = self.by_subject[subject]
        mine.append(self.last)
        while 0 < self.most < len(mine):
            self.remove(mine[0], at)
        return self.last

    def forget(self, since: float) -> None:
        """Be as it was then."""
        self.archive = {seq: each for seq, each in sorted(self.archive.items()) if each.at <= since}
        self.removed = {seq: at for seq, at in self.removed.items() if seq in self.archive and at <= since}
        self.kept = {seq: each for seq, each in self.archive.items() if seq not in self.removed}
        self.last = max(self.archive, default=0)
        self.by_subject.clear()
        for each in self.kept.values():
            self.by_subject[each.subject].append(each.seq)

    def remove(self, seq: int, at: float) -> bool:
        found = self.kept.pop(seq, None)
        if found is None:
            return False
        self.removed[seq] = at
        with contextlib.suppress(ValueError):
            self.by_subject[found.subject].remove(seq)
        return True

    def newest(self, subject: str) -> Stored | None:
        mine = self.by_subject.get(subject)
        return self.kept[mine[-1]] if mine else None

    def info(self, at: float) -> dict[str, Any]:
        first = self.kept.get(self.first)
        deleted = [seq for seq in range(self.first, self.last + 1) if seq not in self.kept]
        state = {
            "num_deleted": len(deleted),
            "deleted": deleted,
            "messages": len(self.kept),
            "bytes": sum(len(each.data) for each in self.kept.values()),
            "first_seq": self.first,
            "last_seq": self.last,
            "consumer_count": len(self.consumers),
            "first_ts": stamp(first.at if first else 0.0),
        }
        return {"config": self.config, "state": state, "created": stamp(0.0), "ts": stamp(at)}


@dataclass
class Consumer:
    """A consumer that pushes. waiting: messages delivered and not acknowledged, and when they are delivered again."""

    name: str
    config: dict[str, Any]
    next: int
    delivered: int = 0
    waiting: dict[int, float] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)  # how often each was delivered

    @property
    def subject(self) -> str:
        return str(self.config["deliver_subject"])

    @property
    def survives(self) -> bool:
        return "durable_name" in self.config and not self.config.get("mem_storage")

    @property
    def explicit(self) -> bool:
        return self.config.get("ack_policy") == "explicit"


class Subscription:
    """What a client listens to: its callback is called with one message after the other."""

    def __init__(self, client: StubClient, subject: str, hear: Callable[[Msg], Awaitable[None]] | None) -> None:
        self.client, self.subject, self.hear = client, subject, hear
        self.queue: asyncio.Queue[Msg] = asyncio.Queue()
        self.open = True
        self.task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self.open:
            message = await self.queue.get()
            if self.open and self.hear is not None:
                try:
                    await self.hear(message)
                except Exception as error:  # as nats-py does
                    await self.client.complain(error)

    async def unsubscribe(self, limit: int = 0) -> None:
        current().check()
        self.open = False
        self.client.subscriptions.pop(self, None)
        if asyncio.current_task() is not self.task:
            self.task.cancel()


class _Names:
    """Stands for nats-py's generator of unique names, of 22 letters each."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> bytearray:
        self.count += 1
        return bytearray(f"{self.count:022d}".encode())


class _Version(NamedTuple):
    major: int = 2
    minor: int = 15
    patch: int = 0


class StubClient:
    """nats-py's `Client`, connected to a `Broker`. account: of a client; "": the server's."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.process = broker, current()
        self.is_connected = self.is_closed = False
        self.context = None  # no TLS
        self._flush_queue = ()  # nats-py's, once it has begun to connect
        self.max_payload = broker.max_payload
        self.connected_server_version = _Version()
        self._nuid = broker.nuid
        self.subscriptions: dict[Subscription, None] = {}  # in order
        self.buffer: list[Callable[[], None]] = []  # what is said while the connection is broken
        self.held: list[tuple[str, Callable[[], None]]] | None = None  # what the network holds up
        self.account, self.names = "", "_INBOX.nobody"
        self.order = {"to": 0.0, "from": 0.0}
        self.generation = 0
        self.process.closing.append(self._drop)

    async def connect(self, servers: Any = None, **options: Any) -> None:
        """Connect, whatever it takes."""
        self.options = options
        claims = json.loads(_padded(bytes(options["user_jwt_cb"]()).decode().split(".")[1]))
        self.account = str(claims["nats"].get("issuer_account") or claims["iss"])
        if self.account == self.broker.server_account:
            self.account = ""
        self.names = str(options.get("inbox_prefix") or "_INBOX")
        self._inbox_prefix = bytearray(self.names.encode())
        while not self.broker.accepts(self):
            await asyncio.sleep(0.5)
        self._attach()

    def _attach(self) -> None:
        self.is_connected = True
        self.generation += 1
        self.broker.clients[self] = None

    def _drop(self) -> None:
        """The connection is gone, and with it whatever is on its way."""
        self.is_connected = False
        self.generation += 1
        self.broker.clients.pop(self, None)

    def cut(self, seconds: float) -> None:
        """Break the connection; it is there again after a while, with all subscriptions."""
        if not self.is_connected or self.process.dead:
            return
        self._drop()
        self.broker.loop.spawn(self.process, self._reconnect(seconds))

    def hold(self) -> None:
        """From now on, the network holds up what is sent."""
        self.held = []

    def let_go(self, lost: str) -> None:
        """What was held up comes, without the first message of this kind."""
        held, self.held = self.held or [], None
        first = next((at for at, (kind, _) in enumerate(held) if kind == lost), -1)
        for at, (_, say) in enumerate(held):
            if at != first and self.is_connected:
                say()

    async def _reconnect(self, seconds: float) -> None:
        if lost := self.options.get("disconnected_cb"):
            await lost()
        await asyncio.sleep(seconds)
        while not self.broker.accepts(self):
            await asyncio.sleep(0.5)
        if self.is_closed or self.is_connected:
            return
        self._attach()
        waiting, self.buffer = self.buffer, []
        for say in waiting:
            say()
        if again := self.options.get("reconnected_cb"):
            await again()

    async def complain(self, error: Exception) -> None:
        self.broker.complaints.append((self.process.name, error))
        if hear := self.options.get("error_cb"):
            await hear(error)

    def jetstream(self, **options: Any) -> JetStreamContext:
        return JetStreamContext(self, **options)  # type: ignore[arg-type]

    def new_inbox(self) -> str:
        return f"{self.names}.{self._nuid.next().decode()}"

    async def subscribe(self, subject: str, queue: str = "", cb: Any = None, **_: Any) -> Subscription:
        self._usable()
        made = Subscription(self, subject, cb)
        self.subscriptions[made] = None
        return made

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: Headers | None = None
    ) -> None:
        self._usable()
        if len(payload) > self.max_payload:
            raise errors.MaxPayloadError
        kind = kind_of(subject, payload)
        self.broker.fate.around(f"before {kind}")
        self._send(kind, subject, bytes(payload), reply, headers)
        self.broker.fate.around(f"after {kind}")
        await asyncio.sleep(0)

    def _send(self, kind: str, subject: str, payload: bytes, reply: str, headers: Headers | None) -> None:
        def respond(data: bytes, given: Headers | None) -> None:
            if reply:
                self.broker.deliver(self, f"answer to {kind}", reply, data, "", given)

        def arrive() -> None:
            self.broker.route(self, subject, payload, headers or {}, respond if reply else None)

        def say() -> None:
            self.broker.carry(self, "to", kind, arrive)

        if self.held is not None:
            self.held.append((kind, say))
        elif self.is_connected:
            say()
        else:
            self.buffer.append(say)

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5, headers: Headers | None = None, **_: Any
    ) -> Msg:
        self._usable()
        if len(payload) > self.max_payload:
            raise errors.MaxPayloadError
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        name = self.new_inbox()

        self.broker.asked[name] = (self, answer)
        try:
            await self.publish(subject, payload, name, headers)
            message = await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            raise errors.TimeoutError from None
        finally:
            self.broker.asked.pop(name, None)
        if (message.headers or {}).get("Status") == "503":
            raise errors.NoRespondersError
        return message

    async def flush(self, timeout: float = 10) -> None:
        self._usable()
        back: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def pong() -> None:
            if not back.done():
                back.set_result(None)

        def ping() -> None:
            self.broker.carry(self, "from", "pong", pong)

        if self.is_connected:
            self.broker.carry(self, "to", "ping", ping)
        try:
            await asyncio.wait_for(back, timeout)
        except TimeoutError:
            raise errors.TimeoutError from None

    async def close(self) -> None:
        current().check()
        self.is_closed = True
        self._drop()
        for each in [*self.subscriptions]:
            each.open = False
            each.task.cancel()
        self.subscriptions.clear()

    async def stop(self) -> None:
        """Nothing is left after closing."""

    def _usable(self) -> None:
        self.process.check()
        if self.is_closed:
            raise errors.ConnectionClosedError


def _padded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def kind_of(subject: str, payload: bytes = b"") -> str:
    """A short name for what is sent there."""
    if subject.startswith(DIRECT):
        return "get"
    if subject.startswith("$JS.API."):
        return "api"
    if subject.startswith("$JS.ACK."):
        return "ack"
    if subject.startswith("_INBOX."):
        return "answer"
    return subject.split(".")[0]


class Broker:
    """The broker. server_account: the public key of the account FED."""

    def __init__(
        self, loop: VirtualLoop, server_account: str, fate: Fate | None = None, max_payload: int = 1 << 20
    ) -> None:
        self.loop, self.server_account, self.fate, self.max_payload = loop, server_account, fate or Fate(), max_payload
        self.streams: dict[str, Stream] = {}
        self.clients: dict[StubClient, None] = {}  # in order
        self.asked: dict[str, tuple[StubClient, asyncio.Future[Msg]]] = {}
        self.nuid = _Names()  # of all clients, as no two names of theirs are alike
        self.up = True
        self.barred: set[str] = set()  # accounts that may not connect
        self.process = Process("broker")
        self.complaints: list[tuple[str, Exception]] = []
        self.ephemeral = 0
        self.generation = 0
        self.history: dict[str, list[Stored]] = defaultdict(list)  # of subjects of which only the last is kept
        self.acknowledged: list[tuple[float, Stored]] = []  # work that was taken, and when

    # Coming and going

    def accepts(self, client: StubClient) -> bool:
        return self.up and client.account not in self.barred

    def restart(self, seconds: float) -> None:
        """Streams and named consumers stay, those that do not sync without the last moments; the rest is forgotten."""
        self.up = False
        self.generation += 1
        since = self.loop.now - self.fate.forgotten()
        for stream in self.streams.values():
            if not stream.syncs:
                stream.forget(since)
            stream.consumers = {name: each for name, each in stream.consumers.items() if each.survives}
        for client in [*self.clients]:
            client.cut(0.5)
        self.loop.call_later(seconds, self._return)

    def _return(self) -> None:
        self.up = True
        for stream in self.streams.values():
            for consumer in stream.consumers.values():
                self._begin(stream, consumer)

    # Messages

    def carry(self, client: StubClient, way: str, what: str, arrive: Callable[[], None]) -> None:
        """Bring something to or from a client: in order unless it is delayed, and never if the connection breaks."""
        generation = client.generation

        def come() -> None:
            if client.generation == generation and not client.process.dead:
                arrive()

        for delay in self.fate.delays(what, client):
            when = self.loop.now + delay
            if delay < 0.1:
                when = client.order[way] = max(when, client.order[way] + 1e-6)
            self.loop.call_at(when, come, context=_outside())

    def deliver(
        self, client: StubClient, what: str, subject: str, data: bytes, reply: str, headers: Headers | None
    ) -> None:
        """To one client, under the subject that it knows."""

        def arrive() -> None:
            message = Msg(client, subject, reply, data, headers)  # type: ignore[arg-type]
            asker, answer = self.asked.get(subject, (None, None))
            if asker is client and answer is not None:
                if not answer.done():
                    answer.set_result(message)
                return
            for each in [*client.subscriptions]:
                if matches(each.subject, subject):
                    each.queue.put_nowait(message)

        self.carry(client, "from", what, arrive)

    def route(self, client: StubClient, subject: str, data: bytes, headers: Headers, respond: Respond | None) -> None:
        """A message has arrived."""
        if not self.up:
            return
        if client.account:
            there = translated(SERVICES, subject, client.account)
            if there is None:
                if respond is not None:
                    respond(b"", {"Status": "503"})
                return
            subject = there
        self.publish(client, subject, data, headers, respond)

    def publish(
        self, client: StubClient, subject: str, data: bytes, headers: Headers | None, respond: Respond | None
    ) -> None:
        """Within the server's account."""
        if subject.startswith("$JS.API."):
            if respond is not None:
                self._api(client, subject, data, respond)
            return
        if subject.startswith("$JS.ACK."):
            self._acknowledged(subject, data)
            return
        taken = False
        for name, stream in self.streams.items():
            if any(matches(pattern, subject) for pattern in stream.config["subjects"]):
                taken = True
                self._store(name, stream, subject, data, headers or {}, respond)
        heard = self._spread(subject, data)
        if respond is not None and not taken and not heard:
            respond(b"", {"Status": "503"})

    def _store(
        self, name: str, stream: Stream, subject: str, data: bytes, headers: Headers, respond: Respond | None
    ) -> None:
        refusal = stream.refusal(subject, headers)
        if refusal is not None:
            if respond is not None:
                error = {"code": 400, "err_code": refusal[0], "description": refusal[1]}
                respond(json.dumps({"error": error, "stream": name}).encode(), None)
            return
        seq = stream.store(subject, data, self.loop.now)
        if name in ("DESK", "BOARD"):
            self.history[subject].append(stream.kept[seq])
        if respond is not None:
            respond(json.dumps({"stream": name, "seq": seq}).encode(), None)
        for consumer in [*stream.consumers.values()]:
            self._push(stream, consumer)

    def _spread(self, subject: str, data: bytes, reply: str = "", headers: Headers | None = None) -> bool:
        """To whoever listens now."""
        heard = False
        for client in [*self.clients]:
            local: str | None = subject
            if client.account:
                local = translated(STREAMS, subject, client.account, back=True)
            if local is not None and any(matches(each.subject, local) for each in client.subscriptions):
                heard = True
                self.deliver(client, kind_of(subject), local, data, reply, headers)
        return heard

    # Consumers

    def _begin(self, stream: Stream, consumer: Consumer) -> None:
        self._push(stream, consumer)
        if consumer.config.get("idle_heartbeat"):
            self._beat(stream, consumer, self.generation)

    def _beat(self, stream: Stream, consumer: Consumer, generation: int) -> None:
        if generation != self.generation or stream.consumers.get(consumer.name) is not consumer:
            return
        headers = {
            "Status": "100",
            "Nats-Last-Consumer": str(consumer.delivered),
            "Nats-Last-Stream": str(max(consumer.next - 1, 0)),
        }
        self._push(stream, consumer)
        self._spread(consumer.subject, b"", "", headers)
        every = consumer.config["idle_heartbeat"] / 1e9
        self.loop.call_later(every, self._beat, stream, consumer, generation)

    def _listens(self, consumer: Consumer) -> bool:
        return any(each.subject == consumer.subject for client in self.clients for each in client.subscriptions)

    def _push(self, stream: Stream, consumer: Consumer) -> None:
        if not self.up or not self._listens(consumer):
            return
        now = self.loop.now
        late = [seq for seq, when in consumer.waiting.items() if when <= now]
        for seq in sorted(late):
            if seq in stream.kept:
                self._hand(stream, consumer, stream.kept[seq])
            else:
                del consumer.waiting[seq]
        most = int(consumer.config.get("max_ack_pending") or 1 << 30)
        while consumer.next <= stream.last and len(consumer.waiting) < most:
            found = stream.kept.get(consumer.next)
            consumer.next += 1
            if found is not None:
                self._hand(stream, consumer, found)

    def _hand(self, stream: Stream, consumer: Consumer, found: Stored) -> None:
        consumer.delivered += 1
        times = consumer.times[found.seq] = consumer.times.get(found.seq, 0) + 1
        if consumer.explicit:
            wait = float(consumer.config.get("ack_wait") or 30e9) / 1e9
            consumer.waiting[found.seq] = self.loop.now + wait
            self.loop.call_later(wait + 0.001, self._again, stream, consumer)
        when = int((EPOCH + found.at) * 1e9)
        left = max(0, stream.last - found.seq)
        reply = (
            f"$JS.ACK.{stream.config['name']}.{consumer.name}.{times}.{found.seq}.{consumer.delivered}.{when}.{left}"
        )
        for client in [*self.clients]:
            if any(each.subject == consumer.subject for each in client.subscriptions):
                # a consumer's messages keep the subjects under which they were stored
                self._deliver_pushed(client, consumer.subject, found, reply)

    def _deliver_pushed(self, client: StubClient, to: str, found: Stored, reply: str) -> None:
        def arrive() -> None:
            message = Msg(client, found.subject, reply, found.data, None)  # type: ignore[arg-type]
            for each in [*client.subscriptions]:
                if each.subject == to:
                    each.queue.put_nowait(message)

        self.carry(client, "from", f"pushed {kind_of(found.subject)}", arrive)

    def _again(self, stream: Stream, consumer: Consumer) -> None:
        if stream.consumers.get(consumer.name) is consumer:
            self._push(stream, consumer)

    def _acknowledged(self, subject: str, data: bytes) -> None:
        _, _, name, consumer_name, _, seq, *_ = subject.split(".")
        stream = self.streams.get(name)
        consumer = stream.consumers.get(consumer_name) if stream else None
        if stream is None or consumer is None:
            return
        number = int(seq)
        if data.startswith(b"-NAK"):
            delay = json.loads(data[5:] or b"{}").get("delay", 0) / 1e9
            consumer.waiting[number] = self.loop.now + delay
            self.loop.call_later(delay + 0.001, self._again, stream, consumer)
            return
        if data.startswith(b"+WPI"):
            consumer.waiting[number] = self.loop.now + float(consumer.config.get("ack_wait") or 30e9) / 1e9
            return
        consumer.waiting.pop(number, None)
        if stream.config.get("retention") == "workqueue" and number in stream.kept:
            self.acknowledged.append((self.loop.now, stream.kept[number]))
            stream.remove(number, self.loop.now)
        self._push(stream, consumer)

    # The interface of JetStream

    def _api(self, client: StubClient, subject: str, data: bytes, respond: Respond) -> None:
        if subject.startswith(DIRECT):
            self._direct(client, subject[len(DIRECT) :], data, respond)
            return
        tokens = subject.split(".")[2:]
        asked = json.loads(data) if data else {}
        try:
            found = self._asked(tokens, asked)
        except KeyError as error:
            code, words = error.args[0] if isinstance(error.args[0], tuple) else (NO_STREAM, f"not found: {error}")
            found = {"error": {"code": 404, "err_code": code, "description": words}}
        respond(json.dumps({"type": "io.nats.jetstream.api.v1", **found}).encode(), None)

    def _asked(self, tokens: list[str], asked: dict[str, Any]) -> dict[str, Any]:
        match tokens:
            case ["STREAM", "CREATE", name]:
                if name not in self.streams:
                    self.streams[name] = Stream(asked)
                return self.streams[name].info(self.loop.now)
            case ["STREAM", "UPDATE", name]:
                self.streams[name].config = asked
                return self.streams[name].info(self.loop.now)
            case ["STREAM", "INFO", name]:
                return self._stream(name).info(self.loop.now)
            case ["STREAM", "DELETE", name]:
                self._stream(name)
                del self.streams[name]
                return {"success": True}
            case ["STREAM", "PURGE", name]:
                return self._purge(self._stream(name), asked)
            case ["STREAM", "MSG", "DELETE", name]:
                return {"success": self._stream(name).remove(int(asked["seq"]), self.loop.now)}
            case ["STREAM", "MSG", "GET", name]:
                found = self._find(self._stream(name), asked)
                if found is None:
                    raise KeyError((NO_MESSAGE, "no message found"))
                text = base64.b64encode(found.data).decode()
                return {"message": {"subject": found.subject, "seq": found.seq, "data": text, "time": stamp(found.at)}}
            case ["CONSUMER", "DURABLE", "CREATE", name, durable] | ["CONSUMER", "CREATE", name, durable, *_]:
                return self._consume(self._stream(name), name, durable, asked["config"])
            case ["CONSUMER", "CREATE", name]:
                self.ephemeral += 1
                return self._consume(self._stream(name), name, f"e{self.ephemeral}", asked["config"])
            case ["CONSUMER", "DELETE", name, consumer]:
                if self._stream(name).consumers.pop(consumer, None) is None:
                    raise KeyError((NO_CONSUMER, "consumer not found"))
                return {"success": True}
            case ["CONSUMER", "LIST", name]:
                return {"consumers": [self._about(name, each) for each in self._stream(name).consumers.values()]}
            case ["CONSUMER", "INFO", name, consumer]:
                if consumer not in self._stream(name).consumers:
                    raise KeyError((NO_CONSUMER, "consumer not found"))
                return self._about(name, self._stream(name).consumers[consumer])
        raise NotImplementedError(".".join(tokens))

    def _stream(self, name: str) -> Stream:
        if name not in self.streams:
            raise KeyError((NO_STREAM, "stream not found"))
        return self.streams[name]

    def _purge(self, stream: Stream, asked: dict[str, Any]) -> dict[str, Any]:
        pattern, before, keep = asked.get("filter"), asked.get("seq"), asked.get("keep")
        gone = [
            seq
            for seq, each in stream.kept.items()
            if (pattern is None or matches(pattern, each.subject)) and (before is None or seq < before)
        ]
        if keep:
            gone = gone[:-keep]
        for seq in gone:
            stream.remove(seq, self.loop.now)
        return {"success": True, "purged": len(gone)}

    def _consume(self, stream: Stream, name: str, consumer_name: str, config: dict[str, Any]) -> dict[str, Any]:
        start = int(config.get("opt_start_seq") or 1) if config.get("deliver_policy") == "by_start_sequence" else 1
        known = stream.consumers.get(consumer_name)
        consumer = Consumer(consumer_name, config, max(start, stream.first)) if known is None else known
        consumer.config = config
        stream.consumers[consumer_name] = consumer
        self.loop.call_later(0.001, self._begin, stream, consumer)
        return self._about(name, consumer)

    def _about(self, stream: str, consumer: Consumer) -> dict[str, Any]:
        return {
            "stream_name": stream,
            "name": consumer.name,
            "config": consumer.config,
            "created": stamp(0.0),
            "num_pending": 0,
            "num_ack_pending": len(consumer.waiting),
        }

    def _find(self, stream: Stream, asked: dict[str, Any]) -> Stored | None:
        if "last_by_subj" in asked:
            return stream.newest(str(asked["last_by_subj"]))
        seq = int(asked.get("seq") or 0)
        if "next_by_subj" in asked:
            later = (each for number, each in sorted(stream.kept.items()) if number >= seq)
            return next((each for each in later if matches(str(asked["next_by_subj"]), each.subject)), None)
        return stream.kept.get(seq)

    def _direct(self, client: StubClient, rest: str, data: bytes, respond: Respond) -> None:
        name, _, subject = rest.partition(".")
        stream = self.streams.get(name)
        if stream is None:
            respond(b"", {"Status": "503"})
            return
        if subject:
            found = self.fate.answer(client, stream.newest(subject), self.history.get(subject, []))
        else:
            found = self._find(stream, json.loads(data or b"{}"))
        if found is None:
            respond(b"", {"Status": "404", "Description": "Message Not Found"})
            return
        about = {"Nats-Stream": name, "Nats-Subject": found.subject, "Nats-Sequence": str(found.seq)}
        respond(found.data, {**about, "Nats-Time-Stamp": stamp(found.at)})


def _outside() -> Context:
    """A context in which no process is current: the broker's own."""
    context = copy_context()
    context.run(CURRENT.set, None)
    return context
