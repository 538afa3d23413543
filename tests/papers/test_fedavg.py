"""FedAvg: synchronous rounds (McMahan et al. 2017; S-FedAvg in AREA, §5)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms.fedavg import FedAvg
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.timing.base import Durations

HOME = SGD(lr=1.0)  # reaches its centre
QUADRATIC = Quadratic(6, dim=6, heterogeneity=5.0, dtype=torch.float64)


def first_round(clock: Scripted, sampled: int, seed: int) -> list[dict[int, int]]:
    """How often each client counts, after each event of a round with replacement; and that it trains once."""
    server = FedAvg(sampled=sampled, replacement=True)
    simulation = prepare(Line([0.0, 5.0]), Algorithm(server, HOME), clock, Until(versions=1), seed=seed)
    times = [dict(world.server.times) for world in simulation.steps() if not world.stopped]
    world = simulation.world
    assert world.server.model.vector.item() == pytest.approx(5.0 * times[-1].get(1, 0) / sampled)
    assert world.tally.updates == len(times[-1])
    return times


def test_with_replacement_a_client_drawn_twice_trains_once_and_counts_twice() -> None:
    """DeFedAvg's (2): the mean is over a multiset; five draws from two clients, at 0 and at 5."""
    drawn = [first_round(Scripted([[1.0], [2.0]]), 5, seed)[0] for seed in range(12)]
    assert all(sum(times.values()) == 5 for times in drawn)
    assert len({times.get(1, 0) for times in drawn}) > 2


def test_who_replaces_a_client_that_left_counts_as_often_as_it_did() -> None:
    times = first_round(Scripted([[4.0], [9.0]], flips={0: (1.0,)}), 3, seed=5)
    assert (times[0], times[-1]) == ({0: 3}, {1: 3})


def test_results_that_count_several_times_are_not_over_selected() -> None:
    with pytest.raises(SettingError, match="first = 2"):
        FedAvg(sampled=5, first=2, replacement=True)


def test_everybody_with_one_step_is_gradient_descent() -> None:
    """w ← w − lr·mean(∇f_i(w)), ten times."""
    result = run(QUADRATIC, FedAvg(), SGD(lr=0.3), Times(Exponential(1.0)), Until(versions=10))
    w = QUADRATIC.initial()
    for _ in range(10):
        w = w - 0.3 * (QUADRATIC.h * (w - QUADRATIC.c)).mean(dim=0)
    torch.testing.assert_close(result.model, w, rtol=0, atol=1e-12)


def test_with_local_steps_it_rests_where_the_clients_pulls_balance() -> None:
    """M steps on a quadratic move by 1 − (1 − lr·h_i)^M towards c_i: the fixed point is known and is not x*."""
    result = run(QUADRATIC, FedAvg(), SGD(lr=0.3, steps=10), Times(Exponential(1.0)), Until(versions=400))
    pull = 1.0 - (1.0 - 0.3 * QUADRATIC.h) ** 10
    rest = (pull * QUADRATIC.c).sum(dim=0) / pull.sum(dim=0)
    torch.testing.assert_close(result.model, rest, rtol=0, atol=1e-6)
    assert float(torch.linalg.vector_norm(rest - QUADRATIC.optimum())) > 0.05


def test_lr_1_is_the_mean_of_the_clients_models() -> None:
    result = run(Line([3.0, 9.0, 0.0]), FedAvg(), SGD(lr=1.0), Scripted([[1.0], [2.0], [3.0]]), Until(versions=1))
    assert result.model.item() == 4.0


def test_the_server_step_size_scales_the_mean_delta() -> None:
    clock = Scripted([[1.0], [2.0], [3.0]])
    result = run(Line([3.0, 9.0, 0.0]), FedAvg(lr=0.5), SGD(lr=1.0), clock, Until(versions=1))
    assert result.model.item() == 2.0


def test_a_round_waits_for_its_slowest_client() -> None:
    result = run(Line([0.0] * 3), FedAvg(), SGD(lr=1.0), Scripted([[1.0], [2.0], [5.0]]), Until(versions=3))
    steps = [b.time for a, b in pairwise(result.events) if b.version > a.version]
    assert steps == [5.0, 10.0, 15.0]
    assert result.world.tally.staleness_max == 0


def test_a_sampled_round_has_s_different_clients() -> None:
    result = run(Line([0.0] * 10), FedAvg(sampled=4), SGD(lr=1.0), Times(Exponential(1.0)), Until(versions=50))
    clients = [e.client for e in result.events if e.event == "Arrived"]
    rounds = [clients[i : i + 4] for i in range(0, 200, 4)]
    assert all(len(set(r)) == 4 for r in rounds)
    assert len({frozenset(r) for r in rounds}) > 20
    assert set(clients) == set(range(10))


def test_a_lost_client_is_replaced_within_the_round() -> None:
    clock = Scripted([[Durations(0.0, 1.0, 0.0, lost=True), 1.0]])
    result = run(Line([0.0] * 3), FedAvg(sampled=2), SGD(lr=1.0), clock, Until(versions=1))
    assert result.world.tally.updates == 2
    assert result.world.tally.lost >= 2


def test_when_nobody_is_there_the_round_begins_with_the_first_to_come() -> None:
    clock = Scripted([[1.0]], flips={0: [3.0]}, away=frozenset({0}))
    result = run(Line([4.0]), FedAvg(), SGD(lr=1.0), clock, Until(versions=1, time=100.0))
    assert [(e.time, e.event) for e in result.events] == [(0.0, "Started"), (3.0, "Joined"), (4.0, "Arrived")]
    assert result.model.item() == 4.0


@pytest.mark.parametrize("sampled", [0, -1])
def test_a_round_without_clients_is_refused(sampled: int) -> None:
    with pytest.raises(SettingError, match=f"sampled = {sampled}: must be at least 1"):
        FedAvg(sampled=sampled)
