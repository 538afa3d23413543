"""What a run must have done, found out without its server's books: from what its clients did, and from the log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import floor
from typing import Any, NamedTuple

from worlds import ACCURACY

from offbeat.core.events import Command, Job, Send, Update
from offbeat.core.local import BUDGETS
from offbeat.core.server import Server, View
from offbeat.core.vectors import Payload, Vector
from offbeat.core.watcher import ARRIVED, FAILED, EventRow, Measurement
from offbeat.deploy import encoding
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.assignment import Assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState, PendingResult, read_client_state
from offbeat.deploy.effects import Judgement
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.ledger import Judging, Ledger
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.wire import LogEntry
from offbeat.simulate.personal import summarise

LATE = 25.0  # seconds beyond its lease after which a job has to be over, whatever was lost
ENDS = (ARRIVED, *FAILED)  # rows of jobs that have ended
SAMPLES = 4  # held-out samples of every client
HANDLERS = (
    "started",
    "arrived",
    "sealed",
    "summed",
    "lost",
    "rang",
    "joined",
    "left",
    "measured",
    "opened",
    "closed",
    "admitted",
    "dismissed",
)

Content = tuple[tuple[str, tuple[float, ...]], ...]
Ticket = tuple[str, int, int, str, str]  # what a helper needs for the mask of a message
Number = tuple[int, str, int]  # (client, nonce, seq): one message of one life of a client


def content(vectors: Payload) -> Content:
    """Vectors as something that can be compared and kept, without what clients count for themselves."""
    own = {name: vector for name, vector in vectors.items() if name not in BUDGETS}
    return tuple(sorted((name, tuple(vector.reshape(-1).tolist())) for name, vector in own.items()))


def score(w: float) -> tuple[int, float]:
    """(right answers, summed loss) of a model on SAMPLES samples, without rounding: what clients and server measure."""
    return int(w) % (SAMPLES + 1), SAMPLES * floor(16 * w) / 16


def own_score(w: float, memory: Content) -> int:
    """Right answers of the own model of a client with this memory."""
    return int(w + sum(sum(numbers) for _, numbers in memory)) % (SAMPLES + 1)


class Result(NamedTuple):
    """A job as a client has done it: what went in and what came out."""

    job: Job
    steps: int
    payload: Content
    before: Content  # its memory
    upload: Content
    after: Content


class Rows:
    """Watches a fold."""

    def __init__(self) -> None:
        self.rows: list[EventRow] = []
        self.measurements: list[Measurement] = []

    def event(self, row: EventRow) -> None:
        self.rows.append(row)

    def measured(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)


@dataclass
class Witness:
    """Sees what clients train on, send, are told and evaluate, and then whether the log agrees.

    lost: lives (nonces) whose disks were lost, and with them what they had come to know.   late: seconds beyond its
    lease after which a job has to be over.
    """

    plan: Plan
    firsts: Sequence[Payload]
    trained: list[tuple[Job, Content]] = field(default_factory=list)
    results: dict[int, list[Result]] = field(default_factory=lambda: defaultdict(list))  # by job
    told: dict[Number, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))  # (digest, verdict)
    acknowledged: set[Number] = field(default_factory=set)  # what a client saw applied
    evaluated: list[tuple[int, Content]] = field(default_factory=list)  # (task, model)
    plain: dict[str, Payload] = field(default_factory=dict)  # what was masked, by the key that was made for it
    noise: Callable[[int, int, Sequence[Ticket]], Any] = lambda number, task, tickets: 0.0  # that is added to a sum
    lost: set[str] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)  # clients that were cut off for good
    late: float = LATE
    wrong: list[str] = field(default_factory=list)

    # What is seen

    def train(self, job: Job, payload: Payload) -> None:
        """A client begins a job with this."""
        self.trained.append((job, content(payload)))

    def result(self, job: Job, steps: int, payload: Payload, before: Payload, upload: Payload, after: Payload) -> None:
        """A client has done a job."""
        self.results[job.id].append(
            Result(job, steps, content(payload), content(before), content(upload), content(after))
        )

    def watch(self, client: int, core: ClientCore, before: ClientState | None) -> None:
        """A client has heard something: what it was told, and what it has come to know as applied."""
        told = core.assignment
        if told is None:
            return
        if told.seq:
            self.told[client, told.nonce, told.seq].add((told.digest_last, told.verdict))
        if before is None or before.pending is None:
            return
        pending = before.pending
        resolved = core.state is not before and (core.state is None or core.state.pending is not pending)
        if resolved:
            self._acknowledge(client, told, pending)

    def copied(self, client: int, core: ClientCore, data: bytes | None) -> None:
        """A client gets its copy back, and hears the verdict on that copy's behalf."""
        pending = read_client_state(data).pending if data is not None else None
        if pending is not None and core.assignment is not None:
            self._acknowledge(client, core.assignment, pending)

    def _acknowledge(self, client: int, told: Assignment, pending: PendingResult) -> None:
        if told.last == (pending.epoch, pending.seq) and told.verdict == APPLIED:
            self.acknowledged.add((client, told.nonce, pending.seq))

    def evaluate(self, task: int, model: Vector, memory: Payload) -> Judgement:
        """A client evaluates a model, and its own."""
        self.evaluated.append((task, content({"model": model})))
        right, loss = score(float(model[0]))
        own = own_score(float(model[0]), content(memory)) / SAMPLES
        return Judgement(SAMPLES, loss, {"accuracy": [right, SAMPLES]}, {"accuracy": own})

    # Whether the log agrees

    def judge(
        self,
        log: Sequence[LogEntry],
        times: Sequence[float],
        calm: float,
        down: Sequence[tuple[float, float]],
        reducer: type[Reducer],
    ) -> Fold:
        """Fold the log again and compare.

        times: when each entry was stored.   calm: when all must work again.   down: when there was no server.
        """
        fold = Fold(self, log, times, calm, down, reducer)
        self._count(fold)
        self._verdicts(fold)
        for job, payload in self.trained:
            sent = fold.sent[job.id] if job.id < len(fold.sent) else None
            if sent is None:
                self.wrong.append(f"client {job.client} trained job {job.id}, which the server does not know")
            elif (sent.client, sent.task, sent.version, content(sent.payload)) != (*job[1:4], payload):
                self.wrong.append(f"client {job.client} trained job {job.id} on another model than it was sent")
        for task, model in self.evaluated:
            if model[0][1] not in fold.history[task].values():
                self.wrong.append(f"a model of task {task} was evaluated that the server has never had")
        return fold

    def _count(self, fold: Fold) -> None:
        if any(count > 1 for count in fold.applied.values()):
            self.wrong.append("a message was applied twice")
        ended = Counter(row.job for row in fold.rows if row.event in ENDS)
        if any(count > 1 for count in ended.values()):
            self.wrong.append("a job ended twice")
        for task in range(len(self.plan.locals)):
            versions = [row.version for row in fold.rows if row.task == task]
            if versions != sorted(versions):
                self.wrong.append("versions went back")

    def _verdicts(self, fold: Fold) -> None:
        for extra in self.acknowledged - {number for number, count in fold.applied.items() if count}:
            self.wrong.append(f"{extra} was acknowledged and not applied")
        for number in {number for number, count in fold.applied.items() if count} - self.acknowledged:
            if number[1] not in self.lost and number[0] not in self.gone:
                self.wrong.append(f"{number} was applied and not acknowledged")
        for number, said in self.told.items():
            if len(said) > 1:
                self.wrong.append(f"{number} was told different verdicts: {sorted(said)}")
            for digest, verdict in said:
                if fold.verdicts.get((number, digest)) != verdict:
                    self.wrong.append(
                        f"{number} was told {verdict!r}, the log says {fold.verdicts.get((number, digest))!r}"
                    )


class Fold:
    """The log folded anew, with a look at what goes into the algorithm and comes out of it."""

    def __init__(
        self,
        witness: Witness,
        log: Sequence[LogEntry],
        times: Sequence[float],
        calm: float,
        down: Sequence[tuple[float, float]],
        reducer: type[Reducer],
    ) -> None:
        self.down = down
        self.witness, self.wrong, plan = witness, witness.wrong, witness.plan
        self.sent: list[Send] = []  # by job
        self.history: list[dict[int, tuple[float, ...]]] = [{} for _ in plan.locals]  # task -> version -> model
        self.first = [content(first) for first in witness.firsts]
        self.memory: dict[tuple[int, int], Content] = {}  # (client, task) -> its memory, where that has moved on
        self.memories: dict[tuple[int, int], list[Content]] = defaultdict(list)  # and all that it ever was
        for client, task in product(range(len(plan.roster) + 1), range(len(plan.locals))):
            self.memories[client, task].append(self.first[task])
        self.asked: dict[int, dict[tuple[int, int], int]] = {}  # question -> the memories by then
        self.applied: Counter[Number] = Counter()
        self.verdicts: dict[tuple[Number, str], str] = {}  # (number, digest of the message) -> what came of it
        self.begun: dict[int, float] = {}  # job -> when it came to the head of its client's queue
        self.queues: dict[int, list[int]] = defaultdict(list)  # client -> its plain jobs
        self.now, self.ended = 0.0, float("inf")  # the time, and when the run was over
        watcher = Rows()
        self.rows, self.measurements = watcher.rows, watcher.measurements
        self.reducer = reducer(replace(plan, server=self._watched(plan.server)), None, [watcher])
        self.calm_events = 0  # events before the calm
        self.opened: list[list[str]] = []  # sums: the keys of their messages
        self.owners: dict[str, tuple[str, int]] = {}  # whose message each of these is, and of which task
        self.sealed: set[tuple[int, int, int]] = set()  # (client, task, version) of updates that are in sums
        seconds = 0.0
        for i, (entry, self.now) in enumerate(zip(log, times, strict=True)):
            if self.ledger.begun:
                seconds += max(0.0, entry.stamp - log[i - 1].stamp)
            self._fold(entry)
            if self.ledger.stopped:
                self.ended = min(self.ended, self.now)
            if self.now < calm:
                self.calm_events = self.ledger.events
        if abs(self.ledger.seconds - seconds) > 1e-6:
            self.wrong.append(
                f"{seconds:.3f} s have passed by the log's stamps, {self.ledger.seconds:.3f} s were counted"
            )
        for number in [*self.begun]:
            self._over(number)
        self._measured()

    @property
    def ledger(self) -> Ledger:
        return self.reducer.ledger

    def _fold(self, entry: LogEntry) -> None:
        self.closed = {number: [*cohort.tickets] for number, cohort in self.ledger.closed.items()}
        seen, asked = len(self.rows), {judging.number: judging for judging in self.ledger.judging.values()}
        before = [(record.nonce, record.seq) for record in self.ledger.clients]
        code = self.reducer.fold(entry)
        if code == "quarantined":
            self.wrong.append(f"the server failed on entry {entry.seq}: {self.reducer.fault}")
        if self.witness.plan.pairwise:
            self._settled(before)
        for judging in self.ledger.judging.values():
            if judging.number not in asked:
                self.asked[judging.number] = {place: len(all_) - 1 for place, all_ in self.memories.items()}
        for row in self.rows[seen:]:
            if row.event in ENDS:
                self._over(row.job)
        if not entry.sender or (client := self.reducer.index.get(entry.sender)) is None:
            return
        try:
            message = encoding.unpack(entry.data)
        except RefusedError:
            return
        header, nonce = message.header, self.ledger.clients[client].nonce
        if message.kind == "judged" and code == "" and header["number"] in asked:
            self._judged(client, asked[header["number"]], header["personal"]["accuracy"])
        if message.kind != "trained" or self.witness.plan.pairwise:
            return
        if header["epoch"] == self.ledger.clients[client].epoch and code not in ("", "replay", "order", "fenced"):
            number = (client, nonce, header["seq"])
            self.verdicts[number, encoding.digest(entry.data)] = code
            if code == APPLIED:
                self.applied[number] += 1

    def _settled(self, before: list[tuple[str, int]]) -> None:
        """Where clients mask for each other, one entry may settle the messages of several."""
        for client, (record, (nonce, seq)) in enumerate(zip(self.ledger.clients, before, strict=True)):
            if record.seq and (record.nonce, record.seq) != (nonce, seq):
                number = client, record.nonce, record.seq
                self.verdicts[number, record.digest] = record.verdict
                self.applied[number] += record.verdict == APPLIED

    def _judged(self, client: int, judging: Judging, own: float) -> None:
        """A client's own model is made from the memory that it has had since it was asked."""
        place = client, judging.task
        since = self.memories[place][self.asked[judging.number].get(place, 0) :]
        if own not in {own_score(float(judging.vector[0]), memory) / SAMPLES for memory in since}:
            self.wrong.append(f"client {client} made its own model from another memory")

    # What the algorithm sees and says

    def _watched(self, server: Server[Any]) -> Server[Any]:
        def watched(name: str) -> Any:
            handler = getattr(type(server), name)

            def call(this: Server[Any], state: Any, *given: Any) -> Iterator[Command]:
                if name == "arrived":
                    self._arrived(given[0])
                if name == "sealed":
                    cohort = self.reducer.sum_of(given[0])
                    once = cohort.tickets[-1][-1]
                    self._sealed(given[0])
                    self._arrived(Update(given[0], self.witness.plain[once]))
                if name == "summed" and given[2]:
                    self._summed(*given[:2])
                for command in handler(this, state, *given) or ():
                    self._models(this, state)
                    if isinstance(command, Send):
                        self._sent(command)
                    yield command
                self._models(this, state)

            return call

        def begin(this: Server[Any], models: Sequence[Vector], view: View) -> Any:
            state = type(server).begin(this, models, view)
            self._models(this, state)
            return state

        own = [name for name in HANDLERS if getattr(type(server), name) is not getattr(Server, name)]
        kind = type(type(server).__name__, (type(server),), {"begin": begin} | {name: watched(name) for name in own})
        made: Server[Any] = object.__new__(kind)
        made.__dict__.update(vars(server))
        return made

    def _models(self, server: Server[Any], state: Any) -> None:
        for task, model in enumerate(server.models(state)):
            vector = tuple(model.vector.tolist())
            if self.history[task].setdefault(model.version, vector) != vector:
                self.wrong.append(f"version {model.version} of task {task} is two models")

    def _sent(self, send: Send) -> None:
        if self.history[send.task].get(send.version) != tuple(send.payload["model"].tolist()):
            self.wrong.append(f"job {len(self.sent)} says version {send.version} and holds another model")
        number = len(self.sent)
        self.sent.append(send)
        if not send.hold:
            self.queues[send.client].append(number)
            if self.queues[send.client][0] == number:
                self.begun[number] = self.now

    def _arrived(self, update: Update) -> None:
        """What the algorithm gets must be what a client has computed, from the memory that it should have."""
        job, vectors = update.job, content(update.vectors)
        same = [
            r
            for r in self.witness.results[job.id]
            if (r.job.client, r.steps, r.upload) == (job.client, job.steps, vectors)
        ]
        if not same:
            self.wrong.append(f"the update of job {job.id} is not what client {job.client} has computed")
            return
        place = job.client, job.task
        right = [result for result in same if result.before == self.remembered(*place)]
        if not right:
            self.wrong.append(f"job {job.id} of client {job.client} was computed from another memory")
        self.memory[place] = (right or same)[-1].after
        self.memories[place].append(self.memory[place])

    def _sealed(self, job: Job) -> None:
        """No client may be in two sums with updates of one model."""
        what = job.client, job.task, job.version
        if what in self.sealed:
            self.wrong.append(f"client {job.client} is in two sums of version {job.version}")
        self.sealed.add(what)

    def _summed(self, task: int, total: Vector) -> None:
        """A sum must be that of what its clients have masked."""
        ((number, tickets),) = (each for each in self.closed.items() if each[0] not in self.ledger.closed)
        self.opened.append([ticket[-1] for ticket in tickets])
        self.owners |= {ticket[-1]: (ticket[0], task) for ticket in tickets}
        expected = sum(vector for ticket in tickets for vector in self.witness.plain[ticket[-1]].values())
        expected = expected + self.witness.noise(number, task, tickets)
        if total.tolist() != expected.tolist():  # type: ignore[union-attr]
            self.wrong.append(f"a sum is {total.tolist()}, and its clients have sent {expected}")

    def remembered(self, client: int, task: int) -> Content:
        """The memory that a client has by the log."""
        return self.memory.get((client, task), self.first[task])

    def _over(self, number: int) -> None:
        """A job has ended; if it was at the head of a queue, the next one begins."""
        queue = self.queues[self.sent[number].client] if number < len(self.sent) else []
        since = self.begun.pop(number, self.now)
        now = min(self.now, self.ended)  # jobs that are in flight when a run ends stay so until the log does
        took = now - since - sum(max(0.0, min(now, to) - max(since, at)) for at, to in self.down)
        if took > self.witness.plan.limits.lease + self.witness.late:
            self.wrong.append(f"job {number} was in flight for {took:.1f} s, the server's absences left out")
        if number in queue:
            queue.remove(number)
            if queue:
                self.begun.setdefault(queue[0], self.now)

    def _measured(self) -> None:
        for each in self.measurements:
            model = self.history[each.task].get(each.version)
            if model is None:
                self.wrong.append(f"an evaluation names version {each.version} of task {each.task}, which never was")
                continue
            right, loss = score(model[0])
            expected: Mapping[str, float] = {"accuracy": right / SAMPLES, "loss": loss / SAMPLES}
            if answers := [own for own in each.each if own is not None]:
                expected = {**expected, **summarise(answers, ACCURACY)}
            if dict(each.metrics) != expected:
                self.wrong.append(f"version {each.version} of task {each.task} measures {expected}, not {each.metrics}")
