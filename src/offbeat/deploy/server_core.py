"""The server around the fold, without its network, disk and clock: what to send, what to add to the log, when to save.

Nothing here is decided outside the log. What time brings (an alarm, a lease that is over, a client not heard of) is
asked for as an entry and takes effect when that entry is folded. What goes out is a function of the ledger: after a
crash the server loads its checkpoint, folds the rest of the log and sends what it may not have sent before. A client
whose heartbeat shows that it has missed its newest assignment gets that again.

Nothing here looks at all clients for one entry: what is waited for is kept in the order in which it falls due.
"""

from __future__ import annotations

import heapq
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from math import inf, isfinite, isnan
from typing import Any, NamedTuple, TypeAlias

from offbeat.core.vectors import Payload, Vector
from offbeat.core.watcher import Watcher
from offbeat.deploy import encoding, wire
from offbeat.deploy.assignment import INLINE, Models, write_assignment
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.wire import LogEntry

PULSES = 8  # of the server, which a client may not have heard yet when it gives a sign of life
SCAN = 0.2  # seconds between two looks for leases that are over and clients not heard of
AGAIN = 5.0  # seconds after which something that was asked for and is not in the log is asked for again
LATE = 5.0  # seconds without an answer after which the last evaluation by the clients is over
SURE = 30.0  # seconds after which an assignment that was sent is taken to have been stored


class Put(NamedTuple):
    """Make this model available under its digest."""

    digest: str
    data: bytes


class Post(NamedTuple):
    """Send this assignment to its client."""

    client: int
    data: bytes


class Drop(NamedTuple):
    """No assignment names this model any more."""

    digest: str


class Append(NamedTuple):
    """Add this entry to the log, as the server."""

    data: bytes


class Consult(NamedTuple):
    """Ask the helper for the sums that are not open yet (`helping.write_helping`), or tell it that the run is over."""


Effect: TypeAlias = Put | Post | Drop | Append | Consult


class ServerCore:
    """One run's server.

    every: time between evaluations, in the experiment's unit; None: none.   asks: whether the clients evaluate, for a
    server without data.   wait: begin when so many clients are there; None: all.   `clock` is local seconds from
    anywhere.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger | None = None,
        watchers: Sequence[Watcher] = (),
        *,
        every: float | None = None,
        asks: bool = False,
        wait: int | None = None,
        inline: int = INLINE,
        reducer: Callable[..., Reducer] = Reducer,
    ) -> None:
        self.plan = plan
        self.reducer = reducer(plan, ledger, watchers)
        self.every, self.asks, self.inline = every, asks, inline
        self.shares = plan.personal is not None and not asks  # evaluates, and has the clients evaluate their own models
        self.wait = wait
        self.roster = b"" if plan.pairwise else None  # as the coordinator has signed it, for clients that need it
        self.models = Models()
        self.put: set[str] = set()  # models that this process has made available
        self.names: dict[int, frozenset[str]] = {}  # client -> the models that its assignment names
        self.named: dict[str, int] = {}  # model -> assignments that name it: it must not be removed
        self.heard: dict[int, float] = {}  # client -> when it last gave a sign of life
        self.silent: OrderedDict[int, float] = OrderedDict()  # the same of those present, the longest silence first
        self.posted: dict[int, float] = {}
        self.touched: OrderedDict[int, float] = OrderedDict()  # client -> when its assignment changed, the oldest first
        self.seen: dict[int, int] = {}  # client -> one more than the revision of the newest assignment it has
        self.last: dict[int, int] = {}  # client -> the revision of the last assignment that it waits for before it goes
        self.pending: OrderedDict[wire.FromServer, float] = OrderedDict()  # entries asked for, the oldest first
        # task -> of its evaluation, when it may be repeated, and the time of the last one in the log when it was begun
        self.scoring: dict[int, tuple[float, float]] = {}
        self.evaluated_at = 0.0  # when evaluations were last looked for
        ours = self.ledger
        self.alarms = [(when, number) for number, (when, _) in [*ours.alarms.items(), *ours.turns.items()]]  # a heap
        heapq.heapify(self.alarms)
        self.counted = ours.counter  # alarms that were put there
        guard = getattr(plan.server, "guard", None)  # its noise, if it adds any, is drawn from a secret
        self.secret = secrets.token_hex(32) if guard is not None and guard.limits and plan.secure is None else ""
        self.folded_at = 0.0
        self.answered_at = 0.0  # when a client last answered an evaluation, or the run ended
        self.consulted = float("-inf")  # when the helper was last asked
        self.scanned = float("-inf")
        self.code = ""  # of the last entry: "applied", why it was refused, or nothing

    @property
    def ledger(self) -> Ledger:
        return self.reducer.ledger

    def fold(self, entry: LogEntry, clock: float) -> list[Effect]:
        """Take an entry in and say what is to be sent."""
        before, asked = self._standing(entry.sender), self.ledger.asked
        closed = self._closed()
        self._take(entry, clock)
        if self.ledger.asked != asked:  # an evaluation has begun: the next one is asked for in the same words
            for each in [each for each in self.pending if isinstance(each, wire.Asked)]:
                del self.pending[each]
        if before != self._standing(entry.sender):  # it is new, not a copy sent by another party
            self._hear(self.reducer.index[entry.sender], clock)
        effects = [effect for client in self._changes(entry, clock) for effect in self.post(client, clock)]
        return [*effects, *self._consult(clock)] if self._closed() != closed else effects

    def _take(self, entry: LogEntry, clock: float) -> None:
        before = self._answers()
        self.code = self.reducer.fold(entry)
        self.folded_at = clock
        if self._answers() != before:
            self.answered_at = clock

    def _answers(self) -> tuple[Any, ...]:
        """What the end of a run waits for: it comes a bounded number of times, whatever else clients say."""
        ledger = self.ledger
        return ledger.stopped, ledger.asked, *(len(each.claims) for each in ledger.judging.values())

    def _closed(self) -> tuple[str, Sequence[int]]:
        """What the helper is told."""
        return self.ledger.stopped, [*self.ledger.closed]

    def _consult(self, clock: float) -> list[Effect]:
        self.consulted = clock
        return [Consult()] if self.plan.helped else []

    def _standing(self, sender: str) -> tuple[Any, ...]:
        """What a new message of a client changes."""
        client = self.reducer.index.get(sender)
        record = None if client is None else self.ledger.clients[client]
        return () if record is None else (record.epoch, record.seq, record.present)

    def replay(self, entry: LogEntry, clock: float) -> None:
        """Take an entry in while catching up or standing by; `boot` sends what is to be sent."""
        self._take(entry, clock)
        self._changes(entry, clock)

    def boot(self, clock: float) -> list[Effect]:
        """What may not have been sent: assignments of a run that begins, and those that the last entries changed.

        To be called before a server leads, and when it is connected again. An older assignment that was lost after all
        is sent when its client's heartbeat shows that.
        """
        ledger = self.ledger
        unsure = {client for client, when in self.touched.items() if self.folded_at - when <= SURE}
        unsure |= {client for client, record in enumerate(ledger.clients) if not record.revision}
        self.folded_at = self.answered_at = clock
        for client in self.reducer.traffic.census.present:
            self._hear(client, clock)
        self._name_all()
        return [*(effect for client in sorted(unsure) for effect in self.post(client, clock)), *self._consult(clock)]

    def beat(self, sender: str, data: bytes, clock: float, pulse: tuple[int, int] = (0, 0)) -> list[Effect]:
        """A sign of life; a client that has missed its newest assignment gets it again.

        pulse: (term, number) of our own last sign of life; one that answers to an older one than the last few is old,
        and one that answers to a later one was made for later.
        """
        try:
            message = encoding.unpack(data, 1 << 16, encoding.SHORT)
            beat = encoding.read(wire.Beat, message.header)
        except RefusedError:
            return []
        client = self.reducer.index.get(sender)
        if client is None or beat.client != sender or beat.run != self.plan.run:
            return []
        record = self.ledger.clients[client]
        if beat.epoch == record.epoch:
            self.seen[client] = max(beat.seen, self.seen.get(client, 0))  # which is so, whenever it was said
            if beat.term == pulse[0] and pulse[1] - PULSES <= beat.pulse <= pulse[1]:
                self._hear(client, clock)
        # one that is to begin anew in a restored run has seen assignments of the log before
        missed = beat.seen <= record.revision or (not record.nonce and beat.epoch < record.epoch)
        if missed and clock - self.posted.get(client, -1e9) >= 1.0:
            return self.post(client, clock)
        return []

    def due(self, clock: float) -> list[Effect]:
        """What is to be added to the log by now."""
        ledger = self.ledger
        self._forget_asked(clock)
        if ledger.stopped:
            late = clock - self.answered_at > LATE
            counted = [task for task, judging in ledger.judging.items() if late and not judging.unscored]
            return self._ask(clock, [wire.Counted(self.plan.run, task) for task in counted])
        if not ledger.begun:
            there = len(self.reducer.traffic.census.present)
            wanted = ledger.members if self.wait is None else self.wait
            return self._ask(clock, [wire.Begun(self.plan.run, self.secret)] if there >= wanted else [])
        again = self._consult(clock) if ledger.closed and clock - self.consulted >= AGAIN else []
        return [*self._ask(clock, self._overdue(clock)), *again]

    def wait_for(self, clock: float, most: float) -> float:
        """Seconds until an alarm is due, at most so many."""
        when = self._next_alarm()
        if when is None or self.ledger.stopped:
            return most
        return min(most, max(0.001, (when - self.now(clock)) * self.plan.unit))

    def next_evaluation(self, clock: float) -> list[int]:
        """Tasks that are to be evaluated by now; each is named once until its score is in the log."""
        ledger, found = self.ledger, list[int]()
        if self.every is None or self.asks or not ledger.begun:
            return found
        now, self.evaluated_at = self.now(clock), clock
        for task, last in enumerate(ledger.measured):
            over = ledger.ends.get(task, ledger.now) if task in ledger.finished or ledger.stopped else None
            if task in ledger.judging:
                wanted = ledger.judging[task].unscored
            else:
                wanted = last < over if over is not None else not self.shares and (last < 0 or now - last >= self.every)
            again, before = self.scoring.get(task, (-inf, last))
            if wanted and task not in ledger.unborn and (last != before or clock >= again):
                self.scoring[task] = clock + 60.0 + AGAIN, last
                found.append(task)
        return found

    def evaluated(self, task: int, clock: float) -> tuple[Vector, float, int, int]:
        """(model, time, updates, version) of an evaluation that begins now."""
        ledger = self.ledger
        if task in ledger.judging:
            judging = ledger.judging[task]
            return judging.vector, judging.time, judging.updates, judging.version
        model = self.plan.server.models(ledger.server)[task]
        if ledger.stopped or task in ledger.finished:
            now = ledger.ends.get(task, ledger.now)
        else:
            now = max(ledger.now, min(self.now(clock), self.plan.until.time or float("inf")))
        return model.vector, now, ledger.tally.updates, model.version

    def score(self, task: int, time: float, updates: int, version: int, metrics: dict[str, float]) -> Append:
        """The entry for an evaluation."""
        finite = {name: value for name, value in metrics.items() if isfinite(value)}
        scored = wire.Scored(self.plan.run, task, time, updates, version, finite, isnan(metrics.get("loss", 0.0)))
        if task in self.scoring:  # which is over once the score is in the log, unless it gets lost on its way there
            self.scoring[task] = self.evaluated_at + AGAIN, self.scoring[task][1]
        return Append(wire.say(scored))

    def now(self, clock: float) -> float:
        """The run's time, as well as one can know it between two entries."""
        return (self.ledger.seconds + max(0.0, clock - self.folded_at)) / self.plan.unit

    def post(self, client: int, clock: float) -> list[Effect]:
        """A client's assignment, with the models that it names."""
        effects, names = list[Effect](), set[str]()

        def put(name: str, data: bytes) -> None:
            names.add(name)
            if name not in self.put:
                self.put.add(name)
                effects.append(Put(name, data))

        assignment = write_assignment(self.plan.run, self.ledger, client, self.models, put, self.inline, self.roster)
        self.posted[client] = clock
        return [*effects, Post(client, assignment), *map(Drop, self._name(client, names))]

    def _changes(self, entry: LogEntry, clock: float) -> list[int]:
        """The clients whose assignments the last entry has changed."""
        traffic = self.reducer.traffic
        changed, traffic.changed = sorted(traffic.changed), set()
        for client in changed:
            self.touched[client] = clock
            self.touched.move_to_end(client)
            if self.ledger.stopped and not (entry.sender and _kind(entry) == "judged"):  # who says that goes then
                self.last[client] = self.ledger.clients[client].revision
        return changed

    def farewell(self) -> bool:
        """Whether the clients that are there know that the run is over, and have what they wait for."""
        there = ((client, record) for client, record in enumerate(self.ledger.clients) if record.present)
        return all(self.seen.get(client, 0) > self.last.get(client, record.revision) for client, record in there)

    def _name(self, client: int, names: Iterable[str]) -> list[str]:
        """A client's assignment names these models; gives those that none names any more."""
        before, after = self.names.get(client, frozenset()), frozenset(names)
        self.names[client] = after
        for name in after - before:
            self.named[name] = self.named.get(name, 0) + 1
        for name in before - after:
            self.named[name] -= 1
        gone = sorted(name for name in before - after if not self.named[name])
        for name in gone:
            del self.named[name]
            self.put.discard(name)
        return gone

    def _name_all(self) -> None:
        """Count the models that assignments of an earlier process may name: all that are not small."""
        ledger, known = self.ledger, dict[tuple[int, ...], str]()

        def name(payload: Payload) -> str:
            which = tuple(map(id, payload.values()))
            if which not in known:
                known[which] = self.models.pack(payload)[0]
            return known[which]

        asked: list[Payload] = [{"model": judging.vector} for judging in ledger.judging.values()]
        for client, record in enumerate(ledger.clients):
            if client not in self.names:
                numbers = [*record.queue, *(number for held in record.held.values() for number in held)]
                payloads = [*asked, *(payload for number in numbers if (payload := ledger.flights[number].payload))]
                size = sum(vector.nbytes for payload in payloads for vector in payload.values())
                self._name(client, map(name, payloads) if size > self.inline // 2 else ())

    def _hear(self, client: int, clock: float) -> None:
        self.heard[client] = self.silent[client] = clock
        self.silent.move_to_end(client)

    def _next_alarm(self) -> float | None:
        """When the next alarm is due that was not asked for."""
        ledger, alarms = self.ledger, self.alarms
        while self.counted < ledger.counter:
            self.counted += 1
            self._set_alarm(self.counted)
        while alarms and not (alarms[0][1] in ledger.alarms or alarms[0][1] in ledger.turns):
            heapq.heappop(alarms)
        return alarms[0][0] if alarms else None

    def _set_alarm(self, number: int) -> None:
        found = self.ledger.alarms.get(number) or self.ledger.turns.get(number)
        if found is not None:
            heapq.heappush(self.alarms, (found[0], number))

    def _overdue(self, clock: float) -> Iterator[wire.FromServer]:
        ledger, plan, now = self.ledger, self.plan, self.now(clock)
        if plan.until.time is not None and now > plan.until.time:
            yield wire.Halted(plan.run, "time")
        while (when := self._next_alarm()) is not None and now >= when:
            yield wire.Rung(plan.run, heapq.heappop(self.alarms)[1])
        if clock - self.scanned < SCAN:
            return
        self.scanned = clock
        for number, since in self.reducer.traffic.leases.items():
            if now - since <= ledger.limits.lease / plan.unit:
                break
            yield wire.Expired(plan.run, number)
        for client, _ in list(takewhile(lambda one: clock - one[1] > ledger.limits.patience, self.silent.items())):
            record = ledger.clients[client]
            if record.present:
                yield wire.Gone(plan.run, client, record.epoch)
            else:
                del self.silent[client]
        if (self.asks or self.shares) and self.every is not None:
            for task, last in enumerate(ledger.measured):
                judging = ledger.judging.get(task)
                asked = last if judging is None else inf if judging.unscored else judging.time
                if task not in ledger.finished and (asked < 0 or now - asked >= self.every):
                    yield wire.Asked(plan.run, task, self.shares)

    def _forget_asked(self, clock: float) -> None:
        """What was asked for long ago may be asked for again; an alarm that has not rung yet is set again."""
        while self.pending and clock - next(iter(self.pending.values())) >= AGAIN:
            what, _ = self.pending.popitem(last=False)
            if isinstance(what, wire.Rung):
                self._set_alarm(what.alarm)

    def _ask(self, clock: float, headers: Iterable[wire.FromServer]) -> list[Effect]:
        new = [header for header in headers if header not in self.pending]
        self.pending.update((header, clock) for header in new)
        return [Append(wire.say(header)) for header in new]


def _kind(entry: LogEntry) -> str:
    try:
        return encoding.unpack(entry.data).kind
    except RefusedError:
        return ""
