"""Ledgers and budgets through everything that can go wrong, and mistakes that must not get through."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from budgeted import BUDGETED, CLIP, Budgeted, Z
from faults import Bugs
from plants import caught

from offbeat.core.guard import Contributions
from offbeat.core.local import STEPS_SPENT
from offbeat.core.vectors import Vector
from offbeat.deploy.assignment import Assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState
from offbeat.deploy.effects import Effect
from offbeat.privacy.differential import Noise, Privacy, clipped


@pytest.mark.parametrize("algorithm", BUDGETED)
@pytest.mark.parametrize("seed", range(2))
def test_the_ledger_is_what_the_log_says_after_any_faults(algorithm: str, seed: int) -> None:
    outcome = Budgeted(seed, algorithm).run()
    assert outcome.violations == []
    assert outcome.updates > 10
    assert sum(outcome.fired.values()) > 20


@pytest.mark.slow
def test_three_hundred_schedules() -> None:
    wrong, fired = [], Counter[str]()
    for algorithm in BUDGETED:
        for seed in range(50):
            outcome = Budgeted(seed, algorithm).run()
            fired += outcome.fired
            wrong += [f"{algorithm} {seed}: {violation}" for violation in outcome.violations]
    assert wrong == []
    assert min(fired[kind] for kind in ("privacy budget", "refused for the budget", "disk lost", "disk restored")) > 0


# Planted mistakes


@dataclass(frozen=True)
class ChargesAfterRelease(Privacy):
    """The ledger is charged when the sum has been released; until then, who is in it is in the process alone."""

    owed: list[int] = field(default_factory=list, compare=False)

    def collect(self, model: Any, buffer: Any, client: int, vector: Vector) -> None:
        term = clipped(vector.double().unsqueeze(0), self.clip)[0]
        buffer.sum = term if buffer.sum is None else buffer.sum + term
        buffer.count += 1
        self.owed.append(client)

    def mean(self, model: Any, buffer: Any, size: int | None, view: Any) -> Vector:
        model.contributions = model.contributions or Contributions()
        found = super().mean(model, buffer, size, view)
        past = model.contributions
        while self.owed:
            client = self.owed.pop()
            past.count[client], past.last[client] = past.count.get(client, 0) + 1, past.releases - 1
        return found


@dataclass(frozen=True)
class Quiet(Privacy):
    """Every tenth sum has no noise."""

    def _noise(self, past: Contributions, total: Vector, view: Any) -> Vector:
        found = super()._noise(past, total, view)
        return torch.zeros_like(found) if past.releases % 10 == 9 else found


class ChargesWhenApplied(ClientCore):
    """A client counts what was applied, not what it has sent."""

    def _keep(self, state: ClientState) -> list[Effect]:
        pending = state.pending is not None and self.state is not None and self.state.pending is None
        return super()._keep(replace(state, memory=self.state.memory) if pending and self.state else state)


class BeginsAnew(ClientCore):
    """A client without its disk forgets what it has spent."""

    def recovered(self, data: bytes | None, now: float) -> list[Effect]:
        if self.comparing or self.assignment is None:
            return super().recovered(data, now)
        self.recovering = False
        memory = {task: first for task, first in enumerate(self.firsts) if first}
        return self._renew(ClientState(self.run, self.client, 0, "", memory=memory), self.assignment)


class IgnoresTheOldCopy(ClientCore):
    """A client that has lost its disk counts nothing for the copy of it that may live on and send a result."""

    def recovered(self, data: bytes | None, now: float) -> list[Effect]:
        self.anew = not self.comparing
        return super().recovered(data, now)

    def _renew(self, state: ClientState, assignment: Assignment) -> list[Effect]:
        if getattr(self, "anew", False):
            total, largest = state.memory[0][STEPS_SPENT].tolist()
            state = replace(state, memory={0: {STEPS_SPENT: torch.tensor([total - largest, largest])}})
        return super()._renew(state, assignment)


LATE = ChargesAfterRelease(CLIP, Noise(10**6, multiplier=Z))


@pytest.mark.parametrize(
    ("algorithm", "bugs", "guard"),
    [
        ("private", None, LATE),
        ("private area", None, LATE),
        ("private", None, Quiet(CLIP, Noise(10**6, multiplier=Z))),
        ("own", Bugs(core=ChargesWhenApplied), None),
        ("own", Bugs(core=BeginsAnew), None),
        ("own", Bugs(core=IgnoresTheOldCopy), None),
    ],
    ids=["charged after release", "the same, AREA", "a sum without noise", "refused for nothing", "disk lost", "copy"],
)
def test_a_planted_mistake_is_caught(algorithm: str, bugs: Bugs | None, guard: Any) -> None:
    assert any(caught(Budgeted(seed, algorithm, bugs, guard=guard).run().violations) for seed in range(10))
