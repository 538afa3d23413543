"""Sums of absolute values have the optimum and the constants that they were asked for."""

from __future__ import annotations

import pytest
import torch

from offbeat.algorithms import FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.random import key, signed
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.absolute import Absolute
from offbeat.simulate.program import join
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

A = Absolute(5, dim=3, lipschitz=2.0, spread=1.5, noise=0.7, distance=4.0, dtype=torch.float64)


def test_no_point_is_lower_than_the_optimum() -> None:
    best, generator = A.value(torch.zeros(3, dtype=torch.float64)), torch.Generator().manual_seed(0)
    for scale in (1e-3, 0.1, 1.0, 10.0):
        for _ in range(50):
            assert A.value(scale * torch.randn(3, generator=generator, dtype=torch.float64)) > best


def test_it_begins_at_its_distance_and_is_measured_from_the_optimum() -> None:
    start, best = A.measure(torch.stack([A.initial(), torch.zeros(3, dtype=torch.float64)]))
    assert start["distance"] == pytest.approx(4.0)
    assert start["gap"] == pytest.approx(A.value(A.initial()) - best["loss"])
    assert (best["gap"], best["distance"]) == (0.0, 0.0)


def test_every_client_is_lipschitz_and_no_less() -> None:
    """|∂f_i| = B away from kinks, so B is the smallest constant."""
    oracle = A.oracle(range(5), [0] * 5, 1, None, False)
    far = torch.full((5, 3), 100.0, dtype=torch.float64)
    assert torch.allclose(torch.linalg.vector_norm(oracle.full(far), dim=1), torch.tensor(2.0, dtype=torch.float64))


def test_the_noise_has_mean_0_and_the_variance_it_was_asked_for_and_is_in_the_loss() -> None:
    w = torch.full((1, 3), 0.3, dtype=torch.float64)
    made = [A.oracle([0], [signed(key(0, 3, job))], 1, None, False) for job in range(4000)]
    noise = torch.cat([each.gradient(w, 2, 1) - each.full(w) for each in made])
    assert (noise**2).sum(dim=1).mean().item() == pytest.approx(0.49, rel=0.05)
    assert noise.mean(dim=0).abs().max() < 0.03
    away = w + torch.tensor([[1e-6, 0.0, 0.0]], dtype=torch.float64)
    slope = (made[0].loss(away, 2, 1) - made[0].loss(w, 2, 1)) / 1e-6
    assert slope.item() == pytest.approx(made[0].gradient(w, 2, 1)[0, 0].item(), rel=1e-6)


def test_an_even_number_of_clients_is_refused() -> None:
    with pytest.raises(SettingError, match="clients = 4: expected an odd number"):
        Absolute(4)


def test_runs_with_different_seeds_can_be_stacked() -> None:
    problems = [Absolute(3, seed=seed, noise=0.5) for seed in (0, 1)]
    algorithm, times = Algorithm(FedAsync(), SGD(lr=0.1)), Times(Exponential(1.0))
    runs = [prepare(each, algorithm, times, Until(updates=4)) for each in problems]
    join(runs)
    joint = runs[1].computing.teams[0].problem
    rows = joint.oracle([0, 3, 5], [1, 2, 3], 1, None, False).full(torch.zeros(3, 4))
    alone = [problems[0].oracle([0], [1], 1, None, False), problems[1].oracle([0, 2], [2, 3], 1, None, False)]
    assert torch.equal(rows, torch.cat([alone[0].full(torch.zeros(1, 4)), alone[1].full(torch.zeros(2, 4))]))
