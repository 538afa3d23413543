"""Ringleader ASGD (Maranjyan, Richtárik 2026): asynchronous SGD for clients whose data differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import Buffer, check_memory
from offbeat.algorithms.flow import OneModel
from offbeat.core.errors import Positive
from offbeat.core.events import Job, Send, Update
from offbeat.core.server import Commands, Model, Stepping, View
from offbeat.core.state import State
from offbeat.core.vectors import Vector


@dataclass
class Means(State):
    """By client, the mean of its gradients and how many they are."""

    means: dict[int, Vector] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, client: int, gradient: Vector) -> None:
        count = self.counts[client] = self.counts.get(client, 0) + 1
        mean = self.means.get(client)
        self.means[client] = gradient if mean is None else mean + (1.0 / count) * (gradient - mean)

    def remove(self, client: int) -> None:
        self.means.pop(client, None)
        self.counts.pop(client, None)

    def mean(self) -> Vector:
        """Of the clients' means."""
        total = Buffer()
        for client in sorted(self.means):
            total.add(1.0, self.means[client])
        return total.take_mean()


@dataclass
class RingleaderState(OneModel):
    mean: Vector  # of the table, in the second phase
    table: Means = field(default_factory=Means)
    later: Means = field(default_factory=Means)  # gradients for the next round
    due: list[int] = field(default_factory=list)  # second phase: clients that have not made their step in this round
    given: dict[int, Model] = field(default_factory=dict)  # by client, the model that it works from


@dataclass(frozen=True)
class Ringleader(Stepping[RingleaderState]):
    """Asynchronous SGD in which every step sees all clients, however fast they are.

    Rounds of two phases. First, collect gradients until everybody has given one. Then every client makes one step,
    w ← w − lr · (1/n) Σ_i (mean of client i's gradients in this round): the last one of the first phase at once, the
    others when their next gradient has arrived and been added. A client gets the newest model with its step, and until
    its next one gives gradients at that model. Those that come in the second phase from clients that have made their
    step count in the next round. No gradient is ignored, and none is later than 2n − 2 steps.

    lr: step size, γ.
    memory: bytes that each table of n vectors may take; there are up to three.
    """

    lr: Positive = 0.1
    memory: Positive = 4e9

    reads: ClassVar[tuple[str, ...]] = ("gradient",)

    def begin(self, models: Sequence[Vector], view: View) -> RingleaderState:
        check_memory("Ringleader", models[0], view.clients, self.memory)
        return RingleaderState(Model(models[0]), mean=models[0] * 0.0)

    def started(self, state: RingleaderState, view: View) -> Commands:
        for client in view.everyone():
            yield from self._go_on(state, client, view)

    def joined(self, state: RingleaderState, client: int, view: View) -> Commands:
        yield from self._go_on(state, client, view)

    def lost(self, state: RingleaderState, job: Job, reason: str, view: View) -> Commands:
        yield from self._go_on(state, job.client, view)

    def arrived(self, state: RingleaderState, update: Update, view: View) -> Commands:
        client, gradient = update.job.client, update["gradient"]
        if state.due and client not in state.due:
            state.later.add(client, gradient)
        elif state.due:
            before = state.table.means[client]
            state.table.add(client, gradient)
            state.mean = state.mean + (1.0 / view.clients) * (state.table.means[client] - before)
            self._step(state, client)
        else:
            state.table.add(client, gradient)
            if len(state.table.means) == view.clients:
                self._second_phase(state, client)
        yield from self._go_on(state, client, view)

    def _go_on(self, state: RingleaderState, client: int, view: View) -> Commands:
        """The client works from the model that it has had since its last step."""
        if view.present(client):
            model = state.given.setdefault(client, Model(state.model.vector, state.model.version))
            yield Send(client, {"model": model.vector}, model.version)

    def _second_phase(self, state: RingleaderState, last: int) -> None:
        state.mean = state.table.mean()
        state.due = sorted(state.table.means)
        self._step(state, last)

    def _step(self, state: RingleaderState, client: int) -> None:
        """The step of this client, which gets the newest model after it."""
        for each in state.given.values():
            state.model.stale = max(state.model.stale, state.model.version - each.version)
        self.step(state.model, -self.lr, state.mean)
        state.given[client] = Model(state.model.vector, state.model.version)
        state.due.remove(client)
        self._end_round_if_over(state)

    def _end_round_if_over(self, state: RingleaderState) -> None:
        if not state.due:
            state.table, state.later = state.later, Means()

    def resize(self, state: RingleaderState, clients: int) -> None:
        check_memory("Ringleader", state.model.vector, clients, self.memory)

    def dismissed(self, state: RingleaderState, client: int, view: View) -> Commands:
        state.given.pop(client, None)
        state.later.remove(client)
        state.table.remove(client)
        if state.due:
            state.due = [each for each in state.due if each != client]
            state.mean = state.table.mean() if state.table.means else state.mean
            self._end_round_if_over(state)
        if not state.due and state.table.means and len(state.table.means) == view.clients:
            # it was the one that was waited for: the first of the others makes the first step
            self._second_phase(state, min(state.table.means))
        yield from ()
