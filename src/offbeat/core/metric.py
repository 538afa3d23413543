"""Metrics: how good a model is, which way is better, and values that are to be reached."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

from offbeat.core.errors import SettingError, finite, share


@dataclass(frozen=True)
class Metric:
    """A number that tells how good a model is.

    higher: more is better.   share: it is in [0, 1], and shown in per cent.
    """

    name: str
    higher: bool = False
    share: bool = False

    def better(self, value: float, other: float) -> bool:
        """Whether a value is at least as good as another; nan is not."""
        return value >= other if self.higher else value <= other

    @property
    def worst(self) -> float:
        """A value that every other is better than."""
        return float("-inf" if self.higher else "inf")

    @property
    def plain(self) -> Metric:
        """What is said of it, without how it is computed."""
        return Metric(self.name, self.higher, self.share)


LOSS = Metric("loss")
PERSONAL = ("personal", "personal_worst")  # of clients' own models: the mean, and the mean of the worst tenth


@dataclass(frozen=True)
class Goal:
    """A value of a metric that is to be reached."""

    metric: Metric
    value: float

    def __post_init__(self) -> None:
        check = share if self.metric.share else finite
        check(**{self.metric.name: self.value})

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation shows this value or a better one; nan and a missing metric do not."""
        return self.metric.better(metrics.get(self.metric.name, nan), self.value)


def all_metrics(metrics: Sequence[Metric], personal: bool = False, leads: bool = False) -> tuple[Metric, ...]:
    """All that an evaluation of a task gives, the one that tables, targets and rankings go by first.

    That is the task's main metric of the server's model.
    metrics: of its problem.   personal: whether clients' own models are evaluated, too.   leads: whether theirs comes
    first, because the server's model alone lacks what clients keep.
    """
    known = tuple(metric.plain for metric in metrics)
    known += () if LOSS in known else (LOSS,)
    own = known[0]
    each = tuple(Metric(name, own.higher, own.share) for name in PERSONAL)
    return known if not personal else (*each, *known) if leads else (*known, *each)


def in_order(values: Mapping[str, float], metrics: Sequence[Metric]) -> dict[str, float]:
    """The values of an evaluation in the order of the metrics; then what is none of them."""
    known = {metric.name: values[metric.name] for metric in metrics if metric.name in values}
    return {**known, **values}


def own_metric(metrics: Iterable[Metric]) -> Metric:
    """The task's main metric among all that an evaluation gives, whichever leads."""
    return next((metric for metric in metrics if metric.name not in PERSONAL), LOSS)


def find(name: str, metrics: Iterable[Metric], where: str, others: Iterable[str] = ()) -> Metric:
    """The metric of this name among these. where: the path of the setting.   others: what else it could have been."""
    known = {metric.name: metric for metric in metrics}
    if name not in known:
        near = difflib.get_close_matches(name, [*known, *others], n=1, cutoff=0.75)
        there = f"did you mean {near[0]!r}?" if near else f"the task measures {', '.join(known)}"
        if others and not near:
            there += f"; otherwise {', '.join(others)}"
        raise SettingError(f"{where}: unknown; {there}")
    return known[name]


def goal(name: str, value: float, metrics: Iterable[Metric], where: str, others: Iterable[str] = ()) -> Goal:
    """The goal that a setting names. where: the path of the table that it is in."""
    metric = find(name, metrics, f"{where}.{name}", others)
    try:
        return Goal(metric, value)
    except SettingError as error:
        raise SettingError(f"{where}.{error}") from None
