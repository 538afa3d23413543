"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1); its local half is `offbeat.local.Scaffold`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.algorithms.fedavg import RoundState, Synchronous
from offbeat.algorithms.parts import Buffer
from offbeat.core.events import Update
from offbeat.core.server import Model, View
from offbeat.core.vectors import Payload, Vector


@dataclass
class ScaffoldState(RoundState):
    control: Vector = None  # type: ignore[assignment]  # c
    changes: Vector | None = None  # Σ of what changed in this round's c_i


@dataclass(frozen=True)
class SCAFFOLD(Synchronous[ScaffoldState]):
    """FedAvg's rounds; besides, c ← c + (1/n) Σ over the round of (c_i⁺ − c_i), and clients are sent c.

    sampled: s.   lr: η_g.   first: see FedAvg.
    """

    reads = ("delta", "control")
    sends = ("model", "control")

    def begin(self, models: Sequence[Vector], view: View) -> ScaffoldState:
        return ScaffoldState(Model(models[0]), Buffer(), control=models[0] * 0.0)

    def payload(self, state: ScaffoldState) -> Payload:
        return {"model": state.model.vector, "control": state.control}

    def absorb(self, state: ScaffoldState, update: Update) -> None:
        super().absorb(state, update)
        change = update["control"]
        state.changes = change if state.changes is None else state.changes + change

    def aggregate(self, state: ScaffoldState, view: View) -> None:
        super().aggregate(state, view)
        if state.changes is not None:
            state.control = state.control + (1.0 / view.clients) * state.changes
            state.changes = None
