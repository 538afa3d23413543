"""MIFA (Gu, Huang, Zhang, Huang 2021): the server remembers every client's last delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from offbeat.algorithms.buffer import check_memory
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Combines, Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass
class MifaState(OneModel):
    mean: Vector  # (1/n) Σ of the last deltas
    last: dict[int, Vector] = field(default_factory=dict)
    messages: int = 0


S = TypeVar("S", bound=MifaState)


@dataclass(frozen=True)
class Remembering(Flow[S]):
    """A server that remembers what every client sent last, and steps along the mean of these over all n clients.

    size: updates per server step.
    lr: server step size, η.
    memory: bytes that the table of n vectors may take.
    """

    size: Count = 1
    lr: Positive = 1.0
    memory: Positive = 4e9
    state: ClassVar[type[MifaState]] = MifaState
    own_size: ClassVar[bool] = True
    rebases: ClassVar[bool] = False  # a delta is added many times
    combines: ClassVar[Combines] = "table"

    def begin(self, models: Sequence[Vector], view: View) -> S:
        check_memory(type(self).__name__, models[0], view.clients, self.memory)
        state: S = self.state(Model(models[0]), mean=models[0] * 0.0)  # type: ignore[assignment]
        return state

    def arrived(self, state: S, update: Update, view: View) -> Commands:
        self.remember(state, update, view)
        state.messages += 1
        if state.messages == self.size:
            state.messages = 0
            self.step(state.model, -self.lr, self.direction(state, view))
        yield from self.next(state, update.job.client, view)

    def direction(self, state: S, view: View) -> Vector:
        """Where a step goes: along the mean over all clients, or what a robust rule makes of the table."""
        if self.guard is None:
            return state.mean
        silent = [state.mean * 0.0] * (view.clients - len(state.last))
        return self.guard.combine([*state.last.values(), *silent])

    def remember(self, state: S, update: Update, view: View) -> None:
        """What a client has sent takes the place of what it sent before."""
        client, given = update.job.client, self.given(update)
        state.model.received(update.job)
        change = given - state.last[client] if client in state.last else given
        state.mean = state.mean + (1.0 / view.clients) * change
        state.last[client] = given

    def given(self, update: Update) -> Vector:
        """What is remembered of an update."""
        return update["delta"]

    def resize(self, state: S, clients: int) -> None:
        check_memory(type(self).__name__, state.model.vector, clients, self.memory)

    def admitted(self, state: S, client: int, models: Sequence[Vector], view: View) -> Commands:
        n = view.clients
        state.mean = ((n - 1) / n) * state.mean  # it counts 0
        yield from ()

    def dismissed(self, state: S, client: int, view: View) -> Commands:
        if n := view.clients:
            state.mean = ((n + 1) / n) * state.mean
            if client in state.last:
                state.mean = state.mean - (1.0 / n) * state.last.pop(client)
        yield from ()


@dataclass(frozen=True)
class MIFA(Remembering[MifaState]):
    """The server remembers the last update of every client, so that absent clients still count.

    w ← w − lr · (1/n) Σ_i (the last delta of client i).

    Differs from the paper: a client that has not spoken yet counts 0; the paper has all clients speak first.
    """
