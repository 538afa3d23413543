"""A [sweep] table: the points of a grid over any keys of an experiment, as experiments of one run each."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core.errors import OffbeatError, SettingError
from offbeat.core.vectors import even
from offbeat.experiment.describe import check_files
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.overrides import join_path, label as label_of, put, split_path
from offbeat.experiment.tables import algorithm_tables
from offbeat.report.grid import brief
from offbeat.watch.results import Result

_COMMON = ("sweep", "trials", "device", "executor", "workers", "ray", "trackers", "theory", "threads", "memory")
_OWNERS = [["problem", name] for name in ("data", "client", "split", "holdout")]  # on which their number may depend


@dataclass(frozen=True)
class Point:
    """One run of a sweep: `table` is its experiment, with one algorithm and one seed."""

    number: int
    label: str
    seed: int
    settings: Mapping[str, Any]  # what the sweep put in, by key
    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name that people read."""
        return ", ".join([self.label, *(f"{k} = {v}" for k, v in brief(self.settings).items()), f"seed {self.seed}"])


class Grid:
    """Every algorithm of the file, under every seed, at every combination of the values given for keys in [sweep].

    A key of one algorithm (`algorithm.area.lr`) multiplies the runs of that algorithm alone. Several keys joined by
    ` & ` get the same value and are one axis.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = dict(table)
        self.base = {k: v for k, v in table.items() if k != "sweep"}
        self.axes = dict(_axes(table.get("sweep", {})))
        self.experiment = Experiment.parse(self.base)  # the file must be in order without the sweep, too
        self._check()
        self.base = dict(self.experiment.table)
        self.points = list(self._points())
        self._try()

    def _check(self) -> None:
        for path, values in self.axes.items():
            if not isinstance(values, list) or not values:
                raise SettingError(f"sweep.{path} = {values!r}: give a list of at least one value")
            if again := [value for at, value in enumerate(values) if value in values[:at]]:
                raise SettingError(f"sweep.{path} = {values!r}: {again[0]!r} is given twice; leave one out")
            for key in path.split(" & "):
                self._check_key(path, key, values)

    def _try(self) -> None:
        """Every value is read once, in the first run that has it, so that a mistake is found before anything runs."""
        seen = set[tuple[str, str]]()
        for point in self.points:
            new = {(path, repr(value)) for path, value in point.settings.items()} - seen
            if new:
                try:
                    for task in Experiment.parse(point.table).tasks:
                        check_files(task.problem)
                except OffbeatError as error:
                    raise SettingError(f"sweep, {point.name}: {error}") from None
                seen |= new

    def _check_key(self, path: str, key: str, values: Sequence[Any]) -> None:
        first, *rest = split_path(key)
        if first in _COMMON:
            raise SettingError(f"sweep.{path}: {first} is the same for all runs; set it outside [sweep]")
        if first == "algorithm" and len(rest) < 2:
            raise SettingError(
                f"sweep.{path}: name a key of an algorithm, as in algorithm.{rest[0] if rest else '*'}.lr"
            )
        if [first, *rest[:1]] in _OWNERS and "clients" not in self.base["problem"]:
            raise SettingError(f"sweep.{path}: the number of clients may depend on it; set problem.clients")
        put(copy.deepcopy(self.base), key, values[0], f"sweep.{path}")
        if key == "seed":
            if path != key:
                raise SettingError(f"sweep.{path}: seeds are a separate axis")
            if self.experiment.trials > 1:
                raise SettingError("sweep.seed and trials both set the seeds; keep one")
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int):
                    raise SettingError(f"sweep.seed holds {value!r}: seeds are whole numbers")

    def _points(self) -> Iterator[Point]:
        seeds = dict.fromkeys(spec.seed for spec in self.experiment.runs)
        numbers = itertools.count()
        for seed in self.axes.get("seed", seeds):
            for index, label in enumerate(self.experiment.labels):
                mine = [path for path in self.axes if path != "seed" and self._concerns(path, index)]
                for values in itertools.product(*(self.axes[path] for path in mine)):
                    settings = dict(zip(mine, values, strict=True))
                    yield Point(next(numbers), label, int(seed), settings, self._experiment(index, seed, settings))

    def _concerns(self, path: str, index: int) -> bool:
        given = self.base["algorithm"]  # in a list, a path may also have its name, which others may have, too
        named = [label_of(given[index])] if isinstance(given, list) else []
        mine = ("*", str(index), self.experiment.labels[index], *named)
        several = [split_path(key) for key in path.split(" & ")]
        return any(keys[0] != "algorithm" or keys[1] in mine for keys in several)

    def _experiment(self, index: int, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
        table = copy.deepcopy(self.base)
        for path, value in settings.items():
            for key in path.split(" & "):
                put(table, key, value, f"sweep.{path}")
        name = self.experiment.labels[index]
        only = {name: list(algorithm_tables(table["algorithm"]).values())[index]}
        return {**table, "algorithm": only, "seed": int(seed), "trials": 1}


def _axes(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(key, values): nested tables are one dotted key."""
    if not isinstance(node, Mapping):
        yield path, node
        return
    for key, value in node.items():
        whole = key if not path else join_path([key])  # "algorithm.*.lr" is a path already
        yield from _axes(value, f"{path}.{whole}" if path else whole)


def bundles(points: Sequence[Point], most: int) -> list[list[Point]]:
    """Runs that differ in nothing but the step size of their clients, up to so many, in their order.

    >>> sizes = [{"algorithm.area.local.sgd.lr": lr} for lr in (0.1, 0.2, 0.3)]
    >>> points = [Point(n, "area", seed=0, settings=each, table={}) for n, each in enumerate(sizes)]
    >>> [[point.number for point in bundle] for bundle in bundles(points, most=2)]
    [[0, 1], [2]]
    """
    alike: dict[str, list[Point]] = {}
    for point in points:
        others = {path: value for path, value in point.settings.items() if not _is_step_size(path)}
        alike.setdefault(json.dumps([point.label, point.seed, others]), []).append(point)
    found = []
    for several in alike.values():
        size = even(len(several), most)
        found += [several[at : at + size] for at in range(0, len(several), size)]
    return sorted(found, key=lambda bundle: bundle[0].number)


def _is_step_size(path: str) -> bool:
    """Whether nothing depends on this axis but the step size of local trainers."""
    keys = [split_path(key) for key in path.split(" & ")]
    return all(len(k) == 5 and (k[0], k[2], k[4]) == ("algorithm", "local", "lr") for k in keys)


def together(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results that differ in nothing but the seed, by (label, settings)."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.algorithm, json.dumps(result.settings, sort_keys=True)), []).append(result)
    return groups
