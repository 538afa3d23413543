"""The server and the clients through everything that can go wrong, and mistakes that must not get through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from faults import ALGORITHMS, Broken, Bugs
from plants import caught

from offbeat.core.events import Job, Send, Update
from offbeat.core.vectors import Payload
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.assignment import Assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState, write_client_state
from offbeat.deploy.effects import Done, Effect, Judge, Save, Train
from offbeat.deploy.ledger import ClientRecord, SentJob
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.server_core import Append, ServerCore
from offbeat.deploy.sessions import Sessions
from offbeat.deploy.verdicts import Verdicts

# Every kind of fault; one that never happens in a tenth of the schedules fails the test.
KINDS = {
    *(
        f"{way} {what}"
        for way in ("drop", "double", "delay")
        for what in ("tell", "assignment", "sign", "append", "mirror")
    ),
    *(f"server crash {when} {what}" for when in ("before", "after") for what in ("Post", "Append", "Checkpoint")),
    *(f"client crash {when} {what}" for when in ("before", "after") for what in ("Save", "Mirror", "Tell", "Train")),
    *("client crash", "client crash in a job", "cut off", "partition", "clock forwards", "clock backwards"),
    *(
        "disk lost",
        "disk lost twice",
        "disk restored",
        "disk restored at once",
        "zombie",
        "slow job",
        "failed job",
        "rubbish",
    ),
    *("drop fetch", "drop mirrored", "drop recover", "mirror overtaken", "server crash after Put"),
    *("hung job", "other content", "left", "retired", "job ahead", "cancelled", "crossed a cancellation"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_doubled_or_forgotten(algorithm: str, seed: int) -> None:
    outcome = Broken(seed, algorithm).run()
    assert outcome.violations == []
    assert outcome.updates > 20
    assert sum(outcome.fired.values()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_eighteen_hundred_schedules(part: int) -> None:
    fired: Counter[str] = Counter()
    wrong = []
    for algorithm in ALGORITHMS:
        for seed in range(1000 + 20 * part, 1020 + 20 * part):
            outcome = Broken(seed, algorithm).run()
            fired += outcome.fired
            wrong += [f"{algorithm} {seed}: {violation}" for violation in outcome.violations]
    assert wrong == []
    assert sorted(KINDS - set(fired)) == []


def test_without_faults_everything_is_applied_once() -> None:
    outcome = Broken(0, "area", rate=0.0).run()
    assert outcome.violations == []


# Planted mistakes


class AppliesRepeated(Verdicts):
    """No de-duplication."""

    def _settled(self, record: ClientRecord, result: wire.Trained, digest: str) -> bool:
        record.seq = result.seq - 1
        return False

    def _waits(self, client: int, result: wire.Trained, message: encoding.Message, digest: str) -> bool:
        done = self.__dict__.setdefault("done", {})
        flight = self.ledger.flights.get(result.job)
        if flight is None and result.job in done:  # the job is applied as often as it comes
            self.ledger.flights[result.job] = done[result.job]
            self.ledger.clients[client].queue.append(result.job)
        elif flight is not None:
            done[result.job] = flight
        return super()._waits(client, result, message, digest)


class TakesOldEpochs(Sessions):
    """Old epochs are accepted."""

    def check_epoch(self, record: ClientRecord, epoch: int) -> None:
        return

    def _admit(self, record: ClientRecord, hello: wire.Hello) -> None:
        return


class TakesOtherContent(Verdicts):
    """A number that is settled is settled again if the content is another one."""

    def _settled(self, record: ClientRecord, result: wire.Trained, digest: str) -> bool:
        if result.seq == record.seq and digest != record.digest:
            return False
        return super()._settled(record, result, digest)


class TakesCancelled(Verdicts):
    """A result that has crossed its cancellation is applied."""

    def __init__(self, fold: Reducer) -> None:
        super().__init__(fold)
        gone: dict[int, SentJob] = {}
        stop = fold.stop_jobs

        def cancel(client: int, task: int) -> Sequence[SentJob]:
            flights = stop(client, task)
            gone.update({flight.job.id: flight for flight in flights})
            return flights

        fold.stop_jobs, self.gone = cancel, gone  # type: ignore[method-assign]

    def _waits(self, client: int, result: wire.Trained, message: encoding.Message, digest: str) -> bool:
        record = self.ledger.clients[client]
        if result.job in record.cancelled and result.job in self.gone:
            self.ledger.flights[result.job] = self.gone[result.job]
            record.queue.append(result.job)
        return super()._waits(client, result, message, digest)


class LosesCancelled(Verdicts):
    """A cancelled job is reported as lost when its result comes after all."""

    def _waits(self, client: int, result: wire.Trained, message: encoding.Message, digest: str) -> bool:
        if result.job in self.ledger.clients[client].cancelled:
            self.fold.lost(SentJob(Job(result.job, client, 0, 0, 1, 1.0, 0), None, 0.0, 0.0), "cancelled")
        return super()._waits(client, result, message, digest)


class WorksOn(ClientCore):
    """What a client has done of a cancelled job goes out as the next one's result."""

    def _watch(self, assignment: Assignment, current: Job) -> list[Effect]:
        listed = [job for job, _ in assignment.jobs]
        if listed and current.id not in {job.id for job in listed}:
            self.current = listed[0]
            return []
        return super()._watch(assignment, current)

    def done(self, done: Done, now: float) -> list[Effect]:
        return super().done(done if self.current is None else done._replace(job=self.current), now)


class CountsBackwards(Reducer):
    """Steps backwards of the log's clock are taken off the run's time."""

    def _pass(self, stamp: float) -> None:
        if self.ledger.begun:
            self.ledger.seconds += min(0.0, stamp - self.ledger.stamp)
        super()._pass(stamp)


class ZeroesArriving(Reducer):
    """What comes from clients counts as nothing."""

    def arrived(self, flight: SentJob, update: Update, result: Any = None) -> None:
        zeros = {name: vector * 0 for name, vector in update.vectors.items()}
        super().arrived(flight, Update(update.job, zeros), result)


class SendsOldModels(Reducer):
    """Every job after the first of a client carries the model of the one before."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        before: dict[tuple[int, int], Any] = {}
        send = self.send

        def late(command: Send) -> None:
            place = (command.client, command.task)
            payload = before.get(place, command.payload)
            before[place] = command.payload
            send(command._replace(payload=payload))

        self.send = late


class IgnoresLeases(ServerCore):
    """A job may take for ever."""

    def _overdue(self, clock: float) -> Iterator[wire.FromServer]:
        return (entry for entry in super()._overdue(clock) if not isinstance(entry, wire.Expired))


class ScoresTheNewest(ServerCore):
    """An evaluation names the version of when it is done, not the one that it has measured."""

    def score(self, task: int, time: float, updates: int, version: int, metrics: dict[str, float]) -> Append:
        version = self.plan.server.models(self.ledger.server)[task].version
        return super().score(task, time, updates, version, metrics)


class TrainsOnStale(ClientCore):
    """A client goes on with the model that it had before."""

    before: Payload | None = None

    def _next(self, assignment: Assignment) -> list[Effect]:
        found = super()._next(assignment)
        for i, effect in enumerate(found):
            if isinstance(effect, Train):
                found[i] = effect._replace(payload=self.before or effect.payload)
                self.before = effect.payload
        return found


class JudgesStale(ClientCore):
    """A client evaluates its first model again and again."""

    first: Payload | None = None

    def _evaluate(self, assignment: Assignment) -> list[Effect]:
        found = super()._evaluate(assignment)
        for i, effect in enumerate(found):
            if isinstance(effect, Judge):
                self.first = self.first or effect.payload
                found[i] = effect._replace(payload=self.first)
        return found


class JudgesForgetful(ClientCore):
    """A client makes its own model from the memory that it had at first."""

    first: Payload | None = None

    def _evaluate(self, assignment: Assignment) -> list[Effect]:
        found = super()._evaluate(assignment)
        for i, effect in enumerate(found):
            if isinstance(effect, Judge):
                self.first = self.first or effect.memory
                found[i] = effect._replace(memory=self.first)
        return found


class SendsAhead(ClientCore):
    """A result is sent before the one before has its verdict."""

    def _hand_in(self, job: Job, done: Done | None, error: str = "") -> list[Effect]:
        if self.state is not None:
            self.state = replace(self.state, pending=None)
        return self._pend(job, done, error)


class TrainsAhead(ClientCore):
    """A job begins although the memory that it builds on is not known yet."""

    def _next(self, assignment: Assignment) -> list[Effect]:
        firsts, self.firsts = self.firsts, [{} for _ in self.firsts]
        found = super()._next(assignment)
        self.firsts = firsts
        return found


class ZeroesUploads(ClientCore):
    """Clients send nothing but zeros."""

    def _pend(self, job: Job, done: Done | None, error: str = "") -> list[Effect]:
        zeros = {name: vector * 0 for name, vector in done.upload.items()} if done else {}
        return super()._pend(job, done._replace(upload=zeros) if done else None, error)


class TrustsItsDisk(ClientCore):
    """A disk that was restored from a backup counts, whatever the copy says."""

    def _compare(self, mine: ClientState) -> list[Effect]:
        return []


class ForgetsWhenLeaving(ClientCore):
    """Who leaves takes its pending result for done."""

    def leave(self, now: float) -> list[Effect]:
        found = super().leave(now)
        if self.state is not None and self.state.pending is not None:
            self.state = replace(self.state, pending=None, settled=(self.state.epoch, self.state.seq))
            return [Save(write_client_state(self.state)), *found]
        return found


class MovesOnSend(ClientCore):
    """y ← x when the message is sent, whatever becomes of it."""

    def _pend(self, job: Job, done: Done | None, error: str = "") -> list[Effect]:
        effects = super()._pend(job, done, error)
        state = self.state
        if done is not None and state is not None and state.pending is not None and state.pending.memory is not None:
            moved = {**state.memory, job.task: state.pending.memory}
            return self._keep(replace(state, memory=moved, pending=replace(state.pending, memory=None)))
        return effects


class MovesOnAnyVerdict(ClientCore):
    """Memory moves on even if the result was refused."""

    def hear(self, data: bytes, now: float) -> list[Effect]:
        before = self.state
        effects = super().hear(data, now)
        state, pending = self.state, before.pending if before else None
        assignment: Assignment | None = self.assignment
        if (
            state is None
            or pending is None
            or pending.memory is None
            or state.pending is not None
            or assignment is None
        ):
            return effects
        if assignment.last == (pending.epoch, pending.seq) and assignment.verdict != APPLIED:
            self.state = replace(state, memory={**state.memory, pending.task: pending.memory})
        return effects


class ForgetsMemory(ClientCore):
    """A client without its disk begins anew."""

    def recovered(self, data: bytes | None, now: float) -> list[Effect]:
        if self.comparing or self.assignment is None:
            return super().recovered(data, now)
        self.recovering = False
        memory = {task: first for task, first in enumerate(self.firsts) if first}
        return self._renew(
            ClientState(self.run, self.client, 0, "", settled=self.assignment.last, memory=memory), self.assignment
        )


class SendsBeforeSaving(ClientCore):
    """The result leaves before it is on disk, and no copy is kept."""

    def _keep(self, state: ClientState) -> list[Effect]:
        effects = super()._keep(state)
        self.mirror_of = None
        return [*self._speak(), *effects[:0]]


def forget_numbers(ledger: Any) -> Any:
    """Recovery forgets how many jobs a client was sent: its random draws begin again."""
    for record in ledger.clients:
        record.number = 0
    return ledger


def forget_cancelled(ledger: Any) -> Any:
    """Recovery forgets what was cancelled."""
    for record in ledger.clients:
        record.cancelled = []
    return ledger


def apply_again(ledger: Any) -> Any:
    """Recovery folds the last entries into a state that has them already."""
    ledger.position = max(0, ledger.position - 5)
    for record in ledger.clients:
        record.seq, record.digest = max(0, record.seq - 1), ""
    return ledger


class Plant(NamedTuple):
    """A mistake, the algorithms under which it must be seen, and the number of schedules that this takes at most."""

    bugs: Bugs
    within: int = 3
    algorithms: Sequence[str] = ("area",)


EVERY = tuple(ALGORITHMS)
LEASED = tuple(name for name in ALGORITHMS if name not in ("favano", "cancels"))  # these stop what takes too long
PLANTS = {
    "no de-duplication": Plant(Bugs(verdicts=AppliesRepeated)),
    "answered before it is stored": Plant(Bugs(eager=True), 10),
    "memory moves on sending": Plant(Bugs(core=MovesOnSend)),
    "memory moves on any verdict": Plant(Bugs(core=MovesOnAnyVerdict), 10),
    "random counter forgotten": Plant(Bugs(thaw=forget_numbers)),
    "old epoch accepted": Plant(Bugs(sessions=TakesOldEpochs), 16),
    "applied again on recovery": Plant(Bugs(thaw=apply_again)),
    "memory begins anew": Plant(Bugs(core=ForgetsMemory)),
    "sent before it is saved": Plant(Bugs(core=SendsBeforeSaving)),
    "restored disk trusted": Plant(Bugs(core=TrustsItsDisk), 16),
    "settled number with other content": Plant(Bugs(verdicts=TakesOtherContent)),
    "leases ignored": Plant(Bugs(server=IgnoresLeases), 16, LEASED),
    "cancelled work applied": Plant(Bugs(verdicts=TakesCancelled), 4, ("cancels",)),
    "cancelled work lost as well": Plant(Bugs(verdicts=LosesCancelled), 4, ("cancels", "cancels held")),
    "cancelled work sent as the next job's": Plant(Bugs(core=WorksOn), 4, ("cancels",)),
    "memory moves on a cancelled result": Plant(Bugs(core=MovesOnAnyVerdict), 4, ("cancels",)),
    "cancellations forgotten on recovery": Plant(Bugs(thaw=forget_cancelled), 16, ("cancels",)),
    "clock steps backwards counted": Plant(Bugs(reducer=CountsBackwards), 4, EVERY),
    "old models sent": Plant(Bugs(reducer=SendsOldModels), 3, EVERY),
    "trained on a stale model": Plant(Bugs(core=TrainsOnStale), 3, EVERY),
    "uploads zeroed by clients": Plant(Bugs(core=ZeroesUploads), 3, EVERY),
    "uploads zeroed by the server": Plant(Bugs(reducer=ZeroesArriving), 3, EVERY),
    "wrong version scored": Plant(Bugs(server=ScoresTheNewest), 4, EVERY),
    "stale model evaluated": Plant(Bugs(core=JudgesStale), 4, EVERY),
    "sent before the verdict on the one before": Plant(Bugs(core=SendsAhead), 3, ("queued",)),
    "trained before the verdict on its memory": Plant(Bugs(core=TrainsAhead), 3, ("fedast",)),
    "own model of an old memory": Plant(Bugs(core=JudgesForgetful), 4),
    "pending result forgotten on leaving": Plant(Bugs(core=ForgetsWhenLeaving), 8),
}


@pytest.mark.parametrize(
    ("mistake", "algorithm"), [(name, each) for name, plant in PLANTS.items() for each in plant.algorithms]
)
def test_a_planted_mistake_is_caught(mistake: str, algorithm: str) -> None:
    plant = PLANTS[mistake]
    for seed in range(plant.within):
        if caught(Broken(seed, algorithm, plant.bugs, rate=2.0).run().violations):
            return
    pytest.fail(f"{plant.within} schedules did not show: {mistake}")
