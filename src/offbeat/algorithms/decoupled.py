"""Decoupled DiLoCo (Douillard et al. 2026): an outer step for a quorum of clients and who comes soon after."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.diloco import DiLoCoState, Outer
from offbeat.core.errors import Count, NotNegative
from offbeat.core.events import Alarm, Job, Update
from offbeat.core.server import Commands, View

MERGE = "merge"


@dataclass
class DecoupledState(DiLoCoState):
    buffer: Buffer = field(default_factory=Buffer)
    total: float = 0.0  # of the weights in the buffer


@dataclass(frozen=True)
class DecoupledDiLoCo(Outer[DecoupledState]):
    """An outer step for the updates of a quorum of clients, and of those that come within a grace period after it.

    When K updates are there, the server waits for the time `grace` or until all clients have reported. Then
    w ← w + the step that `server` makes of −lr · Σ c_i·delta_i / Σ c_i, and the clients that have reported receive w.
    c_i is s(τ) times the number of local steps. The paper has tokens²/steps, which with equal mini-batches is the same
    up to a common factor.

    quorum: the fewest updates of an outer step, K; by default all clients.
    grace: time after the K-th update in which further ones are taken.

    Not compared with the paper's text, but with a public collection of update rules that quotes its equations. Differs
    from the paper: the model is sent as a whole, not in fragments; clients that have reported wait for the outer step
    instead of training on; the grace period is a fixed time; an update counts from the model that its client was sent.
    """

    quorum: Count | None = None
    grace: NotNegative = 0.0

    state = DecoupledState

    def arrived(self, state: DecoupledState, update: Update, view: View) -> Commands:
        weight = self.counts(state, update.job, view) * update.job.steps
        state.buffer.add(weight, update["delta"])
        state.total += weight
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

    def _merge(self, state: DecoupledState, view: View) -> Commands:
        if state.buffer.sum is not None:
            self.step(state.model, -self.lr, state.buffer.sum * (1.0 / state.total))
            state.buffer, state.total = Buffer(), 0.0
        yield from self.release(state, view)
