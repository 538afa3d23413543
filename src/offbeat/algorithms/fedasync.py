"""FedAsync: a server step on every arrival (PersA-FL, algorithm 1, and Xie, Koyejo, Gupta 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.fedbuff import BuffState, FedBuff
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.staleness import Equal, Staleness
from offbeat.core.errors import Count, Share
from offbeat.core.events import Update
from offbeat.core.local import Local
from offbeat.core.server import Commands, View
from offbeat.local.reached import Reached


@dataclass(frozen=True)
class FedAsync(FedBuff):
    """A server step for every update.

    w ← w − lr · s(τ) · delta on every arrival (PersA-FL, algorithm 1, line 4, where s = 1). With `size` = K, a step for
    every K updates along their mean, s(τ) · delta over K each, as under [secure], which shows no single update: that is
    FedBuff.

    lr: server step size, β.
    weight: staleness weight s(τ), 1 for a fresh update.
    size: updates per server step, K.
    """

    size: Count = field(default=1, kw_only=True)

    own_size: ClassVar[bool] = True
    releases: ClassVar[bool] = True
    summed = FedBuff.summed  # of what `arrived` makes of several

    def arrived(self, state: BuffState, update: Update, view: View) -> Commands:
        if self.size > 1 or self.guard is not None:
            yield from super().arrived(state, update, view)
            return
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
