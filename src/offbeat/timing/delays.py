"""Descriptions of delays: a law, what it is multiplied by, and whether it is drawn for a job or for a step.

Times have the unit that the settings have; only the phone tables and `Bandwidth` fix one, the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from offbeat.core.errors import SettingError, not_negative, one_of, ordered, positive, unknown
from offbeat.timing import laws
from offbeat.timing.parts import Per, Replayed, Scaled

Sizes = float | Mapping[str, float]  # one number, or one for each task by its name


@dataclass(frozen=True)
class Normal:
    """A number for each client, drawn once from a normal distribution.

    mean: mean of the distribution.
    std: standard deviation.
    min: smallest value; a draw below it becomes this.
    """

    mean: float
    std: float
    min: float

    def __post_init__(self) -> None:
        positive(mean=self.mean, min=self.min)
        not_negative(std=self.std)


@dataclass(frozen=True)
class Exponential:
    """Exponential, memoryless job times, whatever the number of local steps (AREA, §5).

    rate: jobs per unit of time, λ: one number for all clients, a normal distribution, or a list with one rate for each
        client.
    """

    rate: float | Normal | tuple[float, ...]
    per: ClassVar[Per] = "job"

    def __post_init__(self) -> None:
        if isinstance(self.rate, tuple):
            positive(**{f"rate[{i}]": rate for i, rate in enumerate(self.rate)})
        elif not isinstance(self.rate, Normal):
            positive(rate=self.rate)

    def rates(self, clients: int, seed: int) -> list[float]:
        """λ_i of every client."""
        if isinstance(self.rate, Normal):
            law = laws.normal(self.rate.mean, self.rate.std, self.rate.min)
            return laws.each(law, clients, seed, laws.RATE)
        if isinstance(self.rate, tuple):
            return laws.one_each("rate", self.rate, clients)
        return [float(self.rate)] * clients

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part whose factors are the clients' mean times."""
        means = [factor / rate for factor, rate in zip(factors, self.rates(clients, seed), strict=True)]
        return Scaled(laws.exponential(), [1.0] * len(tasks), means, per_unit=False)


@dataclass(frozen=True)
class ShiftedExponential:
    """β + Exp(mean 2β) per local step: one draw for each job, times its number of steps (FedAST, C.6).

    per_step: size of the task, β of a client at normal speed; a number, or one for each task by its name.
    """

    per_step: Sizes
    per: ClassVar[Per] = "step"

    def __post_init__(self) -> None:
        check_sizes("per_step", self.per_step)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part whose law has β = 1."""
        return Scaled(laws.shifted(1.0, 2.0), sizes("per_step", self.per_step, tasks), factors, per_unit=True)


@dataclass(frozen=True)
class Constant:
    """Always the same time.

    time: a number, or one for each task by its name.
    per: whether it is the time of a "job" or of a local "step".
    """

    time: Sizes
    per: Per = "job"

    def __post_init__(self) -> None:
        check_sizes("time", self.time)
        one_of(Per, per=self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of the unit law."""
        return Scaled(laws.point(), sizes("time", self.time, tasks), factors, self.per == "step")


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of a local step over the speed of the fastest client (DeFedAvg, §4.1.3).

    per_step: operations of a local step; a number, or one for each task by its name.
    speed: operations per unit of time.
    """

    per_step: Sizes
    speed: float
    per: ClassVar[Per] = "step"

    def __post_init__(self) -> None:
        check_sizes("per_step", self.per_step)
        positive(speed=self.speed)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of the unit law."""
        times = [flops / self.speed for flops in sizes("per_step", self.per_step, tasks)]
        return Scaled(laws.point(), times, factors, per_unit=True)


@dataclass(frozen=True)
class Uniform:
    """Times spread evenly between two bounds.

    low: shortest time.
    high: longest time.
    per: whether a time is drawn for each "job", or is that of a local "step".
    """

    low: float
    high: float
    per: Per = "job"

    def __post_init__(self) -> None:
        not_negative(low=self.low)
        positive(high=self.high)
        ordered(low=self.low, high=self.high)
        one_of(Per, per=self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of this law."""
        return Scaled(laws.uniform(self.low, self.high), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class LogNormal:
    """Log-normal times: a moderate tail.

    sigma: standard deviation of the logarithm, σ.
    median: median time; give it or the mean.
    mean: mean time; give it or the median.
    per: whether a time is drawn for each "job", or is that of a local "step".
    """

    sigma: float
    median: float | None = None
    mean: float | None = None
    per: Per = "job"

    def __post_init__(self) -> None:
        not_negative(sigma=self.sigma)
        positive(median=self.median, mean=self.mean)
        if (self.median is None) == (self.mean is None):
            raise SettingError(f"median = {self.median}, mean = {self.mean}: give exactly one of the two")
        one_of(Per, per=self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of this law."""
        median = self.median
        if median is None:
            assert self.mean is not None
            median = self.mean * math.exp(-self.sigma * self.sigma / 2)
        return Scaled(laws.lognormal(median, self.sigma), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class Pareto:
    """Pareto times, longer than t with probability (scale / t)^shape: a heavy tail.

    scale: shortest time.
    shape: the smaller, the heavier the tail; the mean is infinite at 1 and below, the variance at 2 and below.
    per: whether a time is drawn for each "job", or is that of a local "step".
    """

    scale: float
    shape: float
    per: Per = "job"

    def __post_init__(self) -> None:
        positive(scale=self.scale, shape=self.shape)
        one_of(Per, per=self.per)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part of this law."""
        return Scaled(laws.pareto(self.scale, self.shape), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class RecordedTimes:
    """Recorded times of whole jobs, replayed in order and again from the start.

    records: the times of each recorded client; client i replays record i modulo their number.
    """

    records: tuple[tuple[float, ...], ...]
    per: ClassVar[Per] = "job"

    def __post_init__(self) -> None:
        if not self.records or not all(self.records):
            raise SettingError("records: every recorded client needs at least one time")
        for record in self.records:
            for time in record:
                not_negative(records=time)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Replayed:
        """A part that draws nothing."""
        return Replayed(self.records, factors)


def check_sizes(name: str, value: Sizes) -> None:
    """Refuse sizes that are not positive."""
    if not isinstance(value, Mapping):
        positive(**{name: value})
    elif not value:
        raise SettingError(f"{name} = {value!r}: must be a number, or one for each task by its name")
    else:
        positive(**{f"{name}.{task}": size for task, size in value.items()})


def sizes(name: str, value: Sizes, tasks: Sequence[str]) -> list[float]:
    """The size of every task, in the order of their numbers."""
    if not isinstance(value, Mapping):
        return [float(value)] * len(tasks)
    for task in tasks:
        if task not in value:
            raise unknown(f"task in {name}:", task, value)
    return [float(value[task]) for task in tasks]
