"""Asynchronous SGD (AREA, §2; DeFedAvg, §4; Lian et al. 2015): the server steps along stale gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import Flow
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, View


@dataclass(frozen=True)
class AsySG(Flow[BuffState]):
    """Asynchronous SGD: clients send gradients and take no step of their own.

    w ← w − lr · mean of `size` stale gradients.

    size: gradients per server step, n; 1 is plain asynchronous SGD.
    lr: step size.
    cap: delay-adaptive steps, a gradient of staleness τ counts min(1, cap/τ); by default all count 1.
    """

    size: Count = 1
    lr: Positive = 0.1
    cap: Positive | None = None

    state = BuffState
    reads: ClassVar[tuple[str, ...]] = ("gradient",)

    def arrived(self, state: BuffState, update: Update, view: View) -> Commands:
        staleness = state.model.received(update.job)
        fresh = self.cap is None or staleness <= self.cap
        state.buffer.add(1.0 if fresh else self.cap / staleness, update["gradient"])  # type: ignore[operator]
        if state.buffer.count == self.size:
            self.step(state.model, -self.lr, state.buffer.take_mean())
        yield from self.next(state, update.job.client, view)
