"""Optimisers of a server's steps: FedAvgM (Hsu et al. 2019), FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021,
algorithm 2) and AMSGrad, which with `threshold` is the delay-adaptive FADAS (Wang et al. 2024). Those of asynchronous
DiLoCo: delayed Nesterov (Liu et al. 2024), momentum look-ahead (Ajanthan et al. 2025), HeLoCo (Al Asif et al. 2026).

A direction Δ points to where the server would step by itself: for FedBuff −lr · mean of the deltas.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Self

import torch

from offbeat.core.errors import Count, Fraction, NotNegative, Positive, SettingError, Share
from offbeat.core.optimiser import Moments, ServerOptimiser
from offbeat.core.vectors import Vector, alike, dot, materialise

TINY = 1e-8  # ε of HeLoCo


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

    def onward(self, moments: Moments) -> Vector | None:
        return (self.lr * self.beta) * moments["m"]


@dataclass(frozen=True)
class FedNesterov(FedAvgM):
    """Momentum that looks ahead: m ← beta·m + Δ, x ← x + lr·(Δ + beta·m)."""

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        m, kept = super().way(direction, moments, t)
        return direction + self.beta * m, kept


@dataclass(frozen=True)
class DelayedNesterov(FedAvgM):
    """Nesterov's momentum that is renewed every few steps, by the mean of their directions.

    Each step follows its direction at once, x ← x + lr·(c·beta·m + Δ/N). Every N-th one renews the momentum first,
    m ← beta·m + (the last N directions)/N, and takes what the others left of it:
    x ← x + lr·((1 − c·(N − 1))·beta·m + Δ/N), as in algorithm 3. With N = 1 this is Nesterov's.

    size: steps from one renewal of the momentum to the next, N; the number of clients is a natural choice.
    activation: part of the momentum that every step takes, c in [0, 1/N]; with 0, the N-th takes all of it.
    """

    size: Count = 4
    activation: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation * self.size > 1.0:
            raise SettingError(f"activation = {self.activation:g}: must be at most 1/size = {1 / self.size:g}")

    def begin(self, model: Vector) -> Moments:
        return {**super().begin(model), "sum": model * 0.0}

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        m, total, share = moments["m"], moments["sum"] + direction, self.activation
        if t % self.size == 0:
            m, total = self.beta * m + (1.0 / self.size) * total, total * 0.0
            share = 1.0 - self.activation * (self.size - 1)
        return (1.0 / self.size) * direction + (share * self.beta) * m, {"m": m, "sum": total}


@dataclass(frozen=True)
class LookAhead(FedAvgM):
    """Momentum look-ahead (MLA): m ← beta·m + (1 − beta)·Δ, x ← x + lr·(Δ + beta·m).

    So x, which clients are sent, is always a plain step x + lr·Δ moved on along the momentum. Not compared with the
    paper's text; three public implementations have this rule.
    """

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        m = self.beta * moments["m"] + (1.0 - self.beta) * direction
        return direction + self.beta * m, {"m": m}


@dataclass(frozen=True)
class HeLoCo(LookAhead):
    """Momentum look-ahead of directions that are first corrected by the momentum, as in HeLoCo.

    c is the cosine of Δ and m, and conf = ‖Δ‖/(‖Δ‖ + doubt·‖m‖). With c ≥ aligned, Δ stays as it is. With c < 0, it
    loses a part min(shrink·(−c)·conf, most) of its component along m. In between it is turned towards m, to the
    direction of (1 − λ)·Δ/‖Δ‖ + λ·m/‖m‖, λ = min(turn·(1 − c)·conf, 1), and keeps its length. Not compared with the
    paper's text, but with a public collection of update rules that quotes its equations and with code of an author's
    company. Differs from the paper: Δ has been scaled by the server's `lr` and staleness weight before it is corrected,
    which the paper's ρ does afterwards. A constant ρ is the same as lr·ρ and doubt·ρ.

    aligned: cosine from which a direction is not corrected, c_ok.
    shrink: strength with which conflicting directions are shortened, k_s.
    most: the largest part of a component that is taken away, β_max.
    turn: strength with which unclear directions are turned, k_d.
    doubt: weight of the momentum's length against that of a direction, κ.

    Each tensor of the model is a block that is corrected by itself; with several tasks, the whole model is one.
    """

    aligned: Share = 0.2
    shrink: NotNegative = 0.5
    most: Fraction = 0.5
    turn: NotNegative = 1.0
    doubt: NotNegative = 3.0
    blocks: tuple[int, ...] = field(default=(), metadata={"setting": False})

    def over(self, blocks: tuple[int, ...]) -> Self:
        return replace(self, blocks=blocks)

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        return super().way(self.corrected(direction, moments["m"]), moments, t)

    def corrected(self, direction: Vector, m: Vector) -> Vector:
        """Δ̂, block by block; a GPU is waited for once, and not for every number of every block."""
        if len(self.blocks) < 2:
            a, b = self.shares(dot(direction, direction), dot(direction, m), dot(m, m))
            return a * direction + b * m if b else direction
        pairs = list(zip(*(torch.split(materialise(v), list(self.blocks)) for v in (direction, m)), strict=True))
        sums = torch.stack([torch.dot(*two) for x, y in pairs for two in ((x, x), (x, y), (y, y))]).view(-1, 3)
        shares = [self.shares(*each) for each in sums.tolist()]
        parts = [torch.add(a * x, y, alpha=b) if b else x for (x, y), (a, b) in zip(pairs, shares, strict=True)]
        return alike(direction, torch.cat(parts))

    def shares(self, square: float, inner: float, momentum_square: float) -> tuple[float, float]:
        """a and b of Δ̂ = a·Δ + b·m, given ‖Δ‖², ⟨Δ, m⟩ and ‖m‖² of a block."""
        length, momentum = sqrt(square), sqrt(momentum_square)
        if min(length, momentum) < TINY:  # nothing to correct, or by
            return 1.0, 0.0
        cosine, conf = inner / (length * momentum), length / (length + self.doubt * momentum)
        if cosine >= self.aligned:
            return 1.0, 0.0
        if cosine < 0:
            return 1.0, -min(-self.shrink * cosine * conf, self.most) * cosine * length / momentum
        part = min(self.turn * (1.0 - cosine) * conf, 1.0)
        mixed = sqrt((1.0 - part) ** 2 + part**2 + 2.0 * part * (1.0 - part) * cosine)  # at least √½: 0 ≤ c
        return (1.0 - part) / mixed, part * length / (mixed * momentum)


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
