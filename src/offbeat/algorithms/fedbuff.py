"""FedBuff: buffered asynchronous aggregation (algorithms 1 and 2 of Toghani and Uribe, see docs/papers.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.criteria import AGGREGATE, Criterion, alarm, criterion, fixed, message_count
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.staleness import Equal, Staleness
from offbeat.core.errors import Count, Positive, SettingError
from offbeat.core.events import Job, Update
from offbeat.core.server import Combines, Commands, View
from offbeat.core.vectors import Vector


@dataclass
class BuffState(OneModel):
    buffer: Buffer = field(default_factory=Buffer)


@dataclass(frozen=True)
class Buffered(Flow[BuffState]):
    """A server step for every few updates, which are collected in a buffer.

    size: updates per server step, K; or aggregation by the clock, in periods or as a Poisson process, of what came in
        between.
    lr: server step size.
    """

    size: Count | Criterion = 10
    lr: Positive = 1.0

    state = BuffState
    combines: ClassVar[Combines] = "buffer"
    releases: ClassVar[bool] = True

    def counts(self, update: Update, staleness: int) -> tuple[float, Vector]:
        """What counts of an update: a vector and its weight in the sum that the buffer divides by K."""
        return 1.0, update["delta"]

    def aggregate(self, state: BuffState, view: View) -> None:
        """A server step along the mean of the buffer."""
        self.step(state.model, -self.lr, self.mean(state, view, fixed(self.size)))

    def started(self, state: BuffState, view: View) -> Commands:
        yield from super().started(state, view)
        yield from alarm(criterion(self.size), view)

    def arrived(self, state: BuffState, update: Update, view: View) -> Commands:
        staleness = state.model.received(update.job)
        self.collect(state, update.job.client, *self.counts(update, staleness))  # FedBuff, line 6
        if criterion(self.size).due(state.buffer.count):  # line 8
            self.aggregate(state, view)  # line 9
        yield from self.next(state, update.job.client, view)

    def lacking(self, state: BuffState) -> int:
        return max(1, (fixed(self.size) or 1) - state.buffer.count)

    def rang(self, state: BuffState, key: str, view: View) -> Commands:
        if key == AGGREGATE:
            if state.buffer.count:
                self.aggregate(state, view)
            yield from alarm(criterion(self.size), view)


@dataclass(frozen=True)
class FedBuff(Buffered):
    """A server step for every few updates, which are collected in a buffer.

    Algorithm 2: collect K deltas, then w ← w − lr · mean.

    lr: server step size; the paper's β is lr/K, so lr = 1 takes the mean of the deltas and lr = K their sum.
    weight: staleness weight s(τ) of each update, 1 for a fresh one; the mean still divides by K.
    """

    weight: Staleness = field(default_factory=Equal)

    releases: ClassVar[bool] = True

    def counts(self, update: Update, staleness: int) -> tuple[float, Vector]:
        return self.weight(staleness), update["delta"]

    def adds(self, task: int = 0) -> int:
        if self.weight != Equal():
            raise SettingError("weight: [secure] shows sums only, in which no update can be weighted; leave weight out")
        return message_count(self.size)

    def sealed(self, state: BuffState, job: Job, view: View) -> Commands:
        state.model.received(job)
        self.charge(state, job.client, view)
        yield from self.next(state, job.client, view)

    def summed(self, state: BuffState, task: int, total: Vector, count: int, view: View) -> Commands:
        if count:
            self.step(state.model, -self.lr, total * (1.0 / count))
        yield from self.opened_sum(state, view)
