"""The loops written by hand do what offbeat does: the same events, the same gradients, the same steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from benchmarks.by_hand import lean
from benchmarks.by_hand.bare import Bare
from benchmarks.by_hand.contend import contender
from benchmarks.by_hand.loops import fedast, fedbuff
from benchmarks.by_hand.plain import Plain, PlainQuadratic
from benchmarks.by_hand.workloads import LEAN, PLAIN, WORKLOADS
from offbeat import timing
from offbeat.bench import material
from offbeat.bench.material import Material, synthetic
from offbeat.bench.ours import QUADRATIC_LR
from offbeat.bench.workloads import OFFBEAT
from offbeat.models.build import build
from offbeat.timing.speeds import Factors

CLIENTS, SIZE, UPDATES = 5, 3, 40
MEANS = [0.31, 0.47, 0.59, 0.73, 1.01]  # no two events at the same time


class Fixed:
    """Draws nothing: every time is its mean, every sample the first."""

    def standard_exponential(self) -> float:
        return 1.0

    def integers(self, bound: int, size: Any) -> np.ndarray:
        return np.zeros(size, dtype=np.int64)


DATA = synthetic("mnist", train=200, test=100)
SHARDS = [np.array([client]) for client in range(CLIENTS)]  # one sample each, so that nothing is left to chance
CLOCK = timing.Times(timing.Constant(1.0), speeds=Factors(tuple(MEANS)))


def ours(steps: int, model: str) -> torch.Tensor:
    problem = ob.Supervised(DATA, build(model, DATA.shape, 10, seed=1), SHARDS)
    algorithm = ob.Algorithm(ob.FedBuff(size=SIZE), ob.SGD(lr=0.5, steps=steps, batch=4))
    return ob.run(problem, algorithm, CLOCK, ob.Until(updates=UPDATES)).model


@pytest.mark.parametrize("steps", [1, 3])
def test_the_lean_loop_ends_where_offbeat_ends(steps: int) -> None:
    x, y = DATA.train["x"].flatten(1).numpy(), DATA.train["y"].numpy()
    w = lean.softmax(
        x, y, SHARDS, MEANS, classes=10, steps=steps, batch=4, lr=0.5, size=SIZE, updates=UPDATES, rng=Fixed()
    )
    torch.testing.assert_close(torch.from_numpy(w), ours(steps, "softmax"), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [Plain, Bare])
@pytest.mark.parametrize("model", ["softmax", "lenet5"])
def test_the_pytorch_loops_end_where_offbeat_ends(kind: Any, model: str) -> None:
    module = build(model, DATA.shape, 10, seed=1)
    trainer = kind(module, DATA.train["x"], DATA.train["y"], DATA.train.scales["x"], SHARDS, 2, 4, 0.5, Fixed())
    w = fedbuff(trainer, MEANS, SIZE, 1.0, UPDATES, Fixed())
    torch.testing.assert_close(w.detach(), ours(2, model), rtol=1e-3, atol=1e-4)


def test_the_quadratic_loops_end_where_offbeat_ends() -> None:
    problem = ob.Quadratic(CLIENTS)
    algorithm = ob.Algorithm(ob.FedBuff(size=SIZE), ob.SGD(lr=QUADRATIC_LR))
    expected = ob.run(problem, algorithm, CLOCK, ob.Until(updates=UPDATES)).model
    h, c, start = (t.numpy() for t in (problem.h, problem.c, problem.initial()))
    mine = lean.quadratic(h, c, start, MEANS, lr=QUADRATIC_LR, size=SIZE, updates=UPDATES, rng=Fixed())
    plain = fedbuff(
        PlainQuadratic(problem.initial(), problem.h, problem.c, QUADRATIC_LR), MEANS, SIZE, 1.0, UPDATES, Fixed()
    )
    torch.testing.assert_close(torch.from_numpy(mine), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.detach(), expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Material:
    """W1 on few made samples."""
    monkeypatch.setattr(material, "dataset", lambda task: synthetic(task.data, train=2000, test=500))
    return material.prepare(replace(WORKLOADS["W1"], clients=20))


def test_with_one_seed_the_loops_by_hand_draw_the_same(small: Material) -> None:
    (first,), (second,) = (contender(name, small)(200, 5) for name in (LEAN, PLAIN))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def test_all_contenders_learn_alike(small: Material) -> None:
    reached = {name: small.judge(contender(name, small)(600, 5)) for name in (OFFBEAT, LEAN, PLAIN)}
    accuracies = [metrics["accuracy"] for metrics in reached.values()]
    assert min(accuracies) > 0.6
    assert max(accuracies) - min(accuracies) < 0.05


class Counting:
    """A task whose model is a number; counts the jobs that it is given."""

    def __init__(self) -> None:
        self.jobs = 0

    def initial(self) -> float:
        return 0.0

    def train(self, sent: float, client: int) -> float:
        self.jobs += 1
        return 1.0

    def step(self, model: float, deltas: Any, lr: float) -> float:
        return model - lr * sum(deltas) / len(deltas)

    def vector(self, model: float) -> torch.Tensor:
        return torch.tensor([model])


def test_tasks_that_share_clients_get_the_same_number_of_updates() -> None:
    tasks = [Counting(), Counting(), Counting()]
    rng = np.random.default_rng(0)
    models = fedast(tasks, [0.1, 1.0, 5.0], [1.0] * 30, requests=12, size=3, lr=0.5, rounds=4, rng=rng)
    assert [task.jobs for task in tasks] == [12, 12, 12]
    assert [float(model) for model in models] == [-2.0, -2.0, -2.0]


def test_offbeat_ends_every_task_after_the_same_number_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "dataset", lambda task: synthetic(task.data, train=500, test=100))
    tasks = [replace(task, model="softmax", steps=1, batch=4) for task in WORKLOADS["W4"].tasks]
    workload = replace(WORKLOADS["W4"], tasks=tuple(tasks), clients=20, requests=12)
    made = material.prepare(workload)
    for name in (OFFBEAT, LEAN, PLAIN):
        models = contender(name, made)(6, 1)
        assert [len(model) for model in models] == [7840, 7840, 30720]
        assert made.judge(models)["loss"] < 2.3026
