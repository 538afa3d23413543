"""Secure aggregation in the fault simulator: schedules without a violation, and planted mistakes that are caught."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from faults import Bugs
from plants import armed
from secured import SECURED, Secured

from offbeat.deploy import wire
from offbeat.deploy.assignment import Assignment
from offbeat.deploy.client_state import ClientState
from offbeat.deploy.cohorts import Cohorts
from offbeat.deploy.helper_core import HelperCore
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.masking import Masking, PairMasking
from offbeat.deploy.taking_part import TakingPart
from offbeat.privacy.secure.helper import HelperState
from offbeat.privacy.secure.member import read_member


class ReusesMasks(Masking):
    """Takes the key of the first message for all."""

    def __call__(self, *given: Any) -> Any:
        parts = dict(super().__call__(*given))
        self.first = getattr(self, "first", parts["once"])
        return {**parts, "once": self.first}


class AnswersTwice(HelperCore):
    """Forgets what it has opened."""

    def hear(self, data: bytes, now: float) -> Any:
        self.kept = replace(self.kept, opened=HelperState(self.kept.opened.last))
        return super().hear(data, now)


class ReusesKeys(PairMasking):
    """Draws the same secrets for every attempt."""

    def begin(self, *given: Any) -> Any:
        self.draw = Random("always").randbytes
        return super().begin(*given)


class RevealsTwice(TakingPart):
    """Forgets for whom it has answered."""

    def _answered(self, state: ClientState, assignment: Assignment) -> ClientState:
        forgotten = {n: replace(read_member(each), survivors=()).to_bytes() for n, each in state.members.items()}
        return super()._answered(replace(state, members=forgotten), assignment)


@pytest.mark.parametrize("algorithm", SECURED)
@pytest.mark.parametrize("seed", range(4))
def test_a_schedule_of_faults_has_no_violation(seed: int, algorithm: str) -> None:
    outcome = Secured(seed, algorithm).run()
    assert outcome.violations == []
    assert outcome.fired["sums"] > 8


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SECURED)
def test_a_thousand_schedules_have_no_violation(algorithm: str) -> None:
    """Some hundred and fifty of each kind. Phases last less than a second in them, so an honest client may be too slow
    for five cohorts in a row."""
    left_out = 0
    for seed in range(1000, 1143):
        outcome = Secured(seed, algorithm).run()
        assert outcome.violations == [], seed
        left_out += outcome.fired["left out"]
    assert left_out <= 4


class Junk(TakingPart):
    """Deals shares that nobody can open."""

    def _message(self, member: Any, pending: Any, call: Any) -> bytes:
        if call.sharers:
            return super()._message(member, pending, call)
        header = wire.Dealt(self.pairing.run, member.own.client, call.number)
        return wire.say(header, {"shares": bytes(len(member.sealed_shares()))})


class Mute(TakingPart):
    """Says that it is ready, and nothing else."""

    def _step(self, pending: Any, call: Any) -> Any:
        yield from ()


class Slander(TakingPart):
    """Says of everybody that their shares cannot be opened."""

    def _step(self, pending: Any, call: Any) -> Any:
        if not call.sharers:
            yield from super()._step(pending, call)
        else:
            member = read_member(pending.member)
            header = wire.Accused(self.pairing.run, member.own.client, call.number)
            assert member.call is not None
            yield f"accused.{call.number}", wire.say(header, {"accused": bytes([1] * len(member.call.members))})


class Spoiled(Secured):
    """A world in which one client does all it can against cohorts, for ever."""

    spoiler: type[TakingPart] = TakingPart

    def taking_part(self, node: Any) -> Any:
        return self.spoiler(self.pairing(node.name)) if node.name == "c3" else super().taking_part(node)

    def judge_progress(self, fold: Any) -> None:
        self.retired.add(3)
        super().judge_progress(fold)


@pytest.mark.parametrize("spoiler", [Junk, Mute])
@pytest.mark.parametrize("algorithm", ["cohort", "cohort area"])
def test_one_that_keeps_cohorts_from_giving_sums_is_left_out_and_the_run_ends_with_the_others(
    algorithm: str, spoiler: type[TakingPart]
) -> None:
    world = Spoiled(0, algorithm, rate=0.0)
    world.spoiler = spoiler
    outcome = world.run()
    meant = ("has refused: cohort", "c3 stopped")
    assert [said for said in outcome.violations if not any(each in said for each in meant)] == []
    assert outcome.fired["sums"] > 8
    assert world.core is not None
    assert [record.left_out for record in world.core.ledger.clients] == [False, False, False, True]
    assert "left out of the run" in str(world.nodes[3].error)


@pytest.mark.parametrize("algorithm", ["cohort", "cohort area"])
def test_one_that_accuses_all_others_keeps_itself_out_of_sums_and_nobody_else(algorithm: str) -> None:
    world = Spoiled(0, algorithm, rate=0.0)
    world.spoiler = Slander
    outcome = world.run()
    assert [said for said in outcome.violations if not said.startswith("job 3 was in flight")] == []
    assert outcome.fired["sums"] > 8
    assert world.core is not None
    assert not any(record.left_out for record in world.core.ledger.clients[:3])


PLANTED = {
    "mask reused": ("secure", Bugs(mask=ReusesMasks), "used a mask for two messages"),
    "opened twice": ("secure", Bugs(helper=AnswersTwice), "opened in two sums"),
    "keys reused": ("cohort", Bugs(pairing=ReusesKeys), "used a mask for two messages"),
    "unmask answered twice": ("cohort", Bugs(part=RevealsTwice), "has answered twice"),
}


def test_a_server_that_sends_a_model_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "barred", lambda *_: False)
    for algorithm in ("secure", "secure area"):
        assert any("in two sums of version" in text for text in Secured(0, algorithm).run().violations)


def test_a_cohort_of_two_tasks_clients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything_is_one_task(self: Cohorts, job: int) -> int:
        return 0

    armed(Cohorts, "_task", everything_is_one_task)
    monkeypatch.setattr(Cohorts, "_task", everything_is_one_task)
    assert any("has refused" in text for text in Secured(0, "cohort fedast area").run().violations)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_caught(name: str) -> None:
    algorithm, bugs, said = PLANTED[name]
    assert any(said in text for seed in range(5) for text in Secured(seed, algorithm, bugs).run().violations)
