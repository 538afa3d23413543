"""The server of a run on its network and disk: takes in what clients send, adds it to the log, folds it, sends
assignments, evaluates, saves. `journal` has the rules of the log and of leading."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from offbeat.core.errors import DivergedError, OffbeatError
from offbeat.core.vectors import Vector
from offbeat.deploy import wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.board import Board, Pulse, Pulses, change_board, parse_pulse, write_pulse
from offbeat.deploy.connection import BRIEFLY, FAILURES, PATIENCE, within
from offbeat.deploy.envelope import OVERHEAD
from offbeat.deploy.gate import BURST, USELESS, Gate
from offbeat.deploy.helping import write_helping
from offbeat.deploy.intake import Intake, acknowledge, rare
from offbeat.deploy.journal import (
    SILENCE,
    Appender,
    Chain,
    LogAudit,
    LogClock,
    MemberKeys,
    OvertakenError,
    Record,
    Scribe,
    Tail,
    UncertainError,
    body_of,
    refill,
)
from offbeat.deploy.keys import ACTIVE, HELPER, Roster, parse_roster
from offbeat.deploy.ledger import ClientRecord, Ledger
from offbeat.deploy.link import WAITING, Link
from offbeat.deploy.logs import log, note
from offbeat.deploy.membership import changes
from offbeat.deploy.mending import NAME, Mending
from offbeat.deploy.plan import Plan
from offbeat.deploy.questions import Answering
from offbeat.deploy.refold import entry_of, read_body
from offbeat.deploy.reporter import Reporter, waiting
from offbeat.deploy.server_core import LATE, Append, Consult, Drop, Effect, Post, Put, ServerCore
from offbeat.deploy.shelf import Shelf
from offbeat.deploy.streams import BrokerLog, Inbox, StreamReader
from offbeat.deploy.trace import Trips
from offbeat.deploy.wire import LogEntry, RefusedError
from offbeat.watch import checkpoint
from offbeat.watch.record import Recorder

PULSE = 1.0  # seconds between two signs of life
LOOK = 2.0  # seconds between two looks at the roster
BEAT = 5.0  # what a sign of life costs: as much as so many messages
MUTE = 2.5  # seconds in which a broker that sends us the log is heard, also if nothing is added to it
KEPT = 64  # of the last records, at least, that a leader has copies of
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
        self.measure, self.save_every, self.tick = measure, save_every, tick
        self.replicas = replicas
        folder.mkdir(parents=True, exist_ok=True)
        self.name = _own_name(folder)
        saved = checkpoint.restore(Ledger, folder)
        ledger, extra = saved if saved else (None, {})
        self.recorder = Recorder(folder, extra.get("record"))
        self.reporter = Reporter(self.recorder.measurements)
        self.recorder.metrics = plan.measured
        self.trips = Trips(folder, extra.get("trips"))
        self.worked = float(extra.get("worked", 0.0))
        asks = measure is None and every is not None
        self.core = ServerCore(plan, ledger, [self.recorder, self.trips], every=every, asks=asks, wait=wait)
        self.scribe = Scribe(link.creds.federation, plan.run, link.ours)
        self.chain, self.tail, self.clock = Chain(**extra.get("chain", {})), Tail(folder), LogClock()
        self.stream = BrokerLog(link, plan.run)
        own = (link, self.scribe, folder, self.name, self.chain, self.tail)
        self.mending = Mending(*own, lambda: self.heard, lambda: self.asked)
        self.appender: Appender | None = None
        self._go_by(roster)
        self.gate = Gate(self.scribe, senders_of(roster), plan.limits.size)
        self.gate.refused.update(extra.get("refused", {}))
        self.inbox = Inbox(link, plan.run, self._came, WAITING * len(plan.roster) + 64)
        self.intake: Intake | None = None
        self.sending = asyncio.Lock()  # what goes out goes out in the order in which it was decided
        self.waiting = asyncio.Event()
        self.ready = False  # the whole log is folded, and clients are served
        self.leading = False
        self.pulses, self.others = 0, Pulses()  # our own, and those of other servers
        self.heard = time.monotonic()  # when there was last a sign of the leader
        self.left = 0  # the last term whose leader has said farewell; its last records may come after that
        self.taken = 0.0  # seconds between a message's being taken in and its being folded
        self.backlog = (0, 0.0)  # messages that wait in the inbox, and seconds since the oldest came
        self.evaluating: set[asyncio.Task[None]] = set()
        self.began = self.saved = self.looked = time.monotonic()
        self.asked = False  # to stop serving
        self.trim = trim
        self.checkpoints = checkpoint.Checkpoints(folder)
        self.saving: asyncio.Task[None] | None = None
        self.whole = True  # the last checkpoint that was begun is on disk
        self.safe = [(0, 0)]  # the positions of the last two checkpoints, and the terms there
        self.bodies: deque[Record] = deque()  # those with large envelopes beside the log, while it is trimmed
        self.cleared = 1  # the first term of which there may be such envelopes
        self.shelf = Shelf(link, plan.run, models)
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
        return dict(Counter(self.ledger.tally.refused) + self.gate.refused)

    async def run(self) -> None:
        """Serve until the run is over, or until `leave`; raises `DivergedError` if it has diverged."""
        link, run = self.link, self.plan.run
        await link.insist(self._make_streams)
        pulses = await link.listen(f"pulse.{run}", self._hear_pulse)  # also while we miss a record
        await self._catch_up()
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
        finally:
            link.reconnected.remove(self._again)
            for subscription in subscriptions:
                with contextlib.suppress(*FAILURES):
                    await subscription.unsubscribe()
        if self.ledger.stopped and not self.asked:
            self.trips.end(self.ledger, self.plan.unit)
        await self._save_last()
        note("saved; the run goes on when it is served again" if self.asked else "over and saved", run=run)
        if self.ledger.diverged and not self.asked:
            raise DivergedError(self.ledger.diverged)

    def leave(self) -> None:
        """Stop serving; the run goes on when somebody serves it again."""
        self.asked = True
        self.waiting.set()

    async def save(self) -> None:
        """Write a checkpoint: the state with its position in the log, and how far the record goes.

        The state is noted at once and written by another thread, while the run goes on.
        """
        await self._write(*self._noted())

    def _noted(self) -> tuple[checkpoint.Snapshot, tuple[int, int]]:
        """What a checkpoint has to say now, between two records; and its position in the log, with the term there."""
        self.saved = time.monotonic()
        self.recorder.flush()
        self.trips.flush()
        extra = {"record": self.recorder.state, "trips": self.trips.state, "worked": self.wall}
        extra |= {"chain": vars(self.chain), "refused": dict(self.gate.refused)}
        if self.whole:
            self.tail.rotate(KEPT)
        self.whole = False
        return self.checkpoints.snapshot(self.ledger, extra), (self.ledger.position, self.chain.term)

    async def _write(self, snapshot: checkpoint.Snapshot, position: tuple[int, int]) -> None:
        if await asyncio.to_thread(self.checkpoints.write, snapshot) is not None:
            self.whole = True
            self.safe = [*self.safe[-1:], position]
            if self.trim and self.leading:
                await self._trim()

    def _save_beside(self) -> None:
        """Begin a checkpoint if it is time, unless one is being written."""
        if self.saving is not None and self.saving.done():
            self.saving.result()
            self.saving = None
        if self.saving is None and time.monotonic() - self.saved > self.save_every:
            self.saving = asyncio.create_task(self._write(*self._noted()))

    async def _save_last(self) -> None:
        if self.saving is not None:
            await self.saving
        await self.save()
        self.tail.close()

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

    async def _trim(self) -> None:
        """Remove from the broker what both checkpoints have behind them, except the record that others may follow.

        Another server may lead by now, or before the broker hears of it: nothing is removed that a later record names.
        """
        (position, term), run, purge = self.safe[0], self.plan.run, self.link.js.purge_stream
        with contextlib.suppress(*FAILURES):
            if position:
                await purge(f"LOG-{run}", seq=position)
            while self.cleared < term:  # also what was stored and never recorded
                await purge(f"BODY-{run}", subject=f"body.{run}.{self.cleared}.>")
                self.cleared += 1
            while self.bodies and self.bodies[0].seq < position:
                record = self.bodies[0]
                if record.body is not None and record.term >= self.cleared:
                    await purge(f"BODY-{run}", subject=f"{body_of(run, record.term, record.body.number)}.*")
                self.bodies.popleft()

    # The log, read

    async def _catch_up(self) -> None:
        """Fold what the log has beyond the checkpoint, before anything is sent."""
        end, known = await self.link.insist(self.stream.end), max(self.chain.seq, self.tail.acknowledged())
        if end < known:
            await self.link.insist(lambda: refill(self.stream, self.tail, end, known, self.scribe))
            end = known
        async with self._reading() as entries:
            while self.chain.seq < end:
                came = await self._read_next(entries, 2.0)
                if not came and await self.link.insist(lambda: self.stream.read(self.chain.seq + 1)) is None:
                    await self._take_in(*await self.audit.missing())

    @contextlib.asynccontextmanager
    async def _reading(self) -> Any:
        """Within, what the log has from here on comes into this queue."""
        entries: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        reader = StreamReader(self.link, f"LOG-{self.plan.run}", lambda n, _, raw: entries.put_nowait((n, raw)))
        self.audit = LogAudit(self.scribe, self.chain, lambda seq: self.mending.mend(seq, self.audit))
        await self.link.insist(lambda: reader.start(self.chain.seq))
        self.reader = reader
        try:
            yield entries
        finally:
            await reader.stop()

    async def _read_next(self, entries: asyncio.Queue[tuple[int, bytes]], patience: float) -> bool:
        """Fold the next record that comes; whether one came."""
        try:
            seq, raw = await asyncio.wait_for(entries.get(), patience)
        except TimeoutError:
            await self.reader.watch()
            return False
        for record, each in await self.audit.take(seq, raw):
            await self._take_in(record, each)
        return True

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
            self.bodies.append(record)

    # Standing by

    async def _stand_by(self) -> None:
        """Fold what the leader writes, until it is silent, the run is over, or we are to leave."""
        run, since = self.plan.run, time.monotonic()
        note("standing by, to take over if the leading server is silent", run=run, position=self.chain.seq)
        patience, brief = SILENCE + random.random(), BRIEFLY
        self.heard = since if self.chain.term > self.left else float("-inf")
        self.ready = True
        async with self._reading() as entries:
            while not self.asked and not self._over():
                if await self._read_next(entries, 0.2) and self.chain.term > self.left:
                    self.heard = time.monotonic()
                self._save_beside()
                clock = time.monotonic()
                if clock - self.heard > patience and entries.empty() and self.link.client.is_connected:
                    with contextlib.suppress(*FAILURES, UncertainError), within(brief):
                        brief = min(2 * brief, PATIENCE)
                        if await self._complete(entries):
                            silent = f"the leading server was silent for {min(clock - self.heard, clock - since):.1f} s"
                            note(f"takes over; {silent}", "warning", run=run)
                            return
                if self.tick is not None:
                    self.tick(self)

    async def _complete(self, entries: asyncio.Queue[tuple[int, bytes]]) -> bool:
        """Whether we have read all of the log; if the broker has lost its end, that is mended first."""
        end = await self.stream.end()
        if end == self.chain.seq:
            return True
        if end < self.chain.seq:
            await refill(self.stream, self.tail, end, self.chain.seq, self.scribe)
        elif await self.stream.read(self.chain.seq + 1) is None and entries.empty():
            await self._take_in(*await self.audit.missing())
        else:
            await self.reader.watch(MUTE)  # the broker that sends us the log may be the one that is down
        return False

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
        if self.shelf.renew(self._removed()):  # while another server led; it has sent what has to be sent
            self.core.put.clear()
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
        await link.insist(self._read_roster)
        if self.roster.serial < self.ledger.roster:
            note(
                f"roster {self.roster.serial} is older than {self.ledger.roster}, which {run} goes by; who takes part "
                f"is read from the log. Give this server the newest roster.json of the coordinator",
                "warning",
            )
        self.gate.admit(self._members())
        for message in self._news():
            await appender.add_own(message)
            await self._fold((await appender.settle()).entry)
        questions = await link.listen(f"ask.*.{run}", answering.hear)
        self.leading, tasks = True, list[asyncio.Task[None]]()
        try:
            if len(self.named) != len(self.ledger.clients):
                await link.insist(self._announce)
            await self._obey(self.core.boot(time.monotonic()))
            with within(BRIEFLY):
                await link.insist(self.inbox.start)
            tasks = [self._task(self._settle(appender)), self._task(self._pulse())]
            self.ready = True
            self._say_serving(appender.term)
            while not self.asked and not self._over():
                await self._round(tasks)
            if not self.asked:
                await self._farewell(tasks)
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
            going = f"serving, from time {ledger.now:.1f} and {ledger.tally.updates:,} updates on; {waiting(ledger)}"
            note(going, run=self.plan.run, **fields)
        else:
            wanted = "all clients" if self.core.wait is None else f"{self.core.wait} clients"
            note(f"serving; the run begins when {wanted} are there", run=self.plan.run, **fields)

    def _task(self, action: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(action)
        task.add_done_callback(lambda _: self.waiting.set())
        return task

    async def _came(self, message: Any) -> None:
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
            self.gate.budgets[entry.sender].spend(len(entry.data), cost)
        if code not in ("", APPLIED) and rare(self.ledger.tally.refused.get(code, 1)):
            note("refused", client=entry.sender, code=code, position=entry.seq, bytes=len(entry.data))
        if code == "quarantined":
            note(self.core.reducer.fault, "error", client=entry.sender, position=entry.seq)
        if not entry.sender:
            await self._reseal()
        await self._obey(effects)

    def _removed(self) -> int:
        return sum(record.removed for record in self.ledger.clients)

    async def _reseal(self) -> None:
        """A client that was removed knows the models' key so far: the others get another."""
        if self.shelf.renew(self._removed()):
            self.core.put.clear()
            clock = time.monotonic()
            for client, record in enumerate(self.ledger.clients):
                if record.present:
                    await self._obey(self.core.post(client, clock))

    async def _round(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.waiting.wait(), self.core.wait_for(time.monotonic(), 0.05))
        self.waiting.clear()
        for task in tasks:
            if task.done():
                task.result()
        clock = time.monotonic()
        await self._look_up(clock)
        await self._obey(self.core.due(clock))
        for number in self.core.next_evaluation(clock):
            job = asyncio.create_task(self._evaluate(number))
            self.evaluating.add(job)
            job.add_done_callback(self.evaluating.discard)
        self._save_beside()
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

    async def _farewell(self, tasks: Sequence[asyncio.Task[None]], patience: float = 6.0) -> None:
        """Wait until the clients that are there know that the run is over."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if self.core.farewell():
                return
            await self._round(tasks)

    # Who takes part

    async def _read_roster(self) -> bool:
        """Whether the coordinator has sent a newer roster."""
        kept = await self.link.last("BOARD", "roster")
        if kept is None:
            return False
        try:
            roster = parse_roster(kept.data, self.link.creds.coordinator)
        except OffbeatError as error:
            log.warning("a roster is not taken: %s", error)
            return False
        newest = max(self.roster.serial + 1, self.ledger.roster)
        if roster.federation != self.roster.federation or roster.serial < newest:
            return False
        self._go_by(roster)
        self.gate.admit(self._members())
        return True

    def _go_by(self, roster: Roster) -> None:
        """This is the newest roster; clients that mask for each other get it with what they are called to."""
        self.roster = roster
        self.core.roster = roster.to_json() if self.plan.pairwise else None

    def _members(self) -> dict[str, MemberKeys]:
        """The keys of those who may take part: as the roster says, or as the log does if that knows a newer one."""
        if self.roster.serial >= self.ledger.roster:
            return senders_of(self.roster)
        there = {
            record.name: keys_of(record) for record in self.ledger.clients if record.account and not record.removed
        }
        return {**there, HELPER: MemberKeys(*self.ledger.helper)} if self.ledger.helper[0] else there

    def _news(self) -> list[bytes]:
        """Entries for what the log does not say yet about limits and clients."""
        keys = {name: (each.account, each.sign, each.seal) for name, each in members_of(self.roster).items()}
        gone = [name for name, member in self.roster.clients.items() if member.state != ACTIVE]
        found = changes(self.ledger, self.plan, keys, gone, self.roster.serial)
        for why in found.refused:
            note(why, "warning", run=self.plan.run)
        helper = tuple(helper_of(self.roster)) if self.plan.helped else self.ledger.helper
        if helper != self.ledger.helper and self.roster.serial >= self.ledger.roster:
            found.entries.append(wire.say(wire.Helped(self.plan.run, *helper)))
        return found.entries

    async def _announce(self) -> None:
        """Tell the federation about this run, its clients and the term."""
        self.named, run = [record.name for record in self.ledger.clients], self.plan.run
        roster = {"roster": self.named} if "roster" in self.charter else {}
        charter = {**self.charter, **roster, "life": self.ledger.life}

        def with_ours(board: Board) -> Board:
            return board.with_run(run, {**charter, "term": max(self.chain.term, board.term(run))})

        await change_board(self.link, with_ours)

    async def _look_up(self, clock: float) -> None:
        """Now and then: whether clients were added, removed or given other keys."""
        if clock - self.looked_up < LOOK or self.appender is None:
            return
        self.looked_up = clock
        with contextlib.suppress(*FAILURES):
            if await self._read_roster():
                for message in self._news():
                    await self.appender.add_own(message)
            if len(self.named) != len(self.ledger.clients):
                await self._announce()

    # Sending

    async def _obey(self, effects: Sequence[Effect]) -> None:
        if not effects:
            return
        async with self.sending:
            for effect in effects:
                try:
                    await self._do(effect)
                except FAILURES as error:  # assignments are sent again when they are missed
                    log.warning("not sent: %s", error)

    async def _do(self, effect: Effect) -> None:
        match effect:
            case Append(data):
                if self.appender is not None:
                    await self.appender.add_own(data)
            case Post(client, data):
                keys = keys_of(self.ledger.clients[client])
                if keys.account:
                    sealed = self.scribe.channel(keys).seal("desk", self.shelf.seal.key + data)
                    await self.link.say(f"desk.{keys.account}.{self.plan.run}", sealed)
            case Consult():
                helper = MemberKeys(*self.ledger.helper)
                if helper.account:
                    told = write_helping(self.plan, self.ledger, self.roster.to_json())
                    sealed = self.scribe.channel(helper).seal("desk", told)
                    await self.link.say(f"desk.{helper.account}.{self.plan.run}", sealed)
            case Put(digest, data):
                # a large model is stored before an assignment names it, whatever happens to the broker
                await self.shelf.put(digest, data)
            case Drop(digest):
                await self.shelf.drop(digest)

    async def _again(self) -> None:
        """The broker is back: it may have missed what we sent, and has forgotten that we read."""
        if self.leading:
            await self.inbox.start()
            self.core.put.clear()
            await self._obey(self.core.boot(time.monotonic()))

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
        await self._obey(self.core.beat(sender.name, beat, time.monotonic(), (self.chain.term, self.pulses)))

    # Evaluating

    async def _evaluate(self, task: int) -> None:
        vector, when, updates, version = self.core.evaluated(task, time.monotonic())
        if self.measure is not None:
            found = await asyncio.to_thread(self.measure, task, vector)
            metrics = {name: float(value) for name, value in found.items()}
            await self._obey([self.core.score(task, when, updates, version, metrics)])

    def _over(self) -> bool:
        """The run has stopped, and its last models are measured."""
        ledger = self.ledger
        if not ledger.stopped or self.evaluating:
            return False
        if ledger.judging and time.monotonic() - self.core.folded_at <= 3 * LATE:
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
        ledger, clock = self.ledger, time.monotonic()
        tally = ledger.tally
        last = self.recorder.measurements[-1] if self.recorder.measurements else None
        return {
            "run": self.plan.run,
            "state": ledger.stopped or ("running" if ledger.begun else "waiting for clients"),
            "time": ledger.now,
            "updates": tally.updates,
            "lost": tally.lost,
            "refused": self.refused,
            "repeated": tally.repeated,
            "staleness": tally.staleness_sum / tally.updates if tally.updates else 0.0,
            "versions": [model.version for model in self.plan.server.models(ledger.server)],
            "metrics": dict(last.metrics) if last else {},
            "position": ledger.position,
            "lag": self.lag,
            "waiting": self.backlog[0],
            "folded": clock - self.core.folded_at,
            "leader": self.chain.leader,
            "term": self.chain.term,
            "clients": [
                {
                    "name": record.name,
                    "present": record.present,
                    "removed": record.removed,
                    "useless": record.strikes,
                    "epoch": record.epoch,
                    "applied": record.applied,
                    "refused": record.refused,
                    "failed": record.failed,
                    "jobs": len(record.queue) + len(record.held),
                    "silent": clock - self.core.heard[c] if c in self.core.heard else None,
                }
                for c, record in enumerate(ledger.clients)
            ],
        }


def members_of(roster: Roster) -> dict[str, MemberKeys]:
    """The keys of those who may take part."""
    return {name: _keys(roster, name) for name, member in roster.clients.items() if member.state == ACTIVE}


def helper_of(roster: Roster) -> MemberKeys:
    """The keys of the helper, if there is one."""
    member = roster.helper
    return (
        MemberKeys("", "", "") if member is None else MemberKeys(member.account, member.sign.hex(), member.seal.hex())
    )


def senders_of(roster: Roster) -> dict[str, MemberKeys]:
    """The keys of all that may send something to a run: the clients and the helper."""
    helper = {} if roster.helper is None else {HELPER: helper_of(roster)}
    return {**members_of(roster), **helper}


def keys_of(record: ClientRecord) -> MemberKeys:
    """A client's keys as the log has them."""
    return MemberKeys(record.account, record.sign, record.seal)


def _keys(roster: Roster, name: str) -> MemberKeys:
    member = roster.client(name)
    return MemberKeys(member.account, member.sign.hex(), member.seal.hex())


def _own_name(folder: Path) -> str:
    """What this server calls itself in the log: the same whenever it serves this folder."""
    path = folder / NAME
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="ascii")
    return path.read_text(encoding="ascii").strip()


def _ceil(size: int, by: int) -> int:
    return -(-size // by)
