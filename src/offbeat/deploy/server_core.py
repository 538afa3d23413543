"""The server around the fold, without its network, disk and clock: what to send, what to add to the log, when to save.

Nothing here is decided outside the log. What time brings (an alarm, a lease that is over, a client not heard of) is
asked for as an entry and takes effect when that entry is folded. What goes out is a function of the ledger: after a
crash the server loads its checkpoint, folds the rest of the log and sends every assignment again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite, isnan
from typing import NamedTuple, TypeAlias

from offbeat.core.watcher import Watcher
from offbeat.deploy import wire
from offbeat.deploy.assignment import INLINE, Models, write_assignment
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import LogEntry, Reducer
from offbeat.deploy.wire import RefusedError

SCAN = 0.2  # seconds between two looks at all clients
AGAIN = 5.0  # seconds after which something that was asked for and is not in the log is asked for again


class Put(NamedTuple):
    """Make this model available under its digest."""

    digest: str
    data: bytes


class Post(NamedTuple):
    """Send this assignment to its client."""

    client: int
    data: bytes


class Append(NamedTuple):
    """Add this entry to the log, as the server."""

    data: bytes


Effect: TypeAlias = Put | Post | Append


class ServerCore:
    """One run's server.

    every: time between evaluations, in the experiment's unit; None: none.   asks: whether the clients evaluate, for a
    server without data.   wait: begin when so many clients are there.   `clock` is local seconds from anywhere.
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
        self.wait = len(plan.roster) if wait is None else wait
        self.models = Models()
        self.put: dict[str, None] = {}  # models that are available already
        self.heard: dict[int, float] = {}  # client -> when it last gave a sign of life
        self.posted: dict[int, float] = {}
        self.seen: dict[int, int] = {}  # client -> one more than the revision of the newest assignment it has
        self.pending: dict[wire.FromServer | tuple[str, int], float] = {}  # entries asked for and not folded yet
        self.folded_at = 0.0
        self.scanned = float("-inf")
        self.code = ""  # of the last entry: "applied", why it was refused, or nothing

    @property
    def ledger(self) -> Ledger:
        return self.reducer.ledger

    def fold(self, entry: LogEntry, clock: float) -> list[Effect]:
        """Take an entry in and say what is to be sent."""
        self.code = self.reducer.fold(entry)
        self.folded_at = clock
        client = self.reducer.index.get(entry.sender)
        if client is not None:
            self.heard[client] = clock
        return self.assignments(clock)

    def replay(self, entry: LogEntry, clock: float) -> None:
        """Take an entry in while catching up; `boot` sends what is to be sent."""
        self.reducer.fold(entry)
        self.folded_at = clock

    def assignments(self, clock: float) -> list[Effect]:
        """The assignments that have changed, with the models that they name."""
        changed, self.reducer.traffic.changed = self.reducer.changed, set()
        return [effect for client in sorted(changed) for effect in self._post(client, clock)]

    def boot(self, clock: float) -> list[Effect]:
        """All assignments: after a start nobody knows what was sent."""
        self.folded_at = clock
        self.heard = {client: clock for client, record in enumerate(self.ledger.clients) if record.present}
        self.reducer.traffic.changed = set(range(len(self.plan.roster)))
        return self.assignments(clock)

    def beat(self, sender: str, data: bytes, clock: float) -> list[Effect]:
        """A sign of life; a client that has missed its newest assignment gets it again."""
        try:
            message = wire.unpack(data, 1 << 16)
            beat = wire.read(wire.Beat, message.header)
        except RefusedError:
            return []
        client = self.reducer.index.get(sender)
        if client is None or beat.client != sender or beat.run != self.plan.run:
            return []
        record = self.ledger.clients[client]
        if beat.epoch == record.epoch:
            self.heard[client] = clock
            self.seen[client] = beat.seen
        if beat.seen <= record.revision and clock - self.posted.get(client, -1e9) >= 1.0:
            return self._post(client, clock)
        return []

    def due(self, clock: float) -> list[Effect]:
        """What is to be added to the log by now."""
        ledger = self.ledger
        self.pending = {what: when for what, when in self.pending.items() if clock - when < AGAIN}
        if ledger.stopped:
            return []
        if not ledger.begun:
            there = sum(record.present for record in ledger.clients)
            return self._ask(clock, [wire.Begun(self.plan.run)] if there >= self.wait else [])
        return self._ask(clock, self._overdue(clock))

    def wait_for(self, clock: float, most: float) -> float:
        """Seconds until an alarm is due, at most so many."""
        ledger, run = self.ledger, self.plan.run
        coming = [*ledger.alarms.items(), *ledger.turns.items()] if not ledger.stopped else []
        waits = [when for number, (when, _) in coming if wire.Rung(run, number) not in self.pending]
        return min([most, *(max(0.001, (when - self.now(clock)) * self.plan.unit) for when in waits)])

    def next_evaluation(self, clock: float) -> list[int]:
        """Tasks that are to be evaluated by now; each is named once until its score is in the log."""
        ledger, found = self.ledger, list[int]()
        if self.every is None or self.asks or not ledger.begun:
            return found
        now = self.now(clock)
        for task, last in enumerate(ledger.measured):
            over = ledger.ends.get(task, ledger.now) if task in ledger.finished or ledger.stopped else None
            wanted = last < over if over is not None else last < 0 or now - last >= self.every
            if wanted and task not in ledger.unborn and ("score", task) not in self.pending:
                self.pending["score", task] = clock + 60.0
                found.append(task)
        return found

    def score(self, task: int, time: float, updates: int, version: int, metrics: dict[str, float]) -> Append:
        """The entry for an evaluation."""
        finite = {name: value for name, value in metrics.items() if isfinite(value)}
        scored = wire.Scored(self.plan.run, task, time, updates, version, finite, isnan(metrics.get("loss", 0.0)))
        self.pending.pop(("score", task), None)
        return Append(wire.say(scored))

    def now(self, clock: float) -> float:
        """The run's time, as well as one can know it between two entries."""
        return (self.ledger.seconds + max(0.0, clock - self.folded_at)) / self.plan.unit

    def _post(self, client: int, clock: float) -> list[Effect]:
        effects: list[Effect] = []

        def put(name: str, data: bytes) -> None:
            if name not in self.put:
                self.put[name] = None
                effects.append(Put(name, data))
                while len(self.put) > 4096:
                    self.put.pop(next(iter(self.put)))

        assignment = write_assignment(self.plan.run, self.ledger, client, self.models, put, self.inline)
        self.posted[client] = clock
        return [*effects, Post(client, assignment)]

    def _overdue(self, clock: float) -> Iterator[wire.FromServer]:
        ledger, plan, now = self.ledger, self.plan, self.now(clock)
        if plan.until.time is not None and now > plan.until.time:
            yield wire.Halted(plan.run, "time")
        for number, (when, _) in [*ledger.alarms.items(), *ledger.turns.items()]:
            if now >= when:
                yield wire.Rung(plan.run, number)
        if clock - self.scanned < SCAN:
            return
        self.scanned = clock
        # Jobs at the heads of queues, and recalled ones, whose lease is over.
        heads = [record.queue[0] for record in ledger.clients if record.queue]
        heads += [record.held[task][-1] for record in ledger.clients for task in record.recalls]
        for number in heads:
            if now - ledger.flights[number].since > plan.limits.lease / plan.unit:
                yield wire.Expired(plan.run, number)
        for client, record in enumerate(ledger.clients):
            if record.present and clock - self.heard.setdefault(client, clock) > plan.limits.patience:
                yield wire.Gone(plan.run, client, record.epoch)
        if self.asks and self.every is not None:
            for task, last in enumerate(ledger.measured):
                asked = ledger.judging[task].time if task in ledger.judging else last
                if task not in ledger.finished and (asked < 0 or now - asked >= self.every):
                    yield wire.Asked(plan.run, task)

    def _ask(self, clock: float, headers: Iterable[wire.FromServer]) -> list[Effect]:
        new = [header for header in headers if header not in self.pending]
        self.pending.update((header, clock) for header in new)
        return [Append(wire.say(header)) for header in new]
