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
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any, NamedTuple

from offbeat.core.course import Course
from offbeat.core.errors import DivergedError
from offbeat.core.events import Event, Job, Rang, Started, Update
from offbeat.core.vectors import Vector
from offbeat.core.watcher import Measurement, Watcher
from offbeat.deploy import wire
from offbeat.deploy.admission import APPLIED, admit
from offbeat.deploy.job_times import TripWatcher, trips
from offbeat.deploy.ledger import ClientRecord, Judging, Ledger, SentJob
from offbeat.deploy.plan import Plan
from offbeat.deploy.traffic import LoggedTraffic
from offbeat.deploy.view import LedgerView
from offbeat.deploy.wire import Message, RefusedError

_NAN = float("nan")


class LogEntry(NamedTuple):
    """One entry of the log. sender: a client's name as the broker vouches for it, "" for the server."""

    seq: int
    stamp: float  # seconds
    sender: str
    data: bytes


class Reducer(Course[SentJob]):
    """Folds log entries into a ledger. `changed`: the clients whose assignments have changed since it was cleared."""

    def __init__(self, plan: Plan, ledger: Ledger | None = None, watchers: Sequence[Watcher] = ()) -> None:
        self.plan = plan
        self.index = {name: number for number, name in enumerate(plan.roster)}
        self.expected = [plan.expected(task) for task in range(len(plan.locals))]
        self.ledger = Ledger(clients=[ClientRecord() for _ in plan.roster]) if ledger is None else ledger
        self.traffic = LoggedTraffic(self.ledger, plan)
        self.within = 0  # events of the present entry
        self.draws = LedgerView(self.ledger, plan.seed)
        super().__init__(
            self.ledger, plan.server, plan.locals, plan.until, plan.terms, self.draws, self.traffic, watchers
        )
        if ledger is None:
            self.draws.renew(0)
            self.begin(plan.initial)

    @property
    def changed(self) -> set[int]:
        return self.traffic.changed

    def model(self, task: int) -> Vector:
        """A task's model now."""
        vector: Vector = self.server.models(self.ledger.server)[task].vector
        return vector

    # Folding

    def fold(self, entry: LogEntry) -> str:
        """Take one entry in; gives "applied", "", or the code under which it was refused."""
        ledger = self.ledger
        if entry.seq <= ledger.position:
            return ""
        ledger.position = entry.seq
        self._pass(entry.stamp)
        ledger.tally.bytes += len(entry.data)
        self.within = 0
        try:
            message = wire.unpack(entry.data, self.plan.limits.size)
            if message.header.get("run") != self.plan.run:
                raise RefusedError("run", "meant for another run")
            code = self._client(entry, message) if entry.sender else self._own(message)
        except RefusedError as error:
            code = error.code
            ledger.tally.refused[code] = ledger.tally.refused.get(code, 0) + 1
        return code

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
        if client is None or message.header.get("client") != entry.sender:
            raise RefusedError("identity", f"sent as {entry.sender!r}")
        header: wire.Header = wire.heard(message)
        match header:
            case wire.Hello():
                return self._hello(client, header)
            case wire.Trained():
                return self._result(client, header, message, wire.digest(entry.data))
            case wire.Bye():
                return self._bye(client, header)
            case wire.Judged():
                return self._judged(client, header)
            case wire.Oversized():
                raise RefusedError("oversized", f"in pieces, more than {self.plan.limits.size} bytes")
        raise RefusedError("malformed", "of a kind that clients do not send")

    def _own(self, message: Message) -> str:
        """What the server itself has added; each takes effect once, however often it was added."""
        ledger = self.ledger
        header: wire.Header = wire.heard(message)
        match header:
            case wire.Begun() if not ledger.begun:
                self._begin()
            case wire.Rung():
                self._ring(header.alarm)
            case wire.Expired():
                flight = ledger.flights.get(header.job)
                if flight is not None and not ledger.stopped:
                    self.lose(flight, "expired")
            case wire.Gone():
                if header.client < len(ledger.clients) and ledger.clients[header.client].epoch == header.epoch:
                    self._leave(header.client)
            case wire.Scored():
                self._scored(header)
            case wire.Asked() if not ledger.stopped:
                self._ask(header.task)
            case wire.Halted():
                self.end(header.reason)
            case wire.Retired():
                if header.client < len(ledger.clients):
                    ledger.clients[header.client].retired = True
                    self._leave(header.client)
        return ""

    # Clients

    def _hello(self, client: int, hello: wire.Hello) -> str:
        record = self.ledger.clients[client]
        try:
            self._admit(record, hello)
        except RefusedError as error:
            record.turned_away = (hello.nonce, error.code)
            self.traffic.touch(client)
            raise
        if hello.epoch > record.epoch:
            self._leave(client)
            record.epoch, record.nonce = hello.epoch, hello.nonce
            record.seq, record.digest, record.verdict = 0, "", ""
        self.traffic.touch(client)
        if not record.present and not self.ledger.stopped:
            self.joined(client)
        return ""

    def _admit(self, record: ClientRecord, hello: wire.Hello) -> None:
        if record.retired:
            raise RefusedError("retired", "this client was retired")
        if hello.epoch < record.epoch or (hello.epoch == record.epoch and hello.nonce != record.nonce):
            raise RefusedError("fenced", "another copy of this client has taken over")
        if hello.epoch > record.epoch and (hello.after_epoch, hello.after_seq) != (record.epoch, record.seq):
            raise RefusedError("behind", "the client does not know of its last message that was settled")

    def _bye(self, client: int, bye: wire.Bye) -> str:
        self._check_epoch(self.ledger.clients[client], bye.epoch)
        self._leave(client)
        return ""

    def _leave(self, client: int) -> None:
        if self.ledger.clients[client].present:
            self.left(client)

    def _check_epoch(self, record: ClientRecord, epoch: int) -> None:
        if epoch < record.epoch:
            raise RefusedError("fenced", "from before another copy of this client took over")
        if epoch > record.epoch:
            raise RefusedError("epoch", "from an epoch that has not been greeted")

    def _result(self, client: int, result: wire.Trained, message: Message, digest: str) -> str:
        record = self.ledger.clients[client]
        self._check_epoch(record, result.epoch)
        if self._settled(record, result, digest):
            self.traffic.changed.add(client)  # it has missed the answer: its assignment goes out again
            self.ledger.tally.repeated += 1
            return ""
        record.seq, record.digest = result.seq, digest
        self.traffic.touch(client)
        record.verdict = APPLIED  # unless something below objects; handlers run last
        try:
            self._settle(client, result, message)
        except RefusedError as error:
            record.verdict = error.code
            flight = self.ledger.flights.get(result.job)
            if flight is not None and flight.job.client == client and error.code not in ("uncalled", "over"):
                self.lose(flight, f"refused: {error.code}")
            raise
        return APPLIED

    def _settled(self, record: ClientRecord, result: wire.Trained, digest: str) -> bool:
        """Whether this message has had its verdict."""
        if result.seq == record.seq and digest == record.digest:
            return True
        if result.seq <= record.seq:
            raise RefusedError("replay", "a number that is settled, with another content")
        if result.seq != record.seq + 1:
            raise RefusedError("order", f"number {result.seq} after {record.seq}")
        return False

    def _settle(self, client: int, result: wire.Trained, message: Message) -> None:
        ledger, plan = self.ledger, self.plan
        if ledger.stopped:
            raise RefusedError("over", "the run is over")
        flight = ledger.flights.get(result.job)
        if flight is None or flight.job.client != client:
            raise RefusedError("late", "the job is not in flight any more")
        job = flight.job
        if result.error:
            self.lose(flight, f"failed: {result.error[:200]}")
            return
        if job.hold and job.task not in ledger.clients[client].recalls:
            raise RefusedError("uncalled", "held work that nobody asked for")
        partial = job.hold and ledger.clients[client].recalls[job.task]
        if result.steps > job.steps or (result.steps < job.steps and not partial):
            raise RefusedError("steps", f"{result.steps} local steps of {job.steps}")
        version = plan.server.models(ledger.server)[job.task].version
        self._fresh(ledger.clients[client], job, version)
        dtype = wire._NAMES[plan.initial[job.task].dtype]
        vectors = admit(message, self.expected[job.task], dtype, plan.limits)
        ledger.clients[client].slots[job.task] = version
        ledger.tally.computed += 1
        self.arrived(flight, Update(job._replace(steps=result.steps), vectors), result)

    def _fresh(self, record: ClientRecord, job: Job, version: int) -> None:
        limits = self.plan.limits
        if limits.window is not None and version - job.version > limits.window:
            raise RefusedError("stale", f"{version - job.version} versions old, at most {limits.window} are taken")
        if limits.slot and record.slots.get(job.task) == version:
            raise RefusedError("slot", "its second update since the last server step")

    # The server's own entries

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
        if key is not None:
            ledger.now = max(ledger.now, when)
            self.handle(Rang(key))
        elif number in ledger.turns:
            self.turn(ledger.turns.pop(number)[1])

    def _scored(self, scored: wire.Scored) -> None:
        ledger = self.ledger
        if scored.task >= len(self.plan.locals) or ledger.measured[scored.task] >= scored.time:
            return
        ledger.measured[scored.task] = scored.time
        metrics = {**scored.metrics, "loss": _NAN} if scored.diverged else scored.metrics
        try:
            self.scored(Measurement(scored.task, scored.time, scored.updates, scored.version, metrics))
        except DivergedError as error:
            ledger.diverged = ledger.diverged or str(error)
            self.end("diverged")

    def _ask(self, task: int) -> None:
        ledger = self.ledger
        if task >= len(self.plan.locals) or task in ledger.finished:
            return
        self._count(task)  # what the last question has brought
        ledger.asked += 1
        model = self.server.models(ledger.server)[task]
        ledger.judging[task] = Judging(
            ledger.asked, task, ledger.now, ledger.tally.updates, model.version, model.vector
        )
        for client in self.view.everyone():
            self.traffic.touch(client)

    def _judged(self, client: int, judged: wire.Judged) -> str:
        self._check_epoch(self.ledger.clients[client], judged.epoch)
        for judging in self.ledger.judging.values():
            if judging.number == judged.number and judged.right <= judged.total:
                judging.counts[client] = (judged.right, judged.total, _NAN if judged.diverged else judged.loss)
                self.traffic.touch(client)
                if all(c in judging.counts for c in self.view.everyone()):
                    self._count(judging.task)
                break
        return ""

    def _count(self, task: int) -> None:
        """An evaluation by the clients is over, with the answers that came."""
        judging = self.ledger.judging.pop(task, None)
        if judging is None or not any(total for _, total, _ in judging.counts.values()):
            return
        answers = judging.counts.values()
        finite = [(total, loss) for _, total, loss in answers if not isnan(loss)]  # one client ends no run
        samples = sum(total for total, _ in finite)
        metrics = {"accuracy": sum(right for right, _, _ in answers) / sum(total for _, total, _ in answers)}
        if samples:
            metrics["loss"] = sum(loss for _, loss in finite) / samples
        run, version = self.plan.run, judging.version
        self._scored(wire.Scored(run, task, judging.time, judging.updates, version, metrics, not samples))

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
            if isinstance(watcher, TripWatcher) and flight is not None and result is not None:
                for trip in trips(self.plan, self.ledger, flight, result):
                    watcher.trip(trip)

    def over(self) -> None:
        if self.ledger.asked:  # the clients evaluate: once more, at the end
            for task in range(len(self.locals)):
                self._ask(task)
        for client in range(len(self.ledger.clients)):
            self.traffic.touch(client)
