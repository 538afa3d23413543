"""PersA-FL's option B: local steps on the MAML loss (algorithm 2, lines 8–9; Per-FedAvg's local trainer too)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offbeat.core.errors import NotNegative, Positive
from offbeat.core.local import Carry, Work
from offbeat.core.vectors import Vector, lengths
from offbeat.local.descent import Descent

Hessian = Literal["exact", "difference", "none"]


@dataclass(frozen=True)
class MAML(Descent):
    """Steps on the MAML loss: a model that one step on a client's own data makes good for that client.

    w ← w − lr · (I − alpha·∇²f(w; D″)) ∇f(w − alpha·∇f(w; D′); D), with three independent mini-batches D, D′ and D″.

    alpha: personalising step size, α; 0 is plain SGD.
    hessian: how the Hessian's product with a vector is computed: "exact" by differentiation, as a central "difference"
        of gradients, or "none": first-order MAML, which drops it.
    delta: half-width of the difference, along a unit vector, δ.

    Differs from the paper: its formula (D1) divides the central difference by δ; a difference over 2δ needs 2δ.
    """

    alpha: NotNegative = 0.01
    hessian: Hessian = "exact"
    delta: Positive = 1e-3

    def step(self, carry: Carry, work: Work) -> Carry:
        w = carry["w"]
        if self.alpha == 0:
            return super().step(carry, work)
        adapted = w - self.alpha * work.gradient(w, sample=1)
        v = work.gradient(adapted)
        if self.hessian != "none":
            v = v - self.alpha * self.product(w, v, work)
        return {"w": w - work.lr * v} if self.plain else self.along(carry, v, work)

    def product(self, w: Vector, v: Vector, work: Work) -> Vector:
        """∇²f(w; D″) v."""
        if self.hessian == "exact":
            return work.hvp(w, v, sample=2)
        length = lengths(v)
        away = v * (self.delta / (length + 1e-30))
        return (work.gradient(w + away, sample=2) - work.gradient(w - away, sample=2)) * (length / (2 * self.delta))

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        """A few steps of size alpha: what the MAML loss trains for."""
        for work.step in range(steps):
            w = work.renewed(w - self.alpha * work.gradient(w))
        return w
