"""A convex problem without a gradient at its kinks: sums of absolute values, for theorem 8."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from offbeat.core.errors import SettingError
from offbeat.core.metric import LOSS, Metric
from offbeat.core.problem import Numbers
from offbeat.core.random import PROBLEM, bits, key, unit
from offbeat.core.vectors import Vector


@dataclass(frozen=True)
class Absolute:
    """f_i(w) = (B/sqrt(d))·Σ_j |w_j − c_ij|: convex, B-Lipschitz, minimised by the clients' medians, x* = 0.

    clients: n, odd, so that the median is one client's centre.   dim: d.   lipschitz: B.
    spread: standard deviation of the centres.   noise: σ, E|g − d|² = σ².   distance: |x_0 − x*|.
    """

    clients: int
    dim: int = 4
    lipschitz: float = 1.0
    spread: float = 1.0
    noise: float = 0.0
    distance: float = 1.0
    seed: int = 0
    c: Vector = field(init=False, repr=False, compare=False)  # [n, d]
    name: str = "absolute"
    stacks: bool = True
    metrics: Sequence[Metric] = (LOSS, Metric("gap"))

    def __post_init__(self) -> None:
        if self.clients % 2 == 0:
            raise SettingError(f"clients = {self.clients}: an odd number, so that the median is one point")
        generator = torch.Generator().manual_seed(key(self.seed, PROBLEM) >> 1)
        c = self.spread * torch.randn(self.clients, self.dim, generator=generator, dtype=torch.float64)
        object.__setattr__(self, "c", c - c.median(dim=0).values)

    @property
    def slope(self) -> float:
        return self.lipschitz / math.sqrt(self.dim)

    def initial(self) -> Vector:
        return torch.full((self.dim,), self.distance / math.sqrt(self.dim), dtype=torch.float64)

    def value(self, w: Vector) -> float:
        """f(w)."""
        return float(self.slope * (w - self.c).abs().sum(dim=1).mean())

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> _Kinks:
        return _Kinks(self, clients, keys)

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        least = self.value(torch.zeros(self.dim, dtype=torch.float64))
        return [{"loss": (f := self.value(w)), "gap": f - least} for w in models]


class _Kinks:
    """The oracle of some of the clients; at a kink the subgradient is 0 in that coordinate."""

    def __init__(self, problem: Absolute, clients: Numbers, keys: Numbers) -> None:
        self.c, self.slope = problem.c[torch.from_numpy(np.asarray(clients, dtype=np.int64))], problem.slope
        self.noise = problem.noise * math.sqrt(12.0 / problem.dim)  # of uniform numbers on (−½, ½)
        self.keys = torch.from_numpy(np.asarray(keys, dtype=np.int64)).unsqueeze(1)

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        g = self.full(w)
        if not self.noise:
            return g
        counters = torch.arange(w.shape[-1]) + ((sample << 40) + w.shape[-1] * step)
        return g + self.noise * (unit(bits(self.keys, counters), w.dtype) - 0.5)

    def full(self, w: Vector) -> Vector:
        return self.slope * torch.sign(w - self.c)

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        return v * 0.0

    def loss(self, w: Vector, step: int, sample: int = 0) -> torch.Tensor:
        return self.slope * (w - self.c).abs().sum(dim=1)
