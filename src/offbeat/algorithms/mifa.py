"""MIFA (Gu, Huang, Zhang, Huang 2021): the server remembers every client's last delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import check_memory
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass
class MifaState(OneModel):
    mean: Vector  # (1/n) Σ of the last deltas
    last: dict[int, Vector] = field(default_factory=dict)
    messages: int = 0


@dataclass(frozen=True)
class MIFA(Flow[MifaState]):
    """The server remembers the last update of every client, so that absent clients count, too.

    w ← w − lr · (1/n) Σ_i (the last delta of client i).

    size: updates per server step.
    lr: server step size, η.
    memory: bytes that the table of n vectors may take.

    Differs from the paper: a client that has not spoken yet counts 0; the paper has all clients speak first.
    """

    size: Count = 1
    lr: Positive = 1.0
    memory: Positive = 4e9
    own_size: ClassVar[bool] = True
    rebases: ClassVar[bool] = False  # a delta is added many times

    def begin(self, models: Sequence[Vector], view: View) -> MifaState:
        check_memory("MIFA", models[0], view.clients, self.memory)
        return MifaState(Model(models[0]), mean=models[0] * 0.0)

    def arrived(self, state: MifaState, update: Update, view: View) -> Commands:
        client, delta = update.job.client, update["delta"]
        state.model.received(update.job)
        change = delta - state.last[client] if client in state.last else delta
        state.mean = state.mean + (1.0 / view.clients) * change
        state.last[client] = delta
        state.messages += 1
        if state.messages == self.size:
            state.messages = 0
            self.step(state.model, -self.lr, state.mean)
        yield from self.next(state, client, view)

    def resize(self, state: MifaState, clients: int) -> None:
        check_memory("MIFA", state.model.vector, clients, self.memory)

    def admitted(self, state: MifaState, client: int, models: Sequence[Vector], view: View) -> Commands:
        n = view.clients
        state.mean = ((n - 1) / n) * state.mean  # it counts 0
        yield from ()

    def dismissed(self, state: MifaState, client: int, view: View) -> Commands:
        if n := view.clients:
            state.mean = ((n + 1) / n) * state.mean
            if client in state.last:
                state.mean = state.mean - (1.0 / n) * state.last.pop(client)
        yield from ()
