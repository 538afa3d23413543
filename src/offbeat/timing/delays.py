"""Descriptions of delays: a law, what it is multiplied by, and whether it is drawn for a job or for a step.

Times have the unit that the settings have; only the phone tables and `Bandwidth` fix one, the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from offbeat.core.errors import Checked, NotNegative, Positive, SettingError, ordered, unknown
from offbeat.timing import laws
from offbeat.timing.parts import Per, Replayed, Scaled

Sizes = Positive | Mapping[str, Positive]  # one number, or one for each task by its name


@dataclass(frozen=True)
class Normal(Checked):
    """A number for each client, drawn once from a normal distribution.

    mean: mean of the distribution.
    std: standard deviation.
    min: smallest value; a draw below it becomes this.
    """

    mean: Positive
    std: NotNegative
    min: Positive


@dataclass(frozen=True)
class Exponential(Checked):
    """Exponential, memoryless job times, whatever the number of local steps (AREA, §5).

    rate: jobs per unit of time, λ: one number for all clients, a normal distribution, or a list with one rate for each
        client.
    """

    rate: Positive | Normal | tuple[Positive, ...]
    per: ClassVar[Per] = "job"

    def rates(self, clients: int, seed: int) -> list[float]:
        """λ_i of every client."""
        if isinstance(self.rate, Normal):
            law = laws.normal(self.rate.mean, self.rate.std, self.rate.min)
            return laws.each(law, clients, seed, laws.RATE)
        if isinstance(self.rate, tuple):
            return laws.one_each("timing.exponential.rate", self.rate, clients)
        return [float(self.rate)] * clients

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        """A part whose factors are the clients' mean times."""
        means = [factor / rate for factor, rate in zip(factors, self.rates(clients, seed), strict=True)]
        return Scaled(laws.exponential(), [1.0] * len(tasks), means, per_unit=False)


@dataclass(frozen=True)
class ShiftedExponential(Checked):
    """β + Exp(mean 2β) per local step: one draw for each job, times its number of steps (FedAST, C.6).

    per_step: size of the task, β of a client at normal speed; a number, or one for each task by its name.
    """

    per_step: Sizes
    per: ClassVar[Per] = "step"

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        return Scaled(laws.shifted(1.0, 2.0), sizes("per_step", self.per_step, tasks), factors, per_unit=True)


@dataclass(frozen=True)
class Constant(Checked):
    """A constant time.

    time: a number, or one for each task by its name.
    per: whether it is the time of a "job" or of a local "step".
    """

    time: Sizes
    per: Per = "job"

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        return Scaled(laws.point(), sizes("time", self.time, tasks), factors, self.per == "step")


@dataclass(frozen=True)
class Flops(Checked):
    """Floating-point operations of a local step over the speed of the fastest client (DeFedAvg, §4.1.3).

    per_step: operations of a local step; a number, or one for each task by its name.
    speed: operations per unit of time.
    """

    per_step: Sizes
    speed: Positive
    per: ClassVar[Per] = "step"

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        times = [flops / self.speed for flops in sizes("per_step", self.per_step, tasks)]
        return Scaled(laws.point(), times, factors, per_unit=True)


@dataclass(frozen=True)
class Uniform(Checked):
    """Times spread evenly between two bounds.

    low: shortest time.
    high: longest time.
    per: whether a time is drawn for each "job", or is that of a local "step".
    """

    low: NotNegative
    high: Positive
    per: Per = "job"

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered(low=self.low, high=self.high)

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        return Scaled(laws.uniform(self.low, self.high), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class LogNormal(Checked):
    """Log-normal times: a moderate tail.

    sigma: standard deviation of the logarithm, σ.
    median: median time; give it or the mean.
    mean: mean time; give it or the median.
    per: whether a time is drawn for each "job", or is that of a local "step".
    """

    sigma: NotNegative
    median: Positive | None = None
    mean: Positive | None = None
    per: Per = "job"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.median is None) == (self.mean is None):
            raise SettingError(f"median = {self.median}, mean = {self.mean}: give exactly one of the two")

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        median = self.median
        if median is None:
            assert self.mean is not None
            median = self.mean * math.exp(-self.sigma * self.sigma / 2)
        return Scaled(laws.lognormal(median, self.sigma), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class Pareto(Checked):
    """Pareto times, longer than t with probability (scale / t)^shape: a heavy tail.

    scale: shortest time.
    shape: the smaller, the heavier the tail; the mean is infinite at 1 and below, the variance at 2 and below.
    per: whether a time is drawn for each "job", or is that of a local "step".
    """

    scale: Positive
    shape: Positive
    per: Per = "job"

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Scaled:
        return Scaled(laws.pareto(self.scale, self.shape), [1.0] * len(tasks), factors, self.per == "step")


@dataclass(frozen=True)
class RecordedTimes(Checked):
    """Recorded times of whole jobs, replayed in order and again from the start.

    records: the times of each recorded client; client i replays record i modulo their number.
    """

    records: tuple[tuple[NotNegative, ...], ...]
    per: ClassVar[Per] = "job"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.records or not all(self.records):
            raise SettingError("records: every recorded client needs at least one time")

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Replayed:
        return Replayed(self.records, factors)


def sizes(name: str, value: Sizes, tasks: Sequence[str]) -> list[float]:
    """The size of every task, in the order of their numbers."""
    if not isinstance(value, Mapping):
        return [float(value)] * len(tasks)
    for task in tasks:
        if task not in value:
            raise unknown(f"task in {name}:", task, value)
    return [float(value[task]) for task in tasks]
