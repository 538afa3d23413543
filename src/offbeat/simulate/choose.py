"""Which executor: the one that is named, the one that a saved run began with, or the one that is faster in a trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.func import grad, vmap

from offbeat.core.errors import SettingError
from offbeat.core.events import Job
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.problems.supervised import Supervised
from offbeat.simulate.execute import Executor, Ready
from offbeat.simulate.lazy import Arenas
from offbeat.simulate.pool import Pool
from offbeat.simulate.world import World

NAMES = ("auto", "serial", "batched", "processes", "ray")

_STACK = 12  # clients of a trial
_STEPS = 3  # local steps of a trial's jobs, at most
_SECONDS = 0.1  # for each of the two ways, about
_HEAVY = 5e-3  # seconds of a local step on a CPU that are arithmetic: stacking saves what Python takes, about 1 ms
_CLEARLY = 1.25  # what a way has to be faster by, to be chosen against what is known of the model


def executor(
    name: str,
    problems: Sequence[Problem],
    locals_: Sequence[Local] = (),
    *,
    workers: int | None = None,
    address: str = "auto",
    world: World | None = None,
) -> Executor:
    """The executor of this name.

    locals_: the local trainers, by task; with them, `auto` tries both ways of computing.   workers: processes, by
    default one a core.   address: of a Ray cluster.   world: a saved run, which goes on as it began unless a name is
    given.
    """
    if name not in NAMES:
        raise SettingError(f"executor = {name!r}: must be one of {', '.join(NAMES)}")
    if workers is not None and name in ("serial", "batched"):
        raise SettingError(f"workers = {workers} with executor = {name!r}: use 'processes' or 'ray', or leave it out")
    if name == "ray":
        from offbeat.simulate.ray import Cluster

        return Cluster(address, workers)
    if name == "processes":
        return Pool(workers)
    if name == "auto" and workers is not None:
        return Pool(workers, reason=f"{workers} workers were asked for")
    if name != "auto":
        return Executor(stacked=name == "batched")
    if world is not None and world.executor in ("serial", "batched"):
        return Executor(stacked=world.executor == "batched", reason=f"the run began as {world.executor}")
    if world is not None and world.executor == "processes":
        return Pool(reason="the run began in processes")
    try:
        return _faster(problems, locals_)
    except Exception as error:  # a mistake in a model or a local trainer shows in the run, with its event
        return _known(all(problem.stacks for problem in problems), f"no trial ({type(error).__name__}: {error})")


def _faster(problems: Sequence[Problem], locals_: Sequence[Local]) -> Executor:
    """Serial or batched: by what is known of the problems, and by a trial where that may be wrong."""
    known = all(problem.stacks for problem in problems)
    for problem in problems:
        if isinstance(problem, Supervised) and not (problem.flat.vmappable or problem.stacks):
            return Executor(False, reason=f"serial: the model of {problem.name} cannot be stacked")
    models = [(p, local) for p, local in zip(problems, locals_, strict=False) if isinstance(p, Supervised)]
    clients = min(_STACK, *[problem.clients for problem in problems])
    if len(models) < len(problems) or clients < 2:
        return _known(known, "known without a trial")
    alone = together = 0.0
    for problem, local in models:
        one = _trial(problem, local, 1, stacked=False)
        if not known and problem.device.type == "cpu" and one > _HEAVY:
            return _known(known, f"a local step takes {_short(one)}, of which stacking would save little")
        if one * clients > _SECONDS:
            return _known(known, f"a local step takes {_short(one)}, too long for a trial")
        alone += local.steps * one
        together += local.steps * _trial(problem, local, clients, stacked=True)
    stacked = together < alone * _CLEARLY if known else together * _CLEARLY < alone
    reason = f"{_short(together)} an update stacked by {clients}, {_short(alone)} one by one"
    return _known(stacked, reason)


def _known(stacked: bool, reason: str) -> Executor:
    return Executor(stacked, reason=f"{'batched' if stacked else 'serial'}: {reason}")


def _trial(problem: Supervised, local: Local, clients: int, stacked: bool) -> float:
    """Seconds of one client's local step, the quickest of a few tries."""
    way, arenas = Executor(stacked), Arenas()
    model = problem.initial()
    steps = min(local.steps, _STEPS)
    given = arenas.adopt(model) if stacked else model
    payload, memory = dict.fromkeys(("model", *local.needs), given), local.remember(given)
    group = [
        (None, Ready(Job(c, c, 0, 0, steps, local.lr, 0), payload, memory, key=c, client=c)) for c in range(clients)
    ]
    arena = arenas.like(model) if stacked else None
    if stacked and problem.closed is None:
        vmap(grad(torch.sum))(torch.zeros(2, 2))  # the first one loads a lot
    # On a machine that others use too the processor's time says more, but threads that wait for each other count in it.
    clock = time.process_time if model.device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    wait: Callable[[], None] = torch.cuda.synchronize if model.is_cuda else lambda: None
    tries: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(tries) < 2 or (len(tries) < 5 and time.perf_counter() < until):
        wait()
        began = clock()
        way.compute(problem, local, arena, group)
        wait()
        tries.append(clock() - began)
    return min(tries) / (clients * steps)


def _short(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
