"""Malenia SGD (Tyurin, Richtárik 2023): Rennala SGD for clients whose data differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offbeat.algorithms.buffer import Buffer, check_memory
from offbeat.algorithms.restart import AtWork, Restarting
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass
class MaleniaState(AtWork):
    sums: dict[int, Buffer] = field(default_factory=dict)  # by client, its gradients at the newest model
    ignored: int = 0  # gradients


@dataclass(frozen=True)
class Malenia(Restarting[MaleniaState]):
    """Each server step takes the mean of all clients' means, and waits until these are good enough.

    Collect gradients at the newest model, B_i of client i, until everybody has given one and the harmonic mean of the
    B_i is at least S/n; then w ← w − lr · (1/n) Σ_i (mean of client i's gradients). A gradient at an older model is
    ignored, and its client goes on with the newest. With S ≤ n, one gradient of each client is enough.

    size: gradients per server step, S, if all clients give equally many. The theory has max(n, ⌈σ²/ε⌉), where σ² is the
        variance of a gradient and ε the squared norm of the gradient to be reached.
    lr: step size, γ.
    memory: bytes that the table of n sums may take.

    Differs from the paper: the client whose gradient completes a step gets the new model; in the paper's listing it is
    sent the old one once more. `stop` is not in the paper's listing; the authors' later code does it.
    """

    size: Count = 1
    lr: Positive = 0.1
    memory: Positive = 4e9

    def begin(self, models: Sequence[Vector], view: View) -> MaleniaState:
        check_memory("Malenia", models[0], view.clients, self.memory)
        return MaleniaState(Model(models[0]))

    def arrived(self, state: MaleniaState, update: Update, view: View) -> Commands:
        model, client = state.model, update.job.client
        if update.job.version == model.version:
            state.sums.setdefault(client, Buffer()).add(1.0, update["gradient"])
            self._step_if_due(state, view)
        else:
            state.ignored += 1
        yield from self.next(state, client, view)
        yield from self.restart(state, model.version)

    def _step_if_due(self, state: MaleniaState, view: View) -> None:
        n = view.clients
        if len(state.sums) == n and n * n >= self.size * sum(1.0 / each.count for each in state.sums.values()):
            mean = Buffer()
            for client in sorted(state.sums):
                mean.add(1.0, state.sums[client].take_mean())
            state.sums = {}
            self.step(state.model, -self.lr, mean.take_mean())

    def resize(self, state: MaleniaState, clients: int) -> None:
        check_memory("Malenia", state.model.vector, clients, self.memory)

    def dismissed(self, state: MaleniaState, client: int, view: View) -> Commands:
        state.sums.pop(client, None)
        if view.clients:
            self._step_if_due(state, view)  # perhaps it was the one that was waited for
            yield from self.restart(state, state.model.version)

    def report(self, state: MaleniaState) -> Mapping[str, Any]:
        return {"ignored": state.ignored}
