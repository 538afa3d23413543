"""Sums of absolute values: convex, with a known optimum, and without a gradient at their kinks."""

from __future__ import annotations

import math
from collections.abc import Hashable
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
class Absolute(KnownOptimum):
    """f_i(w) = (B/sqrt(d))·Σ_j |w_j − c_ij|, f = mean of the f_i: convex, B-Lipschitz, x* = 0, the clients' medians.

    clients: n, odd, so that the optimum is one point.
    dim: d.
    lipschitz: B, by how much every f_i changes per unit of distance at most.
    spread: standard deviation of the clients' own optima c_i, coordinate by coordinate.
    noise: σ of a stochastic subgradient, E|g − ∂f_i|² = σ².
    distance: |x_0 − x*|, from the starting point to the optimum.
    """

    tables: ClassVar[tuple[str, ...]] = ("c",)

    clients: Count
    dim: Count = 4
    lipschitz: Positive = 1.0
    spread: NotNegative = 1.0
    noise: NotNegative = 0.0
    distance: NotNegative = 1.0
    label: str = field(default="", metadata={"setting": False})
    seed: int = field(default=0, metadata={"setting": False})
    dtype: torch.dtype = field(default=torch.float32, metadata={"setting": False})
    device: str = field(default="cpu", metadata={"setting": False})
    c: Vector = field(init=False, repr=False, compare=False)  # [n, d]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients % 2 == 0:
            raise SettingError(f"clients = {self.clients}: expected an odd number, so that the optimum is one point")
        generator = torch.Generator().manual_seed(key(self.seed, PROBLEM) >> 1)
        c = self.spread * torch.randn(self.clients, self.dim, generator=generator, dtype=torch.float64)
        object.__setattr__(self, "c", (c - c.median(dim=0).values).to(self.device, self.dtype))

    @property
    def kin(self) -> Hashable:
        """Problems of equal kin differ in their clients' functions alone: their clients can be stacked."""
        return (type(self), self.dim, self.lipschitz, self.noise, self.dtype, self.device)

    @property
    def slope(self) -> float:
        return self.lipschitz / math.sqrt(self.dim)

    def initial(self) -> Vector:
        return torch.full((self.dim,), self.distance / math.sqrt(self.dim), dtype=self.dtype, device=self.device)

    def optimum(self) -> Vector:
        return torch.zeros(self.dim, dtype=self.dtype, device=self.device)

    def value(self, w: Vector) -> float:
        return float(self.slope * (w - self.c).abs().sum(dim=1).mean())

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> _Kinks:
        return _Kinks(self, clients, keys)


class _Kinks:
    """The oracle of some of the clients; at a kink the subgradient is 0 in that coordinate."""

    def __init__(self, problem: Absolute, clients: Numbers, keys: Numbers) -> None:
        self.slope, device = problem.slope, problem.c.device
        self.c = problem.c[torch.from_numpy(np.asarray(clients, dtype=np.int64)).to(device)]
        self.noise = problem.noise * math.sqrt(12.0 / problem.dim)  # of uniform numbers on (−½, ½)
        self.keys = torch.from_numpy(np.asarray(keys, dtype=np.int64)).to(device).unsqueeze(1)

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        g = self.full(w)
        return g + self._noise(w, step, sample) if self.noise else g

    def _noise(self, w: Vector, step: int, sample: int) -> Vector:
        counters = torch.arange(w.shape[-1], device=w.device) + ((sample << 40) + w.shape[-1] * step)
        return self.noise * (unit(bits(self.keys, counters), w.dtype) - 0.5)

    def full(self, w: Vector) -> Vector:
        return self.slope * torch.sign(w - self.c)

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        return v * 0.0

    def loss(self, w: Vector, step: int, sample: int = 0) -> torch.Tensor:
        value = self.slope * (w - self.c).abs().sum(dim=1)
        return value if not self.noise else value + (self._noise(w, step, sample) * w).sum(dim=1)
