"""CA²FL (Wang, Cao, Wu, Chen, Chen 2024): buffered aggregation calibrated by every client's cached delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import Buffer, check_memory
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, Model, View
from offbeat.core.vectors import Vector


@dataclass
class Ca2flState(OneModel):
    buffer: Buffer  # of delta_i − h_i
    mean: Vector  # h, the mean of the cached h_i over all clients
    cache: dict[int, Vector] = field(default_factory=dict)  # h_i
    fresh: dict[int, Vector] = field(default_factory=dict)  # the buffer's deltas, cached after the step


@dataclass(frozen=True)
class CA2FL(Flow[Ca2flState]):
    """FedBuff whose mean is corrected by the last update of every client, which the server caches.

    v = h + (1/K) Σ over the buffer (delta_i − h_i), w ← w − lr·v, then h_i ← delta_i for those in the buffer, where
    h_i is the last delta of client i that was used (0 before) and h the mean of these over all n clients.

    size: updates per server step, K.
    lr: server step size, η.
    memory: bytes that the cache of n vectors may take.
    """

    size: Count = 10
    lr: Positive = 1.0
    memory: Positive = 4e9

    rebases: ClassVar[bool] = False  # a delta is added again from the cache

    def begin(self, models: Sequence[Vector], view: View) -> Ca2flState:
        check_memory("CA2FL", models[0], view.clients, self.memory)
        return Ca2flState(Model(models[0]), Buffer(), mean=models[0] * 0.0)

    def arrived(self, state: Ca2flState, update: Update, view: View) -> Commands:
        client, delta = update.job.client, update["delta"]
        state.model.received(update.job)
        state.buffer.add(1.0, self._change(state, client, delta))
        state.fresh[client] = delta
        if state.buffer.count == self.size:
            self.step(state.model, -self.lr, state.mean + state.buffer.take_mean())
            for one, its in state.fresh.items():
                state.mean = state.mean + (1.0 / view.clients) * self._change(state, one, its)
                state.cache[one] = its
            state.fresh = {}
        yield from self.next(state, client, view)

    def resize(self, state: Ca2flState, clients: int) -> None:
        check_memory("CA2FL", state.model.vector, clients, self.memory)

    def admitted(self, state: Ca2flState, client: int, models: Sequence[Vector], view: View) -> Commands:
        n = view.clients
        state.mean = ((n - 1) / n) * state.mean  # its h_i is 0
        yield from ()

    def dismissed(self, state: Ca2flState, client: int, view: View) -> Commands:
        state.fresh.pop(client, None)  # what it has in the buffer counts, and is not cached
        if n := view.clients:
            state.mean = ((n + 1) / n) * state.mean
            if client in state.cache:
                state.mean = state.mean - (1.0 / n) * state.cache.pop(client)
        yield from ()

    def _change(self, state: Ca2flState, client: int, delta: Vector) -> Vector:
        return delta - state.cache[client] if client in state.cache else delta
