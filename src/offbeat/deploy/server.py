"""The server of a run on its network and disk: takes in what clients send, adds it to the log, folds it, sends
assignments, evaluates, saves. `journal` has the rules of the log and of leading."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from offbeat.core.errors import DivergedError
from offbeat.core.vectors import Vector
from offbeat.deploy import wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.board import Board, Pulse, Pulses, change_board, parse_pulse, read_board, write_pulse
from offbeat.deploy.connection import BRIEFLY, FAILURES, PATIENCE, SOON, within
from offbeat.deploy.encoding import RefusedError, effort
from offbeat.deploy.envelope import OVERHEAD
from offbeat.deploy.following import Following
from offbeat.deploy.gate import BURST, USELESS, Gate
from offbeat.deploy.identity import Roster
from offbeat.deploy.intake import Intake, acknowledge, rare
from offbeat.deploy.journal import (
    SILENCE,
    Appender,
    Chain,
    LogClock,
    OvertakenError,
    Record,
    Scribe,
    Tail,
    UncertainError,
)
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import WAITING, Link
from offbeat.deploy.logs import note
from offbeat.deploy.mending import NAME, Mending
from offbeat.deploy.plan import Plan
from offbeat.deploy.posting import Posting
from offbeat.deploy.questions import Answering
from offbeat.deploy.refold import entry_of, read_body
from offbeat.deploy.reporter import Reporter
from offbeat.deploy.roll import Roll
from offbeat.deploy.saving import Saving
from offbeat.deploy.server_core import LATE, ServerCore
from offbeat.deploy.status import status_of
from offbeat.deploy.streams import BrokerLog, Inbox
from offbeat.deploy.trace import Trips
from offbeat.deploy.wire import LogEntry
from offbeat.watch import checkpoint
from offbeat.watch.files import OWNER, write_text
from offbeat.watch.record import Recorder

PULSE = 1.0  # seconds between two signs of life
LOOK = 2.0  # seconds between two looks at the roster
BEAT = 5.0  # what a sign of life costs: as much as so many messages
COPIES = 3  # of a client's state that the broker keeps

Measure = Callable[[int, Vector], Mapping[str, float]]


class RunServer:
    """One run's server. `folder` holds its checkpoint and its record; begun again there, it goes on.

    roster: who may take part.   measure: metrics of a task's model; None: the clients evaluate.
    charter: what clients are told about the run.   models: bytes of large models that the broker keeps although no
    assignment names them any more.   replicas: brokers of a cluster that keep the run's streams.
    save_every: seconds between checkpoints.   tick: called now and then, for a display.   trim: remove entries that the
    checkpoints have behind them from the log, which then cannot be folded again from its beginning.
    """

    def __init__(
        self,
        plan: Plan,
        link: Link,
        folder: Path,
        charter: Mapping[str, Any],
        roster: Roster,
        *,
        measure: Measure | None = None,
        every: float | None = None,
        wait: int | None = None,
        save_every: float = 10.0,
        models: int = 1 << 30,
        replicas: int = 1,
        trim: bool = False,
        tick: Callable[[RunServer], None] | None = None,
    ) -> None:
        self.plan, self.link, self.folder, self.charter = plan, link, folder, charter
        self.measure, self.tick, self.replicas, self.trim = measure, tick, replicas, trim
        folder.mkdir(parents=True, exist_ok=True, mode=OWNER)
        self.name = _own_name(folder)
        saved = checkpoint.restore(Ledger, folder)
        ledger, extra = saved if saved else (None, {})
        self.recorder = Recorder(folder, extra.get("record"))
        self.recorder.metrics = plan.measured
        self.trips = Trips(folder, extra.get("trips"))
        self.worked = float(extra.get("worked", 0.0))
        asks = measure is None and every is not None
        self.core = ServerCore(plan, ledger, [self.recorder, self.trips], every=every, asks=asks, wait=wait)
        self.reporter = Reporter(self.recorder.measurements, lambda: self.core.reducer.traffic.census.present)
        self.scribe = Scribe(link.creds.federation, plan.run, link.ours)
        self.chain, self.tail, self.clock = Chain(**extra.get("chain", {})), Tail(folder), LogClock()
        self.stream = BrokerLog(link, plan.run)
        own = (link, self.scribe, folder, self.name, self.chain, self.tail)
        self.mending = Mending(*own, lambda: self.heard, lambda: self.asked)
        self.following = Following(link, self.scribe, self.chain, self.tail, self.mending, self._take_in)
        own_copy = (folder, link, plan.run, self.chain, self.tail, self._noted)
        self.saving = Saving(*own_copy, every=save_every, trims=lambda: trim and self.leading)
        self.roll = Roll(link, self.core, roster)
        self.posting = Posting(link, self.scribe, self.core, self.roll, models, self._append)
        self.appender: Appender | None = None
        self.gate = Gate(self.scribe, self.roll.senders(), plan.limits.size)
        self.gate.refused.update(extra.get("refused", {}))
        self.inbox = Inbox(link, plan.run, self._receive, WAITING * len(plan.roster) + 64)
        self.intake: Intake | None = None
        self.waiting = asyncio.Event()
        self.ready = False  # the whole log is folded, and clients are served
        self.leading = False
        self.pulses, self.others = 0, Pulses()  # our own, and those of other servers
        self.heard = time.monotonic()  # when there was last a sign of the leader
        self.left = 0  # the last term whose leader has said farewell; its last records may come after that
        self.taken = 0.0  # seconds between a message's being taken in and its being folded
        self.backlog = (0, 0.0)  # messages that wait in the inbox, and seconds since the oldest came
        self.evaluating: set[asyncio.Task[None]] = set()
        self.began = self.looked = time.monotonic()
        self.resealed = False  # models have another key, which clients are to be told
        self.asked = False  # to stop serving
        self.overtaken = ""  # a server that says it leads
        self.named: list[str] = []  # the clients that the federation was told of
        self.looked_up = 0.0

    @property
    def ledger(self) -> Ledger:
        return self.core.ledger

    @property
    def wall(self) -> float:
        return self.worked + time.monotonic() - self.began

    @property
    def lag(self) -> float:
        """Seconds for which the oldest message that was not folded yet has waited, or the last one that was."""
        return max(self.taken, self.backlog[1])

    @property
    def refused(self) -> dict[str, int]:
        """Messages that were refused, by code: before the log, and in it."""
        return dict(Counter(self.ledger.tally.refused) + Counter(self.gate.refused))  # copies: others may read these

    async def run(self) -> None:
        """Serve until the run is over, or until `leave`; raises `DivergedError` if it has diverged."""
        link, run = self.link, self.plan.run
        await link.insist(self._make_streams)
        pulses = await link.listen(f"pulse.{run}", self._hear_pulse)  # also while we miss a record
        await self.following.catch_up()
        self.clock.start(self.chain.stamp)
        subscriptions = [pulses, await link.listen(f"beat.*.{run}", self._beat)]
        link.reconnected.append(self._again)
        lead = self.chain.leader in ("", self.name)
        try:
            while not self.asked and not self._over():
                try:
                    if not lead:
                        await self._stand_by()
                    if not self.asked and not self._over():
                        await self._lead()
                except OvertakenError as error:
                    lead = False
                    note(f"{error}; this server stands by", "warning", run=run)
                    await link.insist(self.mending.leave_last)
            await self._leave_board()
        finally:
            link.reconnected.remove(self._again)
            for subscription in subscriptions:
                with contextlib.suppress(*FAILURES):
                    await subscription.unsubscribe()
        if self.ledger.stopped and not self.asked:
            self.trips.end(self.ledger, self.plan.unit)
        await self.saving.end()
        note("saved; the run goes on when it is served again" if self.asked else "over and saved", run=run)
        if self.ledger.diverged and not self.asked:
            raise DivergedError(self.ledger.diverged)

    async def _leave_board(self) -> None:
        """Take a run that is over off the board, if its leader was gone before it did so."""
        link, run = self.link, self.plan.run
        while not self.asked:
            with contextlib.suppress(RefusedError):  # what is not ours is replaced
                shown = await link.insist(lambda: read_board(link))
                if shown is None or (run not in shown.runs and shown.past.get(run) != "restored"):
                    return
            if time.monotonic() - self.heard > SILENCE:
                await link.insist(lambda: change_board(link, lambda board: board.without(run, self.ledger.stopped)))
                return
            await asyncio.sleep(0.2)

    def leave(self) -> None:
        """Stop serving; the run continues when it is served again."""
        self.asked = True
        self.waiting.set()

    def _noted(self) -> tuple[Ledger, dict[str, Any]]:
        """The state, and what a checkpoint says besides: how far the record goes, what was refused before the log."""
        self.recorder.flush()
        self.trips.flush()
        extra = {"record": self.recorder.state, "trips": self.trips.state, "worked": self.wall}
        return self.ledger, {**extra, "refused": dict(self.gate.refused)}

    async def _make_streams(self) -> None:
        plan, piece = self.plan, self.link.piece
        tasks = range(len(plan.locals))
        update = max(plan.update_bytes(task) for task in tasks) + OVERHEAD
        memory = sum(
            vector.nbytes
            for local, x in zip(plan.locals, plan.initial, strict=True)
            for vector in local.remember(x).values()
        )
        parts, copy = _ceil(update, piece) + 2, _ceil(2 * memory + update + (1 << 16), piece - 1024)
        await self.link.make_streams(plan.run, parts, COPIES * copy, self.replicas)

    # The log, read

    async def _take_in(self, record: Record, raw: bytes) -> None:
        """Fold a record that another server, or this one before, has written."""
        body = await read_body(self.link, self.plan.run, record)
        if record.body is not None and body is None:
            await self.mending.still_kept(record.seq)
        entry = entry_of(self.scribe, record, body)
        self.tail.write(record.seq, raw)
        self.clock.hear(record.stamp)
        self.core.replay(entry, time.monotonic())
        self._remember_body(record)

    def _remember_body(self, record: Record) -> None:
        if record.body is not None and self.trim:
            self.saving.bodies.append(record)

    # Standing by

    async def _stand_by(self) -> None:
        """Fold what the leader writes, until it is silent, the run is over, or we are to leave."""
        run, since = self.plan.run, time.monotonic()
        note("standing by, to take over if the leading server is silent", run=run, position=self.chain.seq)
        patience, attempts = SILENCE + random.random(), count()
        self.heard = since if self.chain.term > self.left else float("-inf")
        self.ready = True
        async with self.following.reading() as raws:
            while not self.asked and not self._over():
                if await self.following.next(raws, 0.2) and self.chain.term > self.left:
                    chain = self.chain
                    self.heard = max(self.heard, self.others.written(chain.term, chain.stamp, time.monotonic()))
                self.saving.begin()
                clock = time.monotonic()
                if clock - self.heard > patience and raws.empty() and self.link.client.is_connected:
                    brief = BRIEFLY if next(attempts) < SOON else PATIENCE
                    with contextlib.suppress(*FAILURES, UncertainError), within(brief):
                        if await self.following.complete(raws):
                            note(f"takes over; the leading server {self._why(clock)}", "warning", run=run)
                            return
                if self.tick is not None:
                    self.tick(self)

    def _why(self, clock: float) -> str:
        """Why the leading server leads no longer."""
        return "has left" if self.heard == float("-inf") else f"was silent for {clock - self.heard:.1f} s"

    async def _hear_pulse(self, _: str, data: bytes) -> None:
        try:
            pulse = parse_pulse(self.link.creds, self.plan.run, data)
        except RefusedError:
            return
        if pulse.leader == self.name or pulse.term < self.chain.term or not self.others.fresh(pulse, time.monotonic()):
            return
        if self.leading and pulse.term > self.chain.term:
            self.waiting.set()
            self.overtaken = pulse.leader
        self.heard = float("-inf") if pulse.leaving else time.monotonic()
        self.left = pulse.term if pulse.leaving else self.left

    # Leading

    async def _lead(self) -> None:
        """Lead the run to its end, or until another server does; raises `OvertakenError` then."""
        link, run = self.link, self.plan.run
        self.overtaken = ""
        self.posting.renew()  # clients may have been removed while another server led, which has told the others
        appender = self.appender = Appender(self.scribe, self.stream, self.chain, self.tail, self.clock, self.name)
        intake = self.intake = Intake(self.gate, link, run, appender)
        order = partial(self._order, appender, set())
        answering = Answering(link, run, self.gate, self.status, order, self.mending.leave, lambda: self.ledger.life)
        with within(BRIEFLY):
            await appender.add_own(wire.say(wire.Led(run, appender.term, self.name)))
        first = (await appender.settle()).entry
        with within(BRIEFLY):
            await link.insist(self._announce)  # before anything is done that others can see
        await self._fold(first)
        await link.insist(self.roll.read)
        self.roll.warn()
        self.gate.admit(self.roll.senders())
        for message in self.roll.news():
            await appender.add_own(message)
            await self._fold((await appender.settle()).entry)
        questions = await link.listen(f"ask.*.{run}", answering.hear)
        self.leading, tasks = True, list[asyncio.Task[None]]()
        try:
            if len(self.named) != len(self.ledger.clients):
                await link.insist(self._announce)
            await self.posting.obey(self.core.boot(time.monotonic()))
            with within(BRIEFLY):
                await link.insist(self.inbox.start)
            tasks = [self._task(self._settle(appender)), self._task(self._pulse())]
            self.ready = True
            self._say_serving(appender.term)
            while not self.asked and not self._over():
                await self._round(tasks)
            if not self.asked:
                await self._wait_for_clients(tasks)
                await answering.finish()
                await link.insist(lambda: change_board(link, lambda board: board.without(run, self.ledger.stopped)))
                await link.insist(lambda: link.js.purge_stream("MODEL", subject=f"model.{run}.*.*"))
        finally:
            self.leading = self.ready = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            intake.stop()
            answering.stop()
            await self.inbox.stop()
            with contextlib.suppress(*FAILURES):
                await questions.unsubscribe()
                await self._beat_once(leaving=True)

    def _say_serving(self, term: int) -> None:
        ledger = self.ledger
        fields: dict[str, Any] = {"position": ledger.position, "clients": ledger.members, "term": term}
        if ledger.begun:
            around = self.reporter.waiting(ledger)
            going = f"serving, from time {ledger.now:.1f} and {ledger.tally.updates:,} updates on; {around}"
            note(going, run=self.plan.run, **fields)
        else:
            wanted = "all clients" if self.core.wait is None else f"{self.core.wait} clients"
            note(f"serving; the run begins when {wanted} are there", run=self.plan.run, **fields)

    def _task(self, action: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(action)
        task.add_done_callback(lambda _: self.waiting.set())
        return task

    async def _receive(self, message: Any) -> None:
        assert self.intake is not None
        await self.intake.take(message)

    async def _settle(self, appender: Appender) -> None:
        """Fold each record when the broker has it."""
        while True:
            sent = await appender.settle()
            self._remember_body(sent.record)
            await self._fold(sent.entry)
            if sent.then is not None:
                message, since = sent.then
                self.taken = time.monotonic() - since
                await acknowledge(message)
            self.waiting.set()

    async def _fold(self, entry: LogEntry) -> None:
        client = self.core.reducer.index.get(entry.sender)
        before = self.reporter.before(self.ledger, client)
        effects = self.core.fold(entry, time.monotonic())
        code = self.core.code
        self.reporter.after(self.ledger, client, entry, before)
        if entry.sender and code != APPLIED and entry.sender in self.gate.budgets:
            cost = BURST if code == "quarantined" else USELESS - 1  # to undo an entry, many are folded again
            self.gate.budgets[entry.sender].spend(len(entry.data), cost, effort(entry.data))
        if code not in ("", APPLIED) and rare(self.ledger.tally.refused.get(code, 1)):
            note("refused", client=entry.sender, code=code, position=entry.seq, bytes=len(entry.data))
        if code == "quarantined":
            note(self.core.reducer.fault, "error", client=entry.sender, position=entry.seq)
        if not entry.sender and self.posting.renew():
            self.resealed = True
        await self.posting.obey(effects)

    async def _round(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.waiting.wait(), self.core.wait_for(time.monotonic(), 0.05))
        self.waiting.clear()
        for task in tasks:
            if task.done():
                task.result()
        clock = time.monotonic()
        await self._look_up(clock)
        if self.resealed:  # once, however many clients were removed
            self.resealed = False
            await self.posting.post_all()
        await self.posting.obey(self.core.due(clock))
        for number in self.core.next_evaluation(clock):
            job = asyncio.create_task(self._evaluate(number))
            self.evaluating.add(job)
            job.add_done_callback(self.evaluating.discard)
        self.saving.begin()
        if clock - self.looked > 1.0:
            self.looked = clock
            await self._look()
        if self.tick is not None:
            self.tick(self)

    async def _look(self) -> None:
        """Once a second: whether we still lead, what waits, whether the clock was set."""
        with contextlib.suppress(*FAILURES, UncertainError):
            self.backlog = await self.inbox.age()
            await self.mending.look()
            if self.overtaken or self.inbox.silent:
                if await self.link.end(f"LOG-{self.plan.run}") > self._head():
                    raise OvertakenError(f"another server, {self.overtaken or 'unknown'}, leads {self.plan.run}")
                self.overtaken = ""
                if self.inbox.silent:
                    await self.inbox.start()
        if by := self.clock.jumped():
            note(
                f"the clock of this machine was set by {by:+.0f} s; the run's time does not follow it, but what other "
                f"programs and certificates say does: check its time service",
                "warning",
            )

    def _head(self) -> int:
        return self.chain.seq if self.appender is None else self.appender.head.seq

    async def _pulse(self) -> None:
        while True:
            with contextlib.suppress(*FAILURES):
                await self._beat_once()
            await asyncio.sleep(PULSE)

    async def _beat_once(self, leaving: bool = False) -> None:
        self.pulses += 1
        pulse = Pulse(self.chain.term, self.name, self.chain.seq, self.pulses, self.clock.now(), leaving)
        await self.link.say(f"pulse.{self.plan.run}", write_pulse(self.link.creds, self.plan.run, pulse))

    async def _wait_for_clients(self, tasks: Sequence[asyncio.Task[None]], patience: float = 6.0) -> None:
        """Wait until the clients that are there know that the run is over."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if self.core.farewell():
                return
            await self._round(tasks)

    # Who takes part

    async def _announce(self) -> None:
        """Tell the federation about this run, its clients and the term."""
        self.named, run = [record.name for record in self.ledger.clients], self.plan.run
        roster = {"roster": self.named} if "roster" in self.charter else {}
        charter = {**self.charter, **roster, "life": self.ledger.life}

        def with_this_run(board: Board) -> Board:
            return board.with_run(run, {**charter, "term": max(self.chain.term, board.term(run))})

        await change_board(self.link, with_this_run)

    async def _look_up(self, clock: float) -> None:
        """Now and then: whether clients were added, removed or given other keys."""
        if clock - self.looked_up < LOOK or self.appender is None:
            return
        self.looked_up = clock
        with contextlib.suppress(*FAILURES):
            if await self.roll.read():
                self.gate.admit(self.roll.senders())
                for message in self.roll.news():
                    await self.appender.add_own(message)
            if len(self.named) != len(self.ledger.clients):
                await self._announce()

    # Sending

    async def _append(self, data: bytes) -> None:
        if self.appender is not None:
            await self.appender.add_own(data)

    async def _again(self) -> None:
        """The broker is back: it may have missed what we sent, and has forgotten that we read."""
        if self.leading:
            await self.inbox.start()
            self.core.put.clear()
            await self.posting.obey(self.core.boot(time.monotonic()))

    async def _beat(self, subject: str, data: bytes) -> None:
        if not self.leading:
            return
        try:
            sender, clock = self.gate.sender(subject), time.monotonic()
            budget = self.gate.budget(sender, clock)
            if budget.wait(clock) > 0.0:
                return
            budget.spend(len(data), BEAT)
            beat = self.gate.channel(sender).open("beat", data)
        except RefusedError as error:
            self.gate.refused[error.code] += 1
            return
        await self.posting.obey(self.core.beat(sender.name, beat, time.monotonic(), (self.chain.term, self.pulses)))

    # Evaluating

    async def _evaluate(self, task: int) -> None:
        vector, when, updates, version = self.core.evaluated(task, time.monotonic())
        if self.measure is not None:
            found = await asyncio.to_thread(self.measure, task, vector)
            metrics = {name: float(value) for name, value in found.items()}
            await self.posting.obey([self.core.score(task, when, updates, version, metrics)])

    def _over(self) -> bool:
        """The run has stopped, and its last models are measured."""
        ledger = self.ledger
        if not ledger.stopped or self.evaluating:
            return False
        if ledger.judging and time.monotonic() - self.core.answered_at <= 3 * LATE:
            return False
        if self.core.every is None or self.core.asks:
            return True
        return all(
            ledger.measured[task] >= ledger.ends.get(task, ledger.now)
            for task in range(len(self.plan.locals))
            if task not in ledger.unborn
        )

    # Being asked

    async def _order(self, appender: Appender, known: set[str], question: str, entry: bytes) -> bool:
        """Add this entry for a question, unless the log has it or it is under way; whether it is folded in time."""
        if question not in self.ledger.orders and question not in known:
            known.add(question)
            await appender.add_own(wire.say(wire.Ordered(self.plan.run, question), {"entry": entry}))
        until = time.monotonic() + SILENCE
        while question not in self.ledger.orders and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return question in self.ledger.orders

    def status(self) -> dict[str, Any]:
        """The run as it stands, in plain data."""
        last = self.recorder.measurements[-1] if self.recorder.measurements else None
        return {
            **status_of(self.core, time.monotonic()),
            "refused": self.refused,
            "metrics": dict(last.metrics) if last else {},
            "lag": self.lag,
            "waiting": self.backlog[0],
            "leader": self.chain.leader,
            "term": self.chain.term,
        }


def _own_name(folder: Path) -> str:
    """What this server calls itself in the log: the same whenever it serves this folder."""
    path = folder / NAME
    if not path.exists() or not path.stat().st_size:  # a disk that was full has kept an empty one
        write_text(path, secrets.token_hex(8))
    return path.read_text(encoding="ascii").strip()


def _ceil(size: int, by: int) -> int:
    return -(-size // by)
