"""PORT (Su, Li 2022): a buffer whose updates count by their staleness and by their direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import hand_out
from offbeat.core.errors import Count, NotNegative, Positive
from offbeat.core.events import Job, Update
from offbeat.core.server import Commands, Stepping, View
from offbeat.core.vectors import Vector, dot, norm


@dataclass
class PortState(BuffState):
    total: float = 0.0  # of the weights in the buffer
    last: Vector | None = None  # the last server step, w − (w before it)
    waiting: list[int] = field(default_factory=list)  # clients whose updates are in the buffer
    started: dict[int, int] = field(default_factory=dict)  # by client at work, the version that it was sent


@dataclass(frozen=True)
class Port(Stepping[PortState]):
    """A server step for every few updates: those that are stale or point away from the last step count less.

    After K updates, w ← w − lr · Σ a_i·delta_i / Σ a_i, where a_i = λ·(cos_i + 1)/2 + μ·β/(τ_i + β). cos_i is the
    cosine of −delta_i and the last server step; up to a staleness of 1 it counts as 1. A step waits for every client
    that is more than β server steps behind. Clients that have reported wait for it, too, and then receive w.

    size: updates per server step, K.
    bound: server steps that a client may be behind without being waited for, β.
    similarity: weight of the direction, λ.
    staleness: weight of the staleness, μ.
    lr: server step size.

    The rule is that of the authors' code; not compared with the paper's text. Differs from the code: clients' numbers
    of samples do not count. Its option to ask stale clients for what they have is not there.
    """

    size: Count = 10
    bound: Count = 10
    similarity: NotNegative = 1.0
    staleness: Positive = 1.0
    lr: Positive = 1.0

    state = PortState

    def started(self, state: PortState, view: View) -> Commands:
        yield from self._send(state, list(view.everyone()))

    def arrived(self, state: PortState, update: Update, view: View) -> Commands:
        weight = self.counts(update["delta"], state.model.received(update.job), state.last)
        state.buffer.add(weight, update["delta"])
        state.total += weight
        state.waiting.append(update.job.client)
        state.started.pop(update.job.client, None)
        yield from self._step_if_due(state, view)

    def counts(self, delta: Vector, staleness: int, last: Vector | None) -> float:
        """a_i."""
        cosine = 1.0
        if self.similarity and staleness > 1 and last is not None and (length := norm(delta) * norm(last)):
            cosine = -dot(delta, last) / length
        return self.similarity * (cosine + 1.0) / 2.0 + self.staleness * self.bound / (staleness + self.bound)

    def lost(self, state: PortState, job: Job, reason: str, view: View) -> Commands:
        if view.present(job.client):
            yield from hand_out(state.model, [job.client])
            state.started[job.client] = state.model.version
        else:
            state.started.pop(job.client, None)
            yield from self._step_if_due(state, view)

    def joined(self, state: PortState, client: int, view: View) -> Commands:
        if client not in state.waiting:
            yield from self._send(state, [client])

    def left(self, state: PortState, client: int, view: View) -> Commands:
        state.started.pop(client, None)
        yield from self._step_if_due(state, view)

    def _step_if_due(self, state: PortState, view: View) -> Commands:
        late = any(version < state.model.version - self.bound for version in state.started.values())
        full = state.buffer.count >= self.size and not late
        if state.buffer.sum is None or not (full or not state.started):
            return
        before = state.model.vector
        self.step(state.model, -self.lr, state.buffer.sum * (1.0 / state.total))
        state.last = state.model.vector - before if self.similarity else None
        state.buffer, state.total = Buffer(), 0.0
        ready, state.waiting = state.waiting, []
        yield from self._send(state, [client for client in ready if view.present(client)])

    def _send(self, state: PortState, clients: Sequence[int]) -> Commands:
        state.started |= dict.fromkeys(clients, state.model.version)
        yield from hand_out(state.model, clients)
