"""Whether compiling a run's local steps pays: `compile = "auto"`.

It is decided when the first jobs have been sent. They say how many jobs the run will have, and a trial how long one of
their steps takes without a compiler. The decision is part of the saved run, so that a resumed one computes the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from statistics import fmean

from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.until import Until
from offbeat.problems.compiled import SIZES, known_seconds
from offbeat.problems.supervised import Supervised
from offbeat.simulate.choose import short, trial
from offbeat.simulate.world import World

_SAVED = 0.3  # of the time of local steps, at least: on an H200 a quarter to two thirds, on a CPU more
_SECONDS = 30.0  # to compile one size that was never compiled before, about
_STACK = 12  # clients of the trial


def worth(problems: Sequence[Problem], locals_: Sequence[Local], world: World, until: Until) -> tuple[bool, str]:
    """(whether to compile, why), after the first jobs have been sent."""
    updates = _expected(world, until)
    if updates is None:
        return False, "how long the run will be is not known"
    left = cost = 0.0
    for problem, local in zip(problems, locals_, strict=True):
        if hindrance := _why_not(problem, local):
            return False, hindrance
        assert isinstance(problem, Supervised)
        clients = min(_STACK, problem.clients)
        left += updates / len(problems) * local.steps * trial(problem, local, clients, stacked=True)
        known = known_seconds(problem.fingerprint)
        cost += len(SIZES) * _SECONDS if known is None else known
    pays = _SAVED * left > cost
    return pays, f"local steps would take about {short(left)}, compiling takes about {short(cost)}"


def _expected(world: World, until: Until) -> float | None:
    """How many updates the run will have, by its limit and the times of its first jobs; None: nobody knows."""
    if until.metrics:
        return None
    found = [] if until.updates is None else [float(until.updates)]
    took = [flight.arrive - flight.sent for flight in world.flights.values() if not flight.held]
    if until.time is not None and took and fmean(took) > 0:
        found.append(until.time * len(took) / fmean(took))
    return min(found, default=None)


def _why_not(problem: Problem, local: Local) -> str:
    """Why there is nothing to weigh; empty: there is."""
    if not isinstance(problem, Supervised):
        return f"{problem.name} is no network"
    if problem.has_own_form:
        return f"{problem.name} has a faster form of its own"
    if problem.unstackable:
        return f"{problem.name} cannot be stacked: {problem.unstackable}"
    if not isinstance(local.batch, int):
        return "mini-batches differ in their size"
    if problem.device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "there is no C++ compiler"
    return ""
