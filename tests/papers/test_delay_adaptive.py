"""Delay-adaptive asynchronous SGD (Mishchenko et al. 2022; Koloskova et al. 2022)."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AsySG, DelayAdaptive
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import Gradient
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # clients 0, 0, 1, 0, 0, 2; staleness 0, 0, 2, 1, 0, 5
F = Fraction


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (DelayAdaptive(lr=0.5, threshold=1), [F(3), F(9, 2), F(15, 2), F(33, 4), F(57, 8), F(261, 40)]),
        (DelayAdaptive(lr=0.5), [F(3), F(9, 2), F(21, 2), F(45, 4), F(69, 8), F(273, 40)]),
        (DelayAdaptive(lr=0.5, threshold=1, smoothness=1), [F(3), F(9, 2), F(6), F(27, 4), F(51, 8), F(243, 40)]),
    ],
    ids=["threshold 1", "threshold n", "smoothness"],
)
def test_six_gradients_by_hand(server: DelayAdaptive, expected: list[Fraction]) -> None:
    """Client 1's −12 is two steps late and counts ½·½, ½ or 1/8; client 2's 6, five steps late, ½/5, ½·3/5 or 1/20."""
    steps = prepare(THREE, Algorithm(server, Gradient()), ORDER, Until(updates=6)).steps()
    next(steps)  # Started
    found = [world.server.model.vector.item() for world in steps][:6]
    assert found == pytest.approx([float(x) for x in expected], abs=1e-14)


@pytest.mark.parametrize("staleness", range(12))
def test_the_step_is_that_of_equation_11(staleness: int) -> None:
    """Koloskova et al., theorem 8: η_t is η if τ_t ≤ τ_C, and below min{η, 1/(4Lτ_t)} if τ_t > τ_C, with η ≤ 1/(4L).

    Any smaller step will do; this is the largest.
    """
    smoothness, step, concurrency = 2.0, 1 / 8, 5
    server = DelayAdaptive(lr=step, smoothness=smoothness, concurrency=concurrency)
    late = min(step, 1 / (4 * smoothness * staleness)) if staleness else step
    assert server.rate(staleness, 40) == (step if staleness <= concurrency else late)


def test_where_nothing_is_late_it_is_plain_asynchronous_sgd() -> None:
    problem = Quadratic(4, dim=3, noise=0.5, dtype=torch.float64)
    timing, until = Times(Exponential((8.0, 4.0, 2.0, 1.0))), Until(updates=300)
    servers = (AsySG(lr=0.02), DelayAdaptive(lr=0.02, threshold=300), DelayAdaptive(lr=0.02, threshold=5))
    plain, never, often = (run(problem, server, Gradient(), timing, until).model for server in servers)
    assert torch.equal(plain, never)
    assert not torch.equal(plain, often)
    capped = run(problem, AsySG(lr=0.02, cap=5.0), Gradient(), timing, until).model
    torch.testing.assert_close(often, capped, rtol=0, atol=1e-12)  # the rule that AsySG has as an option


def test_the_steps_of_late_gradients_are_never_longer_than_the_others() -> None:
    for server in (DelayAdaptive(lr=0.5), DelayAdaptive(lr=0.5, smoothness=0.1), DelayAdaptive(lr=0.5, concurrency=2)):
        rates = [server.rate(staleness, 4) for staleness in range(200)]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] == 0.5
        assert rates[-1] < 0.1


def test_a_very_late_gradient_does_not_throw_the_model_back() -> None:
    """Everybody's optimum is 100. One client's gradient at 0, −100, arrives when the others have long been there."""
    clock = Scripted([[1.0], [1.1], [1.3], [210.0]])

    def farthest(server: AsySG | DelayAdaptive) -> float:
        steps = prepare(Line([100.0] * 4), Algorithm(server, Gradient()), clock, Until(time=211.0)).steps()
        return max(abs(world.server.model.vector.item() - 100.0) for world in steps if world.now >= 209.0)

    assert farthest(AsySG(lr=0.2)) == pytest.approx(20.0)
    late = round(210 / 1.0) + round(210 / 1.1 - 0.5) + round(210 / 1.3 - 0.5)  # gradients before it
    assert farthest(DelayAdaptive(lr=0.2)) == pytest.approx(20.0 * 4 / late, rel=0.01)
