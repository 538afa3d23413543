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
from offbeat.deploy.assignment import Assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState
from offbeat.deploy.effects import Done, Effect
from offbeat.deploy.ledger import ClientRecord
from offbeat.deploy.reducer import Reducer

# Every kind of fault; one that never happens in all schedules together fails the test.
KINDS = {
    *(
        f"{way} {what}"
        for way in ("drop", "double", "delay")
        for what in ("tell", "assignment", "sign", "append", "mirror")
    ),
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

    def _settled(self, record: ClientRecord, result: wire.Trained, digest: str) -> bool:
        record.seq = result.seq - 1
        return False

    def _settle(self, client: int, result: wire.Trained, message: wire.Message) -> None:
        done = self.__dict__.setdefault("done", {})
        flight = self.ledger.flights.get(result.job)
        if flight is None and result.job in done:  # the job is applied as often as it comes
            self.ledger.flights[result.job] = done[result.job]
            self.ledger.clients[client].queue.append(result.job)
        elif flight is not None:
            done[result.job] = flight
        super()._settle(client, result, message)


class TakesOldEpochs(Reducer):
    """Old epochs are accepted."""

    def _check_epoch(self, record: ClientRecord, epoch: int) -> None:
        return

    def _admit(self, record: ClientRecord, hello: wire.Hello) -> None:
        return


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
        self.recovering = False
        assert self.assignment is not None
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


def apply_again(ledger: Any) -> Any:
    """Recovery folds the last entries into a state that has them already."""
    ledger.position = max(0, ledger.position - 5)
    for record in ledger.clients:
        record.seq, record.digest = max(0, record.seq - 1), ""
    return ledger


BUGS = {
    "no de-duplication": Bugs(reducer=AppliesRepeated),
    "answered before it is stored": Bugs(eager=True),
    "memory moves on sending": Bugs(core=MovesOnSend),
    "memory moves on any verdict": Bugs(core=MovesOnAnyVerdict),
    "random counter forgotten": Bugs(thaw=forget_numbers),
    "old epoch accepted": Bugs(reducer=TakesOldEpochs),
    "applied again on recovery": Bugs(thaw=apply_again),
    "memory begins anew": Bugs(core=ForgetsMemory),
    "sent before it is saved": Bugs(core=SendsBeforeSaving),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_mistake_is_caught(bug: str) -> None:
    first = 13 if bug == "old epoch accepted" else 0  # earlier schedules happen not to show it
    for seed in range(first, first + 30):
        if Broken(seed, "area", BUGS[bug], rate=2.0).run().violations:
            return
    pytest.fail(f"thirty schedules did not show: {bug}")
