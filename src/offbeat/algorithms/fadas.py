"""FADAS (Wang, Wang, Lu, Chen 2024): AMSGrad at the server of a buffer, with a step that adapts to the delay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import Flow
from offbeat.algorithms.optimisers import FedAMSGrad
from offbeat.core.errors import Count, Fraction, NotNegative, Positive
from offbeat.core.events import Update
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass(frozen=True)
class FADAS(Flow[BuffState]):
    """FedBuff whose server steps with AMSGrad, less far if one of the updates is very stale.

    After M updates, Δ = −mean of the deltas; m ← β₁m + (1 − β₁)Δ, v ← β₂v + (1 − β₂)Δ², v̂ ← max(v̂, v) and
    w ← w + η_τ · m/(√v̂ + ε), where η_τ = η, or min(η, 1/τ) if the stalest of the updates has τ > τ_c. It is `fedbuff`
    with `server = { amsgrad = … }`.

    size: updates per server step, M.
    lr: server step size, η.
    beta1: weight of the past in m, β₁.
    beta2: weight of the past in v, β₂.
    eps: added to √v̂, ε.
    threshold: staleness beyond which the step is at most 1/τ, τ_c; by default the step is η always.
    """

    size: Count = 10
    lr: Positive = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    eps: Positive = 1e-8
    threshold: NotNegative | None = None
    server: ServerOptimiser | None = field(default=None, kw_only=True, metadata={"setting": False})

    state: ClassVar[type[BuffState]] = BuffState

    @property
    def optimiser(self) -> ServerOptimiser:
        return self.server or FedAMSGrad(
            lr=self.lr, beta1=self.beta1, beta2=self.beta2, eps=self.eps, threshold=self.threshold
        )

    def step(self, model: Model, lr: float, direction: Vector) -> None:
        model.optimise(self.optimiser, lr * direction)

    def arrived(self, state: BuffState, update: Update, view: View) -> Commands:
        state.model.received(update.job)
        state.buffer.add(1.0, update["delta"])
        if state.buffer.count == self.size:
            self.step(state.model, -1.0, state.buffer.take_mean())
        yield from self.next(state, update.job.client, view)
