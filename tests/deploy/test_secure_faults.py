"""Secure aggregation in the fault simulator: schedules without a violation, and planted mistakes that are caught."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from faults import Bugs
from secured import SECURED, Secured

from offbeat.deploy.assignment import Assignment
from offbeat.deploy.client_state import ClientState
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
    """Two hundred of each kind."""
    for seed in range(1000, 1200):
        assert Secured(seed, algorithm).run().violations == [], seed


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


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_caught(name: str) -> None:
    algorithm, bugs, said = PLANTED[name]
    assert any(said in text for seed in range(5) for text in Secured(seed, algorithm, bugs).run().violations)
