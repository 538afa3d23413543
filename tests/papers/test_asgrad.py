"""AsGrad's orders (Islamov et al. 2024): pure, random, shuffled, each with and without waiting."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AsGrad, AsySG
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import Gradient
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

CENTRES = [6.0, 12.0, -6.0]
THREE = Line(CENTRES)
ORDER = Scripted([[1.0], [2.5], [4.5]])
UNEVEN = Times(Exponential((8.0, 4.0, 2.0, 1.0)))


def test_pure_waiting_eight_gradients_by_hand() -> None:
    expected = [
        Fraction(0),  # at 1, client 0 at 0: −6; it waits
        Fraction(9, 2),  # at 2.5, client 1 at 0: −12; mean −9; both receive 9/2
        Fraction(9, 2),  # at 3.5, client 0 at 9/2: −3/2
        Fraction(27, 8),  # at 4.5, client 2 at 0: 6; mean 9/4
        Fraction(27, 8),  # at 5, client 1 at 9/2: −15/2
        Fraction(189, 32),  # at 5.5, client 0 at 27/8: −21/8; mean −81/16
        Fraction(189, 32),  # at 6.5, client 0 at 189/32: −3/32
        Fraction(477, 64),  # at 7.5, client 1 at 189/32: −195/32; mean −99/32
    ]
    steps = prepare(THREE, Algorithm(AsGrad(order="pure", size=2, lr=0.5), Gradient()), ORDER, Until(updates=8)).steps()
    next(steps)  # Started
    assert [world.server.model.vector.item() for world in steps][:8] == [float(x) for x in expected]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("order", ["random", "shuffled"])
def test_drawn_orders_replayed_from_the_log_as_fractions(order: Any, size: int) -> None:
    """w ← w − lr · mean of `size` gradients, each at the version that its job was sent."""
    made = prepare(THREE, Algorithm(AsGrad(order=order, size=size, lr=0.5), Gradient()), ORDER, Until(updates=12))
    history, w, buffer = [Fraction(0)], Fraction(0), []
    steps = made.steps()
    started = {flight.job.id: flight.job for flight in next(steps).flights.values()}
    for world, _ in zip(steps, range(12), strict=False):
        new = {flight.job.id: flight.job for flight in world.flights.values()}
        (done,) = set(started) - set(new)
        job = started[done]
        buffer.append(history[job.version] - Fraction(int(CENTRES[job.client])))
        if len(buffer) == size:
            w, buffer = w - Fraction(1, 2) * sum(buffer) / size, []
            history.append(w)
        assert world.server.model.vector.item() == pytest.approx(float(w), abs=1e-12)
        started = new


def assigned(result: Any) -> list[int]:
    """The clients of all jobs that were sent, in the order of sending."""
    jobs = {e.job: e.client for e in result.events if e.event == "Arrived"}
    jobs |= {flight.job.id: flight.job.client for flight in result.world.flights.values()}
    assert sorted(jobs) == list(range(len(jobs)))
    return [jobs[number] for number in range(len(jobs))]


def test_shuffled_gives_every_client_one_job_in_each_n() -> None:
    problem = Quadratic(4, dim=2, dtype=torch.float64)
    clients = assigned(run(problem, AsGrad(order="shuffled"), Gradient(), UNEVEN, Until(updates=400)))
    rounds = [tuple(clients[at : at + 4]) for at in range(0, len(clients) - 3, 4)]
    assert all(sorted(turn) == [0, 1, 2, 3] for turn in rounds)
    assert len(set(rounds)) > 12  # the permutation is drawn anew
    drawn = assigned(run(problem, AsGrad(order="random"), Gradient(), UNEVEN, Until(updates=400)))
    assert min(Counter(drawn).values()) > 70
    assert any(sorted(drawn[at : at + 4]) != [0, 1, 2, 3] for at in range(0, 396, 4))


def test_pure_without_waiting_is_asynchronous_sgd_bit_for_bit() -> None:
    problem = Quadratic(4, dim=3, noise=0.5, dtype=torch.float64)
    one, other = (
        run(problem, server, Gradient(), UNEVEN, Until(updates=300)).model
        for server in (AsGrad(order="pure", lr=0.02), AsySG(lr=0.02))
    )
    assert torch.equal(one, other)


def test_pure_that_waits_for_everybody_is_gradient_descent() -> None:
    found = run(THREE, AsGrad(order="pure", size=3, lr=0.5), Gradient(), ORDER, Until(versions=5)).model.item()
    assert found == pytest.approx(4.0 * (1 - 0.5**5))


def test_drawn_orders_take_away_the_bias_towards_fast_clients() -> None:
    """Rates 50, 10, 5 and 1: pure settles near the fast client's optimum, the other two far nearer to x*."""
    problem = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    timing = Times(Exponential((50.0, 10.0, 5.0, 1.0)))
    away = [
        float(
            torch.linalg.vector_norm(
                run(problem, server, Gradient(), timing, Until(updates=6000)).model - problem.optimum()
            )
        )
        for server in (AsGrad(order=order, lr=0.003) for order in ("pure", "random", "shuffled"))
    ]
    assert away[1] < 0.3 * away[0]
    assert away[2] < 0.3 * away[0]


@pytest.mark.parametrize("order", ["pure", "random", "shuffled"])
def test_a_server_that_waits_for_more_clients_than_there_are_still_gets_its_gradients(order: Any) -> None:
    result = run(THREE, AsGrad(order=order, size=5, lr=0.5), Gradient(), ORDER, Until(updates=40))
    assert result.world.server.model.version == 8


@pytest.mark.parametrize("order", ["pure", "random", "shuffled"])
def test_the_others_go_on_when_clients_leave_while_the_server_waits(order: Any) -> None:
    clock = Scripted([[1.0], [2.0], [50.0]], flips={1: [0.5, 7.0], 2: [1.5]})
    result = run(THREE, AsGrad(order=order, size=2, lr=0.5), Gradient(), clock, Until(updates=20))
    assert result.world.stopped == "updates"
    assert result.world.now < 45.0
