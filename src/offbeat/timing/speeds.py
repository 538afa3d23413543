"""How much slower than nominal each client computes, drawn once for a run: a factor of 2 takes twice as long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from offbeat.core.errors import Checked, Positive, SettingError, Share, ordered
from offbeat.timing import laws


class Speeds(Protocol):
    """A description of the clients' speeds."""

    def factors(self, clients: int, seed: int) -> list[float]:
        """The factor by which each client is slower."""


@dataclass(frozen=True)
class SpeedClasses(Checked):
    """Classes of clients with exact shares, rounded to whole clients; the seed says who is in which.

    of: by the name of a class, its share of the clients and its factor, as in { slow = [0.25, 1.3], … }.
    """

    of: Mapping[str, tuple[Share, Positive]]

    def __post_init__(self) -> None:
        if not self.of:
            raise SettingError(f"of = {self.of!r}: must hold at least one class, name = (share, factor)")
        super().__post_init__()
        for name, value in self.of.items():
            if not isinstance(value, tuple) or len(value) != 2:
                raise SettingError(f"of.{name} = {value!r}: must be two numbers, its share and its factor")
        total = sum(value[0] for value in self.of.values())
        if abs(total - 1) > 1e-6:
            raise SettingError(f"of = {self.of!r}: the shares of {', '.join(self.of)} must sum to 1, not {total:g}")

    def factors(self, clients: int, seed: int) -> list[float]:
        shares, by_class = zip(*self.of.values(), strict=True)
        return [float(by_class[i]) for i in laws.divide(shares, clients, seed, laws.SPEED)]


@dataclass(frozen=True)
class Spread(Checked):
    """Factors spread evenly between two bounds (DeFedAvg, §4.1.3: from 1 to 5).

    low: smallest factor.
    high: largest factor.
    """

    low: Positive
    high: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered(low=self.low, high=self.high)

    def factors(self, clients: int, seed: int) -> list[float]:
        return laws.each(laws.uniform(self.low, self.high), clients, seed, laws.SPEED)


@dataclass(frozen=True)
class Factors(Checked):
    """One factor for each client, given.

    values: the factors, in the order of the clients.
    """

    values: tuple[Positive, ...]

    def factors(self, clients: int, seed: int) -> list[float]:
        return laws.one_each("timing.speeds", self.values, clients)
