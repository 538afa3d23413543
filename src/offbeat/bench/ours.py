"""offbeat's own contenders: its public interface, with the settings that a user would write."""

from __future__ import annotations

import copy
import heapq
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader

from offbeat.algorithms import FedAST, FedBuff
from offbeat.bench.material import Material
from offbeat.bench.workloads import (
    BOTH,
    EAGER,
    HALF,
    LOADER,
    LOOP,
    OFFBEAT,
    RUNS,
    SERIAL,
    SWEEP,
    VMAP,
    BenchTask,
)
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError, unknown
from offbeat.core.problem import Problem
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, materialise
from offbeat.data.lazy import Items, Read
from offbeat.data.samples import Samples
from offbeat.experiment.run import run
from offbeat.local.sgd import SGD
from offbeat.problems.supervised import Supervised
from offbeat.simulate.arena import Arenas
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Exponential, Factors, ShiftedExponential, Times

Work = Callable[[int, int], Sequence[Vector]]  # (updates, seed) -> the final model of each task

QUADRATIC_LR = 0.1
AVAILABLE = 0.3  # share of the clients that take new work where several tasks share them (FedAST, §5.1)


def contender(name: str, material: Material, device: str = "cpu") -> Work:
    """The contender of this name, ready to begin; the material is on its device already."""
    makers = {
        OFFBEAT: lambda: one(material, compile=material.workload.compile and device == "cuda"),
        EAGER: lambda: one(material, "batched"),
        HALF: lambda: one(_half(material), compile=True),
        VMAP: lambda: vmapped(material),
        LOOP: lambda: loop(material),
        SERIAL: lambda: one(material, "serial"),
        BOTH: lambda: both(material),
        SWEEP: lambda: program(material),
        LOADER: lambda: loader(material),
    }
    if name not in makers:
        raise unknown("contender", name, makers)
    return makers[name]()


def one(material: Material, executor: str = "auto", compile: bool = False) -> Work:
    """One run at a time, with one thread like every contender. compile: before the first turn, for all sizes."""
    problems, algorithm, clock, until = settings(material)
    if compile:
        executor = "batched"
        for problem in problems:
            if isinstance(problem, Supervised):
                problem.compile()
    chosen = named_executor(executor, problems, algorithm.locals(len(problems))).settle()  # once, like in a long run

    def work(updates: int, seed: int) -> Sequence[Vector]:
        done = run(problems, algorithm, clock, until(updates), seed=seed, executor=chosen, threads=1)
        return [model.vector for model in algorithm.server.models(done.world.server)]

    if compile:
        work(5 * material.workload.clients, 0)
        print(*(problem.compiled for problem in problems if isinstance(problem, Supervised)), file=sys.stderr)
    return work


def _half(material: Material) -> Material:
    """The same with half precision."""
    return replace(material, problems=[_in_bf16(problem) for problem in material.problems])


def _in_bf16(problem: Problem) -> Supervised:
    assert isinstance(problem, Supervised)
    shards = [problem.shards[client] for client in range(problem.clients)]
    given: Any = {"device": str(problem.device), "measured": problem.measured, "name": problem.name}
    return Supervised(problem.data, problem.flat.module, shards, **given, precision="bf16")


def vmapped(material: Material, clients: int = 16) -> Work:
    """So many clients at a time by vmap(grad(loss)), averaged after each job: as many steps, and no federation."""
    task, problem, train = _alone(material)
    module = copy.deepcopy(material.modules[0]).to(problem.device)
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}

    def loss(w: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = functional_call(module, w, (x,)).float()
        return functional.cross_entropy(scores.flatten(0, -2), y.flatten())

    def work(updates: int, seed: int) -> Sequence[Vector]:
        draws = np.random.default_rng(seed)
        slopes, now = vmap(grad(loss)), parameters
        for _ in range(max(1, updates // clients)):
            w = {name: p.expand(clients, *p.shape) for name, p in now.items()}
            who = draws.integers(problem.clients, size=clients)
            for _ in range(task.steps):
                chosen = np.stack([draws.choice(problem.shards[int(c)], task.batch) for c in who])
                batch = train.take(torch.from_numpy(chosen).to(problem.device), ["x", "y"])
                g = slopes(w, batch["x"], batch["y"])
                w = {name: p - task.lr * g[name] for name, p in w.items()}
            now = {name: p.mean(0) for name, p in w.items()}
        return [torch.cat([now[name].reshape(-1) for name in now])]

    return work


def loop(material: Material) -> Work:
    """FedBuff as one would write it: a heap of arrivals, a module, and a new optimiser for every job."""
    task, problem, train = _alone(material)
    workload, module = material.workload, copy.deepcopy(material.modules[0]).to(problem.device)
    trained = [p for p in module.parameters() if p.requires_grad]
    first = torch.nn.utils.parameters_to_vector(trained).detach().clone()

    def job(start: torch.Tensor, client: int, draws: np.random.Generator) -> torch.Tensor:
        torch.nn.utils.vector_to_parameters(start.clone(), trained)
        optimiser = torch.optim.SGD(trained, task.lr)
        for _ in range(task.steps):
            chosen = torch.from_numpy(draws.choice(problem.shards[client], task.batch)).to(problem.device)
            batch = train.take(chosen, ["x", "y"])
            optimiser.zero_grad()
            scores = module(batch["x"]).float()
            torch.autograd.backward(functional.cross_entropy(scores.flatten(0, -2), batch["y"].flatten()))
            optimiser.step()
        return start - torch.nn.utils.parameters_to_vector(trained).detach()

    def work(updates: int, seed: int) -> Sequence[Vector]:
        draws, model, waiting = np.random.default_rng(seed), first.clone(), list[torch.Tensor]()
        takes = (lambda client: 1.0) if workload.equal else (lambda client: draws.exponential(material.means[client]))
        heap = [(takes(client), client, model) for client in range(workload.clients)]
        heapq.heapify(heap)
        for _ in range(updates):
            now, client, start = heapq.heappop(heap)
            waiting.append(job(start, client, draws))
            if len(waiting) == workload.size:
                model = model - workload.lr * torch.stack(waiting).mean(0)
                waiting.clear()
            heapq.heappush(heap, (now + takes(client), client, model))
        return [model]

    return work


def _alone(material: Material) -> tuple[BenchTask, Supervised, Samples]:
    problem = material.problems[0]
    assert isinstance(problem, Supervised)
    return material.workload.tasks[0], problem, problem.train


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
        law = Constant(1.0) if workload.equal else Exponential(rate=tuple(1.0 / mean for mean in material.means))
        clock = Times(law)
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
