"""PersA-FL-ME: option C of "PersA-FL: Personalized Asynchronous Federated Learning" (algorithm 2)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AREA, FedAsync, FedAvg, FedBuff
from offbeat.core.errors import SettingError
from offbeat.core.local import Work
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, lengths
from offbeat.local import SGD, Moreau
from offbeat.problems.quadratic import Quadratic
from offbeat.timing import Exponential, Times

PROBLEM = Quadratic(5, dim=4, dtype=torch.float64)
TIMES = Times(Exponential(1.0))
EXACT: dict[str, Any] = {"accuracy": 1e-12, "inner": 2000, "inner_lr": 0.2}


def work(rows: Vector, clients: Any = range(5)) -> Work:
    oracle = PROBLEM.oracle(clients, [0] * len(rows), 1, None, False)
    return Work({"model": rows}, {}, 1.0, 1, oracle, torch.zeros(len(rows), 1, dtype=torch.int64))


def rows() -> Vector:
    return PROBLEM.initial() + torch.arange(5, dtype=torch.float64).unsqueeze(1)


def test_the_gradient_is_that_of_the_closed_form_prox() -> None:
    """(7): ∇F = λ(w − θ̂(w)), and on f = ½h(θ − c)² the prox is (hc + λw)/(h + λ)."""
    w = rows()
    moved = Moreau(lr=1.0, penalty=2.0, **EXACT).step({"w": w}, work(w))["w"]
    theta = (PROBLEM.h * PROBLEM.c + 2.0 * w) / (PROBLEM.h + 2.0)
    torch.testing.assert_close(w - moved, 2.0 * (w - theta), rtol=0, atol=1e-10)


def test_a_step_by_hand() -> None:
    """Lines 10–12 on the line: w = 0, c = 6, λ = 2: θ̃ = 6/3 = 2, and w − ηλ(w − θ̃) = 0 + ½·2·2 = 2."""
    result = run(Line([6.0]), FedAsync(), Moreau(lr=0.5, penalty=2.0, **EXACT), Scripted([[1.0]]), Until(updates=1))
    assert result.model.item() == pytest.approx(2.0, abs=1e-10)


def test_the_inner_problem_is_solved_to_its_accuracy_and_no_further() -> None:
    """Line 11: "‖∇h̃(θ̃)‖ ≤ ν". Each inner step shrinks the gradient on the line by 1 − lr·(1 + λ) = 1/4."""
    w = rows()
    for accuracy in (1.0, 1e-3, 1e-6):
        local = Moreau(lr=1.0, penalty=2.0, accuracy=accuracy, inner=500, inner_lr=0.25)
        theta, reached = local.solve(w, work(w), 500)
        gradient = PROBLEM.h * (theta - PROBLEM.c) + 2.0 * (theta - w)
        torch.testing.assert_close(reached, lengths(gradient))
        assert float(reached.max()) <= accuracy
        assert float(reached.min()) > 0.01 * accuracy  # it stopped there


def test_the_number_of_inner_steps_is_bounded() -> None:
    """On the line from 0 to 6, λ = 1, inner steps of 1/4 halve the gradient of 6: after three it is 6/8."""
    local = Moreau(lr=1.0, penalty=1.0, inner_lr=0.25, inner=3, accuracy=1e-9)
    result = run(Line([6.0]), FedAsync(), local, Scripted([[1.0]]), Until(updates=1))
    assert result.world.tally.notes["nu"] == pytest.approx([6 / 8, 6 / 8])
    assert result.model.item() == pytest.approx(3.0 * (1 - 1 / 8))  # θ̃ goes from 0 towards the prox 3


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_rows_that_finish_at_different_inner_steps_are_what_they_are_alone(momentum: float) -> None:
    """Clients stop one by one, in a batch of five as alone: a row at its optimum does no inner step at all."""
    w = rows()
    w[2] = PROBLEM.c[2]
    w[3] = PROBLEM.c[3] + 0.01
    local = Moreau(lr=1.0, penalty=2.0, accuracy=0.02, inner=50, inner_lr=0.1, momentum=momentum)
    theta, reached = local.solve(w, work(w), 50)
    alone = [local.solve(w[i : i + 1], work(w[i : i + 1], [i]), 50) for i in range(5)]
    assert torch.equal(theta, torch.cat([t for t, _ in alone]))
    assert torch.equal(reached, torch.cat([r for _, r in alone]))
    assert torch.equal(theta[2], w[2])
    few = local.solve(w, work(w), 5)[0]
    assert [torch.equal(few[i], theta[i]) for i in range(5)] == [False, False, True, True, False]


def test_momentum_solves_badly_conditioned_inner_problems_sooner() -> None:
    problem = Quadratic(1, dim=8, smoothness=10.0, convexity=0.01, dtype=torch.float64)
    w = problem.initial().unsqueeze(0)
    reached = []
    for momentum in (0.0, 0.8):
        local = Moreau(lr=1.0, penalty=0.05, accuracy=1e-9, inner_lr=0.09, momentum=momentum)
        oracle = problem.oracle([0], [0], 1, None, False)
        job = Work({"model": w}, {}, 1.0, 1, oracle, torch.zeros(1, 1, dtype=torch.int64))
        reached.append(float(local.solve(w, job, 100)[1]))
    assert reached[1] < 0.1 * reached[0]


def test_the_accuracy_reached_is_noted() -> None:
    local = Moreau(lr=0.5, penalty=2.0, accuracy=1e-4, inner=500, inner_lr=0.2)
    result = run(PROBLEM, FedAsync(lr=0.3), local, TIMES, Until(updates=40))
    total, most = result.world.tally.notes["nu"]
    assert 0 < total / 40 <= most <= 1e-4


SERVERS: list[Server] = [FedAsync(lr=0.3), FedBuff(size=3), AREA(size=3), FedAvg(sampled=3)]


@pytest.mark.parametrize("server", SERVERS, ids=lambda s: type(s).__name__)
def test_a_large_penalty_is_option_a(server: Server) -> None:
    """λ → ∞: one inner step of 1/λ gives λ(w − θ̃) = ∇f(w), so that option C is option A."""
    noisy = Quadratic(5, dim=4, noise=0.5, dtype=torch.float64)
    halves = [SGD(lr=0.05, steps=3)] + [
        Moreau(lr=0.05, steps=3, penalty=p, inner=1, inner_lr=1 / p, accuracy=1e-12) for p in (1e2, 1e6)
    ]
    plain, *penalised = (run(noisy, server, half, TIMES, Until(updates=60)).model for half in halves)
    for model in penalised:
        torch.testing.assert_close(model, plain, rtol=0, atol=1e-8)


@pytest.mark.parametrize("penalty", [10.0, 1000.0])
def test_solved_exactly_it_comes_to_option_a_as_the_penalty_grows(penalty: float) -> None:
    """λ(w − θ̂) = λh/(λ + h)·(w − c): one round from w is off by a factor 1/(1 + h/λ), h ≤ 1."""
    local = Moreau(lr=0.1, penalty=penalty, accuracy=1e-10, inner=500, inner_lr=1 / (penalty + 1))
    plain = run(PROBLEM, FedAvg(), SGD(lr=0.1), TIMES, Until(versions=1)).model - PROBLEM.initial()
    found = run(PROBLEM, FedAvg(), local, TIMES, Until(versions=1)).model - PROBLEM.initial()
    assert float(lengths(found - plain)) < float(lengths(plain)) / penalty


def test_it_rests_at_the_optimum_of_the_envelopes() -> None:
    """Everybody's FedAvg with one step (pFedMe): Σ λh_i/(λ + h_i)·(w − c_i) = 0."""
    local = Moreau(lr=1.0, penalty=0.5, accuracy=1e-8, inner=200, inner_lr=0.6)
    found = run(PROBLEM, FedAvg(), local, TIMES, Until(versions=300)).model
    weight = PROBLEM.h / (0.5 + PROBLEM.h)
    torch.testing.assert_close(found, (weight * PROBLEM.c).sum(dim=0) / weight.sum(dim=0), rtol=0, atol=1e-6)
    assert float((found - PROBLEM.optimum()).abs().max()) > 0.01


def test_pfedme_s_beta_mixes_the_server_s_model_with_the_mean() -> None:
    """pFedMe: w ← (1 − β)w + β·mean(w_i), FedAvg's lr; by hand above one client goes from 0 to 2, so half of that."""
    local = Moreau(lr=0.5, penalty=2.0, **EXACT)
    result = run(Line([6.0]), FedAvg(lr=0.5), local, Scripted([[1.0]]), Until(versions=1))
    assert result.model.item() == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize(
    "settings",
    [{"penalty": 0.0}, {"accuracy": 0.0}, {"inner": 0}, {"inner_lr": -1.0}, {"momentum": 1.0}],
    ids=lambda s: next(iter(s)),
)
def test_settings_that_cannot_work_are_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        Moreau(lr=0.1, **settings)
