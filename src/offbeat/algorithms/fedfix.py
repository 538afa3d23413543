"""FedFix (Fraboni, Vidal, Kameni, Lorenzi 2023): aggregation at fixed intervals, by time-corrected weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.criteria import AGGREGATE
from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import hand_out
from offbeat.core.errors import Positive
from offbeat.core.events import Alarm, Job, Update
from offbeat.core.server import Commands, Stepping, View


@dataclass
class FixState(BuffState):
    intervals: int = 0  # that have passed
    began: dict[int, int] = field(default_factory=dict)  # interval in which a client was sent its work
    ready: list[int] = field(default_factory=list)  # clients that wait for the next aggregation


@dataclass(frozen=True)
class FedFix(Stepping[FixState]):
    """A server step at fixed intervals, of whatever has arrived; slow clients' updates weigh more.

    Every Δt, w ← w − lr · (1/n) Σ k_i · delta_i over the clients that have reported, where k_i is the number of
    intervals that client i's work took, ⌈τ_i/Δt⌉ in the paper. Then these clients, and only these, receive w.

    period: time between two aggregations, Δt.
    lr: server step size, η_g.

    Differs from the paper: it knows the times τ_i, which are fixed; here k_i is counted for each job. With fixed times
    the two are equal, and with random ones every client still has the weight 1/n per interval on average.
    """

    period: Positive = 1.0
    lr: Positive = 1.0

    state = FixState

    def started(self, state: FixState, view: View) -> Commands:
        yield from self._send(state, list(view.everyone()))
        yield Alarm(self.period, AGGREGATE)

    def arrived(self, state: FixState, update: Update, view: View) -> Commands:
        client = update.job.client
        state.model.received(update.job)
        state.buffer.add(1.0 + state.intervals - state.began[client], update["delta"])
        state.ready.append(client)
        yield from ()

    def lost(self, state: FixState, job: Job, reason: str, view: View) -> Commands:
        if view.present(job.client):
            yield from hand_out(state.model, [job.client])  # it is as late as if the first attempt had taken so long

    def joined(self, state: FixState, client: int, view: View) -> Commands:
        if client not in state.ready:
            yield from self._send(state, [client])

    def rang(self, state: FixState, key: str, view: View) -> Commands:
        if key == AGGREGATE:
            state.intervals += 1
            if state.buffer.sum is not None:
                self.step(state.model, -self.lr / view.clients, state.buffer.sum)
                state.buffer = Buffer()
            ready, state.ready = state.ready, []
            yield from self._send(state, [client for client in ready if view.present(client)])
            yield Alarm(self.period, AGGREGATE)

    def dismissed(self, state: FixState, client: int, view: View) -> Commands:
        state.began.pop(client, None)
        yield from ()

    def _send(self, state: FixState, clients: Sequence[int]) -> Commands:
        state.began |= dict.fromkeys(clients, state.intervals)
        yield from hand_out(state.model, clients)
