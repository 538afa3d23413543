"""DeFedAvg: for clients with unlike data (algorithm 1 of its paper) and with alike data (algorithm 2).

Clients do not wait for an answer: a broadcast lies in their receive buffer when they are done with their last model,
and results travel while they train on. With `renew = "drawn"` they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import OneModel, hand_out
from offbeat.core.errors import Count, Positive, SettingError
from offbeat.core.events import Job, Recall, Update
from offbeat.core.server import Commands, Stepping, View
from offbeat.core.vectors import Vector

Renew = Literal["always", "drawn"]


@dataclass
class DeFedAvgState(OneModel):
    buffer: Buffer = field(default_factory=Buffer)
    drawn: dict[int, int] = field(
        default_factory=dict
    )  # this round's clients that have not answered, and how often each was drawn


@dataclass(frozen=True)
class DeFedAvg(Stepping[DeFedAvgState]):
    """Rounds over the newest results of clients drawn with replacement, while all clients keep training.

    Each round: draw n clients, take what is in their send buffers, step, broadcast to all.
    w ← w − lr · (1/n) Σ over the drawn multiset of delta_i; a client drawn twice counts twice. Every client trains on
    the newest model it has been sent, whether it is drawn or not: its receive buffer holds the newest broadcast, its
    send buffer its newest result. A drawn client whose send buffer is empty is waited for; one whose result has arrived
    is sent the newest model again.

    sampled: clients drawn per round, n.
    lr: server step size, η.
    renew: "always": clients train on every new model (§2.3, first variant); "drawn": a client trains again only after
        it was drawn (second variant, for clients short of energy).

    The paper does not settle whether a client trains on the same model again: a client needs a nonempty receive buffer
    (client line 2), and trains "continuously" (§2.3). Here, one that has answered does, and one that was not drawn
    waits for the next model. If all did or none, a round would take the same time within 3 %, and the staleness would
    be higher by up to 0.3 rounds or the same.

    Differs from the paper: with "drawn", a client is sent its next model when its result has arrived. In the paper it
    has that already, so that with a network it begins earlier and from an older model.
    """

    sampled: Count = 10
    lr: Positive = 1.0
    renew: Renew = "always"

    state = DeFedAvgState
    holds = True

    def started(self, state: DeFedAvgState, view: View) -> Commands:
        yield from hand_out(state.model, view.everyone(), hold=True)  # server line 2
        yield from self._draw(state, self.sampled, view)

    def arrived(self, state: DeFedAvgState, update: Update, view: View) -> Commands:
        client = update.job.client
        state.model.received(update.job)
        for _ in range(state.drawn.pop(client)):  # a multiset: line 7
            state.buffer.add(1.0, update["delta"])
        over = not state.drawn
        if over:
            self.step(state.model, -self.lr, state.buffer.take_mean())  # line 8
        everybody = over and self.renew == "always"
        yield from hand_out(state.model, view.everyone() if everybody else (client,), hold=True)  # line 9
        if over:
            yield from self._draw(state, self.sampled, view)  # line 4

    def lost(self, state: DeFedAvgState, job: Job, reason: str, view: View) -> Commands:
        times = state.drawn.pop(job.client, 0)
        if view.present(job.client):
            yield from hand_out(state.model, (job.client,), hold=True)
        yield from self._draw(state, times, view)  # other clients in its place

    def joined(self, state: DeFedAvgState, client: int, view: View) -> Commands:
        yield from hand_out(state.model, (client,), hold=True)
        if not state.drawn:  # nobody was there when the round should have begun
            yield from self._draw(state, self.sampled - state.buffer.count, view)

    def _draw(self, state: DeFedAvgState, count: int, view: View) -> Commands:
        for client in view.available(count):
            if client not in state.drawn:
                yield Recall(client)
            state.drawn[client] = state.drawn.get(client, 0) + 1


@dataclass
class DeFedAvgIIDState(BuffState):
    waiting: list[int] = field(default_factory=list)  # clients that have trained on the newest model


@dataclass(frozen=True)
class DeFedAvgIID(Stepping[DeFedAvgIIDState]):
    """The first results of a round make the next model, and clients keep training while messages travel.

    w ← w − lr · mean of the first n deltas, broadcast to all. Every client sends each of its results as soon as it has
    it, and goes on at once with the newest model in its receive buffer. A client that has trained on the newest one
    already waits for the next, so that n = N is full participation.

    size: updates per server step, n.
    lr: server step size, η.
    repeat: whether a client that has trained on the newest model is sent it again when its result arrives, instead of
        waiting for the next; it may then count several times in a round.
    """

    size: Count = 10
    lr: Positive = 1.0
    repeat: bool = False

    state = DeFedAvgIIDState
    holds = True

    def begin(self, models: Sequence[Vector], view: View) -> DeFedAvgIIDState:
        state = super().begin(models, view)
        self.resize(state, view.clients)
        return state

    def resize(self, state: DeFedAvgIIDState, clients: int) -> None:
        if clients < self.size and not self.repeat:
            raise SettingError(
                f"size = {self.size}: a round needs that many clients, and there are {clients}; lower it, or let "
                "clients train several times on a model, repeat = true"
            )

    def started(self, state: DeFedAvgIIDState, view: View) -> Commands:
        yield from hand_out(state.model, view.everyone(), hold=True)  # server line 2
        for client in view.everyone():
            yield Recall(client)

    def arrived(self, state: DeFedAvgIIDState, update: Update, view: View) -> Commands:
        client = update.job.client
        state.model.received(update.job)
        state.buffer.add(1.0, update["delta"])
        waits = update.job.version == state.model.version and not self.repeat  # client line 2: its buffer is empty
        if waits:
            state.waiting.append(client)
        if state.buffer.count == self.size:  # line 4
            self.step(state.model, -self.lr, state.buffer.take_mean())  # lines 6 and 7
            yield from hand_out(state.model, view.everyone(), hold=True)  # line 8
            for one in state.waiting:
                if view.present(one):
                    yield Recall(one)
            state.waiting = []
        if not waits:
            yield from self._next(state, update.job)

    def lost(self, state: DeFedAvgIIDState, job: Job, reason: str, view: View) -> Commands:
        if view.present(job.client):
            yield from self._next(state, job)

    def joined(self, state: DeFedAvgIIDState, client: int, view: View) -> Commands:
        if client not in state.waiting:
            yield from hand_out(state.model, (client,), hold=True)
            yield Recall(client)

    def _next(self, state: DeFedAvgIIDState, job: Job) -> Commands:
        """What this client is at by now will be sent when it is done."""
        if job.version == state.model.version:  # it is at nothing
            yield from hand_out(state.model, (job.client,), hold=True)
        yield Recall(job.client)
