"""How long the parts of a job take: its download, its compute, its upload.

A description of delays binds to a `Part`. The amount is what the part works through: local steps when it computes,
bytes when it moves a model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, Protocol

from offbeat.core.events import Job
from offbeat.core.random import Stream
from offbeat.timing.laws import Law

Per = Literal["job", "step"]


class Part(Protocol):
    """One part of every job, bound to its clients."""

    def draw(self, job: Job, amount: int, stream: Stream) -> float:
        """The time that this job takes."""

    def mean(self, client: int, amount: int = 1, task: int = 0) -> float:
        """The expected time of a job of this amount."""

    def cdf(self, t: float, client: int, amount: int = 1, task: int = 0) -> float:
        """The probability that a job of this amount takes at most t."""


class Delay(Protocol):
    """A description of delays, one for each job or one for each local step."""

    @property
    def per(self) -> Per:
        """ "job", or "step": one draw for each job, multiplied by its number of steps."""

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Part:
        """Draw what is fixed for a run; `factors` slow each client down."""


class Scaled:
    """One law for all: size of the task × factor of the client × a draw, times the amount where `per_unit`."""

    __slots__ = ("_draw", "factors", "law", "per_unit", "sizes")

    def __init__(self, law: Law, sizes: Sequence[float], factors: Sequence[float], per_unit: bool) -> None:
        self.law, self.sizes, self.factors, self.per_unit = law, sizes, factors, per_unit
        self._draw = law.draw  # one look-up less for each job

    def draw(self, job: Job, amount: int, stream: Stream) -> float:
        return self.at(job, amount, stream.uniform())

    def at(self, job: Job, amount: int, u: float) -> float:
        """The time of a job that drew this number in (0, 1)."""
        time = self._draw(u) * self.sizes[job.task] * self.factors[job.client]
        return time * amount if self.per_unit else time

    def mean(self, client: int, amount: int = 1, task: int = 0) -> float:
        return self.law.mean * self._scale(client, amount, task)

    def cdf(self, t: float, client: int, amount: int = 1, task: int = 0) -> float:
        scale = self._scale(client, amount, task)
        return self.law.cdf(t / scale) if scale > 0 else float(t >= 0)

    def _scale(self, client: int, amount: int, task: int) -> float:
        return self.sizes[task] * self.factors[client] * (amount if self.per_unit else 1)


class Classed:
    """A law for each class of clients: factor of the client × a draw of its class, times the amount."""

    __slots__ = ("classes", "factors", "laws")

    def __init__(self, laws: Sequence[Law], classes: Sequence[int], factors: Sequence[float]) -> None:
        self.laws, self.classes, self.factors = laws, classes, factors

    def draw(self, job: Job, amount: int, stream: Stream) -> float:
        law = self.laws[self.classes[job.client]]
        return law.draw(stream.uniform()) * self.factors[job.client] * amount

    def mean(self, client: int, amount: int = 1, task: int = 0) -> float:
        return self.laws[self.classes[client]].mean * self.factors[client] * amount

    def cdf(self, t: float, client: int, amount: int = 1, task: int = 0) -> float:
        scale = self.factors[client] * amount
        return self.laws[self.classes[client]].cdf(t / scale) if scale > 0 else float(t >= 0)


class Replayed:
    """Recorded times, in order and again from the start; client i replays record i modulo their number."""

    __slots__ = ("factors", "records")

    def __init__(self, records: Sequence[Sequence[float]], factors: Sequence[float]) -> None:
        self.records, self.factors = records, factors

    def draw(self, job: Job, amount: int, stream: Stream) -> float:
        record = self._record(job.client)
        return record[job.number % len(record)] * self.factors[job.client]

    def mean(self, client: int, amount: int = 1, task: int = 0) -> float:
        record = self._record(client)
        return sum(record) / len(record) * self.factors[client]

    def cdf(self, t: float, client: int, amount: int = 1, task: int = 0) -> float:
        record = sorted(x * self.factors[client] for x in self._record(client))
        return bisect_right(record, t) / len(record)

    def _record(self, client: int) -> Sequence[float]:
        return self.records[client % len(self.records)]
