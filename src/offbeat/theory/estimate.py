"""Estimates of the theorems' constants, each with its error, from a problem's oracle and a timing model.

Smoothness and convexity come from power iteration on Hessian-vector products, all clients at once; noise and
heterogeneity from sampling. All are taken at given points: for anything but a quadratic they are local.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from offbeat.core.errors import SettingError
from offbeat.core.problem import Problem
from offbeat.core.random import SAMPLE, key
from offbeat.core.vectors import Vector
from offbeat.timing.base import Clock
from offbeat.timing.compose import BoundTimes

_ROOM = 1 << 24  # numbers in a stack of vectors at most: fewer clients are asked where a model is large


@dataclass(frozen=True)
class Estimate:
    """A number and its error: a standard error, or for power iteration the size of its residual."""

    value: float
    error: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.4g}" + (f" ± {self.error:.2g}" if self.error else "")


@dataclass(frozen=True)
class Constants:
    """The constants of a problem that the theorems use.

    smoothness: L, the largest curvature of any client.   convexity: μ, the smallest; below 0 where f is not convex.
    sigma2: σ², largest over the clients, of a mini-batch's gradient.   gamma2: (1/n) Σ|∇f_i − ∇f|².
    farthest: largest |∇f_i − ∇f|.   gradient: largest |∇f_i|.   gap: f(w_0) − f*.   distance: |w_0 − x*|.
    zeta: ζ, the distance from x* to the farthest client's own optimum.
    asked: how many clients the estimates are from.   batch: the mini-batch size of σ²; None: all data.
    Known on quadratics; elsewhere `distance` and `zeta` are the bounds |∇f|/μ and max|∇f_i − ∇f|/μ (NaN where μ ≤ 0)
    and `gap` is f(w_0) itself, a loss being at least 0.
    """

    smoothness: Estimate
    convexity: Estimate
    sigma2: Estimate
    gamma2: Estimate
    farthest: float
    gradient: float
    gap: float
    distance: float
    zeta: float
    clients: int
    asked: int
    batch: int | None

    @property
    def sigma(self) -> float:
        return math.sqrt(self.sigma2.value)

    @property
    def gamma(self) -> float:
        return math.sqrt(self.gamma2.value)

    def lines(self) -> list[str]:
        """The constants as text."""
        who = "all clients" if self.asked == self.clients else f"{self.asked} of {self.clients} clients"
        return [
            f"theory: estimated at the initial model from {who}, batch {self.batch or 'all data'}:",
            f"  L = {self.smoothness}, μ = {self.convexity}, σ² = {self.sigma2}, (1/n) Σ|∇f_i − ∇f|² = {self.gamma2}",
            f"  largest |∇f_i| = {self.gradient:.4g}, f(w_0) − f* ≤ {self.gap:.4g}, |w_0 − x*| ≤ {self.distance:.4g}, "
            f"ζ ≤ {self.zeta:.4g}",
        ]


def curvatures(
    problem: Problem, w: Vector, clients: Sequence[int], iterations: int = 100, tolerance: float = 1e-4, seed: int = 0
) -> tuple[list[Estimate], list[Estimate]]:
    """(largest, smallest) eigenvalue of each client's Hessian at w.

    The largest |λ| by power iteration; the other end by power iteration on H − λ·I, whose largest eigenvalue in size
    is that end's distance from the first. The error is |Hv − θv|: an eigenvalue lies within it of θ.
    """
    oracle = problem.oracle(clients, [key(seed, SAMPLE, c) >> 1 for c in clients], 1, None, False)
    points = w.expand(len(clients), -1)
    first = _power(lambda v: oracle.hvp(points, v, 0), points, iterations, tolerance, seed)
    shift = torch.tensor([[e.value] for e in first], dtype=w.dtype, device=w.device)
    moved = _power(lambda v: oracle.hvp(points, v, 0) - shift * v, points, iterations, tolerance, seed + 1)
    other = [Estimate(e.value + s.value, e.error) for e, s in zip(moved, first, strict=True)]
    pairs = [(a, b) if a.value >= b.value else (b, a) for a, b in zip(first, other, strict=True)]
    return [high for high, _ in pairs], [low for _, low in pairs]


def _power(
    product: Callable[[Vector], Vector], like: Vector, iterations: int, tolerance: float, seed: int
) -> list[Estimate]:
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device, like.dtype)
    value = error = torch.zeros(len(like), 1, dtype=like.dtype, device=like.device)
    for _ in range(iterations):
        v = v / (torch.linalg.vector_norm(v, dim=1, keepdim=True) + 1e-30)
        image = product(v)
        value = (v * image).sum(dim=1, keepdim=True)
        error = torch.linalg.vector_norm(image - value * v, dim=1, keepdim=True)
        if bool((error <= tolerance * value.abs() + 1e-12).all()):
            break
        v = image
    return [Estimate(float(x), float(e)) for x, e in zip(value, error, strict=True)]


def noise(
    problem: Problem, w: Vector, clients: Sequence[int], batch: int | None, draws: int = 64, seed: int = 0
) -> list[Estimate]:
    """E|g − ∇f_i|² of each client at w: mean and standard error over `draws` mini-batches."""
    oracle = problem.oracle(clients, [key(seed, SAMPLE, c) >> 1 for c in clients], draws, batch, False)
    points = w.expand(len(clients), -1)
    full = oracle.full(points)
    found = torch.stack([((oracle.gradient(points, step) - full) ** 2).sum(dim=1) for step in range(draws)])
    mean, error = found.mean(dim=0), found.std(dim=0) / math.sqrt(draws)
    return [Estimate(float(m), float(e)) for m, e in zip(mean, error, strict=True)]


def heterogeneity(problem: Problem, w: Vector, clients: Sequence[int], seed: int = 0) -> tuple[Estimate, float, float]:
    """((1/n) Σ|∇f_i − ∇f|², largest |∇f_i − ∇f|, largest |∇f_i|) at w.

    Exact if all clients are given; for a sample of them, with the standard error of a mean over clients.
    """
    oracle = problem.oracle(clients, [key(seed, SAMPLE, c) >> 1 for c in clients], 1, None, False)
    full = oracle.full(w.expand(len(clients), -1))
    away = ((full - full.mean(dim=0)) ** 2).sum(dim=1)
    m, n = len(clients), problem.clients
    value = float(away.mean())
    error = 0.0
    if 1 < m < n:
        value *= m / (m - 1)  # the mean gradient is the sample's own
        error = float(away.std()) / math.sqrt(m) * math.sqrt((n - m) / (n - 1))
    largest = torch.linalg.vector_norm(full, dim=1).max()
    return Estimate(value, error), math.sqrt(float(away.max())), float(largest)


def constants(
    problem: Problem, batch: int | None = None, most: int = 128, draws: int = 64, iterations: int = 100, seed: int = 0
) -> Constants:
    """All constants at the initial model, from at most `most` clients."""
    w = problem.initial()
    asked = _some(problem, most, seed)
    high, low = curvatures(problem, w, asked, iterations, seed=seed)
    smooth, convex = max(high, key=lambda e: e.value), min(low, key=lambda e: e.value)
    gamma2, farthest, gradient = heterogeneity(problem, w, asked, seed)
    sigma2 = max(noise(problem, w, asked, batch, draws, seed), key=lambda e: e.value)
    metrics = problem.measure(w.unsqueeze(0))[0]
    mu = convex.value if convex.value > 0 else math.nan
    oracle = problem.oracle(asked, [key(seed, SAMPLE, c) >> 1 for c in asked], 1, None, False)
    mean_slope = float(torch.linalg.vector_norm(oracle.full(w.expand(len(asked), -1)).mean(dim=0)))
    return Constants(
        smooth,
        convex,
        sigma2,
        gamma2,
        farthest,
        gradient,
        gap=metrics.get("gap", metrics["loss"]),
        distance=metrics.get("distance", mean_slope / mu),
        zeta=getattr(problem, "heterogeneity", farthest / mu),
        clients=problem.clients,
        asked=len(asked),
        batch=batch,
    )


def _some(problem: Problem, most: int, seed: int) -> list[int]:
    count = max(2, min(most, problem.clients, _ROOM // max(1, problem.dim)))
    if count >= problem.clients:
        return list(range(problem.clients))
    return sorted(int(c) for c in np.random.default_rng(seed).choice(problem.clients, count, replace=False))


def rates(clock: Clock, clients: int, steps: int = 1, down: int = 0, up: int = 0) -> list[float]:
    """Messages of each client per unit of time when it is always busy: one over the mean time of its job.

    The events of AREA's theory are memoryless; for other laws these are the rates that match the means.
    """
    if not isinstance(clock, BoundTimes):
        raise SettingError(f"{type(clock).__name__}: a timing model whose mean times are not known")
    found = []
    for client in range(clients):
        mean = clock.compute.mean(client, steps) if clock.compute else 0.0
        if clock.download and clock.upload:
            mean += clock.download.mean(client, down) + clock.upload.mean(client, up)
        if not (math.isfinite(mean) and mean > 0):
            raise SettingError(f"client {client}: its mean time is {mean:g}, so it has no rate")
        found.append(1.0 / mean)
    return found
