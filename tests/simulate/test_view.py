"""Who a server may choose: uniform draws among the clients that are there, take work and have none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from scipy.stats import chisquare
from worlds import Diary, Line, Scenario, Scripted, play, send

from offbeat.core.events import Alarm
from offbeat.core.until import Until
from offbeat.timing import Constant, Times

N = 12
BUSY, AWAY, UNWILLING = 0, 1, 2
CLOCK = Scripted([[1e9]], away=frozenset({AWAY}), unwilling=frozenset({UNWILLING}))


@dataclass(frozen=True)
class Asking(Scenario):
    """Asks every second for `count` clients, and notes who it was given."""

    count: int = 1
    busy: bool = False  # whether busy ones will do

    def started(self, state: Diary, view: Any) -> Any:
        if view.present(BUSY):
            yield send(BUSY)
        yield Alarm(1.0, "ask")

    def rang(self, state: Diary, key: str, view: Any) -> Any:
        chosen = view.available(self.count) if self.busy else view.idle(self.count)
        state.heard.append(" ".join(map(str, chosen)))
        yield Alarm(1.0, "ask")


def answers(server: Asking, clock: Any = CLOCK, times: int = 3000) -> list[list[int]]:
    simulation, _ = play(server, clock, Until(time=times + 0.5), problems=[Line([0.0] * N)])
    return [[int(c) for c in line.split()] for line in simulation.world.server.heard]


@pytest.mark.parametrize("count", [1, 3, 5, 7, 9])
def test_idle_clients_are_drawn_uniformly_and_without_repetition(count: int) -> None:
    """Both ways of drawing: up to half of the idle by redrawing, more by shuffling."""
    found = answers(Asking({}, count))
    assert all(len(set(chosen)) == len(chosen) == count for chosen in found)
    counts = Counter(client for chosen in found for client in chosen)
    assert set(counts) == set(range(N)) - {BUSY, AWAY, UNWILLING}
    if count < 9:  # nine of nine is not random
        assert chisquare(list(counts.values())).pvalue > 0.01


def test_asking_for_more_than_there_are_gives_all_there_are() -> None:
    assert sorted(answers(Asking({}, 50), times=1)[0]) == [c for c in range(N) if c not in (BUSY, AWAY, UNWILLING)]
    assert answers(Asking({}, 0), times=1) == [[]]


def test_available_clients_are_drawn_uniformly_busy_or_not_and_with_repetition() -> None:
    found = answers(Asking({}, 4, busy=True))
    assert any(len(set(chosen)) < 4 for chosen in found)
    counts = Counter(client for chosen in found for client in chosen)
    assert set(counts) == set(range(N)) - {AWAY, UNWILLING}
    assert sum(counts.values()) == 4 * 3000
    assert chisquare(list(counts.values())).pvalue > 0.01


def test_when_nobody_is_there_nobody_is_given() -> None:
    clock = Scripted([[1.0]], away=frozenset(range(N)))
    assert answers(Asking({}, 3), clock, times=2) == [[], []]
    assert answers(Asking({}, 3, busy=True), clock, times=2) == [[], []]


def test_when_nobody_takes_work_nobody_is_given() -> None:
    clock = Scripted([[1.0]], unwilling=frozenset(range(N)))
    assert answers(Asking({}, 3), clock, times=2) == [[], []]
    assert answers(Asking({}, 1, busy=True), clock, times=2) == [[], []]


def test_a_share_that_takes_work_leaves_the_draw_uniform() -> None:
    """FedAST, §5.1: of 1,000 clients 30 % accept new work."""
    found = answers(Asking({}, 2), Times(Constant(1e9), available=0.3).bind(N, 0))
    counts = Counter(client for chosen in found for client in chosen)
    assert set(counts) == set(range(N)) - {BUSY}
    assert chisquare(list(counts.values())).pvalue > 0.01


def test_everyone_is_in_order_and_only_those_who_are_there() -> None:
    simulation, _ = play(Scenario({0: []}), CLOCK, Until(time=1.0), clients=N)
    assert list(simulation.view.everyone()) == [c for c in range(N) if c != AWAY]
    assert (simulation.view.present(AWAY), simulation.view.present(UNWILLING), simulation.view.clients) == (
        False,
        True,
        N,
    )


def test_a_job_that_has_just_arrived_is_no_longer_flying_and_its_client_idle() -> None:
    class Counting(Scenario):
        def arrived(self, state: Diary, update: Any, view: Any) -> Any:
            state.heard.append(f"{view.flying} flying, idle {sorted(view.idle(9))}")
            yield from ()

    simulation, _ = play(
        Counting({0: [send(0), send(0), send(1)]}), Scripted([[1.0], [1.5]]), Until(time=9.0), clients=3
    )
    assert simulation.world.server.heard == ["2 flying, idle [2]", "1 flying, idle [1, 2]", "0 flying, idle [0, 1, 2]"]


@dataclass(frozen=True)
class Wasting(Asking):
    def rang(self, state: Diary, key: str, view: Any) -> Any:
        yield from super().rang(state, key, view)
        for _ in range(7):
            view.rng.bits()


def test_the_random_numbers_of_an_event_do_not_depend_on_those_drawn_before() -> None:
    """The stream is keyed by the number of the event, so a resumed run draws the same."""
    assert answers(Asking({}, 2), times=50) == answers(Wasting({}, 2), times=50)
