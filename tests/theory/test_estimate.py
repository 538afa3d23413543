"""Estimators against problems whose constants are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from worlds import Scripted

from offbeat.core.errors import SettingError
from offbeat.data import IID, load
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.theory import estimate
from offbeat.timing import Bandwidth, Constant, Exponential, Factors, LogNormal, Times


@pytest.mark.parametrize(("mu", "smoothness"), [(0.1, 4.0), (1.0, 1.0), (0.01, 100.0)])
def test_power_iteration_finds_both_ends(mu: float, smoothness: float) -> None:
    problem = Quadratic(6, dim=12, smoothness=smoothness, convexity=mu, dtype=torch.float64)
    high, low = estimate.curvatures(problem, problem.initial(), range(6), iterations=3000, tolerance=1e-6)
    assert [e.value for e in high] == pytest.approx([smoothness] * 6, rel=1e-3)
    # the small end comes from a shift by L: it is resolved to a part of L, and not to a part of itself
    assert [e.value for e in low] == pytest.approx([mu] * 6, rel=1e-2, abs=1e-3 * smoothness)


def test_the_error_of_an_eigenvalue_covers_it() -> None:
    """|Hv − θv| bounds the distance to the nearest eigenvalue; here the largest, even after few iterations."""
    problem = Quadratic(3, dim=3, smoothness=5.0, convexity=0.1, dtype=torch.float64)
    high, _ = estimate.curvatures(problem, problem.initial(), range(3), iterations=6, tolerance=0.0)
    for client, found in enumerate(high):
        nearest = min(abs(found.value - float(h)) for h in problem.h[client])
        assert nearest <= found.error + 1e-12


def test_curvatures_of_a_classifier_against_its_whole_hessian() -> None:
    problem = Supervised.split(load("digits"), 3, IID(), "softmax", l2=0.01)
    w = problem.initial() + 0.1 * torch.randn(problem.dim, generator=torch.Generator().manual_seed(0))
    high, low = estimate.curvatures(problem, w, [1], iterations=500, tolerance=1e-5)
    oracle = problem.oracle([1] * 64, [0] * 64, 1, None, False)  # 640 coordinates
    rows = [oracle.hvp(w.expand(64, -1), some, 0) for some in torch.eye(problem.dim).split(64)]
    values = torch.linalg.eigvalsh(torch.cat(rows).double())
    assert high[0].value == pytest.approx(float(values[-1]), rel=1e-3)
    assert low[0].value == pytest.approx(float(values[0]), abs=0.01 * float(values[-1]))


def test_noise_and_its_standard_error() -> None:
    problem = Quadratic(4, dim=5, noise=0.7, dtype=torch.float64)
    found = estimate.noise(problem, problem.initial(), range(4), None, draws=400)
    for each in found:
        assert abs(each.value - 0.49) < 4 * each.error
        assert 0 < each.error < 0.05


def test_noise_of_mini_batches_falls_with_their_size() -> None:
    problem = Supervised.split(load("digits"), 4, IID(), "softmax")
    small, large = (estimate.noise(problem, problem.initial(), [0], batch, draws=300)[0] for batch in (4, 16))
    assert small.value / large.value == pytest.approx(4.0, rel=0.25)
    assert estimate.noise(problem, problem.initial(), [0], None, draws=4)[0].value == pytest.approx(0.0, abs=1e-10)


def test_heterogeneity_is_exact_with_all_clients_and_has_an_error_with_some() -> None:
    problem = Quadratic(40, dim=2, heterogeneity=3.0, dtype=torch.float64)
    away = (problem.h * (problem.c - problem.c.mean(dim=0))) ** 2
    exact, farthest, _ = estimate.heterogeneity(problem, problem.initial(), range(40))
    assert exact.value == pytest.approx(float(away.sum(dim=1).mean()))
    assert exact.error == 0.0
    assert farthest == pytest.approx(math.sqrt(float(away.sum(dim=1).max())))
    some, _, _ = estimate.heterogeneity(problem, problem.initial(), range(0, 40, 2))
    assert some.error > 0
    assert abs(some.value - exact.value) < 4 * some.error


def test_all_constants_of_a_quadratic() -> None:
    problem = Quadratic(8, dim=3, smoothness=2.0, convexity=0.5, noise=0.3, heterogeneity=1.5, distance=4.0)
    found = estimate.constants(problem, iterations=2000)
    assert found.smoothness.value == pytest.approx(2.0, rel=1e-2)
    assert found.convexity.value == pytest.approx(0.5, rel=2e-2)
    assert found.sigma2.value == pytest.approx(0.09, rel=0.5)  # the largest of 8 estimates
    assert (found.distance, found.zeta) == pytest.approx((4.0, 1.5), rel=1e-3)
    assert found.gap == pytest.approx(problem.value(problem.initial()) - problem.value(problem.optimum()), rel=1e-3)


@pytest.mark.parametrize(
    ("timing", "steps", "expected"),
    [
        (Times(Exponential((2.0, 5.0))), 3, [2.0, 5.0]),
        (Times(Constant(0.5, per="step"), speeds=Factors((1.0, 4.0))), 2, [1.0, 0.25]),
        (Times(LogNormal(sigma=1.0, mean=4.0)), 1, [0.25, 0.25]),
        (Times(Constant(1.0), network=Bandwidth(8e-6, 8e-6)), 1, None),
    ],
)
def test_rates_are_one_over_mean_times(timing: Times, steps: int, expected: Any) -> None:
    clock = timing.bind(2, 0)
    found = estimate.rates(clock, 2, steps, 4, 4)
    if expected is None:
        assert clock.download is not None
        assert clock.upload is not None
        expected = [1 / (1.0 + clock.download.mean(i, 4) + clock.upload.mean(i, 4)) for i in range(2)]
    assert found == pytest.approx(expected)


def test_a_clock_without_known_means_is_refused() -> None:
    with pytest.raises(SettingError, match="not known"):
        estimate.rates(Scripted([[1.0]]), 1)
