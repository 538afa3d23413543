"""Rennala SGD (Tyurin, Richtárik 2023): a server step for a batch of gradients of the newest model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.restart import AtWork, Restarting
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, View


@dataclass
class RennalaState(AtWork):
    batch: Buffer = field(default_factory=Buffer)
    ignored: int = 0  # gradients


@dataclass(frozen=True)
class Rennala(Restarting[RennalaState]):
    """Minibatch SGD whose batch comes from the fast clients: a client may contribute many of its gradients, or none.

    Collect S gradients at the newest model, from any clients; then w ← w − lr · mean. A gradient at an older model is
    ignored, and its client goes on with the newest. The rule is that of the authors' code.

    size: gradients per server step, S. The theory has max(1, ⌈σ²/ε⌉), where σ² is the variance of a gradient and ε the
        squared norm of the gradient to be reached.
    lr: step size, γ.

    Differs from the paper: the client whose gradient completes a batch gets the new model; in the paper's listing it is
    sent the old one once more. `stop` is not in the paper's listing; the authors' later code does it.
    """

    size: Count = 10
    lr: Positive = 0.1

    state = RennalaState

    def arrived(self, state: RennalaState, update: Update, view: View) -> Commands:
        model = state.model
        if update.job.version == model.version:
            state.batch.add(1.0, update["gradient"])
        else:
            state.ignored += 1
        if state.batch.count == self.size:
            self.step(model, -self.lr, state.batch.take_mean())
        yield from self.next(state, update.job.client, view)
        yield from self.restart(state, model.version)

    def report(self, state: RennalaState) -> Mapping[str, Any]:
        return {"ignored": state.ignored}
