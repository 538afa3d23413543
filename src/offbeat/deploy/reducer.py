"""The server: a fold over the log.

The rules, before the code:

1. The log is totally ordered. Whatever changes the state is an entry of it: clients' greetings, results and farewells,
   and what the server itself adds: the beginning, alarms, expired leases, clients not heard of, evaluations, the end.
2. Time is the log's: the sum of the steps from one entry's stamp to the next, steps backwards left out. Random
   numbers are keyed by the position. So the same log gives the same state, bit for bit, whoever folds it and when.
3. Each (client, epoch, seq) is settled once, in log order, with a verdict: "applied", or the code under which it was
   refused. A message that comes again changes nothing. A job whose result is refused is `Lost`.
4. A client moves its memory on if the verdict is "applied" and in no other case. AREA's mean(y_i) = x + u rests on it.
5. A greeting with a larger epoch fences all smaller ones: what they had in flight is lost. It counts only if the
   greeting names the last message that was settled: the client's memory is then the one that the server knows of.
6. What goes out is a function of the state: every client's full assignment (its jobs, recalls, last verdict). It may be
   lost, doubled or overtaken; the newest one says everything.
7. Nothing that a client sends stops the fold. If an algorithm, or anything else in here, fails on a client's entry, the
   state is put back to what it was before it, and the entry is quarantined: counted and told to the client, and its job
   is lost. A failure is a function of the state and the entry, so whoever folds the log again quarantines the same.
8. What counts is in the log: limits, who may take part and with which keys, who leads. The first entry says with what
   the run began, later ones what has changed since. An entry of a client counts if it was verified with the keys that
   the client has at this place of the log, whatever the server that wrote it believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from offbeat.core.course import Course
from offbeat.core.errors import FolderError
from offbeat.core.events import Event, Job, Rang, Started, Update
from offbeat.core.state import copied
from offbeat.core.sums import Cohort, Secure
from offbeat.core.vectors import Vector
from offbeat.core.watcher import EventRow, Measurement, Watcher
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import ONCE, Limits
from offbeat.deploy.cohorts import PHASE, Cohorts
from offbeat.deploy.encoding import Message, RefusedError
from offbeat.deploy.evaluations import Evaluations
from offbeat.deploy.identity import HELPER
from offbeat.deploy.job_times import Trip, TripWatcher, trips
from offbeat.deploy.ledger import ClientRecord, Ledger, SentJob
from offbeat.deploy.past import LOST, TAKEN, TOLD, How, Past
from offbeat.deploy.plan import Plan
from offbeat.deploy.sessions import Sessions
from offbeat.deploy.sums import Sums
from offbeat.deploy.traffic import LoggedTraffic
from offbeat.deploy.verdicts import RESUME, Verdicts
from offbeat.deploy.view import LedgerView
from offbeat.deploy.wire import LogEntry

ORDERS = 1000  # questions that are remembered


class Reducer(Course[SentJob]):
    """Folds log entries into a ledger. `changed`: the clients whose assignments have changed since it was cleared.

    fault: why the last quarantined entry was.
    """

    sessions_type, verdicts_type = Sessions, Verdicts  # tests put mistakes there

    def __init__(self, plan: Plan, ledger: Ledger | None = None, watchers: Sequence[Watcher] = ()) -> None:
        self.plan = plan
        self.expected = [plan.expected(task) for task in range(len(plan.locals))]
        self.ledger = _first_ledger(plan) if ledger is None else ledger
        self.within = 0  # events of the present entry
        self.closing = 0  # number of the cohort whose updates arrive
        self.past, self.fault = Past(), ""
        self._equip(watchers)
        self.sessions, self.verdicts = self.sessions_type(self), self.verdicts_type(self)
        self.evaluations, self.sums = Evaluations(self), Sums(self)
        if ledger is None:
            self.draws.renew(0)
            self.begin(plan.initial)
            self._track()

    def _track(self) -> None:
        if self.plan.secure is None:  # otherwise no client's own model is the server's to know
            self.server.track(self.ledger.server, self.plan.initial, self.view)

    def _equip(self, watchers: Sequence[Watcher]) -> None:
        """Everything that follows from the ledger."""
        plan = self.plan
        self.index = {record.name: number for number, record in enumerate(self.ledger.clients)}
        self.traffic = LoggedTraffic(self.ledger, plan)
        self.draws = LedgerView(self.ledger, plan.seed, self.traffic.census)
        self.cohorts = Cohorts(self) if plan.pairwise else None
        Course.__init__(
            self,
            self.ledger,
            plan.server,
            plan.locals,
            plan.until,
            plan.measured,
            plan.terms,
            self.draws,
            self.traffic,
            watchers,
            plan.secure,
        )

    def watch(self, watchers: Sequence[Watcher]) -> None:
        self.told = list[Callable[[], None]]()  # what watchers are to hear of the present entry, once it is folded
        super().watch([_Later(each.watcher if isinstance(each, _Later) else each, self.told) for each in watchers])

    @property
    def changed(self) -> set[int]:
        return self.traffic.changed

    def model(self, task: int) -> Vector:
        """A task's model now."""
        vector: Vector = self.server.models(self.ledger.server)[task].vector
        return vector

    def fold(self, entry: LogEntry) -> str:
        """Take one entry in; gives "applied", "", or the code under which it was refused.

        Fails only on an entry of the server's own, or if this machine fails.
        """
        if entry.seq <= self.ledger.position:
            return ""
        self.past.keep(self.ledger)
        code, how = self._contained(entry)
        self.past.entries.append((entry, how))
        self.past.size += len(entry.data)
        told, self.told[:] = [*self.told], []
        for tell in told:
            tell()
        return code

    def _contained(self, entry: LogEntry) -> tuple[str, How]:
        """The entry folded; if that fails, quarantined; if the algorithm cannot even take the loss of its job, without.

        Gives its code, and how it was folded.
        """
        for how in (TAKEN, LOST):
            try:
                return self._take(entry, how), how
            except Exception as error:
                if not entry.sender or not _repeatable(error):
                    raise
                self.fault = f"{type(error).__name__}: {error}"
                self._put_back()
        return self._take(entry, TOLD), TOLD

    def _put_back(self) -> None:
        """The state before the present entry."""
        changed, watchers, before = self.changed, self.watchers, copied(self.past.before)
        for each in fields(self.ledger):
            setattr(self.ledger, each.name, getattr(before, each.name))
        self._equip(watchers)
        for entry, how in self.past.entries:
            self._take(entry, how)
        self.traffic.changed |= changed
        self.told.clear()

    def _take(self, entry: LogEntry, how: How) -> str:
        ledger = self.ledger
        ledger.position = entry.seq
        self._pass(entry.stamp)
        ledger.tally.bytes += len(entry.data)
        self.within = 0
        try:
            if how != TAKEN:
                self._quarantine(entry, how)
                raise RefusedError("quarantined", "the fold failed on it")
            message = encoding.unpack(entry.data, ledger.limits.size if entry.sender else encoding.LIMIT)
            if message.header.get("run") != self.plan.run:
                raise RefusedError("run", "meant for another run")
            code = self._client(entry, message) if entry.sender else self._own(message)
        except RefusedError as error:
            code = error.code
            if code == "version" and not entry.sender:
                raise FolderError(f"the log of {self.plan.run} has {error}") from None
            ledger.tally.refused[code] = ledger.tally.refused.get(code, 0) + 1
        if self.cohorts is not None and ledger.begun and not ledger.stopped:
            self.cohorts.look()
            assert self.plan.secure is not None
            self._look_at_sums(self.plan.secure)
        return code

    def _quarantine(self, entry: LogEntry, how: How) -> None:
        """Tell the client about an entry that the fold has failed on; its job is lost, unless that fails as well."""
        client = self.index.get(entry.sender)
        try:
            header: wire.Header = wire.heard(encoding.unpack(entry.data, self.ledger.limits.size))
        except Exception:  # there is nobody to tell
            return
        if client is None or not isinstance(header, wire.ClientHeader) or header.client != entry.sender:
            return
        record, digest = self.ledger.clients[client], encoding.digest(entry.data)
        if isinstance(header, wire.Hello):
            record.turned_away = (header.nonce, "quarantined")
        elif isinstance(header, wire.Trained) and (header.epoch, header.seq) == (record.epoch, record.seq + 1):
            record.seq, record.digest, record.verdict = header.seq, digest, "quarantined"
            flight = self.ledger.flights.get(header.job)
            if how == LOST and flight is not None and flight.job.client == client:
                self.lose(flight, "refused: quarantined")
            self.verdicts.strike(client)
        self.traffic.touch(client)

    def _pass(self, stamp: float) -> None:
        """Time goes on; if it has run out, the run ends before this entry counts."""
        ledger, limit = self.ledger, self.plan.until.time
        if ledger.begun:
            ledger.seconds += max(0.0, stamp - ledger.stamp)
        ledger.stamp = stamp
        if not ledger.stopped:
            ledger.now = ledger.seconds / self.plan.unit
            if limit is not None and ledger.now > limit:
                ledger.now = limit
                self.end("time")

    def _client(self, entry: LogEntry, message: Message) -> str:
        client = self.index.get(entry.sender)
        if entry.sender == HELPER and message.header.get("client") == HELPER:
            return self.sums.heard(entry, message)
        if client is None or message.header.get("client") != entry.sender:
            raise RefusedError("identity", f"sent as {entry.sender!r}")
        record = self.ledger.clients[client]
        if entry.keys != (record.account, record.sign, record.seal):
            raise RefusedError("keys", f"verified with other keys than {entry.sender!r} has here")
        header: wire.Header = wire.heard(message)
        match header:
            case wire.Hello():
                return self.sessions.hello(client, header)
            case wire.Trained():
                return self.verdicts.of(client, header, message, encoding.digest(entry.data))
            case wire.Bye():
                return self.sessions.bye(client, header)
            case wire.Judged():
                return self.evaluations.judged(client, header)
            case wire.Dealt() if self.cohorts is not None:
                return self.cohorts.shared(client, header.number, message)
            case wire.Masked() if self.cohorts is not None:
                return self.cohorts.masked(client, header.number, message)
            case wire.Accused() if self.cohorts is not None:
                return self.cohorts.accused(client, header.number, message)
            case wire.Revealed() if self.cohorts is not None:
                return self.cohorts.revealed(client, header.number, message)
        raise RefusedError("malformed", "a kind of message that clients do not send")

    def _own(self, message: Message) -> str:
        """What the server itself has added; each takes effect once, however often it was added."""
        ledger = self.ledger
        header: wire.Header = wire.heard(message)
        match header:
            case wire.Opening() if self._opens(header):
                self._open(header, message)
            case wire.Limited():
                ledger.limits = Limits.read(header.limits)
            case wire.Rostered():
                ledger.roster = max(ledger.roster, header.serial)
            case wire.Enrolled() if header.client == len(ledger.clients) and header.name not in self.index:
                self.sessions.enrol(header)
            case wire.Removed() if header.client < len(ledger.clients):
                self.sessions.remove(header.client)
            case wire.Rekeyed() if header.client < len(ledger.clients):
                record = ledger.clients[header.client]
                record.account, record.sign, record.seal = header.account, header.sign, header.seal
                ledger.rekeyed += 1
                if self.cohorts is not None:
                    self.cohorts.rekeyed(header.client)
            case wire.Helped():
                ledger.helper = (header.account, header.sign, header.seal)
            case wire.Led() if header.term > ledger.term:
                ledger.term, ledger.leader = header.term, header.server
            case wire.Restored() if not ledger.stopped:
                self.sessions.restore(header)
            case wire.Begun() if not ledger.begun:
                ledger.secret = header.secret
                self._begin()
            case wire.Rung():
                self._ring(header.alarm)
            case wire.Expired():
                flight = ledger.flights.get(header.job)
                if flight is not None and not ledger.stopped:
                    self.lose(flight, "expired")
            case wire.Gone():
                if header.client < len(ledger.clients) and ledger.clients[header.client].epoch == header.epoch:
                    self.sessions.leave(header.client)
            case wire.Scored():
                self.evaluations.score(header)
            case wire.Asked() if not ledger.stopped:
                ledger.scores = header.scored
                self.evaluations.ask(header.task)
            case wire.Counted():
                self.evaluations.count(header.task)
            case wire.Halted():
                self.end(header.reason)
            case wire.Ordered() if header.id not in ledger.orders:
                ledger.orders = [*ledger.orders, header.id][-ORDERS:]
                return self._ordered(message)
        return ""

    def _ordered(self, order: Message) -> str:
        _, entry = order.parts.get("entry", ("", memoryview(b"")))
        message = encoding.unpack(entry)
        if message.kind == order.kind or message.header.get("run") != self.plan.run:
            raise RefusedError("malformed", "not an entry that can be ordered in this run")
        return self._own(message)

    def _opens(self, opening: wire.Opening) -> bool:
        """Whether this is the next part of the beginning."""
        ledger = self.ledger
        untouched = not ledger.begun and not any(record.epoch for record in ledger.clients)
        return untouched and opening.first == (len(ledger.clients) if ledger.version else 0)

    def _open(self, opening: wire.Opening, message: Message) -> None:
        """The run as it is opened: the log says who takes part, whatever the plan says."""
        ledger = self.ledger
        if opening.version != encoding.VERSION:
            raise FolderError(
                f"the log of {self.plan.run} was begun with version {opening.version} of the protocol, and this is "
                f"version {encoding.VERSION}; go on with the release of offbeat that began it"
            )
        ledger.version, ledger.limits = opening.version, Limits.read(opening.limits)
        kept = ledger.clients[: opening.first] if opening.first else []
        rows = encoding.read_json(bytes(message.parts["roster"][1]))
        ledger.clients = [*kept, *(ClientRecord(name, account, sign, seal) for name, account, sign, seal in rows)]
        ledger.members = len(ledger.clients)
        self._equip(self.watchers)
        self.traffic.changed |= set(range(len(ledger.clients)))
        self._track()

    def _begin(self) -> None:
        ledger = self.ledger
        ledger.begun = True
        for when, task in self.turns():
            ledger.counter += 1
            ledger.turns[ledger.counter] = (when, task)
        self.handle(Started())

    def _ring(self, number: int) -> None:
        ledger = self.ledger
        when, key = ledger.alarms.pop(number, (0.0, None))
        if ledger.stopped:
            return
        if key is not None and key.startswith(PHASE) and self.cohorts is not None:
            self.cohorts.ring(key)
        elif key is not None and key.startswith(RESUME):
            self.traffic.resume(int(key.removeprefix(RESUME)))
        elif key is not None:
            ledger.now = max(ledger.now, when)
            self.handle(Rang(key))
        elif number in ledger.turns:
            self.turn(ledger.turns.pop(number)[1])

    # What the course of events leaves to a runtime

    def handle(self, event: Event, flight: SentJob | None = None, staleness: int = -1, result: Any = None) -> None:
        if self.ledger.begun:
            self.within += 1
            self.draws.renew(self.within)
            super().handle(event, flight, staleness, result)

    def close_task(self, task: int, reason: str) -> None:
        if not self.ledger.stopped:
            super().close_task(task, reason)

    def alarm(self, time: float, key: str) -> None:
        self.ledger.counter += 1
        self.ledger.alarms[self.ledger.counter] = (time, key)

    def times(self, flight: SentJob, result: wire.Trained | None) -> tuple[float, float, float]:
        """As the client measured them."""
        if result is None:
            return flight.sent, flight.since, flight.since
        now, unit = self.ledger.now, self.plan.unit
        started = min(now, flight.sent + (result.download + result.wait) / unit)
        return flight.sent, started, min(now, started + result.compute / unit)

    def place(self) -> str:
        return f"at log position {self.ledger.position}"

    def report(self, event: Event, flight: SentJob | None, staleness: int, result: wire.Trained | None) -> None:
        super().report(event, flight, staleness, result)
        for watcher in self.listeners:
            if isinstance(watcher, _Later) and watcher.trips and flight is not None and result is not None:
                for trip in trips(self.plan, self.ledger, flight, result):
                    watcher.trip(trip)

    def ready(self, task: int) -> int:
        flights = self.ledger.flights
        return sum(flights[job].job.task == task for job in self.ledger.ready)

    def members(self) -> int:
        return sum(not (record.removed or record.left_out) for record in self.ledger.clients)

    def sum_of(self, job: Job) -> Cohort:
        return self.ledger.closed[self.closing] if self.closing else super().sum_of(job)

    def complete(self, cohort: Cohort, size: int, secure: Secure) -> bool:
        if not self.closing:
            return super().complete(cohort, size, secure)
        return cohort.count == len(self.ledger.gatherings[self.closing].survivors)

    def collect(self, cohort: Cohort, update: Update, result: wire.Trained) -> None:
        """Put the masked numbers of an update into a sum, and keep what the helper needs for its mask."""
        record, (name,) = self.ledger.clients[update.job.client], self.locals[update.job.task].sends
        cohort.add(update.job.client, update[name])
        once = bytes(update[ONCE].tolist()).hex()
        cohort.tickets.append((record.name, result.epoch, result.seq, record.seal, once))

    def unmask(self, number: int) -> None:
        """The helper is asked: what it is asked is a function of the ledger."""

    def look(self, task: int) -> None:
        if self.ledger.asked and self.ledger.measured[task] < self.ledger.now:
            self.evaluations.ask(task)

    def over(self) -> None:
        if self.ledger.asked:  # the clients evaluate: once more, at the end
            for task in range(len(self.locals)):
                self.evaluations.ask(task)
        if self.cohorts is not None:
            self.cohorts.over()
        for client in range(len(self.ledger.clients)):
            self.traffic.touch(client)


class _Later:
    """A watcher that is told about an entry when that is folded, and never about one that was put back."""

    def __init__(self, watcher: Watcher, told: list[Callable[[], None]]) -> None:
        self.watcher, self.told = watcher, told
        self.keep_events = getattr(watcher, "keep_events", True)
        self.trips = isinstance(watcher, TripWatcher)

    def event(self, row: EventRow) -> None:
        self.told.append(partial(self.watcher.event, row))

    def measured(self, measurement: Measurement) -> None:
        self.told.append(partial(self.watcher.measured, measurement))

    def trip(self, trip: Trip) -> None:
        self.told.append(partial(self.watcher.trip, trip))  # type: ignore[attr-defined]


def _first_ledger(plan: Plan) -> Ledger:
    clients = [ClientRecord(name) for name in plan.roster]
    return Ledger(clients=clients, members=len(clients), limits=plan.limits)


def _repeatable(error: BaseException) -> bool:
    """Whether the fold would fail again in the same place: memory or a disk that is full is this machine's affair."""
    while error.__cause__ is not None:
        error = error.__cause__
    return not isinstance(error, MemoryError | OSError) and "allocate" not in str(error)
