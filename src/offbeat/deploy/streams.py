"""Reading and writing the broker's streams through broken connections: the log, what is read in order, the inbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

from nats.js import api
from nats.js.errors import APIError, NotFoundError

from offbeat.deploy.connection import FAILURES, patience
from offbeat.deploy.journal import StorageFullError, UncertainError
from offbeat.deploy.link import Link

SILENT = 6.0  # seconds without a word of the broker after which it is asked again
FULL = (10023, 10047, 10077, 10122)  # the broker's codes: insufficient resources, storage, maximum bytes exceeded


class BrokerLog:
    """The records of a run, as a `LogStream`. Many are sent before the first is acknowledged, unless several brokers
    keep the log: these refuse a record that names the last one of its subject while that is under way.
    """

    def __init__(self, link: Link, run: str) -> None:
        self.link, self.subject, self.stream = link, f"log.{run}", f"LOG-{run}"
        self.inbox = ""  # where acknowledgements come
        self.number = 0
        self.open: dict[str, asyncio.Future[int]] = {}
        self.replicated = False  # as far as `end` has seen
        self.before: tuple[int, asyncio.Future[int]] | None = None  # the last record sent: what it was to follow

    async def publish(self, raw: bytes, expected: int, term: int, own: int | None = None) -> asyncio.Future[int]:
        loop, client = asyncio.get_running_loop(), self.link.client
        before = self.before[1] if self.replicated and self.before and self.before[0] == expected - 1 else None
        if before is not None:
            await asyncio.wait([before])
        if not self.inbox:
            self.inbox = client.new_inbox()
            await client.subscribe(f"{self.inbox}.*", cb=self._hear)
        self.number += 1
        token = str(self.number)
        found = self.open[token] = loop.create_future()
        self.before = expected, found
        clock = loop.call_later(patience(), self._fail, token, UncertainError("the broker has not answered in time"))
        found.add_done_callback(lambda done: _collect(done, clock))
        if before is not None and (before.cancelled() or before.exception()):
            self._fail(token, UncertainError("the record before it was not acknowledged"))
            return found
        self.link.bytes_out += len(raw)
        try:
            headers = {"Nats-Expected-Last-Sequence": str(expected)}
            if own is not None:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(own)
            await client.publish(f"{self.subject}.{term}", raw, reply=f"{self.inbox}.{token}", headers=headers)
        except FAILURES as error:
            self._fail(token, _as_uncertain(error))
        return found

    def _fail(self, token: str, error: UncertainError) -> None:
        found = self.open.pop(token, None)
        if found is not None and not found.done():
            found.set_exception(error)

    async def _hear(self, message: Any) -> None:
        """The broker's answer to a record: its number, or what is wrong."""
        token = message.subject.rsplit(".", 1)[-1]
        try:
            answer = json.loads(message.data)
            if "error" in answer:
                error = answer["error"]
                self._fail(token, _refusal(error.get("err_code", 0), error.get("code", 0), str(error["description"])))
                return
            number = int(answer["seq"])
            found = self.open.pop(token, None)
            if found is not None and not found.done():
                found.set_result(number)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self._fail(token, UncertainError("the broker does not know this log just now"))  # no such stream

    async def read(self, seq: int) -> bytes | None:
        try:
            raw = await self.link.js.get_msg(self.stream, seq)  # of the stream's leader, which has it if anybody has
        except NotFoundError:
            return None
        except FAILURES as error:
            raise _as_uncertain(error) from None
        return bytes(raw.data or b"")

    async def end(self) -> int:
        try:
            info = await self.link.js.stream_info(self.stream)
        except FAILURES as error:
            raise _as_uncertain(error) from None
        self.replicated = (info.config.num_replicas or 1) > 1
        return int(info.state.last_seq)

    async def holes(self) -> set[int]:
        """The numbers between the first and the last record of which the broker has none; raises `FAILURES`."""
        ask = partial(self.link.js._api_request, f"$JS.API.STREAM.INFO.{self.stream}", timeout=patience())
        if not (await ask())["state"].get("num_deleted"):
            return set()
        return set((await ask(b'{"deleted_details":true}'))["state"].get("deleted") or ())


def _collect(done: asyncio.Future[int], clock: asyncio.TimerHandle) -> None:
    clock.cancel()
    if not done.cancelled():
        done.exception()  # asyncio warns of errors that nobody retrieves, and the sender may have given up


def _as_uncertain(error: BaseException) -> UncertainError:
    if isinstance(error, APIError):
        return _refusal(error.err_code or 0, error.code or 0, str(error.description))
    return UncertainError(str(error) or type(error).__name__)


def _refusal(number: int, status: int, said: str) -> UncertainError:
    if number in FULL or "storage" in said or "resource" in said or "maximum" in said:
        return StorageFullError(
            f"the broker has no room for the log ({said}); free space on its disk or raise its limits"
        )
    return UncertainError(f"{said} ({status})")


class PushConsumer:
    """A subscription that a stream sends to; what comes for one that was given up has an older generation."""

    generation = 0
    heard = 0.0
    subscription: Any = None

    async def stop(self) -> None:
        """Read no more."""
        self.generation += 1
        if self.subscription is not None:
            with contextlib.suppress(*FAILURES):
                await self.subscription.unsubscribe()
        self.subscription = None


class StreamReader(PushConsumer):
    """Reads a stream from a position on, in order, through broken connections.

    take: called with the number, subject and content of every message.
    """

    def __init__(self, link: Link, stream: str, take: Callable[[int, str, bytes], None]) -> None:
        self.link, self.stream, self.take = link, stream, take
        self.position = 0
        self.delivered = 0  # by the present consumer; a number left out means that something was lost

    async def start(self, after: int) -> None:
        """Begin behind this position, or begin again there."""
        link = self.link
        await self.stop()
        self.position, self.delivered = after, 0
        inbox = link.client.new_inbox()
        self.generation += 1
        hear = partial(self._hear, self.generation)
        self.subscription = await link.client.subscribe(inbox, cb=hear, pending_bytes_limit=1 << 30)
        self.heard = asyncio.get_running_loop().time()
        await link.js.add_consumer(
            self.stream,
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
        self.link.bytes_in += len(message.data)
        self.take(number, str(message.subject), bytes(message.data))

    async def watch(self, silent: float = SILENT) -> None:
        """Begin again if the broker has been silent for too long: it was restarted, and has forgotten us."""
        if asyncio.get_running_loop().time() - self.heard > silent and self.link.client.is_connected:
            with contextlib.suppress(*FAILURES):
                await self.start(self.position)


class Inbox(PushConsumer):
    """What clients send to a run, one message after the other; each stays with the broker until it is acknowledged.

    take: called with every message; it has `ack` and `nak`.   waiting: messages that may be taken and not acknowledged.
    """

    def __init__(self, link: Link, run: str, take: Callable[[Any], Awaitable[None]], waiting: int) -> None:
        self.link, self.stream, self.take, self.waiting = link, f"IN-{run}", take, waiting

    async def start(self) -> None:
        """Begin, in the place of any server that read before.

        Under another name each time: a broker that was killed may give a number twice, and what acknowledged the first
        message of that number must not acknowledge the second.
        """
        link = self.link
        await self.stop()
        inbox = link.client.new_inbox()
        self.subscription = await link.client.subscribe(
            inbox, cb=partial(self._hear, self.generation), pending_bytes_limit=1 << 30
        )
        for before in await link.js.consumers_info(self.stream):
            with contextlib.suppress(NotFoundError):
                await link.js.delete_consumer(self.stream, before.name)
        self.heard = asyncio.get_running_loop().time()
        await link.js.add_consumer(
            self.stream,
            api.ConsumerConfig(
                durable_name=inbox.rsplit(".", 1)[-1],
                deliver_subject=inbox,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=30,
                max_ack_pending=self.waiting,
                idle_heartbeat=2,
                mem_storage=True,
            ),
        )

    async def _hear(self, generation: int, message: Any) -> None:
        if generation == self.generation:
            self.heard = asyncio.get_running_loop().time()
            if (message.reply or "").startswith("$JS.ACK."):  # from the stream, whatever headers its sender gave it
                self.link.bytes_in += len(message.data)
                await self.take(message)

    @property
    def silent(self) -> bool:
        """The broker was restarted, or another server reads in our place."""
        return asyncio.get_running_loop().time() - self.heard > SILENT and self.link.client.is_connected

    async def age(self) -> tuple[int, float]:
        """(messages that wait, seconds since the oldest came), by the broker's clock."""
        answer = await self.link.client.request(f"$JS.API.STREAM.INFO.{self.stream}", b"", timeout=patience())
        info = json.loads(answer.data)
        state = info.get("state", {})
        if not state.get("messages"):
            return 0, 0.0
        return int(state["messages"]), max(0.0, _time(info["ts"]) - _time(state["first_ts"]))


def _time(text: str) -> float:
    """Seconds of a broker's time stamp, which has nine digits behind the dot."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
