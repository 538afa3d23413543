"""FedAsync: a server step on every arrival (PersA-FL, algorithm 1, and Xie, Koyejo, Gupta 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.staleness import Equal, Staleness
from offbeat.core.errors import Positive, Share
from offbeat.core.events import Update
from offbeat.core.local import Local
from offbeat.core.server import Commands, View
from offbeat.local.reached import Reached


@dataclass(frozen=True)
class FedAsync(Flow[OneModel]):
    """A server step for every update.

    w ← w − lr · s(τ) · delta on every arrival (PersA-FL, algorithm 1, line 4, where s = 1).

    lr: server step size, β.
    weight: staleness weight s(τ), 1 for a fresh update.
    """

    lr: Positive = 1.0
    weight: Staleness = field(default_factory=Equal)

    def arrived(self, state: OneModel, update: Update, view: View) -> Commands:
        staleness = state.model.received(update.job)
        self.step(state.model, -self.lr * self.weight(staleness), update["delta"])
        yield from self.next(state, update.job.client, view)


@dataclass(frozen=True)
class FedAsyncMixing(Flow[OneModel]):
    """Clients send models; the server's model moves towards each one that arrives (Xie et al. 2019).

    w ← (1 − a)·w + a·w_i with a = mixing · s(τ), made anew for every update; it does not shrink from one to the next.

    mixing: weight of a fresh model, α in (0, 1].
    weight: staleness weight s(τ), 1 for a fresh model.
    """

    mixing: Share = 0.6
    weight: Staleness = field(default_factory=Equal)

    reads: ClassVar[tuple[str, ...]] = ("model",)

    def pair(self, local: Local) -> Local:
        return Reached.around(local)

    def arrived(self, state: OneModel, update: Update, view: View) -> Commands:
        a = self.mixing * self.weight(state.model.received(update.job))
        self.step(state.model, a, update["model"] - state.model.vector)
        yield from self.next(state, update.job.client, view)
