"""Local optimisers make torch.optim's steps on the same gradients, alone and stacked, fresh or kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AREA, SCAFFOLD, FedAsync, FedAvg, FedBuff
from offbeat.algorithms.schedules import Steady
from offbeat.core.errors import SettingError
from offbeat.core.local import BatchShare, Local, Work, planned_steps
from offbeat.core.problem import Oracle
from offbeat.core.until import Until
from offbeat.data import load
from offbeat.local import MAML, SGD, Adam, AdamW, Gradient, Moreau, Prox, Scaffold
from offbeat.local.optimisers import AdamRule, AdamWRule, Momentum
from offbeat.local.schedules import CosineDecay, LinearDecay, LocalSchedule, StepDecay, Warmup
from offbeat.models.linear import Softmax
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised

STEPS, ROWS, DIM = 50, 4, 6
ONE = Until(versions=1)
SLOPES = torch.randn(STEPS, ROWS, DIM, generator=torch.Generator().manual_seed(0))
START = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))


class Recited:
    """An oracle whose gradients are written down, plus half the distance from 0: they depend on the steps before."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def gradient(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        return SLOPES[step, self.rows] + 0.5 * w


def trained(local: Local, rows: Any = slice(None), steps: int = STEPS, **given: Any) -> torch.Tensor:
    """Where so many steps lead these clients [n, d]."""
    model = START[rows]
    first = local.remember(model[0])
    memory = {name: value.expand(len(model), -1) for name, value in first.items()}
    oracle: Oracle = Recited(rows)  # type: ignore[assignment]
    work = Work({"model": model}, memory, lr=local.lr, steps=steps, oracle=oracle, keys=[0] * len(model), **given)
    carry = local.init(work)
    for work.step in range(steps):
        carry = local.step(carry, work)
    return carry["w"]


def by_torch(make: Callable[[Any], torch.optim.Optimizer], shape: Any = None) -> torch.Tensor:
    """The same by torch, a parameter a client. shape: what is done to a gradient before the step."""
    rows = [torch.nn.Parameter(row.clone()) for row in START]
    optimisers = [make([row]) for row in rows]
    for step in range(STEPS):
        for client, row in enumerate(rows):
            row.grad = SLOPES[step, client] + 0.5 * row.detach()
            if shape is not None:
                shape([row])
            optimisers[client].step()
    return torch.stack([row.detach() for row in rows])


optim, clips = torch.optim, torch.nn.utils
TABLE: dict[str, tuple[Local, Callable[[Any], torch.optim.Optimizer], Any]] = {
    "sgd": (SGD(0.05), lambda p: optim.SGD(p, 0.05), None),
    "decay": (SGD(0.05, decay=0.1), lambda p: optim.SGD(p, 0.05, weight_decay=0.1), None),
    "momentum": (SGD(0.05, momentum=0.9), lambda p: optim.SGD(p, 0.05, momentum=0.9), None),
    "nesterov": (
        SGD(0.05, momentum=0.9, nesterov=True, decay=0.1),
        lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
        None,
    ),
    "adam": (Adam(0.01), lambda p: optim.Adam(p, 0.01), None),
    "adam of sgd": (SGD(0.01, optimiser=AdamRule()), lambda p: optim.Adam(p, 0.01), None),
    "adam decay": (
        Adam(0.01, beta1=0.8, beta2=0.95, eps=1e-4, decay=0.2),
        lambda p: optim.Adam(p, 0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.2),
        None,
    ),
    "amsgrad": (Adam(0.01, amsgrad=True), lambda p: optim.Adam(p, 0.01, amsgrad=True), None),
    "adamw": (AdamW(0.01), lambda p: optim.AdamW(p, 0.01), None),
    "adamw decay": (
        SGD(0.01, optimiser=AdamWRule(), decay=0.5),
        lambda p: optim.AdamW(p, 0.01, weight_decay=0.5),
        None,
    ),
    "clip": (
        SGD(0.05, clip=1.5, momentum=0.5),
        lambda p: optim.SGD(p, 0.05, momentum=0.5),
        lambda p: clips.clip_grad_norm_(p, 1.5),
    ),
    "clip_value": (Adam(0.01, clip_value=0.3), lambda p: optim.Adam(p, 0.01), lambda p: clips.clip_grad_value_(p, 0.3)),
}
EVERY = pytest.mark.parametrize(("local", "theirs", "shape"), TABLE.values(), ids=TABLE)


@EVERY
def test_fifty_steps_are_those_of_torch_stacked_and_alone(local: Local, theirs: Any, shape: Any) -> None:
    expected = by_torch(theirs, shape)
    torch.testing.assert_close(trained(local), expected, rtol=0, atol=1e-6)
    alone = torch.cat([trained(local, slice(row, row + 1)) for row in range(ROWS)])
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-6)


SCHEDULES: dict[str, tuple[LocalSchedule, Callable[[Any], Any]]] = {
    "cosine": (CosineDecay(40), lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 40)),
    "linear": (LinearDecay(30, floor=0.25), lambda o: optim.lr_scheduler.LinearLR(o, 1.0, 0.25, 30)),
    "step": (StepDecay(7, gamma=0.5), lambda o: optim.lr_scheduler.StepLR(o, 7, 0.5)),
    "warmup": (Warmup(9), lambda o: optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 9)),
}


@pytest.mark.parametrize(("schedule", "theirs"), SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_is_that_of_torch(schedule: LocalSchedule, theirs: Any) -> None:
    optimiser = optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    other = theirs(optimiser)
    for k in range(40):
        assert schedule(k) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-7)
        optimiser.step()
        other.step()


def test_a_schedule_over_steps_scales_each_step_and_a_warm_up_comes_first() -> None:
    schedule = StepDecay(1, gamma=0.5, over="step", warmup=1)
    assert [schedule(k) for k in range(4)] == [0.5, 1.0, 0.5, 0.25]
    result = run(Line([0.0], start=16.0), FedAvg(), SGD(0.5, steps=3, schedule=schedule), Scripted([[1.0]]), ONE)
    assert result.model.item() == 16.0 * 0.75 * 0.5 * 0.75


@pytest.mark.parametrize("over", ["version", "job"])
def test_a_schedule_over_versions_or_jobs_is_the_step_size_of_a_job(over: Any) -> None:
    local = SGD(0.5, schedule=StepDecay(1, gamma=0.5, over=over))
    result = run(Line([0.0], start=1.0), FedAvg(), local, Scripted([[1.0]]), Until(updates=3))
    assert [job.lr for job in _jobs(result)] == [0.5 * 0.5**3]


def test_it_multiplies_what_the_server_hands_out() -> None:
    """AREA's reply carries the model, and the version, of before the step that its message triggers."""
    local = SGD(0.5, schedule=StepDecay(1, gamma=0.5))
    result = run(Line([0.0], start=1.0), AREA(schedule=Steady(0.25)), local, Scripted([[1.0]]), Until(updates=3))
    assert [job.lr for job in _jobs(result)] == [0.25 * 0.5**2]


def _jobs(result: Any) -> list[Any]:
    return [flight.job for flight in result.world.flights.values()]


# Closed forms on quadratics


def test_momentum_on_a_quadratic_is_its_linear_recurrence() -> None:
    """On ½w²: w_{t+1} = (1 + β − lr)·w_t − β·w_{t−1}."""
    w = [8.0, 8.0 - 0.5 * 8.0]
    for _ in range(8):
        w.append((1 + 0.5 - 0.5) * w[-1] - 0.5 * w[-2])
    result = run(Line([0.0], start=8.0), FedAvg(), SGD(0.5, momentum=0.5, steps=9), Scripted([[1.0]]), ONE)
    assert result.model.item() == pytest.approx(w[9], abs=1e-12)


def test_adam_s_first_step_has_length_lr_and_adamw_shrinks_first() -> None:
    first = run(Line([0.0], start=8.0), FedAvg(), Adam(0.5), Scripted([[1.0]]), ONE)
    shrunk = run(Line([0.0], start=8.0), FedAvg(), AdamW(0.5, decay=0.1), Scripted([[1.0]]), ONE)
    assert first.model.item() == pytest.approx(7.5, abs=1e-8)
    assert shrunk.model.item() == pytest.approx(8.0 * 0.95 - 0.5, abs=1e-8)


# Kept from job to job


@pytest.mark.parametrize("local", [SGD(0.1, momentum=0.9), Adam(0.1, amsgrad=True), AdamW(0.1)], ids=["m", "a", "w"])
@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_two_jobs_of_a_kept_optimiser_are_one_of_twice_the_steps(local: Any, executor: str) -> None:
    def model(local: Local, updates: int) -> torch.Tensor:
        problem, clock = Quadratic(1, dim=3, dtype=torch.float64), Scripted([[1.0]])
        return run(problem, FedAsync(), local, clock, Until(updates=updates), executor=executor).model

    once = model(replace(local, steps=6), 1)
    torch.testing.assert_close(model(replace(local, steps=3, keep=True), 2), once, rtol=0, atol=1e-12)
    assert not torch.allclose(model(replace(local, steps=3), 2), once)


# With other trainers


@pytest.mark.parametrize("rule", [Momentum(), AdamRule(), AdamWRule()], ids=["momentum", "adam", "adamw"])
@pytest.mark.parametrize(
    ("server", "local"),
    [
        (FedAvg(), Prox(0.05, steps=3, mu=0.1)),
        (FedBuff(size=2), MAML(0.05, steps=2, alpha=0.02)),
        (FedAsync(lr=0.5), Moreau(0.05, steps=2, penalty=50.0, inner=5)),
        (SCAFFOLD(), Scaffold(0.05, steps=3)),
        (SCAFFOLD(), Scaffold(0.05, steps=3, option=1)),
        (AREA(size=3), SGD(0.05, steps=3)),
    ],
    ids=["prox", "maml", "moreau", "scaffold", "scaffold 1", "area"],
)
def test_it_composes_with_every_trainer_and_comes_near_the_optimum(server: Any, local: Any, rule: Any) -> None:
    problem = Quadratic(3, dim=4, heterogeneity=0.1, convexity=0.3, dtype=torch.float64)
    made = replace(local, optimiser=rule, keep=True)
    result = run(problem, server, made, Scripted([[1.0], [1.1], [0.9]]), Until(updates=900))
    assert float((result.model - problem.optimum()).norm()) < 0.15 * problem.distance


def test_scaffold_s_second_option_keeps_the_mean_of_the_gradients_whatever_makes_the_steps() -> None:
    """From 8 by Adam's steps of ½: the gradients were 8 and 7.5."""
    local = Scaffold(0.5, steps=2, optimiser=AdamRule())
    result = run(Line([0.0], start=8.0), SCAFFOLD(), local, Scripted([[1.0]]), ONE)
    assert result.world.memories[0, 0][1]["control"].item() == pytest.approx(7.75, abs=1e-6)


# Fine-tuning


def fine_tuned(local: Local, steps: int = 1) -> float:
    problem = Line([0.0], start=8.0)
    work = Work({}, local.remember(problem.initial()), local.lr, steps, problem.oracle([0], [0], 1, None, False), [0])
    return local.personal(problem.initial().unsqueeze(0), work, steps).item()


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        (SGD(0.5), 4.0),
        (SGD(0.5, clip=0.01), 8.0 - 0.005),
        (SGD(0.5, clip_value=0.02), 8.0 - 0.01),
        (SGD(0.5, decay=0.1), 8.0 - 0.5 * 8.8),
        (Prox(0.5, clip=2.0, mu=3.0), 7.0),
        (Adam(0.5), 7.5),
        (SGD(0.5, momentum=0.5, keep=True), 4.0),
    ],
    ids=lambda it: type(it).__name__,
)
def test_a_client_s_own_model_is_made_by_the_trainer_s_own_steps(local: Local, expected: float) -> None:
    assert fine_tuned(local) == pytest.approx(expected, abs=1e-7)


def test_a_client_s_own_model_begins_with_a_fresh_optimiser_and_leaves_the_kept_one_out() -> None:
    local = SGD(0.5, momentum=0.5, keep=True)
    memory = {"opt.m": torch.tensor([[100.0]], dtype=torch.float64)}
    work = Work({}, memory, local.lr, 1, Line([0.0]).oracle([0], [0], 1, None, False), [0])
    assert local.personal(torch.tensor([[8.0]], dtype=torch.float64), work, 1).item() == 4.0


def test_a_pull_is_added_to_the_clipped_gradient() -> None:
    """From 8: the gradient is clipped to 2, a step of 1; from 7 to 2 again, and the pull is 3·(7 − 8)."""
    local = Prox(0.5, steps=2, clip=2.0, mu=3.0)
    result = run(Line([0.0], start=8.0), FedAvg(), local, Scripted([[1.0]]), ONE)
    assert result.model.item() == 7.0 - 0.5 * (2.0 - 3.0)


def test_a_schedule_over_steps_multiplies_what_the_server_hands_out() -> None:
    local = SGD(0.5, steps=2, schedule=StepDecay(1, gamma=0.5, over="step"))
    result = run(Line([0.0], start=8.0), AREA(schedule=Steady(0.25)), local, Scripted([[1.0]]), ONE)
    assert result.model.item() == 8.0 * 0.75 * 0.875


# Mini-batches


def digits(clients: int) -> Supervised:
    """Clients with 20, 40, 60 … samples."""
    data = load("digits")
    cuts = np.cumsum([20 * (client + 1) for client in range(clients)])
    return Supervised(data, Softmax((64,), 10), np.split(np.arange(cuts[-1]), cuts[:-1]))


def test_accumulated_mini_batches_are_one_large_one() -> None:
    problem = digits(2)
    small, large = SGD(0.1, batch=4, accumulate=3, steps=5, shuffle=True), SGD(0.1, batch=12, steps=5, shuffle=True)
    models = [run(problem, FedAvg(), local, Scripted([[1.0]]), ONE).model for local in (small, large)]
    torch.testing.assert_close(*models, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"epochs": 2, "batch": 16}, [3, 5, 8, 10]),
        ({"epochs": 2, "batch": 16, "accumulate": 2}, [2, 3, 4, 5]),
        ({"epochs": 0.5, "batch": (5, 5, 10, 10)}, [2, 4, 3, 4]),
        ({"epochs": 1, "batch": BatchShare(0.1)}, [10, 10, 10, 10]),
        ({"epochs": 3}, [3, 3, 3, 3]),
    ],
)
def test_epochs_become_steps_by_a_client_s_samples_and_batch(settings: Any, expected: list[int]) -> None:
    """The clients have 20, 40, 60 and 80 samples."""
    problem = digits(4)
    assert planned_steps(SGD(0.1, **settings), problem) == expected
    result = run(problem, FedAvg(), SGD(0.1, **settings), Scripted([[1.0]]), Until(updates=4))
    assert sorted(job.steps for job in _jobs(result)) == sorted(expected)


@pytest.mark.parametrize("batch", [(4, 8, 4, 8), BatchShare(0.2)], ids=["list", "share"])
def test_batch_sizes_per_client_are_those_of_clients_alone(batch: Any) -> None:
    """Serial and batched agree, and a list of equal sizes is one size."""
    problem, clock = digits(4), Scripted([[1.0]])
    local = SGD(0.1, batch=batch, steps=3)
    models = [run(problem, FedAvg(), local, clock, ONE, executor=e).model for e in ("serial", "batched")]
    torch.testing.assert_close(*models)
    same = [run(problem, FedAvg(), SGD(0.1, batch=b, steps=3), clock, ONE).model for b in (8, (8, 8, 8, 8))]
    assert torch.equal(*same)


# Refusals


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "steps and epochs": (lambda: SGD(0.1, steps=5, epochs=2), "steps = 5: epochs = 2 already sets the number"),
    "accumulating everything": (lambda: SGD(0.1, accumulate=4), "accumulate = 4: without batch"),
    "two clips": (lambda: SGD(0.1, clip=1.0, clip_value=1.0), "clip_value = 1: clip bounds"),
    "nothing to keep": (lambda: Prox(0.1, keep=True), "keep = true: there is no optimiser"),
    "nesterov alone": (lambda: SGD(0.1, nesterov=True), "nesterov = true: it needs a momentum"),
    "momentum and adam": (lambda: SGD(0.1, momentum=0.9, optimiser=AdamRule()), "momentum = 0.9: the optimiser"),
    "epochs of a gradient": (lambda: Gradient(epochs=2), "gradient makes no local steps"),
    "epochs of no samples": (
        lambda: planned_steps(SGD(0.1, epochs=2), Quadratic(2)),
        "epochs: the clients' numbers of samples",
    ),
    "a short list": (lambda: planned_steps(SGD(0.1, batch=(4, 8)), Quadratic(3)), "batch has 2 sizes for 3 clients"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make()


def test_an_own_schedule_needs_one_method() -> None:
    class Alternating(LocalSchedule):
        def factor(self, k: int) -> float:
            return math.cos(math.pi * k)

    assert [Alternating(warmup=1)(k) for k in range(3)] == [0.5, 1.0, -1.0]
