"""The verbs that algorithms share: buffers, staleness weights, aggregation criteria, schedules, who works next.

Verbs only. Each algorithm's course of events stays visible in its own file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from offbeat.core.errors import SettingError, positive
from offbeat.core.events import Alarm, Job, Send
from offbeat.core.local import Carry, Work, Wrapper
from offbeat.core.random import Stream
from offbeat.core.server import Commands, Model, Server, View
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector

# What a buffer holds


@dataclass
class Buffer(State):
    """A weighted sum of vectors and how many went into it."""

    sum: Vector | None = None
    count: int = 0

    def add(self, weight: float, vector: Vector) -> None:
        term = vector if weight == 1.0 else weight * vector
        self.sum = term if self.sum is None else self.sum + term
        self.count += 1

    def take_mean(self) -> Vector:
        """The sum over the number of vectors (not over the sum of weights), and the buffer is empty again."""
        if self.sum is None:
            raise ValueError("the mean of an empty buffer")
        mean = self.sum * (1.0 / self.count)
        self.sum, self.count = None, 0
        return mean


def check_memory(name: str, model: Vector, clients: int, most: float) -> None:
    """Refuse a table of one vector a client that does not fit."""
    wanted = clients * model.numel() * model.element_size()
    if wanted > most:
        raise SettingError(
            f"{name} keeps a vector for each of {clients} clients, {wanted / 1e9:.3g} GB, but memory = "
            f"{most / 1e9:.3g} GB; raise it, or use AREA, whose clients keep their own"
        )


# How much a stale update counts: functions of staleness ≥ 0, 1 for a fresh update

Staleness = Callable[[int], float]


def constant(staleness: int) -> float:
    """Every update counts the same."""
    return 1.0


@dataclass(frozen=True)
class Polynomial:
    """(1 + τ)^−power; power ½ is FedBuff's 1/sqrt(1 + τ)."""

    power: float = 0.5

    def __post_init__(self) -> None:
        if self.power < 0:
            raise SettingError(f"power = {self.power}: a stale update must not count more than a fresh one; use ≥ 0")

    def __call__(self, staleness: int) -> float:
        return float((1.0 + staleness) ** -self.power)


@dataclass(frozen=True)
class Hinge:
    """1 up to staleness `after`, then 1/(slope·(τ − after) + 1)."""

    slope: float = 10.0
    after: float = 4.0

    def __post_init__(self) -> None:
        positive(slope=self.slope)

    def __call__(self, staleness: int) -> float:
        return 1.0 if staleness <= self.after else 1.0 / (self.slope * (staleness - self.after) + 1.0)


# When the server aggregates (AREA, remark 2)


@dataclass(frozen=True)
class Every:
    """After every `count` messages, Δ."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingError(f"every {self.count} messages: must be at least 1")

    def due(self, messages: int) -> bool:
        return messages >= self.count

    def wait(self, rng: Stream) -> float | None:
        return None


@dataclass(frozen=True)
class Period:
    """After every fixed stretch of time."""

    time: float

    def __post_init__(self) -> None:
        positive(period=self.time)

    def due(self, messages: int) -> bool:
        return False

    def wait(self, rng: Stream) -> float | None:
        return self.time


@dataclass(frozen=True)
class Poisson:
    """At random times, `rate` of them per unit of time, λ_s."""

    rate: float

    def __post_init__(self) -> None:
        positive(rate=self.rate)

    def due(self, messages: int) -> bool:
        return False

    def wait(self, rng: Stream) -> float | None:
        return rng.exponential(1.0 / self.rate)


Criterion = Every | Period | Poisson
AGGREGATE = "aggregate"


@lru_cache(typed=True)
def criterion(value: int | Criterion) -> Criterion:
    """A plain number means every so many messages."""
    return Every(value) if isinstance(value, int) else value


def alarm(when: Criterion, view: View) -> Iterator[Alarm]:
    """The alarm for the next aggregation, if the criterion goes by the clock."""
    wait = when.wait(view.rng)
    if wait is not None:
        yield Alarm(wait, AGGREGATE)


def optimal_rate(rates: Sequence[float]) -> float:
    """λ_s* = sqrt(Σλ_i / ((2/n) Σ 1/λ_i)): the aggregation rate that minimises theorem 8's bound (AREA, §4.2).

    >>> round(optimal_rate([10.0] * 128), 3)     # equal rates: λ·sqrt(n/2)
    80.0
    """
    if not rates or min(rates) <= 0:
        raise SettingError(f"rates = {list(rates)[:4]}…: need one positive rate per client")
    return math.sqrt(sum(rates) / ((2.0 / len(rates)) * sum(1.0 / r for r in rates)))


# Step sizes that the server hands out


@dataclass(frozen=True)
class Steady:
    """α_k = lr."""

    lr: float

    def __post_init__(self) -> None:
        positive(lr=self.lr)

    def __call__(self, k: int) -> float:
        return self.lr


@dataclass(frozen=True)
class Decay:
    """α_k = c / (k + d)."""

    c: float
    d: float = 1.0

    def __post_init__(self) -> None:
        positive(c=self.c, d=self.d)

    def __call__(self, k: int) -> float:
        return self.c / (k + self.d)


Schedule = Callable[[int], float]

# Who works next


@dataclass
class OneModel(State):
    """The state of a server with one model; algorithms add their own fields."""

    model: Model


S = TypeVar("S", bound=OneModel)


def hand_out(model: Model, clients: Iterable[int], lr: float | None = None) -> Iterator[Send]:
    """Send the model to these clients."""
    payload = {"model": model.vector}
    for client in clients:
        yield Send(client, payload, model.version, lr=lr)


@dataclass(frozen=True)
class Flow(Server[S]):
    """A server whose clients keep working: each one that reports, fails or joins is followed by the next.

    concurrency: clients at work at once, the next drawn uniformly among the idle ones; None: client-driven, all work
        and whoever reported gets the next model at once.
    """

    concurrency: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise SettingError(
                f"concurrency = {self.concurrency}: at least one client must work; leave it out for client-driven"
            )

    def started(self, state: S, view: View) -> Commands:
        clients = view.everyone() if self.concurrency is None else view.idle(self.concurrency)
        yield from hand_out(state.model, clients, self.local_lr(state))

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        yield from self.next(state, job.client, view)

    def joined(self, state: S, client: int, view: View) -> Commands:
        yield from self.next(state, client, view)

    def next(self, state: S, client: int, view: View) -> Commands:
        """Work for whoever follows this client: itself, or idle clients until enough are at work."""
        if self.concurrency is not None:
            yield from hand_out(state.model, view.idle(self.concurrency - view.flying), self.local_lr(state))
        elif view.present(client):
            model = state.model
            yield Send(client, {"model": model.vector}, model.version, None, 0, self.local_lr(state))

    def local_lr(self, state: S) -> float | None:
        """The step size that goes with the model; None: the local half's own."""
        return None


# What a client reports


@dataclass(frozen=True)
class Reached(Wrapper):
    """Trains as its inner half does and sends the model it reached."""

    @property
    def sends(self) -> tuple[str, ...]:
        return ("model", *self.notes)

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        notes, memory = self.noted(carry, work)
        return {"model": carry["w"], **notes}, memory
