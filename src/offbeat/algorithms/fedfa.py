"""FedFa (Xu et al. 2024): the model is the mean of a sliding window of clients' models."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import ClassVar

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.errors import Count
from offbeat.core.events import Update
from offbeat.core.local import Local
from offbeat.core.server import Commands, View
from offbeat.core.vectors import Vector
from offbeat.local.reached import Reached


@dataclass
class WindowState(OneModel):
    window: list[Vector] = field(default_factory=list)  # the newest models, the oldest first


@dataclass(frozen=True)
class FedFa(Flow[WindowState]):
    """Clients send models; with each arrival the server's model becomes the mean of the last few.

    The model that arrives takes the place of the oldest of a window of K, and w ← the mean of the window. Until K have
    arrived, w stays.

    size: models in the window, K.
    """

    size: Count = 4

    state = WindowState
    reads: ClassVar[tuple[str, ...]] = ("model",)

    def pair(self, local: Local) -> Local:
        return Reached.around(local)

    def arrived(self, state: WindowState, update: Update, view: View) -> Commands:
        state.model.received(update.job)
        state.window = [*state.window, update["model"]][-self.size :]
        if len(state.window) == self.size:
            self.move(state.model, (1.0 / self.size) * reduce(add, state.window))
        yield from self.next(state, update.job.client, view)
