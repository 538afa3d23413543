"""Server optimisers step by step: against the papers' lines written out in numpy, and against torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AREA, AsFedAvg, FedAST, FedAsync, FedAvg, FedBuff, LocalOnly
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.optimisers import FedAdagrad, FedAdam, FedAMSGrad, FedAvgM, FedNesterov, FedYogi
from offbeat.core.errors import SettingError
from offbeat.core.events import Job, Update
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.server import Commands, View
from offbeat.core.until import Until
from offbeat.local import SGD

DIM, STEPS, SIZE = 5, 50, 3
NOBODY: Any = SimpleNamespace(present=lambda client: False, clients=4)
Step = Callable[[np.ndarray, int], np.ndarray]


def deltas() -> np.ndarray:
    """What clients send, [steps, updates of a step, d], with a direction in common."""
    return np.random.default_rng(0).normal(0.1, 0.3, (STEPS, SIZE, DIM))


def walked(optimiser: ServerOptimiser, stalest: int = 0) -> np.ndarray:
    """FedBuff's model after each step; in every third step one update is so stale."""
    server = FedBuff(size=SIZE, server=optimiser)
    state = server.begin([torch.zeros(DIM, dtype=torch.float64)], NOBODY)
    models = []
    for step, some in enumerate(deltas()):
        for number, delta in enumerate(some):
            late = min(step, stalest) if step % 3 == 0 and number == 1 else 0
            job = Job(0, 0, 0, step - late, 1, 0.1, 0)
            list(server.arrived(state, Update(job, {"delta": torch.from_numpy(delta)}), NOBODY))
        models.append(state.model.vector.numpy().copy())
    return np.array(models)


def written_out(step: Step) -> np.ndarray:
    """The same by x ← x + step(Δ, t), Δ = −mean of the deltas."""
    x, models = np.zeros(DIM), []
    for t, some in enumerate(deltas(), 1):
        x = x + step(-some.mean(axis=0), t)
        models.append(x)
    return np.array(models)


def reddi(second: Callable[[np.ndarray, np.ndarray], np.ndarray], beta1: float = 0.9) -> Step:
    """Reddi et al. 2021, algorithm 2 with η = 0.05 and τ = 1e-3: lines 11–15, and v₋₁ = τ²."""
    kept = {"m": np.zeros(DIM), "v": np.full(DIM, 1e-6)}

    def step(delta: np.ndarray, t: int) -> np.ndarray:
        kept["m"] = beta1 * kept["m"] + (1 - beta1) * delta
        kept["v"] = second(kept["v"], delta)
        return 0.05 * kept["m"] / (np.sqrt(kept["v"]) + 1e-3)

    return step


def fadas(threshold: float, stalest: int) -> Step:
    """Wang et al. 2024: AMSGrad with η = 0.05, which is min(η, 1/τ_max) where τ_max > τ_c."""
    m, v, top = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)

    def step(delta: np.ndarray, t: int) -> np.ndarray:
        nonlocal m, v, top
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        top = np.maximum(top, v)
        tau = min(t - 1, stalest) if (t - 1) % 3 == 0 else 0
        return (min(0.05, 1 / tau) if tau > threshold else 0.05) * m / (np.sqrt(top) + 1e-8)

    return step


PAPERS: dict[str, tuple[ServerOptimiser, Step]] = {
    "fedadagrad": (FedAdagrad(lr=0.05), reddi(lambda v, d: v + d**2, beta1=0.0)),
    "fedadam": (FedAdam(lr=0.05), reddi(lambda v, d: 0.99 * v + 0.01 * d**2)),
    "fedyogi": (FedYogi(lr=0.05), reddi(lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2))),
    "fadas": (FedAMSGrad(lr=0.05), fadas(np.inf, 0)),
}


@pytest.mark.parametrize(("optimiser", "step"), PAPERS.values(), ids=PAPERS)
def test_every_step_is_the_paper_s(optimiser: ServerOptimiser, step: Step) -> None:
    np.testing.assert_allclose(walked(optimiser), written_out(step), rtol=0, atol=1e-12)


def test_fadas_takes_at_most_one_over_the_largest_staleness_of_a_step_beyond_the_threshold() -> None:
    """40 is beyond 20, and 1/40 is less than 0.05; of the first steps none is so old."""
    found = walked(FedAMSGrad(lr=0.05, threshold=20), stalest=40)
    np.testing.assert_allclose(found, written_out(fadas(20, 40)), rtol=0, atol=1e-12)
    assert not np.allclose(found, walked(FedAMSGrad(lr=0.05)))


TORCH: dict[str, tuple[ServerOptimiser, Callable[[Any], torch.optim.Optimizer]]] = {
    "momentum": (FedAvgM(0.9, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "nesterov": (FedNesterov(0.8, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True)),
    "adam": (
        FedAdam(lr=0.1, eps=1e-8, correct=True),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99), eps=1e-8),
    ),
    "adagrad": (
        FedAdagrad(lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3, initial_accumulator_value=1e-6),
    ),
}


@pytest.mark.parametrize(("optimiser", "theirs"), TORCH.values(), ids=TORCH)
def test_every_step_is_that_of_torch(optimiser: ServerOptimiser, theirs: Any) -> None:
    parameter = torch.nn.Parameter(torch.zeros(DIM, dtype=torch.float64))
    other, models = theirs([parameter]), []
    for some in deltas():
        parameter.grad = torch.from_numpy(some.mean(axis=0))
        other.step()
        models.append(parameter.detach().numpy().copy())
    np.testing.assert_allclose(walked(optimiser), models, rtol=0, atol=1e-10)


def test_momentum_on_a_quadratic_follows_its_recurrence() -> None:
    """One client on ½w² with lr ½: Δ = −½x, so x_{t+1} = x_t + ½·(x_t − x_{t−1})/1 − ½·x_t with β = ½ and η = 1."""
    x = [8.0, 4.0]
    for _ in range(8):
        x.append(x[-1] + 0.5 * (x[-1] - x[-2]) - 0.5 * x[-1])
    server = FedAvg(server=FedAvgM(0.5))
    result = run(Line([0.0], start=8.0), server, SGD(lr=0.5), Scripted([[1.0]]), Until(versions=9))
    assert result.model.item() == pytest.approx(x[-1], abs=1e-12)


def test_area_keeps_its_invariant_with_an_optimiser_and_ends_at_the_optimum() -> None:
    """mean(y_i) = x + u after every event."""
    problem, clock = Line([0.0, 2.0, 7.0]), Scripted([[1.0], [1.7], [3.1]])
    server = AREA(size=2, server=FedAvgM(0.5, lr=0.5))
    for updates in (1, 2, 7, 20):
        result = run(problem, server, SGD(lr=0.5), clock, Until(updates=updates))
        kept = [result.world.memories.get((c, 0), (0, {"y": torch.zeros(1)}))[1]["y"] for c in range(3)]
        state = result.world.server
        torch.testing.assert_close(torch.stack(list(kept)).mean(dim=0), state.model.vector + state.u)
    assert run(problem, server, SGD(lr=0.5), clock, Until(updates=600)).model.item() == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize(
    "server", [FedBuff(size=1), FedAsync(), FedAvg(), AsFedAvg(size=1)], ids=lambda s: type(s).__name__
)
def test_an_optimiser_that_changes_nothing_changes_nothing(server: Any) -> None:
    """Momentum with β = 0 and η = 1 is the server's own step."""
    problem, clock = Line([1.0, 5.0]), Scripted([[1.0], [1.5]])
    plain, through = (
        run(problem, each, SGD(lr=0.25), clock, Until(updates=20)).model
        for each in (server, replace(server, server=FedAvgM(0.0)))
    )
    torch.testing.assert_close(plain, through, rtol=0, atol=1e-12)


def test_an_update_as_stale_as_the_threshold_is_not_too_stale() -> None:
    rates = [FedAvgM(lr=0.5, threshold=4).rate(staleness) for staleness in (0, 4, 5)]
    assert rates == [0.5, 0.5, 0.2]


@dataclass(frozen=True)
class Alone(Flow[OneModel]):
    """A server that forgets its optimiser."""

    def arrived(self, state: OneModel, update: Update, view: View) -> Commands:
        state.model.step(-1.0, update["delta"])
        yield from self.next(state, update.job.client, view)


def test_a_server_that_steps_without_the_optimiser_that_was_asked_for_is_refused() -> None:
    line, clock = Line([0.0, 1.0]), Scripted([[1.0]])
    run(line, Alone(), SGD(lr=0.25), clock, Until(updates=4))
    for server in (Alone(server=FedAdam(lr=0.1)), FedAST(requests=2, aggregate=Alone(server=FedAdam(lr=0.1)))):
        with pytest.raises(SettingError, match=r"has moved its model without the optimiser; let it call self.step"):
            run(line, server, SGD(lr=0.25), clock, Until(updates=4))


def test_where_there_is_no_server_step_an_optimiser_is_refused() -> None:
    with pytest.raises(SettingError, match="this algorithm takes no server step"):
        LocalOnly(server=FedAdam(lr=0.1))
    with pytest.raises(SettingError, match="set the optimiser there"):
        FedAST(aggregate=FedBuff(), server=FedAdam(lr=0.1))


def test_with_bias_correction_v_begins_with_zero() -> None:
    """Δ = eps: m̂ = √v̂ = eps, so the step is lr/2; from v = eps², √v̂ would be ten times as large."""
    optimiser = FedAdam(lr=1.0, correct=True)
    start = torch.zeros(1, dtype=torch.float64)
    step, _ = optimiser.step(start + optimiser.eps, optimiser.begin(start), 1, 0)
    assert step.item() == pytest.approx(0.5)
