"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1); its local half is `offbeat.local.Scaffold`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.algorithms.fedavg import RoundState, Synchronous
from offbeat.algorithms.parts import Buffer
from offbeat.core.events import Update
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Payload, Vector


@dataclass
class ScaffoldState(RoundState):
    control: Vector = None  # type: ignore[assignment]  # c
    changes: Vector | None = None  # Σ of what changed in the c_i since the last step


@dataclass(frozen=True)
class SCAFFOLD(Synchronous[ScaffoldState]):
    """FedAvg's rounds; besides, c ← c + (1/n) Σ over the round of (c_i⁺ − c_i), and clients are sent c.

    sampled: s.   lr: η_g.   first: see FedAvg; of late results only the controls count, so that c = mean(c_i) stays.
    """

    @property
    def reads(self) -> tuple[str, ...]:
        return ("delta", "control")

    @property
    def sends(self) -> tuple[str, ...]:
        return ("model", "control")

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
