"""PersA-FL's option C: local steps on the Moreau envelope (algorithm 2, lines 10–12; pFedMe's local trainer too)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from offbeat.core.errors import Count, NotNegative, Positive, SettingError
from offbeat.core.local import Carry, Work
from offbeat.core.vectors import Payload, Vector, lengths
from offbeat.local.descent import Descent


@dataclass(frozen=True)
class Moreau(Descent):
    """Steps on the Moreau envelope: each client solves a proximal problem around the model.

    w ← w − lr·λ·(w − θ̃), θ̃ close to the minimiser of h(θ) = f(θ; D) + λ/2·|θ − w|². The accuracy reached at a job's
    last step is noted as "nu". Clients that are done wait, row by row.

    penalty: weight of the proximal term, λ.
    accuracy: the inner problem is solved until |∇h(θ̃)| is at most this, ν.
    inner: gradient steps on the inner problem, at most.
    inner_lr: step size of the inner solver; by default 1/(2λ), safe while L ≤ λ.
    momentum: momentum of the inner solver, in Nesterov's form; 0 is plain descent.
    """

    penalty: Positive = 15.0
    accuracy: Positive = 1e-3
    inner: Count = 20
    inner_lr: Positive | None = None
    momentum: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum >= 1:
            raise SettingError(f"momentum = {self.momentum}: must be in [0, 1)")

    sends: ClassVar[tuple[str, ...]] = ("delta", "nu")

    notes: ClassVar[tuple[str, ...]] = ("nu",)

    @property
    def rate(self) -> float:
        """The inner step size."""
        return 1.0 / (2.0 * self.penalty) if self.inner_lr is None else self.inner_lr

    def init(self, work: Work) -> Carry:
        return {**super().init(work), "nu": work.payload["model"][..., :1] * 0.0}

    def step(self, carry: Carry, work: Work) -> Carry:
        w = carry["w"]
        theta, reached = self.solve(w, work, self.inner)
        if self.plain:
            return {"w": w - work.lr * self.penalty * (w - theta), "nu": reached}
        return {**self.along(carry, self.penalty * (w - theta), work), "nu": reached}

    def solve(self, w: Vector, work: Work, most: int) -> tuple[Vector, Vector]:
        """(θ̃, |∇h(θ̃)|) row by row; a row that has reached the accuracy stays as it is."""
        lr = self.rate
        theta, velocity = w, w * 0.0
        gradient = work.gradient(theta)  # at θ = w the penalty pulls nowhere
        for _ in range(most):
            active = lengths(gradient) > self.accuracy
            if not bool(active.any()):
                break
            velocity = self.momentum * velocity - lr * gradient
            moved = theta + (self.momentum * velocity - lr * gradient if self.momentum else velocity)
            theta = torch.where(active, moved, theta)
            gradient = work.gradient(theta) + self.penalty * (theta - w)
        return theta, lengths(gradient)

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = super().final(carry, work)
        return {**upload, "nu": carry["nu"]}, memory

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        """θ̃(w) by so many inner steps, each on its own mini-batch: as many samples as any other method sees."""
        theta = w
        for work.step in range(steps):
            theta = work.renewed(theta - self.rate * (work.gradient(theta) + self.penalty * (theta - w)))
        return theta
