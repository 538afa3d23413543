"""AREA: asynchronous exact averaging (algorithms 1 and 2 of its paper, see docs/papers.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.criteria import AGGREGATE, Criterion, alarm, criterion
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.schedules import Schedule
from offbeat.core.errors import Count
from offbeat.core.events import Update
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Payload, Vector


@dataclass(frozen=True)
class Residual(Wrapper):
    """Algorithm 2: send `x_M − y`, then `y ← x_M`; y is the client's last result, at first the initial model."""

    @property
    def sends(self) -> tuple[str, ...]:
        return ("residual", *self.notes)

    def remember(self, model: Vector) -> Payload:
        return {**self.inner.remember(model), "y": model}

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        notes, memory = self.noted(carry, work)
        return {"residual": carry["w"] - work.memory["y"], **notes}, {**memory, "y": carry["w"]}


@dataclass
class AreaState(OneModel):
    u: Vector  # the aggregator u_s; `model` is x_s
    k: int = 0  # client messages and server steps
    messages: int = 0  # since the last step


@dataclass(frozen=True)
class AREA(Flow[AreaState]):
    """Clients send what changed since their last message, so that fast clients do not count more.

    AREA, algorithm 1. On a message m_i: u ← u + m_i/n, and the client gets the model of *before* any aggregation that
    its message triggers. When the criterion fires: x ← x + u, u ← 0. The invariant mean(y_i) = x + u holds after every
    event.

    size: messages per server step, Δ; or aggregation by the clock, in periods or as a Poisson process.
    schedule: local step size α_k by iteration k, which counts client messages and server steps; by default the local
        trainer's own.
    """

    size: Count | Criterion = 1
    schedule: Schedule | None = None

    reads: ClassVar[tuple[str, ...]] = ("residual",)
    own_size: ClassVar[bool] = True

    def pair(self, local: Local) -> Local:
        return Residual.around(local)

    def begin(self, models: Sequence[Vector], view: View) -> AreaState:
        return AreaState(Model(models[0]), u=models[0] * 0.0)

    def started(self, state: AreaState, view: View) -> Commands:
        yield from super().started(state, view)
        yield from alarm(criterion(self.size), view)

    def arrived(self, state: AreaState, update: Update, view: View) -> Commands:
        state.k += 1
        state.messages += 1
        state.u = state.u + (1.0 / view.clients) * update["residual"]
        yield from self.next(state, update.job.client, view)  # carries x_{s,k−1}: before the aggregation below
        if criterion(self.size).due(state.messages):
            self._aggregate(state)

    def rang(self, state: AreaState, key: str, view: View) -> Commands:
        if key == AGGREGATE:
            self._aggregate(state)
            yield from alarm(criterion(self.size), view)

    def _aggregate(self, state: AreaState) -> None:
        state.k += 1
        state.messages = 0
        state.model.step(1.0, state.u)
        state.u = state.u * 0.0

    def local_lr(self, state: AreaState) -> float | None:
        return None if self.schedule is None else self.schedule(state.k)
