"""Ringmaster ASGD (Maranjyan, Tyurin, Richtárik 2025): asynchronous SGD that takes no gradient that is too old."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offbeat.algorithms.restart import AtWork, Restarting
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, View


@dataclass
class RingmasterState(AtWork):
    ignored: int = 0  # gradients


@dataclass(frozen=True)
class Ringmaster(Restarting[RingmasterState]):
    """Asynchronous SGD without gradients that are `threshold` or more server steps late.

    Algorithm 4: a gradient g of delay δ < R makes a step, w ← w − lr · g; another one is ignored. Its client goes on
    with the newest model. Algorithm 5, with `stop`: a client whose delay reaches R is stopped at once and starts again
    from the newest model, so that no gradient is ignored. A very large R is asynchronous SGD.

    The rule is that of the authors' code, which has algorithm 5; algorithm 4 was not compared with the paper's text.

    threshold: the smallest delay that is too large, R. The theory has max(1, ⌈σ²/ε⌉), where σ² is the variance of a
        gradient and ε the squared norm of the gradient to be reached.
    lr: step size, γ.
    """

    threshold: Count = 10
    lr: Positive = 0.1

    state = RingmasterState

    def arrived(self, state: RingmasterState, update: Update, view: View) -> Commands:
        model = state.model
        if model.version - update.job.version < self.threshold:
            model.received(update.job)
            self.step(model, -self.lr, update["gradient"])
        else:
            state.ignored += 1
        yield from self.next(state, update.job.client, view)
        yield from self.restart(state, model.version - self.threshold + 1)

    def report(self, state: RingmasterState) -> Mapping[str, Any]:
        return {"ignored": state.ignored}
