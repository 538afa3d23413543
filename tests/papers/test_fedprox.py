"""FedProx (Li et al. 2020): FedAvg whose clients train on f_i(w) + μ/2·|w − w_received|²."""

from __future__ import annotations

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import FedAsyncMixing, FedAvg
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import SGD, Prox
from offbeat.problems.quadratic import Quadratic
from offbeat.timing import Exponential, Times

QUADRATIC = Quadratic(6, dim=4, noise=0.5, heterogeneity=5.0)
TIMES = Times(Exponential(1.0))


def test_mu_0_is_fedavg_bit_for_bit() -> None:
    local = {"lr": 0.1, "steps": 5}
    plain, prox = (
        run(QUADRATIC, FedAvg(sampled=3), half, TIMES, Until(versions=20)).model
        for half in (SGD(**local), Prox(mu=0.0, **local))
    )
    assert torch.equal(plain, prox)


def test_two_steps_by_hand() -> None:
    """From 0 towards 6 with lr = 1/2, μ = 1: first 0 + 6/2 = 3; then 3 − ½·((3 − 6) + 1·(3 − 0)) = 3."""
    result = run(Line([6.0]), FedAvg(), Prox(lr=0.5, steps=2, mu=1.0), Scripted([[1.0]]), Until(versions=1))
    assert result.model.item() == 3.0


def test_the_term_pulls_to_the_model_received_and_not_to_the_start_of_the_run() -> None:
    """Many steps end at (c + μ·w_received)/(1 + μ): with μ = 1 and c = 6 the rounds end at 3, 9/2 and 21/4."""
    result = run(Line([6.0]), FedAvg(), Prox(lr=0.25, steps=200, mu=1.0), Scripted([[1.0]]), Until(versions=3))
    assert result.model.item() == pytest.approx(21 / 4)


def test_it_keeps_clients_nearer_to_the_optimum_than_fedavg() -> None:
    """Ten local steps drift; with μ they drift less, and the fixed point lies nearer to x*."""
    problem = Quadratic(6, dim=6, heterogeneity=5.0, dtype=torch.float64)
    away = [
        float(
            torch.linalg.vector_norm(run(problem, FedAvg(), half, TIMES, Until(versions=400)).model - problem.optimum())
        )
        for half in (SGD(lr=0.3, steps=10), Prox(lr=0.3, steps=10, mu=1.0))
    ]
    assert away[1] < 0.7 * away[0]


def test_it_is_fedasync_s_local_trainer_too() -> None:
    """Xie et al. 2019, algorithm 1: clients minimise f + ρ/2·|x − x_t|²; here ρ = 1 and one round as by hand above."""
    server = FedAsyncMixing(mixing=1.0)
    result = run(Line([6.0]), server, Prox(lr=0.5, steps=2, mu=1.0), Scripted([[1.0]]), Until(updates=1))
    assert result.model.item() == 3.0


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(SettingError, match=r"mu = -0\.1"):
        Prox(lr=0.1, mu=-0.1)
