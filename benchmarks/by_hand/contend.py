"""The loops written by hand as contenders: given the material, each makes final models of (updates, seed)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.by_hand import lean
from benchmarks.by_hand.bare import Bare
from benchmarks.by_hand.loops import Trainer, fedast, fedbuff
from benchmarks.by_hand.plain import Plain, PlainQuadratic
from benchmarks.by_hand.workloads import LEAN, PLAIN
from offbeat.bench import ours
from offbeat.bench.material import Material
from offbeat.bench.ours import QUADRATIC_LR, Work
from offbeat.core.vectors import Vector
from offbeat.data.samples import Stored
from offbeat.problems.quadratic import Quadratic


def contender(name: str, material: Material, device: str = "cpu") -> Work:
    """The contender of this name, ready to begin: a loop written by hand, or one of offbeat's own ways."""
    if name == LEAN:
        return _lean(material, device)
    if name == PLAIN:
        return _plain(material, device)
    return ours.contender(name, material, device)


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
    if workload.requests or task.model != "softmax" or device != "cpu":
        return _torch(Bare, material, device)
    data = material.datasets[0]
    x, y = data.train["x"].flatten(1).numpy(), data.train["y"].numpy()

    def softmax(updates: int, seed: int) -> Sequence[Vector]:
        w = lean.softmax(
            x,
            y,
            material.shards[0],
            material.means,
            classes=data.outputs,
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
    samples = [data.train.on(torch.device(device)) for data in material.datasets]
    stored = [(each["x"], each["y"], each.scales.get("x")) for each in samples if isinstance(each, Stored)]

    def trainers(rng: np.random.Generator) -> list[Trainer[Any]]:
        parts = zip(material.modules, stored, material.shards, workload.tasks, strict=True)
        return [kind(module, *data, shards, t.steps, t.batch, t.lr, rng) for module, data, shards, t in parts]

    def one(updates: int, seed: int) -> Sequence[Vector]:
        rng = np.random.default_rng(seed)
        return [fedbuff(trainers(rng)[0], material.means, workload.size, workload.lr, updates, rng)]

    def several(updates: int, seed: int) -> Sequence[Vector]:
        rng = np.random.default_rng(seed)
        times = [task.steps * task.time for task in workload.tasks]
        rounds, requests = updates // workload.size, workload.requests
        return fedast(trainers(rng), times, material.means, requests, workload.size, workload.lr, rounds, rng)

    return several if workload.requests else one
