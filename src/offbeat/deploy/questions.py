"""Questions to the server that leads a run, and its answers.

A client asks for the state of the run, or for the copy of its own state that it has left with the broker. Whoever holds
the server's keys may also have an entry added to the log. Questions and answers are sealed. An answer goes to a subject
of the asker's own that was fixed beforehand: never to one that a question names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import OffbeatError
from offbeat.deploy import encoding
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import Channel, Ours, PrivateSeal, Theirs, derive
from offbeat.deploy.gate import USELESS, Gate
from offbeat.deploy.identity import Creds
from offbeat.deploy.journal import UncertainError
from offbeat.deploy.link import Link, as_json

if TYPE_CHECKING:  # PyTorch comes with it, and `join` speaks before that is loaded
    from offbeat.deploy.effects import Progress

SERVER = "server"  # takes the place of a client's account in the subjects of a holder of the server's keys
FRESH = 120.0  # seconds for which such a question counts
SLOW = 8.0  # seconds to wait for an answer
HELD = 4 << 20  # bytes of copies in memory while one is handed back
REST = 9.0  # times as long as it took to hand a client a copy, until it may have the next
LONGEST = 1.0  # seconds of such a rest at most, for a small copy: a slow line is not the server's work
SPEED = 1e8  # bytes of copies that a server handles in a second: large ones have a longer rest


@dataclass(frozen=True)
class Question:
    """What is asked. what: "status", "copy", "append" or "mend".   at: the asker's time.

    nonce, skip: of which copy, and how many newer ones to skip.   seq: of the record to mend.
    """

    what: str
    id: str
    at: float = 0.0
    nonce: str = ""
    skip: int = 0
    seq: int = 0


@dataclass(frozen=True)
class Answer:
    """A piece of an answer; count 0: there is nothing."""

    id: str
    number: int
    count: int


@dataclass(frozen=True)
class CopyPiece:
    """A piece of a client's copy of its state, as it lies in the broker's stream. name: the same of all its pieces."""

    nonce: str
    name: str
    number: int
    count: int


def rest(took: float, handled: int) -> float:
    """Seconds until a client gets its next copy. took: seconds for the last one.   handled: bytes of copies for it."""
    return min(REST * took, LONGEST + REST * handled / SPEED)


def copy_name(progress: Progress) -> str:
    """A name for one copy. Names of newer copies sort behind those of older ones: what is said twice, or waits in a
    broker that is halted, may come after what was said later."""
    seq, settled, *within = progress
    digits = [f"{number:x}" for number in (seq, *settled, *within)]
    return "s" + "".join(f"{len(each):x}{each}" for each in digits) + secrets.token_hex(3)


def write(kind: str, header: Question | Answer | CopyPiece, piece: bytes = b"") -> bytes:
    """A question, an answer or a piece of a copy as bytes."""
    return encoding.pack(kind, vars(header), {"piece": piece} if piece else None)


def read_question(data: bytes) -> tuple[Question, bytes]:
    """A question and what goes with it; raises `RefusedError`."""
    return _read("question", Question, data)


def read_answer(data: bytes) -> tuple[Answer, bytes]:
    """A piece of an answer; raises `RefusedError`."""
    return _read("answer", Answer, data)


def read_copy(data: bytes) -> tuple[CopyPiece, bytes]:
    """A piece of a client's copy; raises `RefusedError`."""
    return _read("copy", CopyPiece, data)


def _read(kind: str, header: type[Any], data: bytes) -> tuple[Any, bytes]:
    message = encoding.unpack(data, longest=encoding.SHORT)
    if message.kind != kind:
        raise RefusedError("malformed", f"not a {kind}")
    return encoding.read(header, message.header), bytes(message.parts["piece"][1]) if "piece" in message.parts else b""


def own_seal(creds: Creds) -> PrivateSeal:
    """For what holders of the server's keys say to each other."""
    return PrivateSeal(derive(creds.seal, "own", creds.federation))


# The server's side


class Answering:
    """Answers questions about a run. status: the run as it stands.

    order: adds an entry for the question of this id, unless that was done before; whether it is folded.
    mend: leaves a copy of a record beside the log, if the server has one.   life: since when the run is what it is, in
    seconds since 1970; what was asked before it was last restored from a backup was asked of another.
    """

    def __init__(
        self,
        link: Link,
        run: str,
        gate: Gate,
        status: Callable[[], Any],
        order: Callable[[str, bytes], Awaitable[bool]],
        mend: Callable[[int], Awaitable[None]],
        life: Callable[[], float] = float,
    ) -> None:
        self.link, self.run, self.gate, self.status = link, run, gate, status
        self.order, self.mend, self.life = order, mend, life
        self.own, self.about = own_seal(link.creds), (link.creds.federation, run)
        self.tasks: set[asyncio.Task[None]] = set()
        self.told = (float("-inf"), b"")  # the last status for a client, and when it was made
        self.copying: dict[str, Question] = {}  # account -> its newest question for a copy that is not answered yet
        self.resting: dict[str, float] = {}  # account -> until when it gets no other copy

    async def hear(self, subject: str, data: bytes) -> None:
        """A question."""
        account = subject.split(".")[1]
        with contextlib.suppress(RefusedError, *FAILURES):
            if account == SERVER:
                question, piece = read_question(self.own.open(data, "ask", *self.about))
                self._later(self._obey(question, piece))
                return
            sender, clock = self.gate.sender(subject), time.monotonic()
            budget = self.gate.budget(sender, clock)
            if budget.wait(clock) > 0.0:
                return
            budget.spend(len(data), USELESS)
            channel = self.gate.channel(sender)
            question, _ = read_question(channel.open("ask", data))

            async def say(answer: bytes) -> None:
                await self.link.say(f"tell.{account}.{self.run}", channel.seal("tell", answer))

            if question.what == "status":
                answer = self._recent(clock)
                budget.bytes -= USELESS * len(answer)
                await self._tell(say, question, answer)
            elif question.what == "copy":
                at_work, self.copying[account] = account in self.copying, question
                if not at_work:
                    self._later(self._copy_slowly(say, account))

    def _objection(self, at: float) -> str:
        """Why an order of this time may be an old one, "" if it is new. What else is asked changes nothing: a server
        whose clock is wrong may ask it."""
        apart = at - time.time()
        if abs(apart) > FRESH:
            said = (
                f"the clock of this machine is {abs(apart):,.0f} s {'ahead of' if apart > 0 else 'behind'} the server's"
            )
            return f"{said}; set both by NTP and try again"
        if at < self.life():
            return f"the run was restored by a machine whose clock is ahead; try again in {self.life() - at:,.0f} s"
        return ""

    def _recent(self, clock: float) -> bytes:
        """The run as it stood a second ago at most: of many clients, telling that takes a while."""
        if clock - self.told[0] > 1.0:
            self.told = clock, as_json(self.status())
        return self.told[1]

    def _later(self, action: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(action)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _obey(self, question: Question, piece: bytes) -> None:
        """Answer a holder of the server's keys, who asks again if there is no answer."""
        with contextlib.suppress(*FAILURES, UncertainError):
            if question.what == "append" and (void := self._objection(question.at)):
                await self._tell(self._own, question, as_json({"void": void}))
                return
            if question.what == "mend":
                await self.mend(question.seq)
            if question.what != "append" or await self.order(question.id, piece):
                await self._tell(self._own, question, as_json(self.status()))

    async def _own(self, answer: bytes) -> None:
        await self.link.say(f"tell.{SERVER}.{self.run}", self.own.seal(answer, "tell", *self.about))

    async def _tell(self, say: Callable[[bytes], Awaitable[None]], question: Question, data: bytes | None) -> None:
        pieces = [] if data is None else self.link.pieces(data)
        for number, piece in enumerate(pieces):
            await say(write("answer", Answer(question.id, number, len(pieces)), bytes(piece)))
        if not pieces:
            await say(write("answer", Answer(question.id, 0, 0)))

    async def _copy_slowly(self, say: Callable[[bytes], Awaitable[None]], account: str) -> None:
        """Copies are large: a client gets one at a time, and the next one after a rest, for the question that it asks
        by then: it has given up the one before."""
        answered: Question | None = None
        try:
            while self.copying[account] is not answered:
                await asyncio.sleep(max(0.0, self.resting.get(account, 0.0) - time.monotonic()))
                began, answered = time.monotonic(), self.copying[account]
                handled = await self._copy(say, account, answered)
                ended = time.monotonic()
                self.resting[account] = ended + rest(ended - began, handled)
        finally:
            del self.copying[account]

    async def _copy(self, say: Callable[[bytes], Awaitable[None]], account: str, question: Question) -> int:
        """Hand a client its own copy back, and say how many bytes were handled; the broker keeps the last few."""
        handled = taken = 0
        stream, subject, at = f"MIRROR-{self.run}", f"mirror.{account}.{self.run}", 1
        found: dict[str, dict[int, int]] = {}  # name -> which piece -> its number in the stream
        counts: dict[str, int] = {}
        held: dict[int, bytes] = {}  # the last pieces by number: asking again for each takes a round trip
        with contextlib.suppress(*FAILURES):
            while (kept := await self.link.kept(stream, at, subject)) is not None:
                at, handled = max(at, kept.number) + 1, handled + len(kept.data)
                with contextlib.suppress(RefusedError):
                    piece, _ = read_copy(kept.data)
                    if piece.nonce == question.nonce:
                        found.setdefault(piece.name, {})[piece.number] = kept.number
                        counts[piece.name] = piece.count
                        held[kept.number] = kept.data
                        taken += len(kept.data)
                        while taken > HELD:
                            taken -= len(held.pop(next(iter(held))))
            whole = sorted(name for name, pieces in found.items() if len(pieces) == counts[name] == max(pieces) + 1)
            chosen = whole[-1 - question.skip] if question.skip < len(whole) else None
            if chosen is None:
                await self._tell(say, question, None)
                return handled
            for number in range(counts[chosen]):
                data = held.pop(found[chosen][number], None)
                if data is None:
                    kept = await self.link.kept(stream, found[chosen][number])
                    if kept is None:  # a newer copy has pushed it out: the client asks again
                        return handled
                    handled += len(kept.data)
                    data = kept.data
                _, content = read_copy(data)
                await say(write("answer", Answer(question.id, number, counts[chosen]), content))
                handled += len(content)
        return handled

    async def finish(self) -> None:
        """Give the answers that are under way: who has had the run stopped waits for one."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=SLOW / 2)

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


# The asker's side


class Asking:
    """Asks the server of a run; `listen` before the first question."""

    def __init__(self, link: Link, run: str) -> None:
        self.link, self.run, self.creds = link, run, link.creds
        self.own, self.about = own_seal(link.creds), (link.creds.federation, run)
        self.channel = channel_of(link.creds, run) if link.creds.client else None
        self.pieces: dict[str, dict[int, bytes]] = {}
        self.done: dict[str, asyncio.Future[bytes | None]] = {}
        self.subscription: Any = None

    async def listen(self) -> None:
        subject = f"tell.{self.run}" if self.channel else f"tell.{SERVER}.{self.run}"
        self.subscription = await self.link.listen(subject, self._hear)
        with contextlib.suppress(*FAILURES):  # without a connection, it is made with the next one
            await self.link.client.flush(10)

    async def ask(self, what: str, nonce: str = "", skip: int = 0, piece: bytes = b"", patience: float = SLOW) -> Any:
        """The answer: bytes, or None if there is nothing; raises `TimeoutError` if nobody answers."""
        return await self.put(Question(what, secrets.token_hex(8), time.time(), nonce, skip), piece, patience)

    async def put(self, question: Question, piece: bytes = b"", patience: float = SLOW) -> Any:
        """Ask this, which may have been asked before; raises `OffbeatError` for an order that does not count."""
        done = self.done[question.id] = asyncio.get_running_loop().create_future()
        self.pieces[question.id] = {}
        data = write("question", question, piece)
        try:
            if self.channel is not None:
                await self.link.say(f"ask.{self.run}", self.channel.seal("ask", data))
            else:
                await self.link.say(f"ask.{SERVER}.{self.run}", self.own.seal(data, "ask", *self.about))
            while not done.done():  # as long as pieces come
                before = len(self.pieces[question.id])
                await asyncio.wait([done], timeout=patience)
                if not done.done() and len(self.pieces[question.id]) == before:
                    raise TimeoutError
            answer = done.result()
            if question.what == "append" and (void := json.loads(answer or b"{}").get("void")):
                raise OffbeatError(f"nothing was done to {self.run}: {void}")
            return answer
        finally:
            del self.done[question.id], self.pieces[question.id]

    async def _hear(self, _: str, data: bytes) -> None:
        with contextlib.suppress(RefusedError):
            opened = self.channel.open("tell", data) if self.channel else self.own.open(data, "tell", *self.about)
            answer, piece = read_answer(opened)
            done = self.done.get(answer.id)
            if done is None or done.done():
                return
            pieces = self.pieces[answer.id]
            pieces[answer.number] = piece
            if answer.count == 0:
                done.set_result(None)
            elif len(pieces) == answer.count:
                done.set_result(b"".join(pieces[number] for number in range(answer.count)))

    async def close(self) -> None:
        if self.subscription is not None:
            with contextlib.suppress(*FAILURES):
                await self.subscription.unsubscribe()


def channel_of(creds: Creds, run: str) -> Channel:
    """A client's end of what it and the server say to each other."""
    theirs = Theirs(creds.server_sign, creds.server_seal)
    return Channel(creds.federation, run, creds.account, Ours(creds.sign, creds.seal), theirs, server=False)


async def ask_server(
    link: Link, run: str, what: str = "status", piece: bytes = b"", seq: int = 0, tries: int = 4
) -> bytes:
    """One question to the server that leads this run; an entry that is to be added is added once."""
    asking, question = Asking(link, run), Question(what, secrets.token_hex(8), time.time(), seq=seq)
    await asking.listen()
    try:
        for _ in range(tries):  # it is answered once it is in the log, which a busy machine may take its time for
            with contextlib.suppress(asyncio.TimeoutError):
                return bytes(await asking.put(question, piece, SLOW / 2) or b"")
    finally:
        await asking.close()
    raise OffbeatError(f"no server is running {run} now")
