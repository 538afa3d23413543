"""AS-FedAvg: the asynchronous FedAvg that AREA is compared with in §5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.criteria import AGGREGATE, Criterion, alarm, criterion
from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import Flow
from offbeat.core.errors import Count
from offbeat.core.events import Update
from offbeat.core.local import Local
from offbeat.core.server import Commands, View
from offbeat.local.reached import Reached


@dataclass(frozen=True)
class AsFedAvg(Flow[BuffState]):
    """Clients send models; the server's model becomes the mean of the last few that arrived (AREA, §5).

    size: models per server step, Δ; or aggregation by the clock, in periods or as a Poisson process.
    """

    size: Count | Criterion = 4

    state = BuffState
    reads: ClassVar[tuple[str, ...]] = ("model",)
    own_size: ClassVar[bool] = True

    def pair(self, local: Local) -> Local:
        return Reached.around(local)

    def started(self, state: BuffState, view: View) -> Commands:
        yield from super().started(state, view)
        yield from alarm(criterion(self.size), view)

    def arrived(self, state: BuffState, update: Update, view: View) -> Commands:
        state.model.received(update.job)
        state.buffer.add(1.0, update["model"])
        if criterion(self.size).due(state.buffer.count):
            self.move(state.model, state.buffer.take_mean())
        yield from self.next(state, update.job.client, view)

    def rang(self, state: BuffState, key: str, view: View) -> Commands:
        if key == AGGREGATE:
            if state.buffer.count:
                self.move(state.model, state.buffer.take_mean())
            yield from alarm(criterion(self.size), view)
