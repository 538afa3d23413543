"""Where methods end up: one client 100 times slower than the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offbeat.algorithms import AREA, FedAsync, FedBuff, Steady
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.theory import limits, times
from offbeat.timing import Exponential, Times

RATES = (1.0, 1.0, 1.0, 1.0, 0.01)
PROBLEM = Quadratic(5, dim=4, smoothness=1.0, convexity=0.3, heterogeneity=2.0, distance=1.0, dtype=torch.float64)


def settled(server: Any, local: SGD, updates: int, skip: float = 0.3, seed: int = 0) -> np.ndarray:
    """The mean model over the later part of a run."""
    simulation = prepare(
        PROBLEM, Algorithm(server, local), Times(Exponential(RATES)), Until(updates=updates), seed=seed
    )
    path = [simulation.server.models(world.server)[0].vector for world in simulation.steps()]
    return torch.stack(path[int(skip * len(path)) :]).mean(dim=0).numpy()


def test_area_reaches_the_optimum_with_a_client_100_times_slower() -> None:
    """Constant step, exact gradients, one local step: its fixed point is the optimum itself."""
    simulation = prepare(
        PROBLEM,
        Algorithm(AREA(size=2, schedule=Steady(0.5)), SGD(lr=0.5)),
        Times(Exponential(RATES)),
        Until(updates=24_000),
    )
    simulation.run()
    away = simulation.world.server.model.vector - PROBLEM.optimum()
    assert float(away.norm()) < 1e-3 * limits.bias(PROBLEM.h.numpy(), PROBLEM.c.numpy(), RATES)


@pytest.mark.parametrize(
    ("server", "local"),
    [
        (FedBuff(size=4, lr=0.3), SGD(lr=0.05)),
        (FedBuff(size=4, lr=0.1), SGD(lr=0.3, steps=5)),
        (FedAsync(lr=0.1), SGD(lr=0.05)),
    ],
)
def test_the_bias_of_client_driven_methods_is_the_predicted_one(server: Any, local: SGD) -> None:
    """|limit − optimum| within 5 %, and the point itself within 5 % of that bias; mean of four runs."""
    h, c = PROBLEM.h.numpy(), PROBLEM.c.numpy()
    predicted = limits.limit_point(h, c, times.shares(RATES), local.lr, local.steps)
    best = PROBLEM.optimum().numpy()
    found = np.mean([settled(server, local, 8000, seed=seed) for seed in range(4)], axis=0)
    bias = np.linalg.norm(predicted - best)
    assert np.linalg.norm(found - best) == pytest.approx(bias, rel=0.05)
    assert np.linalg.norm(found - predicted) < 0.05 * bias


def test_equal_shares_have_no_bias_and_many_local_steps_drift() -> None:
    h, c = PROBLEM.h.numpy(), PROBLEM.c.numpy()
    assert limits.limit_point(h, c) == pytest.approx(PROBLEM.optimum().numpy())
    assert limits.bias(h, c, [1.0] * 5) == pytest.approx(0.0, abs=1e-12)
    assert limits.bias(h, c, [1.0] * 5, lr=1e-9, steps=10) == pytest.approx(0.0, abs=1e-6)  # η → 0
    far = limits.limit_point(h, c, lr=0.9, steps=10_000)
    assert far == pytest.approx(c.mean(axis=0), abs=1e-6)  # every client reaches its own optimum


def test_area_with_several_local_steps_rests_at_the_drifted_point() -> None:
    local = SGD(lr=0.3, steps=5)
    h, c = PROBLEM.h.numpy(), PROBLEM.c.numpy()
    simulation = prepare(PROBLEM, Algorithm(AREA(size=2), local), Times(Exponential((1.0,) * 5)), Until(updates=3000))
    simulation.run()
    rest = limits.limit_point(h, c, lr=0.3, steps=5)
    assert simulation.world.server.model.vector.numpy() == pytest.approx(rest, abs=1e-6)
    assert np.linalg.norm(rest - PROBLEM.optimum().numpy()) > 0.01


def test_a_straight_line_agrees_with_the_problems_own_formula() -> None:
    shares = [3.0, 1.0, 1.0, 1.0, 0.1]
    own = PROBLEM.optimum([p / sum(shares) for p in shares]).numpy()
    assert limits.limit_point(PROBLEM.h.numpy(), PROBLEM.c.numpy(), shares) == pytest.approx(own)


@pytest.mark.parametrize(
    "wrong", [([[1.0]], [[1.0, 2.0]], None), ([[1.0]], [[1.0]], [-1.0]), ([[1.0]], [[1.0]], [0.0])]
)
def test_bad_shapes_and_shares_are_refused(wrong: Any) -> None:
    with pytest.raises(SettingError):
        limits.limit_point(*wrong)
