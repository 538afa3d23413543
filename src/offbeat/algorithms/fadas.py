"""FADAS (Wang, Wang, Lu, Chen 2024): AMSGrad at the server of a buffer, with a step that adapts to the delay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.criteria import fixed
from offbeat.algorithms.fedbuff import Buffered, BuffState
from offbeat.algorithms.optimisers import FedAMSGrad
from offbeat.core.errors import Fraction, NotNegative, Positive
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.server import View


@dataclass(frozen=True)
class FADAS(Buffered):
    """FedBuff whose server steps with AMSGrad, less far if one of the updates is very stale.

    After M updates, Δ = −mean of the deltas; m ← β₁m + (1 − β₁)Δ, v ← β₂v + (1 − β₂)Δ², v̂ ← max(v̂, v) and
    w ← w + η_τ · m/(√v̂ + ε), where η_τ = η, or min(η, 1/τ) if the stalest of the updates has τ > τ_c. It is `fedbuff`
    with `server = { amsgrad = … }`.

    size: updates per server step, M; or aggregation by the clock.
    lr: server step size, η.
    beta1: weight of the past in m, β₁.
    beta2: weight of the past in v, β₂.
    eps: added to √v̂, ε.
    threshold: staleness beyond which the step is at most 1/τ, τ_c; by default the step is η always.
    """

    lr: Positive = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    eps: Positive = 1e-8
    threshold: NotNegative | None = None
    server: ServerOptimiser | None = field(default=None, kw_only=True, metadata={"setting": False})

    releases: ClassVar[bool] = True

    @property
    def optimiser(self) -> ServerOptimiser:
        return self.server or FedAMSGrad(
            lr=self.lr, beta1=self.beta1, beta2=self.beta2, eps=self.eps, threshold=self.threshold
        )

    def aggregate(self, state: BuffState, view: View) -> None:
        state.model.optimise(self.optimiser, -1.0 * self.mean(state, view, fixed(self.size)))
