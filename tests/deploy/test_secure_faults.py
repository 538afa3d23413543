"""Secure aggregation in the fault simulator: schedules without a violation, and planted mistakes that are caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from faults import Bugs
from secured import SECURED, Secured

from offbeat.deploy.helper_core import HelperCore
from offbeat.deploy.masking import Masking
from offbeat.privacy.secure.helper import HelperState


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


@pytest.mark.parametrize("algorithm", SECURED)
@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_of_faults_has_no_violation(seed: int, algorithm: str) -> None:
    outcome = Secured(seed, algorithm).run()
    assert outcome.violations == []
    assert outcome.fired["sums"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SECURED)
def test_hundreds_of_schedules_have_no_violation(algorithm: str) -> None:
    for seed in range(1000, 1300):
        assert Secured(seed, algorithm).run().violations == [], seed


@pytest.mark.parametrize("bugs", [Bugs(mask=ReusesMasks), Bugs(helper=AnswersTwice)], ids=["mask reused", "twice"])
def test_a_planted_mistake_is_caught(bugs: Bugs) -> None:
    assert any(Secured(seed, "secure", bugs).run().violations for seed in range(5))
