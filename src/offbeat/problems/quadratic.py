"""Quadratics whose optimum, and whose biased limits, are known in closed form."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from offbeat.core.errors import Count, NotNegative, Positive, SettingError
from offbeat.core.problem import Numbers
from offbeat.core.random import PROBLEM, bits, key, unit
from offbeat.core.vectors import Vector
from offbeat.problems.known_optimum import KnownOptimum


@dataclass(frozen=True)
class Quadratic(KnownOptimum):
    """f_i(w) = ½ Σ_j h_ij (w_j − c_ij)², f = mean of the f_i; a gradient carries Gaussian noise.

    clients: n.
    dim: d.
    smoothness: L, the largest curvature of every f_i.
    convexity: μ, the smallest curvature of every f_i.
    noise: σ of a stochastic gradient, E|g − ∇f_i|² = σ².
    heterogeneity: ζ = max over i of |x* − c_i|, the distance from the optimum to the farthest client's own.
    distance: |x_0 − x*|, from the starting point to the optimum.

    Curvatures lie along the axes; all algorithms here are indifferent to a rotation of the space.
    """

    tables: ClassVar[tuple[str, ...]] = ("h", "c")

    clients: Count
    dim: Count = 10
    smoothness: Positive = 1.0
    convexity: Positive = 0.1
    noise: NotNegative = 0.0
    heterogeneity: NotNegative = 1.0
    distance: NotNegative = 10.0
    label: str = field(default="", metadata={"setting": False})
    seed: int = field(default=0, metadata={"setting": False})
    dtype: torch.dtype = field(default=torch.float32, metadata={"setting": False})
    device: str = field(default="cpu", metadata={"setting": False})
    h: Vector = field(init=False, repr=False, compare=False)  # [n, d]
    c: Vector = field(init=False, repr=False, compare=False)  # [n, d]
    _start: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.convexity > self.smoothness:
            raise SettingError(f"convexity = {self.convexity} exceeds smoothness = {self.smoothness}: μ ≤ L always")
        generator = torch.Generator().manual_seed(key(self.seed, PROBLEM) >> 1)
        n, d = self.clients, self.dim
        spread = torch.rand(n, d, generator=generator, dtype=torch.float64)
        h = self.convexity * (self.smoothness / self.convexity) ** spread  # [n, d], log-uniform in [μ, L]
        h[:, 0], h[:, -1] = self.smoothness, self.convexity if d > 1 else self.smoothness
        c = torch.randn(n, d, generator=generator, dtype=torch.float64)
        c = c - _balance(h, c)  # now x* = 0 ...
        farthest = float(torch.linalg.vector_norm(c, dim=1).max())
        centre = torch.randn(d, generator=generator, dtype=torch.float64)
        c = centre + (c * (self.heterogeneity / farthest) if farthest > 0 else c)  # ... and now x* = centre
        away = torch.randn(d, generator=generator, dtype=torch.float64)
        start = centre + self.distance * away / torch.linalg.vector_norm(away)
        for name, value in (("h", h), ("c", c), ("_start", start)):
            object.__setattr__(self, name, value.to(self.device, self.dtype))

    def initial(self) -> Vector:
        return self._start.clone()

    def optimum(self, shares: Sequence[float] | None = None) -> Vector:
        """Where Σ p_i ∇f_i = 0: the optimum for equal shares, the limit of a biased method for its own."""
        return _balance(self.h, self.c, shares)

    def value(self, w: Vector) -> float:
        return float((0.5 * self.h * (w - self.c) ** 2).sum(dim=1).mean())

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> _Rows:
        return _Rows(self, clients, keys)

    @property
    def kin(self) -> Hashable:
        """Problems of equal kin differ in their clients' functions alone: their clients can be stacked."""
        return (type(self), self.dim, self.noise, self.dtype, self.device)


def _balance(h: Vector, c: Vector, shares: Sequence[float] | None = None) -> Vector:
    if shares is None:
        return (h * c).sum(dim=0) / h.sum(dim=0)
    p = torch.tensor(shares, dtype=h.dtype, device=h.device).unsqueeze(1)
    return (p * h * c).sum(dim=0) / (p * h).sum(dim=0)


def _column(numbers: Numbers, device: torch.device) -> Vector:
    return torch.from_numpy(np.asarray(numbers, dtype=np.int64)).to(device)


def _chosen(clients: Numbers, *tables: Vector) -> list[Vector]:
    """These clients' rows of each table; a few short ones cost numpy a fraction of torch's time."""
    if tables[0].is_cpu:
        return [torch.from_numpy(table.numpy().take(clients, axis=0)) for table in tables]
    which = _column(clients, tables[0].device)
    return [table.index_select(0, which) for table in tables]


class _Rows:
    """The oracle of some of the clients."""

    def __init__(self, problem: Quadratic, clients: Numbers, keys: Numbers) -> None:
        self.noise, self.dim = problem.noise, problem.dim
        self.h, self.c = _chosen(clients, problem.h, problem.c)
        self.keys = _column(keys, problem.h.device).unsqueeze(1) if self.noise else None

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        g = self.h * (w - self.c)
        return g + self._noise(step, sample) if self.noise else g

    def full(self, w: Vector) -> Vector:
        return self.h * (w - self.c)

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        return self.h * v

    def loss(self, w: Vector, step: int, sample: int = 0) -> torch.Tensor:
        value = (0.5 * self.h * (w - self.c) ** 2).sum(dim=1)
        if self.noise:  # the linear term whose gradient is the noise
            value = value + (self._noise(step, sample) * w).sum(dim=1)
        return value

    def _noise(self, step: int, sample: int) -> Vector:
        """Gaussian rows with E|row|² = σ², by Box and Muller from the clients' keys."""
        assert self.keys is not None
        counters = torch.arange(2 * self.dim, device=self.h.device) + ((sample << 40) + 2 * self.dim * step)
        u = unit(bits(self.keys, counters))  # [n, 2d]
        radius = torch.sqrt(-2.0 * torch.log(u[:, : self.dim]))
        normal = radius * torch.cos(2.0 * math.pi * u[:, self.dim :])
        return (normal * (self.noise / math.sqrt(self.dim))).to(self.h.dtype)
