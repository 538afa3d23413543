"""Noise by the members of a cohort, or by a helper, in the fault simulator: no violation, and planted mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from faults import Bugs
from noised import HELPERS, NOISED, Helped, Noised

from offbeat.core.local import SUMS_SPENT, Work
from offbeat.core.sums import Encoded
from offbeat.core.vectors import Vector
from offbeat.deploy import client_state, wire
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState, PendingResult
from offbeat.deploy.effects import Effect, Save
from offbeat.deploy.helper_core import HelperCore
from offbeat.deploy.keys import HELPER
from offbeat.privacy.differential import Privacy
from offbeat.privacy.secure.tickets import SumRequest


@pytest.mark.parametrize("algorithm", NOISED)
@pytest.mark.parametrize("seed", range(2))
def test_a_schedule_of_faults_has_no_violation(seed: int, algorithm: str) -> None:
    outcome = Noised(seed, algorithm).run()
    assert outcome.violations == []
    assert outcome.fired["sums"] > (0 if algorithm.endswith("capped") else 8)


@pytest.mark.parametrize("kind", ["noised capped", "noised fedast capped"])
def test_a_run_whose_members_have_spent_what_they_may_is_over(kind: str) -> None:
    """With several tasks, those who are left wait with a job of each: nobody else would ever come."""
    world = Noised(0, kind, rate=0.0)
    assert world.run().violations == []
    assert world.core is not None
    assert set(world.core.ledger.finished.values()) == {"privacy budget"}


@pytest.mark.parametrize("algorithm", HELPERS)
def test_a_schedule_with_a_helper_that_adds_the_noise_has_no_violation(algorithm: str) -> None:
    outcome = Helped(0, algorithm).run()
    assert outcome.violations == []
    assert outcome.fired["sums"] > (0 if algorithm.endswith("capped") else 8)


def test_a_sum_that_the_old_process_of_a_lost_disk_got_into_does_not_wait_for_ever() -> None:
    assert Noised(770080, "noised").run().violations == []


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", NOISED)
def test_a_thousand_schedules_have_no_violation(algorithm: str) -> None:
    """A sixth of them each. Phases last less than a second: the network fails some client in five cohorts in a row."""
    left_out = 0
    for seed in range(1000, 1167):
        outcome = Noised(seed, algorithm).run()
        assert outcome.violations == [], seed
        left_out += outcome.fired["left out"]
    assert left_out <= 10


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", HELPERS)
def test_a_hundred_schedules_each_with_a_helper_have_no_violation(algorithm: str) -> None:
    for seed in range(1000, 1100):
        assert Helped(seed, algorithm).run().violations == [], seed


class CountsWhatIsApplied(ClientCore):
    """A client counts a message when it is in a sum, not when it is written down."""

    def _keep(self, state: ClientState) -> list[Effect]:
        pending = state.pending is not None and self.state is not None and self.state.pending is None
        return super()._keep(replace(state, memory=self.state.memory) if pending and self.state else state)


class Quiet(Noised):
    """Every second message has no noise."""

    def draw(self, noised: Callable[[], Vector], encoded: Encoded, sent: Vector, work: Work) -> Vector:
        return sent if work.jobs[0].number % 2 else noised()


class Seeded(Noised):
    """Noise follows from the run's seed, which the server has."""

    def draw(self, noised: Callable[[], Vector], encoded: Encoded, sent: Vector, work: Work) -> Vector:
        work.secret = False  # as in simulations
        return noised()


@pytest.mark.parametrize("world", [Quiet, Seeded])
def test_noise_that_is_missing_or_that_the_server_can_draw_is_caught(world: type[Noised]) -> None:
    said = ("has noise [", "knows the run's seed")[world is Seeded]
    assert any(said in text for text in world(0, rate=0.0).run().violations)


def first_violation(algorithm: str, bugs: Bugs | None = None) -> str:
    return next((text for seed in range(10) for text in Noised(seed, algorithm, bugs).run().violations), "")


def test_a_client_that_counts_what_was_applied_is_caught() -> None:
    assert "sends more than it has counted" in first_violation("noised", Bugs(core=CountsWhatIsApplied))


def test_a_client_that_takes_back_what_others_may_have_summed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: Callable[..., Any] = client_state._given_back

    def always(memory: Any, pending: PendingResult) -> Any:
        return given_back(memory, replace(pending, shown=False))

    monkeypatch.setattr(client_state, "_given_back", always)
    assert "counted" in first_violation("noised")


def test_a_ledger_that_is_charged_after_the_release_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    charge, owed = Privacy.charge, dict[int, int]()

    def late(self: Privacy, model: Any, buffer: Any, client: int, last: bool) -> None:
        charge(self, model, buffer, client, last)
        model.contributions.count[client] -= 1
        if id(model) in owed:
            model.contributions.count[owed[id(model)]] += 1
        owed[id(model)] = client

    monkeypatch.setattr(Privacy, "charge", late)
    assert "are charged" in first_violation("noised")


# The helper's mistakes


class Forgetful(HelperCore):
    """A helper that does not count the sums that a client was in."""

    def _answer(self, request: SumRequest) -> bool:
        self.kept = replace(self.kept, opened=replace(self.kept.opened, spent={}))
        return super()._answer(request)


class Careless(HelperCore):
    """A helper that lets every third sum go without noise."""

    def _answer(self, request: SumRequest) -> bool:
        found = super()._answer(request)
        if request.number % 3 == 0 and self.answers.get(request.number):
            masks = self.unmasker.total(request.context, request.tickets)
            said = wire.Unmasked(self.run, HELPER, request.number)
            self.answers[request.number] = wire.say(said, {"masks": masks.astype("<u4").tobytes()})
        return found


class Rolled(HelperCore):
    """A helper that writes down what it has opened after the answer, if at all."""

    def _speak(self, now: float) -> list[Effect]:
        return [effect for effect in super()._speak(now) if not isinstance(effect, Save)]


@pytest.mark.parametrize(
    ("helper", "said"),
    [
        (Forgetful, "and the helper has counted"),
        (Careless, "and its clients have sent"),
        (Rolled, "sums were not opened"),
    ],
)
def test_a_helper_that_forgets_a_client_a_noise_or_its_disk_is_caught(helper: type[HelperCore], said: str) -> None:
    worlds = (Helped(seed, "helped fedast", Bugs(helper=helper)) for seed in range(6))
    assert any(said in text for world in worlds for text in world.run().violations)


def test_a_client_that_has_lost_its_disk_has_still_spent_what_it_had() -> None:
    """Its count is in the copy at the broker; and one message more, which its old process may send."""
    world = Noised(3, rate=0.0)
    world.later(15.0, lambda: world.lose_disk(world.nodes[0]))
    assert world.run().violations == []
    core = world.nodes[0].core
    assert core is not None
    assert core.state is not None
    assert float(core.state.memory[0][SUMS_SPENT][0]) == len(world.left[0, 0]) + 1
