"""Clients' results in the fold: each gets one verdict (rules 3 and 4 of `reducer`), and takes effect or is refused."""

from __future__ import annotations

from collections.abc import Mapping

from offbeat.core.events import Job, Update
from offbeat.core.server import SPENT
from offbeat.core.vectors import Payload
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import APPLIED, admit, admit_masked
from offbeat.deploy.encoding import Message, RefusedError
from offbeat.deploy.ledger import ClientRecord, SentJob
from offbeat.deploy.norms import UsualNorms, check_norms
from offbeat.deploy.part import FoldPart

STRIKES = 3  # results refused in a row after which a client's next job comes after a pause
PAUSE, LONGEST = 0.25, 60.0  # seconds: the first pause, which doubles, and the longest
RESUME = "\0resume:"  # the key of the alarm at the end of a pause
WAITS = ("uncalled", "over", "paused")  # codes of refusals after which the job is in flight as before


class Verdicts(FoldPart):
    """What becomes of what clients have trained."""

    def of(self, client: int, result: wire.Trained, message: Message, digest: str) -> str:
        """Gives "applied", or "" if there is nothing to do yet or any more; raises `RefusedError`."""
        record = self.ledger.clients[client]
        self.fold.sessions.check_epoch(record, result.epoch)
        cohorts = self.fold.cohorts
        if self._settled(record, result, digest) or (cohorts is not None and cohorts.known(client, result, digest)):
            self.fold.traffic.changed.add(client)  # it has missed the answer: its assignment goes out again
            self.ledger.tally.repeated += 1
            return ""
        before = record.seq, record.digest, record.verdict
        record.seq, record.digest = result.seq, digest
        self.fold.traffic.touch(client)
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
                self.fold.lose(flight, f"refused: {error.code}")
                if error.code != "slot":
                    self.strike(client)
            raise
        finally:
            record.cancelled = []  # whatever it sends next, it sends with its assignment as it is now in sight
        return APPLIED

    def _settled(self, record: ClientRecord, result: wire.Trained, digest: str) -> bool:
        """Whether this message has had its verdict."""
        if result.seq == record.seq and digest == record.digest:
            return True
        if result.seq <= record.seq:
            raise RefusedError("replay", "a sequence number that was used before, with other content")
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
                raise RefusedError("cancelled", "the server has cancelled this job")
            raise RefusedError("late", "the job is no longer in flight")
        job = flight.job
        if ledger.clients[client].paused:
            raise RefusedError("paused", "too many of its results were refused")
        if result.error:
            ledger.clients[client].failed += 1
            spent = result.error.startswith(SPENT)
            if spent and plan.secure is not None and plan.secure.share:
                plan.server.guard.refuse(plan.server.models(ledger.server)[job.task], client)  # type: ignore[attr-defined]
            self.fold.lose(flight, f"failed: {encoding.writable(result.error[:200])}")
            self.strike(client)
            if spent and self.fold.budgeted[job.task]:
                self._exhaust(client, job.task)
            elif self.fold.budgeted[job.task]:
                ledger.tally.spend(job.task, client, job.steps)  # as its client has: a failure, too, says something
            return False
        if job.hold and job.task not in ledger.clients[client].recalls:
            raise RefusedError("uncalled", "a held result that the server has not recalled")
        partial = job.hold and ledger.clients[client].recalls[job.task]
        if result.steps > job.steps or (result.steps < job.steps and not partial):
            raise RefusedError("steps", f"{result.steps} local steps of {job.steps}")
        version = plan.server.models(ledger.server)[job.task].version
        self._fresh(ledger.clients[client], job, version)
        if ledger.barred(client, job.version, job.task):
            raise RefusedError(
                "twice", "its second update of one version of the model; with [secure] one of each version counts"
            )
        if self.fold.cohorts is not None:
            self.fold.cohorts.wait(client, flight, result, message, digest)
            return True
        vectors = self._vectors(client, job.task, message)
        self._taken(client, job.task, result)
        self.fold.arrived(flight, Update(job._replace(steps=result.steps), vectors), result)
        return False

    def _fresh(self, record: ClientRecord, job: Job, version: int) -> None:
        limits = self.ledger.limits
        if limits.window is not None and version - job.version > limits.window:
            raise RefusedError("stale", f"{version - job.version} versions old, at most {limits.window} are taken")
        if limits.slot and record.slots.get(job.task) == version:
            raise RefusedError("slot", "its second update since the last server step")

    def _vectors(self, client: int, task: int, message: Message) -> Payload:
        """What an update holds, if it is what it should be."""
        plan = self.plan
        if plan.secure is None:
            dtype = encoding.name_of(plan.initial[task].dtype)
            vectors = admit(message, self.fold.expected[task], dtype, plan.locals[task].coders)
            self._measure(client, task, vectors)
            return vectors
        cohort, ((name, dim),) = self.ledger.cohorts.get(task), self.fold.expected[task].items()
        if cohort is not None and not cohort.has_room(client, self.fold.server.adds(task) or 1, plan.secure):
            raise RefusedError("slot", f"{cohort.count} updates wait for other clients to take part in their sum")
        return admit_masked(message, name, dim)

    def _measure(self, client: int, task: int, vectors: Payload) -> None:
        """Refuse vectors that are too long, and learn from those that are not.

        With clipping nothing is learned: otherwise lengths of one client's updates would decide about others'.
        """
        guard = getattr(self.fold.server, "guard", None)
        if guard is not None and guard.limits and self.ledger.limits.norm is None:
            return
        ledger, known = self.ledger, self.ledger.norms.setdefault(task, UsualNorms())

        def check(lengths: Mapping[str, float]) -> None:
            known.check(lengths, self.plan.initial[task], self.fold.model(task))

        lengths = check_norms(ledger.limits.norm, vectors, check)
        if ledger.limits.norm is None:
            known.learn(client, lengths, ledger.members)

    def _taken(self, client: int, task: int, result: wire.Trained) -> None:
        """A client's update counts."""
        record = self.ledger.clients[client]
        record.slots[task] = self.fold.server.models(self.ledger.server)[task].version
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
        self.fold.closing = number
        try:
            self.fold.arrived(flight, Update(flight.job._replace(steps=result.steps), vectors), result)
        finally:
            self.fold.closing = 0

    def strike(self, client: int) -> None:
        """Another result that was refused, or a job that failed: from some on, the next job comes after a pause."""
        ledger, record = self.ledger, self.ledger.clients[client]
        record.strikes += 1
        if record.strikes >= STRIKES and not record.paused and not ledger.stopped:
            pause = min(PAUSE * 2.0 ** min(record.strikes - STRIKES, 20), LONGEST, ledger.limits.lease / 2)
            record.paused = True
            self.fold.alarm(ledger.now + pause / self.plan.unit, f"{RESUME}{client}")
            self.fold.traffic.touch(client)

    def spend_refused(self, client: int, result: wire.Trained, flight: SentJob | None) -> None:
        """A client that keeps a budget has charged itself; if the job is not known any more, for any of its tasks."""
        for task, budgeted in enumerate(self.fold.budgeted):
            if budgeted and not result.error and (flight is None or flight.job.task == task):
                self.ledger.tally.spend(task, client, result.steps)

    def _exhaust(self, client: int, task: int) -> None:
        """A client says that its own budget for a task is spent; when all say so of all tasks, the run is over."""
        ledger, record = self.ledger, self.ledger.clients[client]
        record.exhausted = sorted({*record.exhausted, task})
        here = [each for each in ledger.clients if not each.removed]
        if all(len(each.exhausted) == len(self.fold.budgeted) for each in here) and not ledger.stopped:
            self.fold.end(SPENT)
