"""FedAsync: a server step on every arrival (PersA-FL, algorithm 1, and Xie, Koyejo, Gupta 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.algorithms.parts import Flow, OneModel, Reached, Staleness, constant
from offbeat.core.errors import SettingError, positive
from offbeat.core.events import Update
from offbeat.core.local import Local
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass(frozen=True)
class FedAsync(Flow[OneModel]):
    """w ← w − lr · s(τ) · delta on every arrival (PersA-FL, algorithm 1, line 4, where s = 1).

    lr: server step size, β.   weight: staleness weight s(τ), 1 for a fresh update.   concurrency: see `Flow`.
    """

    lr: float = 1.0
    weight: Staleness = constant

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(lr=self.lr)

    def begin(self, models: Sequence[Vector], view: View) -> OneModel:
        return OneModel(Model(models[0]))

    def arrived(self, state: OneModel, update: Update, view: View) -> Commands:
        staleness = state.model.version - update.job.version
        state.model.step(-self.lr * self.weight(staleness), update["delta"])
        yield from self.next(state, update.job.client, view)


@dataclass(frozen=True)
class FedAsyncMixing(Flow[OneModel]):
    """w ← (1 − a)·w + a·w_i with a = mixing · s(τ): Xie's form; clients send models.

    mixing: weight of a fresh model, α in (0, 1).   weight: staleness weight s(τ).   concurrency: see `Flow`.
    a is made anew for every update; it does not shrink from one to the next.
    """

    mixing: float = 0.6
    weight: Staleness = constant

    @property
    def reads(self) -> tuple[str, ...]:
        return ("model",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mixing <= 1:
            raise SettingError(f"mixing = {self.mixing}: must be in (0, 1]")

    def pair(self, local: Local) -> Local:
        return Reached.around(local)

    def begin(self, models: Sequence[Vector], view: View) -> OneModel:
        return OneModel(Model(models[0]))

    def arrived(self, state: OneModel, update: Update, view: View) -> Commands:
        a = self.mixing * self.weight(state.model.version - update.job.version)
        state.model.step(a, update["model"] - state.model.vector)
        yield from self.next(state, update.job.client, view)
