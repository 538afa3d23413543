"""FedAvg: synchronous rounds (McMahan et al. 2017; S-FedAvg of AREA §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.algorithms.parts import Buffer, OneModel, hand_out
from offbeat.core.errors import SettingError, positive
from offbeat.core.events import Job, Update
from offbeat.core.server import Commands, Model, Server, View
from offbeat.core.vectors import Vector


@dataclass
class RoundState(OneModel):
    buffer: Buffer


@dataclass(frozen=True)
class FedAvg(Server[RoundState]):
    """Each round: send the model to `sampled` clients, wait for all of them, w ← w − lr · mean of their deltas.

    sampled: clients drawn uniformly without replacement each round, s; None: everybody.
    lr: server step size; 1 makes the new model the mean of the clients' models.
    A client that is lost is replaced by another idle one; if there is none the round goes on without it.
    """

    sampled: int | None = None
    lr: float = 1.0

    def __post_init__(self) -> None:
        positive(lr=self.lr)
        if self.sampled is not None and self.sampled < 1:
            raise SettingError(f"sampled = {self.sampled}: a round needs at least one client")

    def begin(self, models: Sequence[Vector], view: View) -> RoundState:
        return RoundState(Model(models[0]), Buffer())

    def started(self, state: RoundState, view: View) -> Commands:
        yield from self._round(state, view)

    def arrived(self, state: RoundState, update: Update, view: View) -> Commands:
        state.buffer.add(1.0, update["delta"])
        if view.flying == 0:  # everybody has reported
            yield from self._round(state, view)

    def lost(self, state: RoundState, job: Job, reason: str, view: View) -> Commands:
        replacement = view.idle(1)
        yield from hand_out(state.model, replacement)
        if view.flying == 0 and not replacement:
            yield from self._round(state, view)

    def joined(self, state: RoundState, client: int, view: View) -> Commands:
        if view.flying == 0:  # nobody was there when the round should have begun
            yield from self._round(state, view)

    def _round(self, state: RoundState, view: View) -> Commands:
        if state.buffer.count:
            state.model.step(-self.lr, state.buffer.take_mean())
        yield from hand_out(state.model, view.idle(view.clients if self.sampled is None else self.sampled))
