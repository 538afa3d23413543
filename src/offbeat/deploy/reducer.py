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

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from offbeat.core.course import Course
from offbeat.core.errors import DivergedError, FolderError
from offbeat.core.events import Event, Job, Rang, Started, Update
from offbeat.core.metric import Metric, in_order, own_metric
from offbeat.core.server import SPENT
from offbeat.core.state import copied
from offbeat.core.sums import Cohort, Secure
from offbeat.core.vectors import Payload, Vector
from offbeat.core.watcher import EventRow, Measurement, Watcher
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import APPLIED, ONCE, Limits, admit, admit_masked, read_words
from offbeat.deploy.cohorts import PHASE, Cohorts
from offbeat.deploy.encoding import Message, RefusedError
from offbeat.deploy.identity import HELPER
from offbeat.deploy.job_times import Trip, TripWatcher, trips
from offbeat.deploy.judging import Verdict, objection, out_of_range, weigh
from offbeat.deploy.ledger import ClientRecord, Judging, Ledger, SentJob
from offbeat.deploy.norms import UsualNorms, check_norms
from offbeat.deploy.past import LOST, TAKEN, TOLD, How, Past
from offbeat.deploy.plan import Plan
from offbeat.deploy.traffic import LoggedTraffic
from offbeat.deploy.view import LedgerView
from offbeat.deploy.wire import LogEntry
from offbeat.privacy.secure.tickets import LIFE
from offbeat.simulate.personal import counted, summarise

STRIKES = 3  # results refused in a row after which a client's next job comes after a pause
PAUSE, LONGEST = 0.25, 60.0  # seconds: the first pause, which doubles, and the longest
ORDERS = 1000  # questions that are remembered
RESUME = "\0resume:"  # the key of the alarm at the end of a pause
WAITS = ("uncalled", "over", "paused")  # codes of refusals after which the job is in flight as before

_NAN = float("nan")


class Reducer(Course[SentJob]):
    """Folds log entries into a ledger. `changed`: the clients whose assignments have changed since it was cleared.

    fault: why the last quarantined entry was.
    """

    def __init__(self, plan: Plan, ledger: Ledger | None = None, watchers: Sequence[Watcher] = ()) -> None:
        self.plan = plan
        self.expected = [plan.expected(task) for task in range(len(plan.locals))]
        self.ledger = _first_ledger(plan) if ledger is None else ledger
        self.within = 0  # events of the present entry
        self.closing = 0  # number of the cohort whose updates arrive
        self.past, self.fault = Past(), ""
        self._equip(watchers)
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

    # Folding

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
            self._strike(client)
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
            return self._helper(entry, message)
        if client is None or message.header.get("client") != entry.sender:
            raise RefusedError("identity", f"sent as {entry.sender!r}")
        record = self.ledger.clients[client]
        if entry.keys != (record.account, record.sign, record.seal):
            raise RefusedError("keys", f"verified with other keys than {entry.sender!r} has here")
        header: wire.Header = wire.heard(message)
        match header:
            case wire.Hello():
                return self._hello(client, header)
            case wire.Trained():
                return self._result(client, header, message, encoding.digest(entry.data))
            case wire.Bye():
                return self._bye(client, header)
            case wire.Judged():
                return self._judged(client, header)
            case wire.Dealt() if self.cohorts is not None:
                return self.cohorts.shared(client, header.number, message)
            case wire.Masked() if self.cohorts is not None:
                return self.cohorts.masked(client, header.number, message)
            case wire.Accused() if self.cohorts is not None:
                return self.cohorts.accused(client, header.number, message)
            case wire.Revealed() if self.cohorts is not None:
                return self.cohorts.revealed(client, header.number, message)
        raise RefusedError("malformed", "of a kind that clients do not send")

    def _helper(self, entry: LogEntry, message: Message) -> str:
        """The helper has opened a sum, or says that it will not; once each."""
        ledger, header = self.ledger, wire.heard(message)
        if not isinstance(header, wire.Unmasked):
            raise RefusedError("malformed", "of a kind that helpers do not send")
        if entry.keys != ledger.helper:
            raise RefusedError("keys", "verified with other keys than the helper has here")
        if header.number not in ledger.closed or ledger.stopped:
            ledger.tally.repeated += 1
            return ""
        cohort = ledger.closed[header.number]
        if header.error:
            self.unopened(header.number, f"the helper refuses: {encoding.writable(header.error)}")
            raise RefusedError("masks", header.error)
        dim = self.plan.initial[cohort.task].numel()
        if (
            message.parts.keys() != {"masks"}
            or message.parts["masks"][0] != "bytes"
            or message.length("masks") != 4 * dim
        ):
            raise RefusedError("length", f"not the masks of {dim} numbers")
        return self.unmasked(header.number, read_words(message, "masks"))

    def unmasked(self, number: int, masks: Vector) -> str:
        """The masks of a sum are known: it is open, if they fit."""
        cohort, secure = self.ledger.closed[number], self.plan.secure
        if secure is None or not cohort.fits(masks, self.server.adds(cohort.task) or 1, secure):
            self.unopened(number, "a client's mask is not the one that it has told of")
            raise RefusedError("masks", "what they leave is not a sum of updates")
        self.summed(number, masks)
        return APPLIED

    def unopened(self, number: int, why: str) -> None:
        """A sum will never be open: its updates are lost; if clients remember them as sent, the run cannot go on."""
        task = self.ledger.closed[number].task
        self.ledger.unopened += 1
        if self.plan.agrees[task] and task not in self.ledger.finished:
            self.end(f"sum {number} cannot be opened, and its clients have moved on: {why}")
        self.give_up(number)
        self._end_at_updates()

    def ready(self, task: int) -> int:
        flights = self.ledger.flights
        return sum(flights[job].job.task == task for job in self.ledger.ready)

    def members(self) -> int:
        return sum(not (record.removed or record.left_out) for record in self.ledger.clients)

    def leave_out(self, client: int) -> None:
        """A client is sent nothing any more, and sums do not wait for it."""
        for waiting in self.ledger.rested.values():
            waiting.pop(client, None)
        self._leave(client)
        if self.cohorts is not None:
            self.cohorts.removed()

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
                self._enrol(header)
            case wire.Removed() if header.client < len(ledger.clients):
                self._remove(header.client)
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
                self._restore(header)
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
                    self._leave(header.client)
            case wire.Scored():
                self._score(header)
            case wire.Asked() if not ledger.stopped:
                ledger.scores = header.scored
                self._ask(header.task)
            case wire.Counted():
                self._count(header.task)
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
            record.seq, record.digest, record.verdict, record.resync = 0, "", "", {}
            record.cancelled, record.attempt = [], 0
        self.traffic.touch(client)
        if not record.present and not self.ledger.stopped:
            record.since = self.ledger.position
            self.joined(client)
        return ""

    def _admit(self, record: ClientRecord, hello: wire.Hello) -> None:
        if record.removed:
            raise RefusedError("removed", "this client was removed")
        if record.left_out:
            raise RefusedError("balks", "this client is left out")
        if hello.epoch < record.epoch or (hello.epoch == record.epoch and hello.nonce != record.nonce):
            raise RefusedError("fenced", "another copy of this client has taken over")
        if hello.epoch > record.epoch + 1:
            raise RefusedError("epoch", f"epoch {hello.epoch} after {record.epoch}")
        if hello.epoch > record.epoch and (hello.after_epoch, hello.after_seq) != (record.epoch, record.seq):
            raise RefusedError("behind", "the client does not know of its last message that was settled")
        if not record.present:
            self._check_seen(record, hello.seen)

    def _bye(self, client: int, bye: wire.Bye) -> str:
        record = self.ledger.clients[client]
        self._check_epoch(record, bye.epoch)
        if record.present:
            self._check_seen(record, bye.seen)
        self._leave(client)
        return ""

    def _check_seen(self, record: ClientRecord, seen: int) -> None:
        """A greeting knows that the client was gone, a farewell that it was there: not so if they are said again."""
        if seen <= record.since and record.since:
            raise RefusedError("replay", "from before the client last came or left")

    def _leave(self, client: int) -> None:
        record = self.ledger.clients[client]
        if record.present:
            record.since = self.ledger.position
            self.traffic.touch(client)
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
        if self.cohorts is not None and self.cohorts.known(client, result, digest):
            self.traffic.changed.add(client)
            self.ledger.tally.repeated += 1
            return ""
        before = record.seq, record.digest, record.verdict
        record.seq, record.digest = result.seq, digest
        self.traffic.touch(client)
        record.verdict = APPLIED  # unless something below objects; handlers run last
        try:
            if self._waits(client, result, message, digest):
                record.seq, record.digest, record.verdict = before
                return ""
            record.attempt = 0
        except RefusedError as error:
            record.verdict, record.attempt = error.code, 0
            record.refused += 1
            flight = self.ledger.flights.get(result.job)
            self.spend_refused(client, result, flight)
            if flight is not None and flight.job.client == client and error.code not in WAITS:
                self.lose(flight, f"refused: {error.code}")
                if error.code != "slot":
                    self._strike(client)
            raise
        finally:
            record.cancelled = []  # whatever it sends next, it sends with its assignment as it is now in sight
        return APPLIED

    def spend_refused(self, client: int, result: wire.Trained, flight: SentJob | None) -> None:
        """A client that keeps a budget has charged itself; if the job is not known any more, for any of its tasks."""
        for task, budgeted in enumerate(self.budgeted):
            if budgeted and not result.error and (flight is None or flight.job.task == task):
                self.ledger.tally.spend(task, client, result.steps)

    def _exhaust(self, client: int, task: int) -> None:
        """A client says that its own budget for a task is spent; when all say so of all tasks, the run is over."""
        ledger, record = self.ledger, self.ledger.clients[client]
        record.exhausted = sorted({*record.exhausted, task})
        here = [each for each in ledger.clients if not each.removed]
        if all(len(each.exhausted) == len(self.budgeted) for each in here) and not ledger.stopped:
            self.end(SPENT)

    def _settled(self, record: ClientRecord, result: wire.Trained, digest: str) -> bool:
        """Whether this message has had its verdict."""
        if result.seq == record.seq and digest == record.digest:
            return True
        if result.seq <= record.seq:
            raise RefusedError("replay", "a number that is settled, with another content")
        if result.seq != record.seq + 1:
            raise RefusedError("order", f"number {result.seq} after {record.seq}")
        return False

    def _waits(self, client: int, result: wire.Trained, message: Message, digest: str) -> bool:
        """Let a result take effect, unless it is one that waits for others; whether it does."""
        ledger, plan = self.ledger, self.plan
        if ledger.stopped:
            raise RefusedError("over", "the run is over")
        flight = ledger.flights.get(result.job)
        if flight is None or flight.job.client != client:
            if result.job in ledger.clients[client].cancelled:
                raise RefusedError("cancelled", "the server has cancelled the job meanwhile")
            raise RefusedError("late", "the job is not in flight any more")
        job = flight.job
        if ledger.clients[client].paused:
            raise RefusedError("paused", "too many of its results were refused")
        if result.error:
            ledger.clients[client].failed += 1
            spent = result.error.startswith(SPENT)
            if spent and plan.secure is not None and plan.secure.share:
                plan.server.guard.refuse(plan.server.models(ledger.server)[job.task], client)  # type: ignore[attr-defined]
            self.lose(flight, f"failed: {encoding.writable(result.error[:200])}")
            self._strike(client)
            if spent and self.budgeted[job.task]:
                self._exhaust(client, job.task)
            elif self.budgeted[job.task]:
                ledger.tally.spend(job.task, client, job.steps)  # as its client has: a failure, too, says something
            return False
        if job.hold and job.task not in ledger.clients[client].recalls:
            raise RefusedError("uncalled", "held work that nobody asked for")
        partial = job.hold and ledger.clients[client].recalls[job.task]
        if result.steps > job.steps or (result.steps < job.steps and not partial):
            raise RefusedError("steps", f"{result.steps} local steps of {job.steps}")
        version = plan.server.models(ledger.server)[job.task].version
        self._fresh(ledger.clients[client], job, version)
        if ledger.barred(client, job.version, job.task):
            raise RefusedError("twice", "its second update of one model, where only sums are shown")
        if self.cohorts is not None:
            self.cohorts.wait(client, flight, result, message, digest)
            return True
        vectors = self._vectors(client, job.task, message)
        self._taken(client, job.task, result)
        self.arrived(flight, Update(job._replace(steps=result.steps), vectors), result)
        return False

    def _taken(self, client: int, task: int, result: wire.Trained) -> None:
        """A client's update counts."""
        record = self.ledger.clients[client]
        record.slots[task] = self.server.models(self.ledger.server)[task].version
        record.strikes = 0
        record.applied += 1
        self.ledger.tally.computed += 1
        self.ledger.tally.cut += result.cut

    def settle(self, flight: SentJob, result: wire.Trained, digest: str, vectors: Payload, number: int) -> None:
        """A result that has waited for others is in the sum of this number."""
        client, record = flight.job.client, self.ledger.clients[flight.job.client]
        record.seq, record.digest, record.verdict, record.attempt = result.seq, digest, APPLIED, 0
        record.cancelled = []
        self._taken(client, flight.job.task, result)
        self.closing = number
        try:
            self.arrived(flight, Update(flight.job._replace(steps=result.steps), vectors), result)
        finally:
            self.closing = 0

    def _vectors(self, client: int, task: int, message: Message) -> Payload:
        """What an update holds, if it is what it should be."""
        plan = self.plan
        if plan.secure is None:
            dtype = encoding.name_of(plan.initial[task].dtype)
            vectors = admit(message, self.expected[task], dtype, plan.locals[task].coders)
            self._measure(client, task, vectors)
            return vectors
        cohort, ((name, dim),) = self.ledger.cohorts.get(task), self.expected[task].items()
        if cohort is not None and not cohort.has_room(client, self.server.adds(task) or 1, plan.secure):
            raise RefusedError("slot", f"{cohort.count} updates wait for other clients to take part in their sum")
        return admit_masked(message, name, dim)

    def _measure(self, client: int, task: int, vectors: Payload) -> None:
        """Refuse vectors that are too long, and learn from those that are not.

        With clipping nothing is learned: otherwise lengths of one client's updates would decide about others'.
        """
        guard = getattr(self.server, "guard", None)
        if guard is not None and guard.limits and self.ledger.limits.norm is None:
            return
        ledger, known = self.ledger, self.ledger.norms.setdefault(task, UsualNorms())

        def check(lengths: Mapping[str, float]) -> None:
            known.check(lengths, self.plan.initial[task], self.model(task))

        lengths = check_norms(ledger.limits.norm, vectors, check)
        if ledger.limits.norm is None:
            known.learn(client, lengths, ledger.members)

    def _strike(self, client: int) -> None:
        """Another result that was refused, or a job that failed: from some on, the next job comes after a pause."""
        ledger, record = self.ledger, self.ledger.clients[client]
        record.strikes += 1
        if record.strikes >= STRIKES and not record.paused and not ledger.stopped:
            pause = min(PAUSE * 2.0 ** min(record.strikes - STRIKES, 20), LONGEST, ledger.limits.lease / 2)
            record.paused = True
            self.alarm(ledger.now + pause / self.plan.unit, f"{RESUME}{client}")
            self.traffic.touch(client)

    def _fresh(self, record: ClientRecord, job: Job, version: int) -> None:
        limits = self.ledger.limits
        if limits.window is not None and version - job.version > limits.window:
            raise RefusedError("stale", f"{version - job.version} versions old, at most {limits.window} are taken")
        if limits.slot and record.slots.get(job.task) == version:
            raise RefusedError("slot", "its second update since the last server step")

    # The server's own entries

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

    def _enrol(self, new: wire.Enrolled) -> None:
        ledger = self.ledger
        ledger.clients.append(ClientRecord(new.name, new.account, new.sign, new.seal))
        ledger.members += 1
        self.index[new.name] = new.client
        self.traffic.census.renew(new.client)
        self.traffic.touch(new.client)
        self.admitted(new.client, self.plan.initial)

    def _remove(self, client: int) -> None:
        record = self.ledger.clients[client]
        if record.removed:
            return
        self._leave(client)
        record.removed = True
        self.ledger.members -= 1
        for norms in self.ledger.norms.values():
            norms.last.pop(client, None)
        self.traffic.touch(client)
        self.dismissed(client)
        if self.cohorts is not None:
            self.cohorts.removed()

    def _restore(self, restored: wire.Restored) -> None:
        """The clients may be ahead of this log: from here on each counts again once it has taken over our state."""
        ledger = self.ledger
        ledger.life = max(restored.epoch, 1 + max(record.epoch for record in ledger.clients))
        # what was under way may have been opened since, with other updates: it cannot be once more
        ledger.cohorts, ledger.closed, ledger.spoken, ledger.rested = {}, {}, {}, {}
        if self.cohorts is not None:
            self.cohorts.clear()
        ledger.sums = LIFE * ledger.life
        for client, record in enumerate(ledger.clients):
            if record.removed:
                continue
            self._leave(client)
            if record.nonce:  # otherwise it has not come back since the run was restored before
                record.known, record.known_nonce = (record.epoch, record.seq), record.nonce
            record.epoch, record.nonce, record.resync = ledger.life, "", self._memory(client)
            record.seq, record.digest, record.verdict, record.attempt = 0, "", "", 0
            self.traffic.touch(client)

    def _memory(self, client: int) -> dict[int, Payload] | None:
        """A client's memory by task, as far as the server's state depends on it; None: it is not known."""
        found: dict[int, Payload] = {}
        for task, agrees in enumerate(self.plan.agrees):
            memory = self.server.remembered(self.ledger.server, task, client) if agrees else {}
            if memory is None:
                return None
            if memory:
                found[task] = memory
        return found

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

    def _score(self, scored: wire.Scored) -> None:
        """The server has evaluated a model; where clients do so as well, both count together."""
        judging = self.ledger.judging.get(scored.task)
        if judging is None or not judging.scored or judging.time != scored.time or scored.diverged:
            self._scored(scored)
        else:
            judging.score = scored.metrics
            self._count_if_all(judging)

    def _scored(
        self, scored: wire.Scored, sure: Mapping[str, float] | None = None, each: Sequence[float | None] = ()
    ) -> None:
        ledger = self.ledger
        if scored.task >= len(self.plan.locals) or ledger.measured[scored.task] >= scored.time:
            return
        ledger.measured[scored.task] = scored.time
        metrics = {**scored.metrics, "loss": _NAN} if scored.diverged else scored.metrics
        try:
            self.scored(Measurement(scored.task, scored.time, scored.updates, scored.version, metrics, each), sure)
        except DivergedError as error:
            ledger.diverged = ledger.diverged or str(error)
            self.end("diverged")

    def _ask(self, task: int) -> None:
        ledger = self.ledger
        if task >= len(self.plan.locals) or task in ledger.finished:
            return
        self._count(task)  # what the last question has brought
        if task in ledger.finished:
            return
        ledger.asked += 1
        model = self.server.models(ledger.server)[task]
        everybody = len(ledger.clients)
        asked = counted(self.plan.personal, everybody) if ledger.scores else everybody
        when = (ledger.now, ledger.tally.updates, model.version, model.vector)
        ledger.judging[task] = Judging(ledger.asked, task, *when, asked, ledger.scores)
        for client in self.view.everyone():
            if client < asked:
                self.traffic.touch(client)

    def _judged(self, client: int, judged: wire.Judged) -> str:
        self._check_epoch(self.ledger.clients[client], judged.epoch)
        for judging in self.ledger.judging.values():
            if judging.number == judged.number and client < judging.asked:
                own = own_metric(self.plan.measured[judging.task])
                self._check_claim(judging.task, judged, own)
                loss = _NAN if judged.diverged else judged.loss
                judging.claims[client] = (judged.total, loss, judged.sums)
                if own.name in judged.personal and client < counted(self.plan.personal, judging.asked):
                    judging.personal[client] = judged.personal[own.name]
                self.traffic.touch(client)
                self._count_if_all(judging)
                break
        return ""

    def _check_claim(self, task: int, judged: wire.Judged, own: Metric) -> None:
        scores = {score.name: score for score in self.plan.scored[task]}
        said = [objection(scores[name], sums) for name, sums in judged.sums.items() if name in scores]
        said += [f"no metric {name!r}" for name in judged.sums if name not in scores]
        said += [out_of_range(own, value) for value in judged.personal.values()]
        if wrong := next(filter(None, said), ""):
            raise RefusedError("malformed", wrong)

    def _count_if_all(self, judging: Judging) -> None:
        there = self.traffic.census.present
        if judging.unscored:
            return
        wanted = bisect_left(there, judging.asked)  # of those who are there
        if len(judging.claims) >= wanted and all(client in judging.claims for client in there[:wanted]):
            self._count(judging.task)

    def _count(self, task: int) -> None:
        """An evaluation by the clients is over, with the answers that came."""
        judging = self.ledger.judging.pop(task, None)
        if judging is None:
            return
        if judging.scored:
            found = None if judging.score is None else Verdict(judging.score, None, False)
        else:
            found = weigh(judging.claims, self.ledger.members, self.plan.scored[task])
        if found is not None:
            each = [judging.personal.get(client) for client in range(max(judging.personal, default=-1) + 1)]
            measured = self.plan.measured[task]
            metrics = in_order({**found.metrics, **summarise(each, measured[0])}, measured)
            header = (task, judging.time, judging.updates, judging.version, metrics, found.diverged)
            self._scored(wire.Scored(self.plan.run, *header), found.sure, each)

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

    def look(self, task: int) -> None:
        if self.ledger.asked and self.ledger.measured[task] < self.ledger.now:
            self._ask(task)

    def over(self) -> None:
        if self.ledger.asked:  # the clients evaluate: once more, at the end
            for task in range(len(self.locals)):
                self._ask(task)
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
