"""FedFix (Fraboni et al. 2023): aggregation at fixed intervals, by time-corrected weights."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import FedAvg, FedBuff, FedFix, Period
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

HALF = SGD(lr=0.5)  # on the line: delta = (received − centre) / 2
THREE = Line([6.0, 12.0, -6.0])
TIMES = [1.0, 2.5, 4.5]
ORDER = Scripted([[time] for time in TIMES])


def test_four_intervals_by_hand() -> None:
    """Δt = 2, so that the clients' work takes 1, 2 and 3 intervals; seven arrivals, four steps."""
    expected = {
        2.0: Fraction(1),  # client 0 from 0: −3
        4.0: Fraction(35, 6),  # client 1 from 0: 2·−6, client 0 from 1: −5/2
        6.0: Fraction(103, 36),  # client 2 from 0: 3·3, client 0 from 35/6: −1/12
        8.0: Fraction(1175, 216),  # client 1 from 35/6: 2·−37/12, client 0 from 103/36: −113/72
    }
    steps = prepare(THREE, Algorithm(FedFix(period=2.0), HALF), ORDER, Until(time=8.5)).steps()
    found = {world.now: world.server.model.vector.item() for world in steps if not world.stopped}
    assert [found[time] for time in expected] == pytest.approx([float(x) for x in expected.values()], abs=1e-14)


def test_the_weights_are_those_of_the_paper_where_times_are_fixed() -> None:
    """⌈τ_i/Δt⌉/n: a client that takes part in every k-th interval counts k times as much."""
    for period in (0.7, 1.0, 2.0, 5.0):
        weights: dict[int, set[float]] = {}
        simulation = prepare(THREE, Algorithm(FedFix(period=period), HALF), ORDER, Until(time=40.0))
        for world in simulation.steps():
            state = world.server
            for client in state.ready:
                weights.setdefault(client, set()).add(ceil(round(world.now / period, 9)) - state.began[client])
        assert weights == {client: {ceil(time / period)} for client, time in enumerate(TIMES)}


def test_with_a_period_in_which_everybody_reports_it_is_fedavg() -> None:
    problem = Quadratic(4, dim=3, noise=0.3, dtype=torch.float64)
    clock = Scripted([[1.0], [0.7], [0.3], [0.9]])
    fixed, rounds = (
        run(problem, server, HALF, clock, Until(versions=20)).model for server in (FedFix(period=1.5), FedAvg())
    )
    torch.testing.assert_close(fixed, rounds, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_slow_clients_count_as_much_as_fast_ones() -> None:
    """Rates 50, 10, 5 and 1: FedBuff by the same clock settles near the fast client's optimum."""
    problem = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    timing, local = Times(Exponential((50.0, 10.0, 5.0, 1.0))), SGD(lr=0.002)
    away = [
        float(
            torch.linalg.vector_norm(run(problem, server, local, timing, Until(time=800.0)).model - problem.optimum())
        )
        for server in (FedFix(period=0.1), FedBuff(size=Period(0.1)))
    ]
    assert away[0] < 0.25 * away[1]


def test_a_lost_job_is_sent_again_at_once_and_a_client_that_comes_back_begins_anew() -> None:
    lossy = Times(Exponential(1.0), dropout=0.4)
    result = run(THREE, FedFix(period=0.5), HALF, lossy, Until(updates=100))
    assert result.world.tally.lost > 30
    clock = Scripted([[1.0], [1.0], [1.0]], flips={2: [0.5, 10.2]})
    state = run(THREE, FedFix(period=2.0), HALF, clock, Until(time=11.0)).world.server
    assert state.began[2] == 5  # it was away for five intervals, which do not count


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="period"):
        FedFix(period=0.0)
