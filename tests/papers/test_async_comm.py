"""AsyncCommSGD (Avdiukhin and Kasiviswanathan 2021)."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AsyncCommSGD, FedAsync, FedAvg
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Exponential, Times

NOISY = Quadratic(6, dim=4, noise=0.5, dtype=torch.float64)
UNEVEN = Times(Exponential((8.0, 4.0, 2.0, 1.0, 1.0, 0.5)))
F = Fraction


def test_six_messages_by_hand() -> None:
    """Two local steps of ½ between contacts: delta = ¾ (received − centre), and w − delta/3."""
    expected = [
        F(3, 2),  # client 0 from 0: −9/2
        F(21, 8),  # client 0 from 3/2: −27/8
        F(45, 8),  # client 1 from 0: −9
        F(207, 32),  # client 0 from 21/8: −81/32
        F(813, 128),  # client 0 from 207/32: 45/128
        F(621, 128),  # client 2 from 0: 9/2
    ]
    clock = Scripted([[1.0], [2.5, 100.0], [4.5]])
    algorithm = Algorithm(AsyncCommSGD(least=2, most=2), SGD(lr=0.5))
    found = []
    for world in prepare(Line([6.0, 12.0, -6.0]), algorithm, clock, Until(updates=6)).steps():
        if world.tally.updates > len(found):
            found.append(world.server.model.vector.item())
    assert found == pytest.approx([float(x) for x in expected], abs=1e-14)


def test_if_all_make_contact_at_once_it_is_local_sgd() -> None:
    """Clients that make contact in the same instant all receive the same model, as in a round of FedAvg."""
    one, other = (
        run(NOISY, server, local, Times(Constant(1.0)), Until(time=8.5)).model
        for server, local in (
            (AsyncCommSGD(least=3, most=3), SGD(lr=0.05)),
            (FedAvg(), SGD(lr=0.05, steps=3)),
        )
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_with_one_step_between_contacts_it_is_fedasync_with_one_nth() -> None:
    one, other = (
        run(NOISY, server, SGD(lr=0.1), UNEVEN, Until(updates=300)).model
        for server in (AsyncCommSGD(least=1, most=1), FedAsync(lr=1 / 6))
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_steps_between_contacts_are_drawn_from_the_least_to_the_most() -> None:
    algorithm, drawn = Algorithm(AsyncCommSGD(least=2, most=5), SGD(lr=0.02)), set()
    for world in prepare(NOISY, algorithm, UNEVEN, Until(updates=400)).steps():
        drawn |= {flight.job.steps for flight in world.flights.values()}
    assert drawn == {2, 3, 4, 5}
    with pytest.raises(SettingError, match="least = 6: must not exceed most = 5"):
        AsyncCommSGD(least=6, most=5)


def test_on_a_shared_clock_it_ends_at_the_optimum_whoever_makes_contact_how_often() -> None:
    """Each local step takes the same time, so all clients make as many; their optima are far apart."""
    problem = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    clock = Times(Constant(0.01, per="step"))
    found = run(problem, AsyncCommSGD(least=1, most=6), SGD(lr=0.005), clock, Until(time=100.0)).model
    assert float((found - problem.optimum()).norm()) < 0.02 * problem.distance
