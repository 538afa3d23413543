"""Optimisers of local trainers, with the rules of torch.optim: they begin anew with every job, or go on (`keep`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from offbeat.core.errors import Fraction, Positive
from offbeat.core.optimiser import Moments, Optimiser
from offbeat.core.vectors import Vector, descend

Moved = tuple[Vector, dict[str, Vector]]


@dataclass(frozen=True)
class Momentum(Optimiser):
    """m ← beta·m + g, w ← w − lr·m; in Nesterov's form w ← w − lr·(g + beta·m).

    beta: weight of the past.
    nesterov: look ahead.
    """

    beta: Fraction = 0.9
    nesterov: bool = False

    def begin(self, model: Vector) -> Moments:
        return {"m": model * 0.0}

    def move(self, w: Vector, gradient: Vector, moments: Moments, lr: float | Vector, t: int | Vector) -> Moved:
        m = self.beta * moments["m"] + gradient
        return descend(w, lr, gradient + self.beta * m if self.nesterov else m), {"m": m}


@dataclass(frozen=True)
class AdamRule(Optimiser):
    """m ← beta1·m + (1 − beta1)·g, v ← beta2·v + (1 − beta2)·g², w ← w − lr·m̂/(√v̂ + eps), with bias correction.

    beta1: weight of the past in m.
    beta2: weight of the past in v.
    eps: added to √v̂.
    amsgrad: use the largest v so far.
    """

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Positive = 1e-8
    amsgrad: bool = False

    counts: ClassVar[bool] = True

    def begin(self, model: Vector) -> Moments:
        return dict.fromkeys(("m", "v", "most") if self.amsgrad else ("m", "v"), model * 0.0)

    def move(self, w: Vector, gradient: Vector, moments: Moments, lr: float | Vector, t: int | Vector) -> Moved:
        m = self.beta1 * moments["m"] + (1.0 - self.beta1) * gradient
        v = self.beta2 * moments["v"] + (1.0 - self.beta2) * gradient * gradient
        kept = {"m": m, "v": v}
        if self.amsgrad:
            kept["most"] = v = torch.maximum(moments["most"], v)
        spread = v.sqrt() * (1.0 / (1.0 - self.beta2**t) ** 0.5) + self.eps
        return descend(w, lr * (1.0 / (1.0 - self.beta1**t)), m / spread), kept


@dataclass(frozen=True)
class AdamWRule(AdamRule):
    """Adam whose weight decay shrinks the weights, w ← (1 − lr·decay)·w, and does not go through m and v."""

    decoupled: ClassVar[bool] = True
