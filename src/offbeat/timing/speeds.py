"""How much slower than nominal each client computes, drawn once for a run: a factor of 2 takes twice as long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from offbeat.core.errors import SettingError
from offbeat.timing import laws
from offbeat.timing.checks import one_each, pair, positive, share


class Speeds(Protocol):
    """A description of the clients' speeds."""

    def factors(self, clients: int, seed: int) -> list[float]:
        """The factor by which each client is slower."""


@dataclass(frozen=True)
class Classes:
    """Classes of clients with exact shares, rounded to whole clients; the seed says who is in which.

    of: (share, factor) of each class by its name, as in {"slow": (0.25, 1.3), "normal": (0.75, 1.0)}.
    """

    of: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        if not self.of:
            raise SettingError("no speed classes; give name = (share, factor) for each")
        for name, value in self.of.items():
            if not isinstance(value, tuple) or len(value) != 2:
                raise SettingError(f"{name} = {value!r}: expected two numbers, its share and its factor")
            share(f"{name}[0]", value[0])
            positive(f"{name}[1]", value[1])
        total = sum(value[0] for value in self.of.values())
        if abs(total - 1) > 1e-6:
            raise SettingError(f"the shares of {', '.join(self.of)} sum to {total:g}; they must sum to 1")

    def factors(self, clients: int, seed: int) -> list[float]:
        """The factor of each client's class."""
        shares, by_class = zip(*self.of.values(), strict=True)
        return [float(by_class[i]) for i in laws.divide(shares, clients, seed, laws.SPEED)]


@dataclass(frozen=True)
class Spread:
    """Factors spread evenly over [low, high] (DeFedAvg, §4.1.3: from 1 to 5)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        pair("factors", (self.low, self.high))

    def factors(self, clients: int, seed: int) -> list[float]:
        """One draw for each client."""
        return laws.each(laws.uniform(self.low, self.high), clients, seed, laws.SPEED)


@dataclass(frozen=True)
class Factors:
    """One factor for each client, given."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        for i, value in enumerate(self.values):
            positive(f"factor of client {i}", value)

    def factors(self, clients: int, seed: int) -> list[float]:
        """The values."""
        return one_each("speeds", self.values, clients)
