"""Quadratics have the constants that they were asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offbeat.core.errors import SettingError
from offbeat.core.random import key, signed
from offbeat.problems.quadratic import Quadratic

Q = Quadratic(7, dim=5, smoothness=4.0, convexity=0.5, heterogeneity=3.0, distance=2.0, noise=0.8, dtype=torch.float64)
QUIET = Quadratic(7, dim=5, heterogeneity=3.0, dtype=torch.float64)


def oracle(problem: Quadratic, clients: list[int], job: int = 0) -> Any:
    return problem.oracle(clients, [signed(key(0, 3, c, job)) for c in clients], 1, None, False)


def everyone(problem: Quadratic, w: torch.Tensor) -> torch.Tensor:
    """All clients' exact gradients at w, [n, d]."""
    return oracle(problem, list(range(problem.clients))).full(w.expand(problem.clients, -1))


def test_the_gradients_cancel_at_the_optimum() -> None:
    assert everyone(QUIET, QUIET.optimum()).mean(dim=0).abs().max() < 1e-14
    assert everyone(QUIET, QUIET.optimum()).abs().max() > 0.1  # though no client is content there


def test_the_weighted_gradients_cancel_at_the_biased_limit() -> None:
    shares = [0.4, 0.3, 0.1, 0.1, 0.05, 0.03, 0.02]
    weighted = torch.tensor(shares, dtype=torch.float64).unsqueeze(1) * everyone(QUIET, QUIET.optimum(shares))
    assert weighted.sum(dim=0).abs().max() < 1e-14
    assert torch.equal(QUIET.optimum([1 / 7] * 7).round(decimals=12), QUIET.optimum().round(decimals=12))


def test_it_has_the_curvatures_the_heterogeneity_and_the_distance_it_was_asked_for() -> None:
    assert (Q.h.min(dim=1).values == 0.5).all()
    assert (Q.h.max(dim=1).values == 4.0).all()
    assert torch.linalg.vector_norm(Q.c - Q.optimum(), dim=1).max().item() == pytest.approx(3.0)
    assert torch.linalg.vector_norm(Q.initial() - Q.optimum()).item() == pytest.approx(2.0)


def test_without_heterogeneity_all_clients_share_the_optimum() -> None:
    same = Quadratic(4, heterogeneity=0.0, dtype=torch.float64)
    assert everyone(same, same.optimum()).abs().max() < 1e-14


def test_the_noise_has_mean_0_and_the_variance_it_was_asked_for() -> None:
    w = Q.optimum().unsqueeze(0)
    noise = torch.cat(
        [oracle(Q, [0], job).gradient(w, step) - oracle(Q, [0]).full(w) for job in range(1000) for step in range(4)]
    )
    assert (noise**2).sum(dim=1).mean().item() == pytest.approx(0.8**2, rel=0.05)
    assert noise.mean(dim=0).abs().max() < 4 * 0.8 / 5**0.5 / 4000**0.5


def test_the_noise_depends_on_the_step_the_sample_the_job_and_the_client_only() -> None:
    w = torch.zeros(1, 5, dtype=torch.float64)
    here = oracle(Q, [2]).gradient(w, step=3, sample=1)
    assert torch.equal(here, oracle(Q, [2]).gradient(w, step=3, sample=1))
    for other in (
        oracle(Q, [2]).gradient(w, step=4, sample=1),
        oracle(Q, [2]).gradient(w, step=3, sample=0),
        oracle(Q, [2], job=1).gradient(w, step=3, sample=1),
    ):
        assert not torch.equal(here, other)


def test_no_draw_is_used_twice() -> None:
    w = torch.zeros(1, 5, dtype=torch.float64)
    asked = oracle(Q, [2])
    noise = [asked.gradient(w, step, sample) - asked.full(w) for step in range(20) for sample in range(3)]
    assert len(torch.cat(noise).flatten().unique()) == 20 * 3 * 5


def test_loss_gradient_and_curvature_belong_together() -> None:
    """The noisy loss's gradient is the noisy gradient, and the gradient's slope the Hessian."""
    w = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    asked = oracle(Q, [1, 4])
    (slope,) = torch.autograd.grad(asked.loss(w, 2).sum(), w)
    torch.testing.assert_close(slope, asked.gradient(w, 2))
    v = torch.ones_like(w)
    torch.testing.assert_close(asked.hvp(w, v, 2), asked.gradient(w + v, 2) - asked.gradient(w, 2))


def test_it_measures_the_loss_the_gap_and_the_distance() -> None:
    at_best, at_start = QUIET.measure(torch.stack([QUIET.optimum(), QUIET.initial()]))
    assert (at_best["gap"], at_best["distance"]) == (0.0, 0.0)
    assert at_start["distance"] == pytest.approx(10.0)
    assert at_start["gap"] == pytest.approx(QUIET.value(QUIET.initial()) - QUIET.value(QUIET.optimum()))


def test_equal_seeds_are_equal_problems_and_others_are_not() -> None:
    assert torch.equal(Quadratic(3).c, Quadratic(3).c)
    assert not torch.equal(Quadratic(3).c, Quadratic(3, seed=1).c)


def test_a_problem_is_known_by_its_settings() -> None:
    assert Quadratic(3) == Quadratic(3) != Quadratic(4)
    assert "tensor" not in repr(Quadratic(3))


def test_the_initial_model_is_a_new_vector_each_time() -> None:
    Q.initial().zero_()
    assert Q.initial().abs().sum() > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"clients": 0},
        {"clients": 1, "dim": 0},
        {"clients": 1, "convexity": 2.0},
        {"clients": 1, "convexity": 0.0},
        {"clients": 1, "noise": -1.0},
        {"clients": 1, "heterogeneity": -1.0},
        {"clients": 1, "distance": -1.0},
    ],
)
def test_a_problem_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Quadratic(**settings)
