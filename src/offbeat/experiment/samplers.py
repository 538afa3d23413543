"""Which settings a tuning tries: spread evenly over ranges and lists, or proposed by Optuna."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, inf, isfinite, log, prod
from typing import Any, Literal, Protocol

from offbeat.core.errors import Checked, SettingError, finite, not_installed, positive
from offbeat.experiment import schema

Settings = Mapping[str, Any]  # values by their path of keys
SamplerName = Literal["latin", "tpe", "qmc", "random"]
_OPTUNA = {"tpe": "TPESampler", "qmc": "QMCSampler", "random": "RandomSampler"}
_WAVES = 3  # in which a sampler that learns proposes its settings


@dataclass(frozen=True)
class Values(Checked):
    """A range: values between two numbers; whole ones if both are.

    low: the smallest value.
    high: the largest value.
    log: spread values evenly over their logarithms.
    """

    low: int | float
    high: int | float
    log: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        finite(low=self.low, high=self.high)
        if self.log:
            positive(low=self.low)
        if not self.low < self.high:
            raise SettingError(f"low = {self.low!r}: must be below high = {self.high!r}")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> int | float:
        """The value at this share of the way from low to high."""
        if self.log:
            value = exp(log(self.low) + share * (log(self.high) - log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else float(f"{value:.4g}")


Axis = Values | Sequence[Any]


def axis(path: str, given: Any) -> Axis:
    """What a file or a call gives for a key: a list of values, or a table with low and high."""
    if isinstance(given, Values):
        return given
    if isinstance(given, Mapping):
        found: Values = schema.build(Values, given, f"tune.{path}")
        return found
    if isinstance(given, list | tuple) and given:
        return list(given)
    raise SettingError(f"tune.{path} = {given!r}: give a list of values, or {{ low = 0.01, high = 10.0 }}")


class Sampler(Protocol):
    """Proposes settings, and may learn from the costs of those it proposed."""

    waves: int

    def ask(self, count: int) -> list[Settings]:
        """At most so many settings; fewer if there are no more."""

    def tell(self, settings: Settings, cost: float) -> None:
        """What came of settings: the lower, the better."""


def sampler(name: SamplerName, axes: Mapping[str, Axis], seed: int) -> Sampler:
    """By name. `latin` is ours; the others are Optuna's."""
    return Latin(axes, seed) if name == "latin" else _Optuna(name, axes, seed)


class Latin:
    """A Latin hypercube: each range is cut into as many parts as there are settings, and each part is used once.

    With a single range that is an even grid. Lists take turns; if all axes are lists and their product is small
    enough, every combination is tried once.
    """

    waves = 1

    def __init__(self, axes: Mapping[str, Axis], seed: int) -> None:
        self.axes, self._random = axes, random.Random(seed)

    def ask(self, count: int) -> list[Settings]:
        lists = [each for each in self.axes.values() if not isinstance(each, Values)]
        if len(lists) == len(self.axes) and prod(map(len, lists)) <= count:
            return [dict(zip(self.axes, values, strict=True)) for values in product(*lists)]
        columns = {path: self._column(each, count) for path, each in self.axes.items()}
        found = [{path: column[at] for path, column in columns.items()} for at in range(count)]
        return list({repr(sorted(each.items())): each for each in found}.values())

    def _column(self, axis: Axis, count: int) -> list[Any]:
        if isinstance(axis, Values):
            values: list[Any] = [axis.at(at / (count - 1) if count > 1 else 0.5) for at in range(count)]
        else:
            values = [axis[at % len(axis)] for at in range(count)]
        if len(self.axes) > 1:
            self._random.shuffle(values)
        return values

    def tell(self, settings: Settings, cost: float) -> None:
        pass


class _Optuna:
    """One of Optuna's samplers; one that learns proposes in waves, each after the costs of those before."""

    def __init__(self, name: str, axes: Mapping[str, Axis], seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise not_installed(f"sampler = {name!r} needs Optuna", "tune") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.axes, self._states = axes, optuna.trial.TrialState
        self.waves = _WAVES if name == "tpe" else 1
        options: dict[str, Any] = {"n_startup_trials": 1} if name == "tpe" else {}
        self._study = optuna.create_study(sampler=getattr(optuna.samplers, _OPTUNA[name])(seed=seed, **options))
        kinds = optuna.distributions
        self._space: dict[str, Any] = {}
        for path, each in axes.items():
            if not isinstance(each, Values):
                self._space[path] = kinds.CategoricalDistribution(range(len(each)))  # a value may be a table
            elif each.whole:
                self._space[path] = kinds.IntDistribution(int(each.low), int(each.high), log=each.log)
            else:
                self._space[path] = kinds.FloatDistribution(each.low, each.high, log=each.log)
        self._asked: dict[str, Any] = {}

    def ask(self, count: int) -> list[Settings]:
        found: list[Settings] = []
        for _ in range(count):
            trial = self._study.ask(self._space)
            settings = {path: self._value(self.axes[path], value) for path, value in trial.params.items()}
            if repr(settings) not in self._asked:  # a list has few values, and one that was tried tells nothing new
                self._asked[repr(settings)] = trial
                found.append(settings)
        return found

    @staticmethod
    def _value(axis: Axis, value: Any) -> Any:
        if not isinstance(axis, Values):
            return axis[value]
        return value if axis.whole else float(f"{value:.4g}")

    def tell(self, settings: Settings, cost: float) -> None:
        failed = None if isfinite(cost) else self._states.FAIL
        self._study.tell(self._asked[repr(settings)], cost if cost < inf and failed is None else None, state=failed)
