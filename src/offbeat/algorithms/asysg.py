"""Asynchronous SGD (AREA, §2; DeFedAvg, §4; Lian et al. 2015): the server steps along stale gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.parts import Buffer, Flow
from offbeat.core.errors import SettingError, positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass(frozen=True)
class AsySG(Flow[BuffState]):
    """w ← w − lr · mean of `size` stale gradients; clients take no step of their own.

    size: gradients per server step, n; 1 is plain asynchronous SGD.   lr: step size.
    cap: delay-adaptive step, each gradient counts min(1, cap/τ) for staleness τ; None: all count 1.
    concurrency: see `Flow`.
    """

    size: int = 1
    lr: float = 0.1
    cap: float | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradient",)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(lr=self.lr, cap=self.cap)
        if self.size < 1:
            raise SettingError(f"size = {self.size}: must be at least 1")

    def begin(self, models: Sequence[Vector], view: View) -> BuffState:
        return BuffState(Model(models[0]), Buffer())

    def arrived(self, state: BuffState, update: Update, view: View) -> Commands:
        staleness = state.model.version - update.job.version
        fresh = self.cap is None or staleness <= self.cap
        state.buffer.add(1.0 if fresh else self.cap / staleness, update["gradient"])  # type: ignore[operator]
        if state.buffer.count == self.size:
            state.model.step(-self.lr, state.buffer.take_mean())
        yield from self.next(state, update.job.client, view)
