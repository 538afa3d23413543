"""Delay-adaptive asynchronous SGD (Mishchenko, Bach, Even, Woodworth 2022; Koloskova, Stich, Jaggi 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.errors import NotNegative, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, View


@dataclass(frozen=True)
class DelayAdaptive(Flow[OneModel]):
    """Asynchronous SGD whose step shrinks with the delay of the gradient.

    w ← w − lr_τ · g on every arrival. lr_τ is lr up to a staleness τ_C; beyond it lr · τ_C/τ (Mishchenko et al., as in
    their code), or with `smoothness` min(lr, 1/(4Lτ)) (Koloskova et al., equation 11, which allows any smaller step;
    the theorem has lr ≤ 1/(4L)).

    lr: step size, γ or η.
    threshold: staleness up to which the step is lr, τ_C; by default the number of clients at work.
    smoothness: smoothness constant of the loss, L; it selects the rule of Koloskova et al.
    """

    lr: Positive = 0.1
    threshold: NotNegative | None = None
    smoothness: Positive | None = None

    reads: ClassVar[tuple[str, ...]] = ("gradient",)

    def arrived(self, state: OneModel, update: Update, view: View) -> Commands:
        staleness = state.model.received(update.job)
        self.step(state.model, -self.rate(staleness, view.clients), update["gradient"])
        yield from self.next(state, update.job.client, view)

    def rate(self, staleness: int, clients: int) -> float:
        """The step size for a gradient of this staleness, with so many clients."""
        limit = (self.concurrency or clients) if self.threshold is None else self.threshold
        if staleness <= limit:
            return self.lr
        if self.smoothness is None:
            return self.lr * limit / staleness
        return min(self.lr, 1.0 / (4.0 * self.smoothness * staleness))
