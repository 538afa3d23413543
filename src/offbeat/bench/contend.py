"""Who can do a workload's work: each contender, given the material, makes final models of (updates, seed)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from offbeat.algorithms import FedBuff
from offbeat.bench import lean
from offbeat.bench.bare import Bare
from offbeat.bench.loops import Trainer, fedbuff
from offbeat.bench.material import Material
from offbeat.bench.plain import Plain, PlainQuadratic
from offbeat.bench.workloads import BOTH, LEAN, OFFBEAT, PLAIN, SERIAL
from offbeat.core.errors import unknown
from offbeat.core.server import Algorithm
from offbeat.core.vectors import Vector
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Until
from offbeat.simulate.run import run
from offbeat.timing import Exponential, Times

Work = Callable[[int, int], Sequence[Vector]]  # (updates, seed) -> the final model of each task

QUADRATIC_LR = 0.1


def contender(name: str, material: Material, device: str = "cpu") -> Work:
    """The contender of this name, ready to begin."""
    makers = {
        OFFBEAT: lambda: _offbeat(material, "auto"),
        SERIAL: lambda: _offbeat(material, "serial"),
        BOTH: lambda: _offbeat(material, "auto"),  # the worker gives it two threads
        LEAN: lambda: _lean(material, device),
        PLAIN: lambda: _plain(material, device),
    }
    if name not in makers:
        raise unknown("contender", name, makers)
    return makers[name]()


def cores(name: str) -> int:
    """How many cores a contender may use."""
    return 2 if name == BOTH else 1


def _offbeat(material: Material, executor: str) -> Work:
    workload = material.workload
    task = workload.tasks[0] if workload.tasks else None
    local = SGD(lr=task.lr, steps=task.steps, batch=task.batch) if task else SGD(lr=QUADRATIC_LR)
    algorithm = Algorithm(FedBuff(size=workload.size, lr=workload.lr), local)
    clock = Times(Exponential(rate=tuple(1.0 / mean for mean in material.means)))

    def work(updates: int, seed: int) -> Sequence[Vector]:
        done = run(material.problems[0], algorithm, clock, Until(updates=updates), seed=seed, executor=executor)
        return [done.model]

    return work


def _lean(material: Material, device: str) -> Work:
    workload = material.workload
    problem = material.problems[0]
    if isinstance(problem, Quadratic):
        h, c, start = (t.cpu().numpy() for t in (problem.h, problem.c, problem.initial()))

        def quadratic(updates: int, seed: int) -> Sequence[Vector]:
            rng = np.random.default_rng(seed)
            w = lean.quadratic(
                h, c, start, material.means, lr=QUADRATIC_LR, size=workload.size, updates=updates, rng=rng
            )
            return [torch.from_numpy(w)]

        return quadratic
    task = workload.tasks[0]
    if task.model != "softmax" or device != "cpu":
        return _torch(Bare, material, device)
    data = material.datasets[0]
    x, y = data.train_x.flatten(1).numpy(), data.train_y.numpy()

    def softmax(updates: int, seed: int) -> Sequence[Vector]:
        w = lean.softmax(
            x,
            y,
            material.shards[0],
            material.means,
            classes=data.classes,
            steps=task.steps,
            batch=task.batch,
            lr=task.lr,
            size=workload.size,
            updates=updates,
            rng=np.random.default_rng(seed),
        )
        return [torch.from_numpy(w)]

    return softmax


def _plain(material: Material, device: str) -> Work:
    problem, workload = material.problems[0], material.workload
    if not isinstance(problem, Quadratic):
        return _torch(Plain, material, device)

    def quadratic(updates: int, seed: int) -> Sequence[Vector]:
        trainer = PlainQuadratic(problem.initial(), problem.h, problem.c, QUADRATIC_LR)
        rng = np.random.default_rng(seed)
        return [fedbuff(trainer, material.means, workload.size, workload.lr, updates, rng)]

    return quadratic


def _torch(kind: Callable[..., Trainer[Any]], material: Material, device: str) -> Work:
    workload = material.workload
    task, data, shards = workload.tasks[0], material.datasets[0], material.shards[0]
    x, y = data.train_x.to(device), data.train_y.to(device)
    assert data.scale is not None

    def work(updates: int, seed: int) -> Sequence[Vector]:
        rng = np.random.default_rng(seed)
        trainer = kind(material.modules[0], x, y, data.scale or 1.0, shards, task.steps, task.batch, task.lr, rng)
        return [fedbuff(trainer, material.means, workload.size, workload.lr, updates, rng)]

    return work
