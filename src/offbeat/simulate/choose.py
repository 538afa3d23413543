"""Which executor: the one that is named, the one that a saved run began with, or the one that is faster in a trial.

The trial takes place when the first jobs have been sent, so that mistakes in a run's settings show before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.func import grad, vmap

from offbeat.core.errors import OffbeatError, SettingError
from offbeat.core.events import Job
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.problems.supervised import Supervised
from offbeat.simulate.arena import Arenas
from offbeat.simulate.execute import Executor, Ready
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

    locals_: the local trainers, by task; with them, `auto` tries both ways of computing once there are jobs.   workers:
    processes, by default one a core.   address: of a Ray cluster.   world: a saved run, which goes on as it began
    unless a name is given.
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
    return Auto(problems, locals_)


class Auto(Executor):
    """Serial or batched: `settle` tells which, the same for all runs that it serves."""

    name = "auto"

    def __init__(self, problems: Sequence[Problem], locals_: Sequence[Local]) -> None:
        super().__init__(stacked=False)
        self.problems, self.locals = problems, locals_
        self.found: tuple[bool, str] | None = None  # (stacked, why)

    def settle(self) -> Executor:
        if self.found is None:
            try:
                self.found = _faster(self.problems, self.locals)
            except Exception as error:  # a mistake in a model or a local trainer shows in the run, with its event
                stacks = all(problem.stacks for problem in self.problems)
                said = str(error) if isinstance(error, OffbeatError) else f"{type(error).__name__}: {error}"
                self.found = stacks, f"no trial ({said})"
        stacked, reason = self.found
        return Executor(stacked, self.memory, f"{'batched' if stacked else 'serial'}: {reason}")


def _faster(problems: Sequence[Problem], locals_: Sequence[Local]) -> tuple[bool, str]:
    """(stacked, why), by what is known of the problems, and by a trial where that may be wrong."""
    known = all(problem.stacks for problem in problems)
    for local in locals_:
        if local.alone:
            return False, local.alone
    for problem in problems:
        if isinstance(problem, Supervised) and problem.unstackable and not problem.stacks:
            return False, f"{problem.name} cannot be stacked: {problem.unstackable}"
    models = [(p, local) for p, local in zip(problems, locals_, strict=False) if isinstance(p, Supervised)]
    fewest = min(problem.clients for problem in problems)
    clients = min(_STACK, max(2, fewest // 2))  # of few clients, about half are computed at a time
    if len(models) < len(problems) or fewest < 2:
        return known, "known without a trial"
    alone = together = 0.0
    for problem, local in models:
        one = trial(problem, local, 1, stacked=False)
        if not known and problem.device.type == "cpu" and one > _HEAVY:
            return known, f"a local step takes {short(one)}, of which stacking would save little"
        if one * clients > _SECONDS:
            return known, f"a local step takes {short(one)}, too long for a trial"
        alone += local.steps * one
        together += local.steps * trial(problem, local, clients, stacked=True)
    stacked = together < alone * _CLEARLY if known else together * _CLEARLY < alone
    return stacked, f"{short(together)} an update stacked by {clients}, {short(alone)} one by one"


def trial(problem: Supervised, local: Local, clients: int, stacked: bool) -> float:
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


def short(seconds: float) -> str:
    """A time as people read it."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
