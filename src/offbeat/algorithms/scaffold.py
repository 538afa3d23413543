"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1); its local trainer is `offbeat.local.Scaffold`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.fedavg import Rounds, RoundState
from offbeat.core.events import Update
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Payload, Vector


@dataclass
class ScaffoldState(RoundState):
    control: Vector = field(kw_only=True)  # c
    changes: Vector | None = None  # Σ of what changed in the c_i since the last step


@dataclass(frozen=True)
class SCAFFOLD(Rounds[ScaffoldState]):
    """FedAvg's rounds with control variates, which correct the clients' drift.

    Besides FedAvg's step, c ← c + (1/n) Σ over the round of (c_i⁺ − c_i), and clients are sent c. Of results that come
    too late for their round only the controls count, so that c = mean(c_i) stays.
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
        yield from super().arrived(state, update, view)

    def aggregate(self, state: ScaffoldState, view: View) -> None:
        super().aggregate(state, view)
        if state.changes is not None:
            state.control = state.control + (1.0 / view.clients) * state.changes
            state.changes = None
