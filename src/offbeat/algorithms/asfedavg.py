"""AS-FedAvg: the asynchronous FedAvg that AREA is compared with in §5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.algorithms.parts import AGGREGATE, Buffer, Criterion, Flow, OneModel, Reached, alarm, criterion
from offbeat.core.events import Update
from offbeat.core.local import Local
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass
class AsFedAvgState(OneModel):
    buffer: Buffer


@dataclass(frozen=True)
class AsFedAvg(Flow[AsFedAvgState]):
    """Clients send models; after Δ of them the server's model is their mean (AREA, §5).

    every: messages per server step, Δ; or Period or Poisson.   concurrency: see `Flow`.
    """

    every: int | Criterion = 4

    @property
    def reads(self) -> tuple[str, ...]:
        return ("model",)

    def __post_init__(self) -> None:
        super().__post_init__()
        criterion(self.every)

    def pair(self, local: Local) -> Local:
        return Reached.around(local)

    def begin(self, models: Sequence[Vector], view: View) -> AsFedAvgState:
        return AsFedAvgState(Model(models[0]), Buffer())

    def started(self, state: AsFedAvgState, view: View) -> Commands:
        yield from super().started(state, view)
        yield from alarm(criterion(self.every), view)

    def arrived(self, state: AsFedAvgState, update: Update, view: View) -> Commands:
        state.buffer.add(1.0, update["model"])
        if criterion(self.every).due(state.buffer.count):
            state.model.replace(state.buffer.take_mean())
        yield from self.next(state, update.job.client, view)

    def rang(self, state: AsFedAvgState, key: str, view: View) -> Commands:
        if key == AGGREGATE:
            if state.buffer.count:
                state.model.replace(state.buffer.take_mean())
            yield from alarm(criterion(self.every), view)
