"""Optimisers of a server's steps: FedAvgM (Hsu et al. 2019), FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021,
algorithm 2) and AMSGrad, which with `threshold` is the delay-adaptive FADAS (Wang et al. 2024).

A direction Δ points to where the server would step by itself: for FedBuff −lr · mean of the deltas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import torch

from offbeat.core.errors import Fraction, Positive
from offbeat.core.optimiser import Moments, ServerOptimiser
from offbeat.core.vectors import Vector


@dataclass(frozen=True)
class FedAvgM(ServerOptimiser):
    """Momentum as in FedAvgM, m ← beta·m + Δ, x ← x + lr·m.

    beta: weight of the past, β.
    lr: step size, η.
    """

    beta: Fraction = 0.9
    lr: Positive = 1.0

    def begin(self, model: Vector) -> Moments:
        return {"m": model * 0.0}

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        m = self.beta * moments["m"] + direction
        return m, {"m": m}


@dataclass(frozen=True)
class FedNesterov(FedAvgM):
    """Momentum that looks ahead: m ← beta·m + Δ, x ← x + lr·(Δ + beta·m)."""

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        m, kept = super().way(direction, moments, t)
        return direction + self.beta * m, kept


@dataclass(frozen=True)
class FedAdaptive(ServerOptimiser):
    """m ← beta1·m + (1 − beta1)·Δ, v by Δ², x ← x + lr·m/(√v + eps).

    lr: step size, η.
    beta1: weight of the past in m, β₁.
    eps: added to √v, τ; v begins with eps².
    """

    lr: Positive
    beta1: Fraction = 0.9
    eps: Positive = 1e-3

    def begin(self, model: Vector) -> Moments:
        zero = model * 0.0
        return {"m": zero, "v": zero + self.eps**2}

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        m = self.beta1 * moments["m"] + (1.0 - self.beta1) * direction
        v = self.second(moments["v"], direction * direction)
        return m / (v.sqrt() + self.eps), {"m": m, "v": v}

    def second(self, v: Vector, square: Vector) -> Vector:
        """The next v, given Δ²."""
        raise NotImplementedError


@dataclass(frozen=True)
class FedAdagrad(FedAdaptive):
    """Adagrad as in FedAdagrad, v ← v + Δ², x ← x + lr·m/(√v + eps); m is Δ unless beta1 is given."""

    beta1: Fraction = 0.0

    def second(self, v: Vector, square: Vector) -> Vector:
        return v + square


@dataclass(frozen=True)
class FedYogi(FedAdaptive):
    """Yogi as in FedYogi, v ← v − (1 − beta2)·Δ²·sign(v − Δ²), x ← x + lr·m/(√v + eps).

    beta2: weight of the past in v, β₂.
    """

    beta2: Fraction = 0.99

    def second(self, v: Vector, square: Vector) -> Vector:
        return v - (1.0 - self.beta2) * (square * (v - square).sign())


@dataclass(frozen=True)
class FedAdam(FedAdaptive):
    """Adam as in FedAdam, without bias correction, v ← beta2·v + (1 − beta2)·Δ², x ← x + lr·m/(√v + eps).

    beta2: weight of the past in v, β₂.
    correct: divide m and v by 1 − beta1^t and 1 − beta2^t and let v begin with 0: Adam as Kingma and Ba, and
        torch.optim, have it. FedAdam does not.
    """

    beta2: Fraction = 0.99
    correct: bool = False

    def begin(self, model: Vector) -> Moments:
        zero = model * 0.0
        return {"m": zero, "v": zero} if self.correct else super().begin(model)

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        way, kept = super().way(direction, moments, t)
        if self.correct:
            spread = kept["v"].sqrt() * (1.0 / sqrt(1.0 - self.beta2**t))
            way = (1.0 / (1.0 - self.beta1**t)) * kept["m"] / (spread + self.eps)
        return way, kept

    def second(self, v: Vector, square: Vector) -> Vector:
        return self.beta2 * v + (1.0 - self.beta2) * square


@dataclass(frozen=True)
class FedAMSGrad(FedAdam):
    """AMSGrad as in FADAS, Adam with the largest v so far; `threshold` makes its step delay-adaptive.

    eps: added to √v, ε; v begins with 0.
    """

    eps: Positive = 1e-8
    correct: bool = field(default=False, init=False)

    def begin(self, model: Vector) -> Moments:
        zero = model * 0.0
        return {"m": zero, "v": zero, "most": zero}

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        _, kept = super().way(direction, moments, t)
        most = torch.maximum(moments["most"], kept["v"])
        return kept["m"] / (most.sqrt() + self.eps), {**kept, "most": most}
