"""Descriptions of delays: a law, what it is multiplied by, and whether it is drawn for a job or for a step.

Times have the unit that the settings have; only the phone tables and `Bandwidth` fix one, the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from offbeat.core.errors import SettingError, unknown
from offbeat.timing import laws
from offbeat.timing.checks import at_least_zero, one_each, positive
from offbeat.timing.parts import Replayed, Scaled

Sizes = float | Mapping[str, float]  # one number, or one for each task by its name


@dataclass(frozen=True)
class Normal:
    """A number for each client, drawn once: normal, and what falls below `min` becomes `min`."""

    mean: float
    std: float
    min: float

    def __post_init__(self) -> None:
        positive("mean", self.mean)
        at_least_zero("std", self.std)
        positive("min", self.min)


@dataclass(frozen=True)
class Exponential:
    """The time between two messages of client i is exponential with rate λ_i, whatever its steps (AREA, §5).

    rate: λ; one number for all, a `Normal`, or a tuple with one rate for each client.
    """

    rate: float | Normal | tuple[float, ...]
    per: ClassVar[str] = "job"

    def __post_init__(self) -> None:
        if isinstance(self.rate, Normal):
            return
        for value in self.rate if isinstance(self.rate, tuple) else (self.rate,):
            positive("rate", value)

    def rates(self, clients: int, seed: int) -> list[float]:
        """λ_i of every client."""
        if isinstance(self.rate, Normal):
            law = laws.normal(self.rate.mean, self.rate.std, self.rate.min)
            return laws.each(law, clients, seed, laws.RATE)
        if isinstance(self.rate, tuple):
            return one_each("rate", self.rate, clients)
        return [float(self.rate)] * clients

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part whose factors are the clients' mean times."""
        means = [factor / rate for factor, rate in zip(factors, self.rates(clients, seed), strict=True)]
        return Scaled(laws.exponential(), [1.0] * len(tasks), means, per_unit=False)


@dataclass(frozen=True)
class ShiftedExponential:
    """β + Exp(mean 2β) for a local step; one draw for each job, times its number of steps (FedAST, appendix C.6).

    per_step: size of the task, β of a client at normal speed; a number, or one for each task by its name.
    """

    per_step: Sizes
    per: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        check_sizes("per_step", self.per_step)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part whose law has β = 1."""
        return Scaled(laws.shifted(1.0, 2.0), sizes("per_step", self.per_step, tasks), factors, per_unit=True)


@dataclass(frozen=True)
class Constant:
    """Always the same time.

    time: a number, or one for each task by its name.   per: "job" or "step".
    """

    time: Sizes
    per: str = "job"

    def __post_init__(self) -> None:
        check_sizes("time", self.time)
        check_per(self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of the unit law."""
        return Scaled(laws.point(), sizes("time", self.time, tasks), factors, self.per == "step")


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of a step over the speed of the fastest client (DeFedAvg, §4.1.3).

    per_step: operations, a number or one for each task by its name.   speed: operations in a unit of time.
    """

    per_step: Sizes
    speed: float
    per: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        check_sizes("per_step", self.per_step)
        positive("speed", self.speed)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of the unit law."""
        times = [flops / self.speed for flops in sizes("per_step", self.per_step, tasks)]
        return Scaled(laws.point(), times, factors, per_unit=True)


@dataclass(frozen=True)
class Uniform:
    """Evenly spread over [low, high].

    per: "job" or "step".
    """

    low: float
    high: float
    per: str = "job"

    def __post_init__(self) -> None:
        at_least_zero("low", self.low)
        positive("high", self.high)
        if self.low > self.high:
            raise SettingError(f"low = {self.low!r} exceeds high = {self.high!r}; exchange them")
        check_per(self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of this law."""
        return Scaled(laws.uniform(self.low, self.high), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class LogNormal:
    """e to the power of a normal number: a moderate tail.

    sigma: standard deviation of the logarithm.   median, mean: exactly one of them.   per: "job" or "step".
    """

    sigma: float
    median: float | None = None
    mean: float | None = None
    per: str = "job"

    def __post_init__(self) -> None:
        at_least_zero("sigma", self.sigma)
        if (self.median is None) == (self.mean is None):
            raise SettingError(f"median = {self.median}, mean = {self.mean}: give exactly one of the two")
        positive("median or mean", self.mean if self.median is None else self.median)
        check_per(self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of this law."""
        median = self.median
        if median is None:
            assert self.mean is not None
            median = self.mean * math.exp(-self.sigma * self.sigma / 2)
        return Scaled(laws.lognormal(median, self.sigma), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class Pareto:
    """At least `scale`, and longer than t with probability (scale / t)^shape: a heavy tail.

    shape: the mean is infinite at 1 and below, the variance at 2 and below.   per: "job" or "step".
    """

    scale: float
    shape: float
    per: str = "job"

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        positive("shape", self.shape)
        check_per(self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of this law."""
        return Scaled(laws.pareto(self.scale, self.shape), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class Replay:
    """Recorded times of whole jobs, replayed in order and again from the start.

    records: the times of each recorded client; client i replays record i modulo their number.
    """

    records: tuple[tuple[float, ...], ...]
    per: ClassVar[str] = "job"

    def __post_init__(self) -> None:
        if not self.records or not all(self.records):
            raise SettingError("records: every recorded client needs at least one time")
        for record in self.records:
            for time in record:
                at_least_zero("time", time)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Replayed:
        """A part that draws nothing."""
        return Replayed(self.records, factors)


def check_per(per: str) -> None:
    """Refuse anything but "job" and "step"."""
    if per not in ("job", "step"):
        raise SettingError(f'per = {per!r}: a time is drawn per "job" or per "step"')


def check_sizes(name: str, value: Sizes) -> None:
    """Refuse sizes that are not positive."""
    if not isinstance(value, Mapping):
        positive(name, value)
        return
    if not value:
        raise SettingError(f"{name} is empty; give a number, or one for each task by its name")
    for task, size in value.items():
        positive(f"{name}.{task}", size)


def sizes(name: str, value: Sizes, tasks: Sequence[str]) -> list[float]:
    """The size of every task, in the order of their numbers."""
    if not isinstance(value, Mapping):
        return [float(value)] * len(tasks)
    for task in tasks:
        if task not in value:
            raise unknown(f"task in {name}:", task, value)
    return [float(value[task]) for task in tasks]
