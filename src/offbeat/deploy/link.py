"""The connection to the broker, and what lies where on it.

All of it is in the server's account. C stands for the public key of a client's account, R for a run. A client sees its
own subjects without C, and asks for what lies in a stream by `get.`; it reaches nothing else.

up.C.R           what a client adds to the log, in an envelope: waits in IN-R until the server has taken it
part.C.R         pieces of an envelope that is too large for one message, in PART-R; newer ones replace the oldest
mirror.C.R       a client's own copies of its state, in MIRROR-R; newer ones replace the oldest
beat.C.R, ask.C.R   signs of life and questions, not kept;   tell.C.R   the answers
desk.C.R         a client's assignment: the last one is kept in DESK
model.R.D.i      pieces of a large model, in MODEL
board, roster    the active runs, and who may take part: the last ones are kept in BOARD
pulse.R          a sign of life of the server that leads, not kept
log.R.T, body.R.T.…   the records of a run by term, in LOG-R, and large envelopes beside it in BODY-R

A broker that is killed may forget the last moment of IN, PART, DESK and MODEL, which it writes to its disk after it has
acknowledged: clients repeat what they send until their assignments show its verdict, and assignments and models follow
from the log. What else it has acknowledged is on its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import random
from typing import Any, NamedTuple

from nats.errors import Error as NatsError
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from offbeat.core.errors import OffbeatError
from offbeat.deploy.connection import Connection, patience
from offbeat.deploy.envelope import Bytes, Ours
from offbeat.deploy.identity import Creds

PIECE = 1 << 20
AT_ONCE = 4  # pieces that are asked for together
PIECES = 4096  # of one thing, at most
MARGIN = 4096  # bytes of a message that are not its content
WAITING = 16  # messages of a client that wait for the server at most; the broker refuses more
DIRECT = "$JS.API.DIRECT.GET"
NOT_A_CLUSTER, NO_PEERS = 10074, 10005  # the broker's codes
BUSY = 429  # its status: too much waits to be stored
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 0.0)  # seconds before a piece is sent again, as long as the broker is busy


class Link(Connection):
    """A connection with what lies where on the broker."""

    def __init__(self, creds: Creds, url: str) -> None:
        super().__init__(creds, url)
        self.bytes_in = self.bytes_out = 0

    @property
    def ours(self) -> Ours:
        """Our secrets for what is said in a run."""
        return Ours(self.creds.sign, self.creds.seal)

    # Saying

    @property
    def piece(self) -> int:
        """Bytes of one message. Not more than PIECE: on a slow line signs of life would wait behind larger ones."""
        return min(self.client.max_payload or PIECE, PIECE) - MARGIN

    async def say(self, subject: str, data: bytes) -> None:
        """Send, without waiting for anything."""
        self.bytes_out += len(data)
        await self.client.publish(subject, data)

    async def store(self, subject: str, data: Bytes, headers: dict[str, str] | None = None) -> int:
        """Send to a stream and wait until it is kept; gives its number."""
        self.bytes_out += len(data)
        ack = await self.js.publish(subject, data, timeout=patience(), headers=headers)  # type: ignore[arg-type]
        return int(ack.seq)

    async def listen(self, subject: str, heard: Callable[[str, bytes], Awaitable[None]]) -> Any:
        """Call `heard` with subject and content of whatever is said there from now on; gives the subscription."""

        async def take(message: Any) -> None:
            self.bytes_in += len(message.data)
            await heard(message.subject, message.data)

        return await self.client.subscribe(subject, cb=take, pending_bytes_limit=1 << 30)

    async def get(self, subject: str, request: bytes = b"") -> Kept | None:
        """What a stream answers to this question, if it has it."""
        answer = await self.client.request(subject, request, timeout=patience())
        headers = answer.headers or {}
        number, status = headers.get("Nats-Sequence", ""), headers.get("Status", "")
        if status and not number:  # with a number, it is not the broker's answer but a header of what was stored
            if status == "404":
                return None
            raise NatsError(f"{subject}: {status} {headers.get('Description', '')}")
        self.bytes_in += len(answer.data)
        return Kept(int(number) if number.isdecimal() else 0, headers.get("Nats-Subject", ""), bytes(answer.data))

    async def last(self, stream: str, subject: str) -> Kept | None:
        """The last message on a subject; for the server."""
        return await self.get(f"{DIRECT}.{stream}.{subject}")

    async def kept(self, stream: str, number: int, subject: str = "") -> Kept | None:
        """The message of this number; with a subject, the first on it from this number on. For the server."""
        ask = as_json({"seq": number, **({"next_by_subj": subject} if subject else {})})
        found = await self.get(f"{DIRECT}.{stream}", ask)
        if found is not None or subject:
            return found
        # of a cluster's brokers, any may answer directly: also one that lags behind; the stream's leader does not
        with contextlib.suppress(NotFoundError):
            raw = await self.js.get_msg(stream, number)
            return Kept(number, str(raw.subject or ""), bytes(raw.data or b""))
        return None

    async def end(self, stream: str) -> int:
        """The number of the last message of a stream."""
        info = await self.js.stream_info(stream)
        return int(info.state.last_seq)

    async def forget(self, stream: str, number: int) -> None:
        """Remove a message from a stream."""
        await self.js._api_request(
            f"$JS.API.STREAM.MSG.DELETE.{stream}", as_json({"seq": number, "no_erase": True}), timeout=patience()
        )

    # In pieces

    def pieces(self, data: bytes) -> list[memoryview]:
        """Cut into messages, without copies."""
        size, view = self.piece, memoryview(data)
        return [view[at : at + size] for at in range(0, max(1, len(data)), size)]

    async def put(
        self, pieces: Sequence[Bytes], subject: Callable[[int], str], done: dict[int, int] | None = None
    ) -> list[int]:
        """Store pieces, each under its subject; gives their numbers in the stream. done: those that are stored."""
        done = {} if done is None else done

        async def put(number: int) -> None:
            for pause in PAUSES:
                try:
                    done[number] = await self.store(subject(number), pieces[number])
                    return
                except APIError as error:
                    if error.code != BUSY or not pause:
                        raise
                await asyncio.sleep(pause * (0.5 + random()))

        missing = [number for number in range(len(pieces)) if number not in done]
        for at in range(0, len(missing), AT_ONCE):
            await asyncio.gather(*map(put, missing[at : at + AT_ONCE]))
        return [done[number] for number in range(len(pieces))]

    async def collect(self, get: Callable[[int], Awaitable[Kept | None]], count: int | None) -> bytes | None:
        """Something in pieces, by number; None if one is not there. count: None: up to the first that is not there."""
        found = list[bytes]()
        for at in range(0, PIECES if count is None else count, AT_ONCE):
            numbers = range(at, at + AT_ONCE if count is None else min(at + AT_ONCE, count))
            pieces = await asyncio.gather(*map(get, numbers))
            found += [piece.data for piece in pieces if piece is not None]
            if None in pieces:
                return b"".join(found) if count is None else None
        return b"".join(found)

    # Streams

    async def make_board(self, replicas: int = 1) -> None:
        """The streams of a federation, where they are not there yet."""
        make = partial(self._make, num_replicas=replicas, max_msgs_per_subject=1)
        await make("BOARD", ["board", "roster"])
        await make("DESK", ["desk.*.*"], sync=False)
        await make("MODEL", ["model.*.*.*"], sync=False)

    async def make_streams(self, run: str, parts: int, copies: int, replicas: int = 1) -> None:
        """The streams of a run, where they are not there yet.

        parts: pieces of a client's updates that are kept.   copies: pieces of the copies of its state.
        replicas: brokers of a cluster that each keep everything.
        """
        await self.make_board(replicas)
        make = partial(self._make, num_replicas=replicas)
        await make(
            f"IN-{run}",
            [f"up.*.{run}"],
            retention=api.RetentionPolicy.WORK_QUEUE,
            max_msgs_per_subject=WAITING,
            discard=api.DiscardPolicy.NEW,
            discard_new_per_subject=True,
            sync=False,
        )
        await make(f"PART-{run}", [f"part.*.{run}"], max_msgs_per_subject=parts, sync=False)
        await make(f"MIRROR-{run}", [f"mirror.*.{run}"], max_msgs_per_subject=copies)
        await make(f"BODY-{run}", [f"body.{run}.>"], max_msgs_per_subject=1)
        await make(f"LOG-{run}", [f"log.{run}.*"])

    async def _make(
        self, name: str, subjects: list[str], *, num_replicas: int, sync: bool = True, **settings: Any
    ) -> None:
        """Make a stream, unless it is there. sync: what it acknowledges is on the disk, if its broker syncs at all."""
        behind = not sync and num_replicas == 1  # brokers of a cluster refuse that
        config = api.StreamConfig(
            name=name,
            subjects=subjects,
            storage=api.StorageType.FILE,
            allow_direct=True,
            max_msg_size=-1,
            duplicate_window=0,
            num_replicas=num_replicas,
            persist_mode=api.PersistMode.ASYNC if behind else None,
            **settings,
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

    async def delete_run(self, run: str) -> None:
        """Remove all that the broker has of a run."""
        for what in ("IN", "PART", "MIRROR", "BODY", "LOG"):
            with contextlib.suppress(NotFoundError):
                await self.js.delete_stream(f"{what}-{run}")
        await self.js.purge_stream("DESK", subject=f"desk.*.{run}")
        await self.js.purge_stream("MODEL", subject=f"model.{run}.*.*")


class Kept(NamedTuple):
    """A message that a stream has kept."""

    number: int
    subject: str
    data: bytes


def as_json(value: Any) -> bytes:
    """Plain data as JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()
