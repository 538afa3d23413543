"""Runs under the theorems' own conditions, on problems whose constants are known: what a bound is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from offbeat.algorithms.area import AREA
from offbeat.algorithms.criteria import Poisson
from offbeat.algorithms.defedavg import DeFedAvg
from offbeat.algorithms.fedast import FedAST
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.schedules import Schedule, Steady
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import Vector
from offbeat.local.maml import MAML
from offbeat.local.moreau import Moreau as MoreauSteps
from offbeat.local.sgd import SGD
from offbeat.problems.absolute import Absolute
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.theory import area, defedavg, fedast, fedbuff, persafl
from offbeat.timing import Constant, Exponential, Times, Timing
from offbeat.watch.history import History

Slope = Callable[[Vector], Vector]  # models [t, d] → gradients of the global objective [t, d]


@dataclass(frozen=True)
class Trial:
    """A theorem's left-hand side, measured, and its right-hand side.

    measured: mean over the seeds.   error: its standard error.   bound: the right-hand side.   steps: K or T.
    staleness: the largest that was seen, which is what the bound was given.
    """

    theorem: str
    measured: float
    error: float
    bound: float
    steps: int
    staleness: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the mean is below the bound by more than twice its standard error."""
        return self.measured + 2.0 * self.error < self.bound


def summed(values: Sequence[float]) -> tuple[float, float]:
    """(mean, standard error)."""
    array = np.asarray(values)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array)))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])


# AREA


def area_path(
    problem: Quadratic | Absolute,
    rates: Sequence[float],
    server: float,
    steps: int,
    schedule: Schedule,
    iterations: int,
    seed: int,
) -> Vector:
    """x_{s,k} for k = 0 … K under Poisson messages and a Poisson criterion, [K + 1, d]."""
    algorithm = Algorithm(AREA(size=Poisson(server), schedule=schedule), SGD(lr=schedule(0), steps=steps))
    timing = Times(Exponential(tuple(rates)))
    simulation = prepare(problem, algorithm, timing, Until(updates=iterations + 1), seed=seed, executor="serial")
    path: list[Vector] = []
    for world in simulation.steps():
        if world.server.k == len(path):
            path.append(world.server.model.vector)
        if len(path) > iterations:
            break
    return torch.stack(path)


def area_smooth(
    rates: Sequence[float],
    server: float,
    iterations: int,
    seeds: Sequence[int],
    steps: int = 1,
    mu: float = 1.0,
    smoothness: float = 1.0,
    noise: float = 1.0,
    heterogeneity: float = 1.0,
    distance: float = 1.0,
    dim: int = 2,
) -> tuple[np.ndarray, area.Smooth, area.Events]:
    """(|x_{s,k} − x*|² by seed and k under theorem 7's schedule, the problem, the events)."""
    problem = Quadratic(
        len(rates),
        dim=dim,
        smoothness=smoothness,
        convexity=mu,
        noise=noise,
        heterogeneity=heterogeneity,
        distance=distance,
        dtype=torch.float64,
    )
    smooth = area.Smooth(mu, smoothness, steps, noise, heterogeneity, distance)
    events = area.Events.from_rates(rates, server)
    best, handed = problem.optimum(), area.schedule(smooth, events)
    paths = [area_path(problem, rates, server, steps, handed, iterations, seed) for seed in seeds]
    return np.stack([((path - best) ** 2).sum(dim=1).numpy() for path in paths]), smooth, events


def area_nonsmooth(
    rates: Sequence[float], server: float, iterations: int, seeds: Sequence[int], steps: int = 1, **options: float
) -> tuple[list[float], area.Nonsmooth, area.Events]:
    """(f(x̄_K) − f* by seed under theorem 8's constant step, the problem, the events)."""
    problem = Absolute(len(rates), dtype=torch.float64, **options)  # type: ignore[arg-type]
    flat = area.Nonsmooth(problem.lipschitz, steps, problem.noise, problem.distance)
    events = area.Events.from_rates(rates, server)
    handed = Steady(area.nonsmooth_step(flat, events, iterations))
    paths = [area_path(problem, rates, server, steps, handed, iterations, seed) for seed in seeds]
    return [problem.measure(path[:-1].mean(dim=0, keepdim=True))[0]["gap"] for path in paths], flat, events


# The theorems about gradients: (1/T) Σ |∇f(w_t)|²


@dataclass(frozen=True)
class Setting:
    """A quadratic all of whose clients have the same Hessian, so that heterogeneity is bounded everywhere."""

    clients: int = 6
    smoothness: float = 0.03
    convexity: float = 0.012
    noise: float = 0.5
    heterogeneity: float = 2.0
    distance: float = 5.0
    dim: int = 2  # more only where L = μ, or the clients' Hessians would differ
    reach: float = 1.2  # how many times its distance the path may go away from the optimum: the ball of G

    def __post_init__(self) -> None:
        if self.dim > 2 and self.smoothness != self.convexity:
            raise SettingError(f"dim = {self.dim}: the Hessians of the clients differ unless smoothness = convexity")

    def problem(self) -> Quadratic:
        return Quadratic(
            self.clients,
            dim=self.dim,  # of two coordinates, the curvatures are L and μ for every client
            smoothness=self.smoothness,
            convexity=self.convexity,
            noise=self.noise,
            heterogeneity=self.heterogeneity,
            distance=self.distance,
            dtype=torch.float64,
        )

    @property
    def gammas(self) -> tuple[float, float]:
        """(root of (1/n) Σ|∇f_i − ∇f|², largest |∇f_i − ∇f|), the same everywhere."""
        problem = self.problem()
        away = problem.h * (problem.c - problem.c.mean(dim=0))
        found = (away**2).sum(dim=1)
        return math.sqrt(float(found.mean())), math.sqrt(float(found.max()))

    @property
    def gap(self) -> float:
        """f(w_0) − min f."""
        problem = self.problem()
        return problem.value(problem.initial()) - problem.value(problem.optimum())

    def start(self, h: Vector) -> float:
        """The mean of ½ Σ h(w_0 − c_i)²: how far an objective made of these curvatures is from 0 at the start."""
        problem = self.problem()
        return float((0.5 * h * (problem.initial() - problem.c) ** 2).sum(dim=1).mean())

    @property
    def largest(self) -> float:
        """G: every |∇f_i| within `reach` starting distances of the optimum; `check` sees that nobody leaves."""
        return self.smoothness * (self.reach * self.distance + self.heterogeneity)

    def check(self, path: Vector) -> None:
        """Refuse a path that left the ball in which `largest` holds."""
        away = float(torch.linalg.vector_norm(path - self.problem().optimum(), dim=1).max())
        if away > self.reach * self.distance:
            raise AssertionError(f"the path went {away:.3g} away, beyond the ball in which G was taken")


DEFAULT = Setting()
NOISY = Setting(noise=2.0, distance=3.0, reach=3.0)  # so noisy that theorem 1 of DeFedAvg asks for few rounds
ALIKE = Setting(heterogeneity=0.0)
MANY = Setting(32, 0.05, 0.05, noise=2.0, heterogeneity=1.0, distance=3.0, dim=40, reach=1.6)  # for speed-ups


def plain(problem: Quadratic) -> Slope:
    """∇f."""
    return lambda w: (problem.h * (w.unsqueeze(1) - problem.c)).mean(dim=1)


def adapted(problem: Quadratic, alpha: float) -> Slope:
    """∇ of the MAML objective: h(1 − αh)²(w − c)."""
    h = problem.h * (1.0 - alpha * problem.h) ** 2
    return lambda w: (h * (w.unsqueeze(1) - problem.c)).mean(dim=1)


def enveloped(problem: Quadratic, penalty: float) -> Slope:
    """∇ of the Moreau envelopes: hλ/(h + λ)·(w − c)."""
    h = problem.h * penalty / (problem.h + penalty)
    return lambda w: (h * (w.unsqueeze(1) - problem.c)).mean(dim=1)


def versions(simulation: Simulation, rounds: int) -> Vector:
    """w_0 … w_{T−1}, [T, d]."""
    path = [simulation.problems[0].initial()]
    for world in simulation.steps():
        model = simulation.server.models(world.server)[0]
        if model.version == len(path):
            path.append(model.vector)
    return torch.stack(path[:rounds])


def server_path(
    problem: Quadratic, server: Server[Any], local: Local, rounds: int, seed: int, timing: Timing | None = None
) -> tuple[Vector, int]:
    """(w_0 … w_{T−1}, the largest staleness of an arrival) with jobs that all take one unit of time."""
    history = History(keep_events=True)
    simulation = prepare(
        problem,
        Algorithm(server, local),
        timing or Times(Constant(1.0)),
        Until(versions=rounds),
        seed=seed,
        watchers=[history],
    )
    path = versions(simulation, rounds)
    return path, max((row.staleness for row in history.events), default=0)


def squares(path: Vector, gradient: Slope) -> float:
    """(1/T) Σ |∇F(w_t)|²."""
    return float((gradient(path) ** 2).sum(dim=1).mean())


def _trial(theorem: str, seeds: Sequence[int], rounds: int, bound: float, late: float, one: _One) -> Trial:
    """The mean of `one(seed)` over the seeds; an assertion fails if it saw more staleness than the bound was given."""
    found = [one(seed) for seed in seeds]
    seen = max(worst for _, worst in found)
    if seen > late:
        raise AssertionError(f"{theorem}: staleness {seen} exceeds the {late:g} that the bound was given")
    return Trial(theorem, *summed([left for left, _ in found]), bound, rounds, seen)


_One = Callable[[int], tuple[float, int]]


def fedbuff_trial(
    seeds: Sequence[int], setting: Setting = DEFAULT, steps: int = 1, size: int = 2, concurrency: int = 2
) -> Trial:
    """FedBuff, theorem 1. Equal times and draws among the idle: arrivals are uniform, staleness is bounded."""
    problem, late = setting.problem(), math.ceil(concurrency / size)
    buffered = fedbuff.FedBuffProblem(
        setting.smoothness, steps, late, setting.clients, setting.noise, setting.gammas[0], setting.gap
    )
    rounds = math.ceil(fedbuff.least_steps(buffered))
    local = SGD(lr=fedbuff.local_step(buffered, rounds), steps=steps)

    def one(seed: int) -> tuple[float, int]:
        path, worst = server_path(problem, FedBuff(size=size, concurrency=concurrency), local, rounds, seed)
        return squares(path, plain(problem)), worst

    return _trial("FedBuff, theorem 1", seeds, rounds, fedbuff.bound(buffered, rounds).total, late, one)


def fedasync_trial(seeds: Sequence[int], setting: Setting = DEFAULT, steps: int = 1, concurrency: int = 2) -> Trial:
    """PersA-FL, theorem 1, with the same device."""
    problem, late = setting.problem(), concurrency - 1
    stale = persafl.FedAsyncProblem(setting.smoothness, steps, late, setting.noise, setting.gammas[0], setting.gap)
    rounds = math.ceil(persafl.least_steps(stale))
    local = SGD(lr=persafl.local_step(stale.smoothness, steps, rounds), steps=steps)

    def one(seed: int) -> tuple[float, int]:
        path, worst = server_path(problem, FedAsync(concurrency=concurrency), local, rounds, seed)
        return squares(path, plain(problem)), worst

    return _trial("PersA-FL, theorem 1", seeds, rounds, persafl.bound(stale, rounds).total, late, one)


def maml_trial(
    seeds: Sequence[int], setting: Setting = DEFAULT, steps: int = 1, concurrency: int = 3, alpha: float = 2.0
) -> Trial:
    """PersA-FL, theorem 2, 400 rounds; f* = 0, which every f_i reaches; ρ = σ_h = γ_h = 0 on these quadratics."""
    problem, late = setting.problem(), concurrency - 1
    gap = setting.start(problem.h * (1.0 - alpha * problem.h) ** 2)
    stale = persafl.FedAsyncProblem(setting.smoothness, steps, late, setting.noise, setting.gammas[0], gap)
    maml = persafl.MamlProblem(stale, alpha, setting.largest, gap)
    rounds = max(400, math.ceil(persafl.maml_least_steps(maml)))
    local = MAML(lr=persafl.local_step(maml.smoothness, steps, rounds), steps=steps, alpha=alpha)

    def one(seed: int) -> tuple[float, int]:
        path, worst = server_path(problem, FedAsync(concurrency=concurrency), local, rounds, seed)
        setting.check(path)
        return squares(path, adapted(problem, alpha)), worst

    return _trial("PersA-FL, theorem 2", seeds, rounds, persafl.maml_bound(maml, rounds).total, late, one)


def moreau_trial(
    seeds: Sequence[int], setting: Setting = DEFAULT, steps: int = 1, concurrency: int = 2, printed: bool = True
) -> Trial:
    """PersA-FL, theorem 3 with λ = 10·L and an inner problem solved to ν = 0.01."""
    problem, late = setting.problem(), concurrency - 1
    penalty, accuracy = 10.0 * setting.smoothness, 0.01
    gap = setting.start(problem.h * penalty / (problem.h + penalty))
    stale = persafl.FedAsyncProblem(setting.smoothness, steps, late, setting.noise, setting.gammas[0], gap)
    moreau = persafl.MoreauProblem(stale, penalty, accuracy, gap)
    rounds = math.ceil(persafl.moreau_least_steps(moreau, printed))
    lr = persafl.local_step(moreau.smoothness, steps, rounds)
    local = MoreauSteps(lr=lr, steps=steps, penalty=penalty, accuracy=accuracy, inner=60)

    def one(seed: int) -> tuple[float, int]:
        path, worst = server_path(problem, FedAsync(concurrency=concurrency), local, rounds, seed)
        return squares(path, enveloped(problem, penalty)), worst

    return _trial("PersA-FL, theorem 3", seeds, rounds, persafl.moreau_bound(moreau, rounds, printed).total, late, one)


def fedast_trial(
    seeds: Sequence[int], setting: Setting = DEFAULT, steps: int = 2, size: int = 2, requests: int = 3, late: int = 6
) -> Trial:
    """FedAST, theorem 1 under corollary 1.1's step sizes, with the proof's constants.   late: γ^max."""
    problem = setting.problem()
    task = fedast.FedASTTask(
        setting.smoothness, steps, size, requests, late, setting.noise, setting.gammas[1], setting.gap
    )
    rounds = math.ceil(fedast.least_steps(task))
    local = SGD(lr=fedast.client_step(task, rounds), steps=steps)
    server = FedAST(requests=requests, size=size, lr=fedast.server_step(task))

    def one(seed: int) -> tuple[float, int]:
        path, worst = server_path(problem, server, local, rounds, seed)
        return squares(path, plain(problem)), worst

    return _trial("FedAST, theorem 1", seeds, rounds, fedast.corollary_bound(task, rounds).total, late, one)


def defedavg_trial(
    seeds: Sequence[int],
    setting: Setting = NOISY,
    steps: int = 2,
    sampled: int = 4,
    rounds: int | None = None,
    late: int = 12,
    tight: bool = False,
) -> Trial:
    """DeFedAvg, theorem 1.   rounds: T; None: 200, or the fewest that it allows.   late: λ."""
    problem = setting.problem()
    decoupled = defedavg.DeFedAvgProblem(
        setting.smoothness, steps, sampled, late, setting.noise, setting.gammas[1], setting.largest, setting.gap
    )
    least = math.ceil(defedavg.least_rounds(decoupled)[0])
    count = rounds or max(200, least)
    if count < least:
        raise AssertionError(f"{count} rounds: theorem 1 asks for at least {least}")
    local = SGD(lr=defedavg.local_step(decoupled, count), steps=steps)
    server = DeFedAvg(sampled=sampled, lr=defedavg.global_step(decoupled))

    def one(seed: int) -> tuple[float, int]:
        path, worst = server_path(problem, server, local, count, seed)
        setting.check(path)
        return squares(path, plain(problem)), worst

    return _trial("DeFedAvg, theorem 1", seeds, count, defedavg.bound(decoupled, count, tight).total, late, one)


def defedavg_iid_trial(
    seeds: Sequence[int],
    setting: Setting = ALIKE,
    steps: int = 2,
    sampled: int = 3,
    rounds: int | None = None,
    printed: bool = False,
) -> Trial:
    """DeFedAvg, theorem 2: all clients alike.   rounds: T; None: 200, or the fewest that it allows."""
    problem, late = setting.problem(), math.ceil(setting.clients / sampled)
    decoupled = defedavg.DeFedAvgProblem(setting.smoothness, steps, sampled, late, setting.noise, 0.0, 0.0, setting.gap)
    least = math.ceil(defedavg.iid_least_rounds(decoupled)[0])
    count = rounds or max(200, least)
    if count < least:
        raise AssertionError(f"{count} rounds: theorem 2 asks for at least {least}")
    server = FedBuff(size=sampled, lr=defedavg.iid_global_step(decoupled))
    local = SGD(lr=defedavg.iid_local_step(decoupled, count), steps=steps)

    def one(seed: int) -> tuple[float, int]:
        path, worst = server_path(problem, server, local, count, seed)
        return squares(path, plain(problem)), worst

    return _trial("DeFedAvg, theorem 2", seeds, count, defedavg.iid_bound(decoupled, count, printed).total, late, one)


PRODUCTS = (1600, 3200)


def rounds_to(
    epsilon: float, sampled: int, seeds: Sequence[int], setting: Setting = MANY, products: Sequence[int] = PRODUCTS
) -> float:
    """Rounds that DeFedAvg with theorem 1's step sizes takes to a mean squared gradient of ε, K = 1.

    Measured for T = product/n and read off a straight line through the logarithms.
    """
    lengths = [product // sampled for product in products]
    late = 4 + 2 * setting.clients // sampled  # N results in a unit of time, n of them a round; a job may wait two
    trials = [defedavg_trial(seeds, setting, 1, sampled, rounds, late=late) for rounds in lengths]
    line = np.polyfit(np.log([t.measured for t in trials]), np.log(lengths), 1)
    return float(np.exp(np.polyval(line, math.log(epsilon))))
