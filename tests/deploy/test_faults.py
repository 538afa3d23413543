"""The server and the clients through everything that can go wrong, and mistakes that must not get through."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from faults import ALGORITHMS, Broken, Bugs

from offbeat.core.events import Job
from offbeat.deploy import wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.desk import Desk
from offbeat.deploy.effects import Done, Effect
from offbeat.deploy.ledger import Seat
from offbeat.deploy.member import Member
from offbeat.deploy.memoir import Memoir
from offbeat.deploy.reducer import Reducer

# Every kind of fault; one that never happens in all schedules together fails the test.
KINDS = {
    *(f"{way} {what}" for way in ("drop", "double", "delay") for what in ("tell", "desk", "sign", "append", "mirror")),
    *(f"server crash {when} {what}" for when in ("before", "after") for what in ("Post", "Append", "Checkpoint")),
    *(f"client crash {when} {what}" for when in ("before", "after") for what in ("Save", "Mirror", "Tell", "Train")),
    *("client crash", "client crash in a job", "cut off", "partition", "clock forwards", "clock backwards"),
    *("disk lost", "disk lost twice", "disk restored", "zombie", "slow job", "failed job", "rubbish"),
    *("drop fetch", "drop mirrored", "drop recover", "mirror overtaken", "server crash after Put"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_doubled_or_forgotten(algorithm: str, seed: int) -> None:
    outcome = Broken(seed, algorithm).run()
    assert outcome.violations == []
    assert outcome.updates > 20
    assert sum(outcome.fired.values()) > 20


@pytest.mark.slow
def test_a_thousand_schedules() -> None:
    fired: Counter[str] = Counter()
    wrong = []
    for algorithm in ALGORITHMS:
        for seed in range(1000, 1200):
            outcome = Broken(seed, algorithm).run()
            fired += outcome.fired
            wrong += [f"{algorithm} {seed}: {violation}" for violation in outcome.violations]
    assert wrong == []
    assert sorted(KINDS - set(fired)) == []


def test_without_faults_everything_is_applied_once() -> None:
    outcome = Broken(0, "area", rate=0.0).run()
    assert outcome.violations == []


# Planted mistakes


class AppliesRepeated(Reducer):
    """No de-duplication."""

    def _settled(self, seat: Seat, result: wire.Result, digest: str) -> bool:
        seat.seq = result.seq - 1
        return False

    def _settle(self, client: int, result: wire.Result, message: wire.Message) -> None:
        done = self.__dict__.setdefault("done", {})
        flight = self.ledger.flights.get(result.job)
        if flight is None and result.job in done:  # the job is applied as often as it comes
            self.ledger.flights[result.job] = done[result.job]
            self.ledger.seats[client].queue.append(result.job)
        elif flight is not None:
            done[result.job] = flight
        super()._settle(client, result, message)


class TakesOldEpochs(Reducer):
    """Old epochs are accepted."""

    def _check_epoch(self, seat: Seat, epoch: int) -> None:
        return

    def _admit(self, seat: Seat, hello: wire.Hello) -> None:
        return


class MovesOnSend(Member):
    """y ← x when the message is sent, whatever becomes of it."""

    def _pend(self, job: Job, done: Done | None, error: str = "") -> list[Effect]:
        effects = super()._pend(job, done, error)
        memoir = self.memoir
        if done is not None and memoir is not None and memoir.pending is not None and memoir.pending.memory is not None:
            moved = {**memoir.memory, job.task: memoir.pending.memory}
            return self._keep(replace(memoir, memory=moved, pending=replace(memoir.pending, memory=None)))
        return effects


class MovesOnAnyVerdict(Member):
    """Memory moves on even if the result was refused."""

    def hear(self, data: bytes, now: float) -> list[Effect]:
        before = self.memoir
        effects = super().hear(data, now)
        memoir, pending = self.memoir, before.pending if before else None
        desk: Desk | None = self.desk
        if memoir is None or pending is None or pending.memory is None or memoir.pending is not None or desk is None:
            return effects
        if desk.last == (pending.epoch, pending.seq) and desk.verdict != APPLIED:
            self.memoir = replace(memoir, memory={**memoir.memory, pending.task: pending.memory})
        return effects


class ForgetsMemory(Member):
    """A client without its disk begins anew."""

    def recovered(self, data: bytes | None, now: float) -> list[Effect]:
        self.recovering = False
        assert self.desk is not None
        memory = {task: first for task, first in enumerate(self.firsts) if first}
        return self._renew(Memoir(self.run, self.client, 0, "", settled=self.desk.last, memory=memory), self.desk)


class SendsBeforeSaving(Member):
    """The result leaves before it is on disk, and no copy is kept."""

    def _keep(self, memoir: Memoir) -> list[Effect]:
        effects = super()._keep(memoir)
        self.mirror_of = None
        return [*self._speak(), *effects[:0]]


def forget_numbers(ledger: Any) -> Any:
    """Recovery forgets how many jobs a client was sent: its random draws begin again."""
    for seat in ledger.seats:
        seat.number = 0
    return ledger


def apply_again(ledger: Any) -> Any:
    """Recovery folds the last entries into a state that has them already."""
    ledger.position = max(0, ledger.position - 5)
    for seat in ledger.seats:
        seat.seq, seat.digest = max(0, seat.seq - 1), ""
    return ledger


BUGS = {
    "no de-duplication": Bugs(reducer=AppliesRepeated),
    "answered before it is stored": Bugs(eager=True),
    "memory moves on sending": Bugs(member=MovesOnSend),
    "memory moves on any verdict": Bugs(member=MovesOnAnyVerdict),
    "random counter forgotten": Bugs(thaw=forget_numbers),
    "old epoch accepted": Bugs(reducer=TakesOldEpochs),
    "applied again on recovery": Bugs(thaw=apply_again),
    "memory begins anew": Bugs(member=ForgetsMemory),
    "sent before it is saved": Bugs(member=SendsBeforeSaving),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_mistake_is_caught(bug: str) -> None:
    first = 13 if bug == "old epoch accepted" else 0  # earlier schedules happen not to show it
    for seed in range(first, first + 30):
        if Broken(seed, "area", BUGS[bug], rate=2.0).run().violations:
            return
    pytest.fail(f"thirty schedules did not show: {bug}")
