"""PersA-FL's option B: local steps on the MAML loss (algorithm 2, lines 8–9; Per-FedAvg's local half too)."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.errors import SettingError, positive
from offbeat.core.local import Carry, Local, Work
from offbeat.core.vectors import Vector, lengths

HESSIANS = ("exact", "difference", "none")


@dataclass(frozen=True)
class MAML(Local):
    """w ← w − lr · (I − alpha·∇²f(w; D″)) ∇f(w − alpha·∇f(w; D′); D): a model from which one step goes far.

    lr: local step size, η.   steps: local steps, Q.   alpha: the personalising step, α; 0 is plain SGD.
    hessian: its product with a vector "exact" by differentiation, as a central "difference" of gradients, or "none"
        (first-order MAML, which drops it).   delta: half-width of the difference, along a unit vector.
    D, D′ and D″ are three independent mini-batches.

    Differs from the paper: its formula (D1) divides the central difference by δ; a difference over 2δ needs 2δ.
    """

    alpha: float = 0.01
    hessian: str = "exact"
    delta: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(delta=self.delta)
        if self.alpha < 0:
            raise SettingError(f"alpha = {self.alpha}: must not be negative")
        if self.hessian not in HESSIANS:
            raise SettingError(f"hessian = {self.hessian!r}: must be one of {', '.join(HESSIANS)}")

    def step(self, carry: Carry, work: Work) -> Carry:
        w = carry["w"]
        if self.alpha == 0:
            return {"w": work.descend(w)}
        adapted = w - self.alpha * work.gradient(w, sample=1)
        v = work.gradient(adapted)
        if self.hessian != "none":
            v = v - self.alpha * self.product(w, v, work)
        return {"w": w - work.lr * v}

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
            w = w - self.alpha * work.gradient(w)
        return w
