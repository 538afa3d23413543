"""From the broker's inbox to the log: budgets, signatures, pieces put together, records sent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

from offbeat.deploy.connection import FAILURES
from offbeat.deploy.encoding import RefusedError, effort
from offbeat.deploy.gate import USELESS, Gate, Parts, Sender
from offbeat.deploy.journal import Appender, Body, body_of
from offbeat.deploy.link import Kept, Link
from offbeat.deploy.logs import note

AT_ONCE = 8  # large messages that are read together


class Intake:
    """Takes what clients send to a run, in the order of each client, and sends it on to the log.

    A message that is refused is acknowledged at once, one that is sent on when its record was folded (`then` of the
    record: the message, and when it came). One that comes while its client is over its budget goes back to the broker
    for a while.
    """

    def __init__(self, gate: Gate, link: Link, run: str, appender: Appender) -> None:
        self.gate, self.link, self.run, self.appender = gate, link, run, appender
        self.busy: dict[str, deque[Any]] = {}  # client -> what waits behind a large message of it
        self.tasks: set[asyncio.Task[None]] = set()
        self.few = asyncio.Semaphore(AT_ONCE)
        self.bodies = 0  # large messages that were stored beside the log in this term

    async def take(self, message: Any) -> None:
        """A message of the inbox."""
        clock = time.monotonic()
        try:
            sender = self.gate.sender(message.subject)
        except RefusedError as error:
            await self._refuse(message, "", error)
            return
        wait = self.gate.budget(sender, clock).wait(clock)
        if wait > 0.0:
            self.gate.held[sender.name] += 1
            if rare(self.gate.held[sender.name]):
                note("over its budget", "warning", client=sender.name, waits=self.gate.held[sender.name])
            with contextlib.suppress(*FAILURES):
                await message.nak(delay=min(wait + 0.1, 10.0))
        elif sender.name in self.busy:
            self.busy[sender.name].append(message)
        elif (parts := await self._open(sender, message)) is not None:
            self.busy[sender.name] = deque()
            task = asyncio.create_task(self._drain(sender, message, parts))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _open(self, sender: Sender, message: Any) -> Parts | None:
        """Send a message on to the log; if it lies elsewhere in pieces, say where."""
        self.gate.budget(sender, time.monotonic()).spend(len(message.data))
        try:
            found = self.gate.open(sender, message.data)
        except RefusedError as error:
            await self._refuse(message, sender.name, error)
            return None
        if isinstance(found, Parts):
            return found
        self.gate.budgets[sender.name].spend(0, effort=effort(found) - 1.0)
        await self.appender.add(sender.name, sender.keys, message.data, found, then=(message, time.monotonic()))
        return None

    async def _drain(self, sender: Sender, message: Any, parts: Parts) -> None:
        """A large message, and what comes from the same client meanwhile."""
        await self._large(sender, message, parts)
        waiting = self.busy[sender.name]
        while waiting:
            after = waiting.popleft()
            more = await self._open(sender, after)
            if more is not None:
                await self._large(sender, after, more)
        del self.busy[sender.name]

    async def _large(self, sender: Sender, message: Any, parts: Parts) -> None:
        """Put an envelope together, store it beside the log, and only then send its record."""
        insist, reading = self.link.insist, _Reading(self.link, self.run, sender, parts)
        async with self.few:
            self.gate.budget(sender, time.monotonic()).bytes -= parts.size
            found = await insist(reading.all)
            try:
                data = self.gate.join(sender, parts, found)
            except RefusedError as error:
                in_vain = max(parts.size, reading.bytes)
                self.gate.budgets[sender.name].bytes -= USELESS * in_vain - parts.size
                await self._refuse(message, sender.name, error)
                return
            self.gate.budgets[sender.name].spend(0, effort=effort(data))
            self.bodies += 1
            pieces, done = self.link.pieces(found or b""), dict[int, int]()
            body = Body(parts.digest, len(pieces), parts.size, self.bodies)
            place = body_of(self.run, self.appender.term, body.number)
            await insist(lambda: self.link.put(pieces, lambda n: f"{place}.{n}", done))
            await self.appender.add(sender.name, sender.keys, b"", data, body, then=(message, time.monotonic()))

    async def _refuse(self, message: Any, client: str, error: RefusedError) -> None:
        """It is counted, costs its client much, and is gone."""
        self.gate.refused[error.code] += 1
        if rare(self.gate.refused[error.code]):
            note("refused", client=client or message.subject[:80], code=error.code, times=self.gate.refused[error.code])
        if client in self.gate.budgets:
            self.gate.budgets[client].spend(len(message.data), USELESS - 1)
        await acknowledge(message)

    def stop(self) -> None:
        """Forget what is under way; the broker still has it."""
        for task in self.tasks:
            task.cancel()


class _Reading:
    """Reads the pieces of a large message: only the sender's own, and no more bytes than it says.

    bytes: of all that the broker has handed out for it, in the last attempt.
    """

    def __init__(self, link: Link, run: str, sender: Sender, parts: Parts) -> None:
        self.link, self.parts, self.bytes = link, parts, 0
        self.stream, self.own = f"PART-{run}", f"part.{sender.keys.account}.{run}"

    async def all(self) -> bytes | None:
        """The pieces in order; None if one is not there, or not the sender's: the broker keeps only so many of each."""
        self.bytes = 0
        return await self.link.collect(self._piece, len(self.parts.numbers))

    async def _piece(self, place: int) -> Kept | None:
        found = await self.link.kept(self.stream, self.parts.numbers[place])
        self.bytes += 0 if found is None else len(found.data)
        own = found is not None and found.subject == self.own
        return found if own and self.bytes <= self.parts.size else None


async def acknowledge(message: Any) -> None:
    """The broker may forget this message; if it does not hear so, it brings it again."""
    with contextlib.suppress(*FAILURES):
        await message.ack()


def rare(count: int) -> bool:
    """Whether this is the first, second, fourth … time: what comes a thousand times is logged ten times."""
    return count & (count - 1) == 0
