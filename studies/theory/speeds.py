"""Time to a small gradient as speeds spread: Ringmaster, Rennala and asynchronous SGD against their theory.

    python -m studies.theory.speeds

Client i takes i^a for a gradient, all clients have the same quadratic, and every method has the settings that its
theorem asks for. For each a, the time at which |∇f(w)|² is first at most ε. A slope is that of log(measured) against
log(theory's order) over the a, fitted for every seed; its interval is Student's over the seeds, 95 %.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from offbeat.algorithms import AsySG, Rennala, Ringmaster
from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import norm
from offbeat.local import Gradient
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.theory import ringmaster
from offbeat.theory.ringmaster import FixedTimes
from offbeat.timing import Constant, Factors, Times

CLIENTS, EPSILON, SPREADS, SEEDS = 100, 1 / 16, (0.0, 0.5, 1.0, 1.5, 2.0), 8
T_95 = 2.365  # Student's t, SEEDS − 1 degrees of freedom
LONGER = (1, 2, 4, 8, 16)  # steps that are tried, as multiples of the theory's
PROBLEM = FixedTimes(smoothness=1.0, sigma=1.0)


def ring(longer: float = 1.0, stop: bool = False) -> Ringmaster:
    """Ringmaster with the theory's threshold and a multiple of its step."""
    step = ringmaster.ringmaster_step(PROBLEM, EPSILON)
    return Ringmaster(threshold=ringmaster.threshold(PROBLEM, EPSILON), lr=longer * step, stop=stop)


def rennala(longer: float = 1.0) -> Rennala:
    """Rennala with the theory's batch and a multiple of its step."""
    size = ringmaster.threshold(PROBLEM, EPSILON)
    return Rennala(size=size, lr=longer * ringmaster.rennala_step(PROBLEM, EPSILON))


def asynchronous(longer: float = 1.0) -> AsySG:
    """Asynchronous SGD whose steps shrink with delays beyond n, from a multiple of its theory's step."""
    return AsySG(lr=longer * ringmaster.ringmaster_step(PROBLEM, EPSILON, CLIENTS), cap=float(CLIENTS))


METHODS: Mapping[str, Callable[[float], Server[Any]]] = {
    "ringmaster": ring,
    "rennala": rennala,
    "asynchronous SGD": asynchronous,
}


def alike(seed: int) -> Quadratic:
    """One quadratic for all clients, L = 1 and μ = 0.1, and noise of their gradients."""
    problem = copy.copy(Quadratic(CLIENTS, smoothness=1.0, convexity=0.1, noise=1.0, heterogeneity=0.0, seed=seed))
    object.__setattr__(problem, "h", problem.h[:1].expand_as(problem.h).clone())
    return problem


def times(spread: float) -> list[float]:
    """τ_i = i^a."""
    return [float(i) ** spread for i in range(1, CLIENTS + 1)]


def time_to(server: Server[Any], spread: float, seed: int) -> float:
    """When the squared gradient is first at most ε; infinite if that is never within 50,000 updates."""
    problem, clock = alike(seed), Times(Constant(1.0), speeds=Factors(tuple(times(spread))))
    algorithm = Algorithm(server, Gradient())
    run = prepare(problem, algorithm, clock, Until(updates=50_000), seed=seed, executor="batched")
    version = -1
    for world in run.steps():
        model = world.server.model
        if model.version > version:
            version = model.version
            squared = norm(problem.h[0] * (model.vector - problem.c[0])) ** 2
            if squared <= EPSILON:
                return float(world.now)
            if squared > 1e9:
                break  # it diverges
    return math.inf


def slope(theory: Sequence[float], measured: Sequence[Sequence[float]]) -> tuple[float, float]:
    """(slope of log(measured) against log(theory), half its interval); measured: by seed."""
    found = [float(np.polyfit(np.log(theory), np.log(each), 1)[0]) for each in measured]
    return fmean(found), T_95 * stdev(found) / math.sqrt(len(found))


def main() -> None:
    """Print the table."""
    best = [ringmaster.optimal_order(PROBLEM, times(a), EPSILON) for a in SPREADS]
    plain = [ringmaster.asynchronous_order(PROBLEM, times(a), EPSILON) for a in SPREADS]
    head = " | ".join(f"a = {a:g}" for a in SPREADS)
    print(f"| | {head} | slope against its own order | against the lower bound's |")
    print("|---|" + "---|" * (len(SPREADS) + 2))
    for name, orders in (("order of the lower bound", best), ("order of asynchronous SGD", plain)):
        print(f"| {name} | " + " | ".join(f"{order / orders[0]:.3g}" for order in orders) + " | | |")
    show(
        "ringmaster with stops",
        [[time_to(ring(stop=True), a, seed) for a in SPREADS] for seed in range(SEEDS)],
        best,
        best,
    )
    for name, made in METHODS.items():
        own = plain if name == "asynchronous SGD" else best
        found = {m: [[time_to(made(m), a, seed) for a in SPREADS] for seed in range(SEEDS)] for m in LONGER}
        show(name, found[1], own, best)
        means = {m: [fmean(column) for column in zip(*rows, strict=True)] for m, rows in found.items()}
        chosen = [min(LONGER, key=lambda m: means[m][at]) for at in range(len(SPREADS))]
        tuned = [[found[m][seed][at] for at, m in enumerate(chosen)] for seed in range(SEEDS)]
        show(f"{name}, best step, theory's times {', '.join(map(str, chosen))}", tuned, own, best)


def show(name: str, measured: Sequence[Sequence[float]], own: Sequence[float], best: Sequence[float]) -> None:
    """Print a method's row: mean times, and the slopes against its own order and against the lower bound's."""
    means = " | ".join(f"{fmean(column):.3g}" for column in zip(*measured, strict=True))
    slopes = " | ".join("{:.2f} ± {:.2f}".format(*slope(theory, measured)) for theory in (own, best))
    print(f"| {name} | {means} | {slopes} |", flush=True)


if __name__ == "__main__":
    main()
