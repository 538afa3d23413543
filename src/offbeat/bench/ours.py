"""offbeat as a contender: its public interface, with the settings that a user would write."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from offbeat.algorithms import FedAST, FedBuff
from offbeat.bench.material import Material
from offbeat.core.server import Algorithm
from offbeat.core.vectors import Vector
from offbeat.local.sgd import SGD
from offbeat.simulate.loop import Until
from offbeat.simulate.run import run
from offbeat.timing import Exponential, Factors, ShiftedExponential, Times

Work = Callable[[int, int], Sequence[Vector]]  # (updates, seed) -> the final model of each task

QUADRATIC_LR = 0.1
AVAILABLE = 0.3  # share of the clients that take new work where several tasks share them (FAST §5.1)


def one(material: Material, executor: str = "auto") -> Work:
    """One run at a time."""
    if material.workload.requests:
        return _several(material, executor)
    workload = material.workload
    task = workload.tasks[0] if workload.tasks else None
    local = SGD(lr=task.lr, steps=task.steps, batch=task.batch) if task else SGD(lr=QUADRATIC_LR)
    algorithm = Algorithm(FedBuff(size=workload.size, lr=workload.lr), local)
    clock = Times(Exponential(rate=tuple(1.0 / mean for mean in material.means)))

    def work(updates: int, seed: int) -> Sequence[Vector]:
        done = run(material.problems[0], algorithm, clock, Until(updates=updates), seed=seed, executor=executor)
        return [done.model]

    return work


def _several(material: Material, executor: str) -> Work:
    """Tasks that share the clients; each ends after as many server steps as its updates make."""
    workload = material.workload
    server = FedAST(requests=workload.requests, size=workload.size, lr=workload.lr)
    local = tuple(SGD(lr=task.lr, steps=task.steps, batch=task.batch) for task in workload.tasks)
    algorithm = Algorithm(server, local)
    times = {problem.name: task.time for problem, task in zip(material.problems, workload.tasks, strict=True)}
    clock = Times(ShiftedExponential(times), speeds=Factors(tuple(material.means)), available=AVAILABLE)

    def work(updates: int, seed: int) -> Sequence[Vector]:
        until = Until(versions=updates // workload.size)
        done = run(list(material.problems), algorithm, clock, until, seed=seed, executor=executor)
        return [model.vector for model in server.models(done.world.server)]

    return work


def both(material: Material) -> Work:
    """Two runs with different seeds at once, each in a process: how a sweep over seeds uses two cores."""
    _shared.append(one(material))

    def work(updates: int, seed: int) -> Sequence[Vector]:
        context = multiprocessing.get_context("fork")  # the material is shared, not sent
        with ProcessPoolExecutor(2, context) as pool:
            first, _ = pool.map(_forked, [updates] * 2, [seed, seed + 1000])
        return [torch.from_numpy(vector) for vector in first]

    return work


_shared: list[Work] = []  # what a forked process finds there


def _forked(updates: int, seed: int) -> list[Any]:
    return [model.numpy() for model in _shared[-1](updates, seed)]
