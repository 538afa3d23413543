"""offbeat's own contenders: its public interface, with the settings that a user would write."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from offbeat.algorithms import FedAST, FedBuff
from offbeat.bench.material import Material
from offbeat.bench.workloads import BOTH, LOADER, OFFBEAT, RUNS, SERIAL, SWEEP
from offbeat.core.course import Until
from offbeat.core.errors import DivergedError, unknown
from offbeat.core.problem import Problem
from offbeat.core.server import Algorithm
from offbeat.core.vectors import Vector, materialise
from offbeat.data.lazy import Items, Read
from offbeat.experiment.run import run
from offbeat.local.sgd import SGD
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.lazy import Arenas
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Factors, ShiftedExponential, Times

Work = Callable[[int, int], Sequence[Vector]]  # (updates, seed) -> the final model of each task

QUADRATIC_LR = 0.1
AVAILABLE = 0.3  # share of the clients that take new work where several tasks share them (FedAST, §5.1)


def contender(name: str, material: Material, device: str = "cpu") -> Work:
    """The contender of this name, ready to begin; the material is on its device already."""
    makers = {
        OFFBEAT: lambda: one(material),
        SERIAL: lambda: one(material, "serial"),
        BOTH: lambda: both(material),
        SWEEP: lambda: program(material),
        LOADER: lambda: loader(material),
    }
    if name not in makers:
        raise unknown("contender", name, makers)
    return makers[name]()


def one(material: Material, executor: str = "auto") -> Work:
    """One run at a time, with one thread like every contender."""
    problems, algorithm, clock, until = settings(material)
    chosen = named_executor(executor, problems, algorithm.locals(len(problems))).settle()  # once, like in a long run

    def work(updates: int, seed: int) -> Sequence[Vector]:
        done = run(problems, algorithm, clock, until(updates), seed=seed, executor=chosen, threads=1)
        return [model.vector for model in algorithm.server.models(done.world.server)]

    return work


def program(material: Material) -> Work:
    """Several runs with different seeds as one program: how a sweep uses a GPU."""
    problems, algorithm, clock, until = settings(material)

    def work(updates: int, seed: int) -> Sequence[Vector]:
        ended: dict[int, Simulation] = {}
        shared: dict[str, Any] = {"executor": named_executor("auto", problems).settle(), "arenas": Arenas()}

        def over(number: int, run: Simulation, error: DivergedError | None) -> None:
            if error is not None:
                raise error
            ended[number] = run

        def maker(number: int) -> Callable[[], Simulation]:
            return lambda: prepare(problems, algorithm, clock, until(updates), seed=seed + 1000 * number, **shared)

        for _ in Program(((number, maker(number)) for number in range(RUNS[SWEEP])), over).rounds():
            pass
        return [materialise(model.vector) for model in algorithm.server.models(ended[0].world.server)]

    return work


def loader(material: Material) -> Work:
    """As many mini-batches of the pooled samples as the jobs of all clients have, by torch's DataLoader."""
    task, train = material.workload.tasks[0], material.datasets[0].train
    assert isinstance(train, Read)
    assert isinstance(train.cache.source, Items)
    items = train.cache.source.given

    def work(updates: int, seed: int) -> Sequence[Vector]:
        module = copy.deepcopy(material.modules[0])
        optimiser = torch.optim.SGD(module.parameters(), task.lr)
        batches = DataLoader(items, task.batch, shuffle=True, generator=torch.Generator().manual_seed(seed))
        endless = itertools.chain.from_iterable(itertools.repeat(batches))
        for x, y in itertools.islice(endless, updates * task.steps):
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(module(x.float() / 255), y))
            optimiser.step()
        return [torch.cat([p.detach().reshape(-1) for p in module.parameters()])]

    return work


def settings(material: Material) -> tuple[list[Problem], Algorithm, Times, Callable[[int], Until]]:
    """The arguments of a run of this workload; when it ends depends on the number of updates."""
    workload = material.workload
    problems = list(material.problems)
    if not workload.tasks:
        local: SGD | tuple[SGD, ...] = SGD(lr=QUADRATIC_LR)
    else:
        local = tuple(SGD(lr=task.lr, steps=task.steps, batch=task.batch) for task in workload.tasks)
    if not workload.requests:
        server = FedBuff(size=workload.size, lr=workload.lr)
        clock = Times(Exponential(rate=tuple(1.0 / mean for mean in material.means)))
        return problems, Algorithm(server, local), clock, lambda updates: Until(updates=updates)
    # each task ends after as many server steps as its updates make
    several = FedAST(requests=workload.requests, size=workload.size, lr=workload.lr)
    times = {problem.name: task.time for problem, task in zip(problems, workload.tasks, strict=True)}
    clock = Times(ShiftedExponential(times), speeds=Factors(tuple(material.means)), available=AVAILABLE)
    return problems, Algorithm(several, local), clock, lambda updates: Until(versions=updates // workload.size)


def both(material: Material) -> Work:
    """Two runs with different seeds in two processes: how a sweep over seeds uses two cores."""
    _shared.append(one(material))

    def work(updates: int, seed: int) -> Sequence[Vector]:
        context = multiprocessing.get_context("fork")  # the material is shared, not sent
        with ProcessPoolExecutor(2, context) as pool:
            first, _ = pool.map(_forked, [updates] * 2, [seed, seed + 1000])
        return [torch.from_numpy(vector) for vector in first]

    return work


_shared: list[Work] = []  # read by forked processes


def _forked(updates: int, seed: int) -> list[Any]:
    return [model.numpy() for model in _shared[-1](updates, seed)]
