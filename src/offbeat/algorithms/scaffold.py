"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1); its local trainer is `offbeat.local.Scaffold`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import Buffer, fits
from offbeat.algorithms.fedavg import Rounds, RoundState
from offbeat.core.events import Update
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Payload, Vector


@dataclass
class ScaffoldState(RoundState):
    control: Vector = field(kw_only=True)  # c
    changes: Vector | None = None  # Σ of what changed in the c_i since the last step
    tracked: dict[int, Vector] | None = None  # c_i, if they are
    frozen: int = 0  # clients that were removed and whose c_i, not being tracked, stay in the mean


@dataclass(frozen=True)
class SCAFFOLD(Rounds[ScaffoldState]):
    """FedAvg's rounds with control variates, which correct the clients' drift.

    Besides FedAvg's step, c ← c + (1/n) Σ over the round of (c_i⁺ − c_i), and clients are sent c. Of results that come
    too late for their round only the controls count, so that c = mean(c_i) stays.

    In a real run, c remains the mean when clients are enrolled, with c_i = 0, and removed. For this the server tracks
    the c_i, as long as they take no more than 4 GB; beyond it, the control of a removed client stays in the mean.
    """

    reads: ClassVar[tuple[str, ...]] = ("delta", "control")

    sends: ClassVar[tuple[str, ...]] = ("model", "control")

    def begin(self, models: Sequence[Vector], view: View) -> ScaffoldState:
        return ScaffoldState(Model(models[0]), Buffer(), control=models[0] * 0.0)

    def payload(self, state: ScaffoldState) -> Payload:
        return {"model": state.model.vector, "control": state.control}

    def arrived(self, state: ScaffoldState, update: Update, view: View) -> Commands:
        change = update["control"]  # also of a client too late for its round: it has renewed its c_i all the same
        state.changes = change if state.changes is None else state.changes + change
        if state.tracked is not None:
            client = update.job.client
            state.tracked[client] = state.tracked[client] + change if client in state.tracked else change
        yield from super().arrived(state, update, view)

    def aggregate(self, state: ScaffoldState, view: View) -> None:
        super().aggregate(state, view)
        if state.changes is not None:
            state.control = state.control + (1.0 / self._counted(state, view)) * state.changes
            state.changes = None

    def _counted(self, state: ScaffoldState, view: View) -> int:
        return view.clients + state.frozen

    def track(self, state: ScaffoldState, models: Sequence[Vector], view: View) -> None:
        state.tracked = {} if fits(models[0], view.clients) else None

    def remembered(self, state: ScaffoldState, task: int, client: int) -> Payload | None:
        if state.tracked is None:
            return None
        return {"control": state.tracked.get(client, state.control * 0.0)}

    def admitted(self, state: ScaffoldState, client: int, models: Sequence[Vector], view: View) -> Commands:
        n = self._counted(state, view)
        state.control = ((n - 1) / n) * state.control
        yield from ()

    def dismissed(self, state: ScaffoldState, client: int, view: View) -> Commands:
        if state.tracked is None:
            state.frozen += 1
        elif n := self._counted(state, view):
            state.control = ((n + 1) / n) * state.control
            if client in state.tracked:
                state.control = state.control - (1.0 / n) * state.tracked.pop(client)
        yield from ()
