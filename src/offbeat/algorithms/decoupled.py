"""Decoupled DiLoCo (Douillard et al. 2026): an outer step for a quorum of clients and who comes soon after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.diloco import DiLoCoState, Outer
from offbeat.algorithms.radial import apart
from offbeat.core.errors import Count, NotNegative, SettingError
from offbeat.core.events import Alarm, Job, Update
from offbeat.core.problem import Problem
from offbeat.core.server import Commands, View
from offbeat.core.vectors import Vector

MERGE = "merge"


@dataclass
class DecoupledState(DiLoCoState):
    buffer: Buffer = field(default_factory=Buffer)
    total: float = 0.0  # of the weights in the buffer
    lengths: Vector | None = None  # if they are averaged by themselves, their weighted sum


@dataclass(frozen=True)
class DecoupledDiLoCo(Outer[DecoupledState]):
    """An outer step for the updates of a quorum of clients, and of those that come within a grace period after it.

    When K updates are there, the server waits for the time `grace` or until all clients have reported. Then
    w ← w + the step that `server` makes of −lr · Σ c_i·delta_i / Σ c_i, and the clients that have reported receive w.
    c_i is s(τ) times the number of local steps. The paper has tokens²/steps, which with equal mini-batches is the same
    up to a common factor.

    quorum: the fewest updates of an outer step, K; by default all clients.
    grace: time after the K-th update in which further ones are taken.
    radial: radial-directional averaging (RDA): of each tensor, the mean of the deltas' lengths times the direction of
        the mean of their directions. By default the deltas are averaged as they are.

    Not compared with the paper's text, but with public accounts and implementations that quote its equations. Differs
    from the paper: its experiments use RDA for all tensors but embeddings, here `radial` is for all tensors; the model
    is sent as a whole, not in fragments; clients that have reported wait for the outer step instead of training on; the
    grace period is a fixed time instead of a part of the time that communication leaves over; an update counts from the
    model that its client was sent, not from the server's.
    """

    quorum: Count | None = None
    grace: NotNegative = 0.0
    radial: bool = False
    blocks: tuple[int, ...] = field(default=(), repr=False, metadata={"setting": False})

    state = DecoupledState

    def at_once(self) -> Mapping[str, int | None]:
        return {**super().at_once(), "quorum": self.quorum}

    def for_problems(self, problems: Sequence[Problem]) -> Self:
        made = super().for_problems(problems)
        if self.radial and getattr(problems[0], "averaged", None):
            raise SettingError(
                f"radial = true: {problems[0].name} has running statistics, whose lengths mean nothing; keep them with "
                'the clients, statistics = "local", or "frozen"'
            )
        return replace(made, blocks=getattr(problems[0], "blocks", ())) if self.radial else made

    def arrived(self, state: DecoupledState, update: Update, view: View) -> Commands:
        weight = self.counts(state, update.job, view) * update.job.steps
        self._add(state, weight, update["delta"])
        state.waiting.append(update.job.client)
        if not view.flying:
            yield from self._merge(state, view)
        elif state.buffer.count == self.quorum:
            yield Alarm(self.grace, f"{MERGE} {state.model.version}")

    def rang(self, state: DecoupledState, key: str, view: View) -> Commands:
        if key == f"{MERGE} {state.model.version}":
            yield from self._merge(state, view)

    def lost(self, state: DecoupledState, job: Job, reason: str, view: View) -> Commands:
        if view.flying or view.present(job.client):
            yield from self.next(state, job.client, view)
        else:  # no job in flight to wait for
            yield from self._merge(state, view)

    def _add(self, state: DecoupledState, weight: float, delta: Vector) -> None:
        if self.radial:
            delta, lengths = apart(delta, self.blocks)
            state.lengths = weight * lengths if state.lengths is None else state.lengths + weight * lengths
        state.buffer.add(weight, delta)
        state.total += weight

    def _merge(self, state: DecoupledState, view: View) -> Commands:
        if state.buffer.sum is not None:
            mean = state.buffer.sum * (1.0 / state.total)
            if state.lengths is not None:
                mean = apart(mean, self.blocks)[0] * (state.lengths * (1.0 / state.total))
            self.step(state.model, -self.lr, mean)
            state.buffer, state.total, state.lengths = Buffer(), 0.0, None
        yield from self.release(state, view)
