"""Cells of a paper's table, from the runs of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite, isnan, nan
from statistics import fmean
from typing import Any

from offbeat.core.metric import Metric
from offbeat.papers.entry import Line, PaperEntry, Quantity, text
from offbeat.report.comparison import NOT_RUN
from offbeat.watch.results import Result, TaskResult, finish, first_reached

UNDER_WAY = "under way"


@dataclass(frozen=True)
class Cell:
    """A number over seeds.

    beyond: the number is only known to be larger than this; infinite: it will never be reached.   note: why there is
    no number, or what it belongs to.   spread: the interval of its mean, where the seeds' lowest and highest number do
    not say it.   seeds: 0 for a number that is exact, such as one that a paper prints.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    beyond: float | None = None
    note: str = ""
    spread: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval that the mean of these seeds lies in."""
        if self.beyond is not None:
            return self.beyond, inf
        assert self.mean is not None
        return self.mean, self.mean

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that the mean over all seeds lies in, at 95 %; from 0 on, as the papers' numbers are."""
        if self.beyond is not None or self.seeds == 0:
            return self.bounds
        if self.spread is not None:
            return self.spread
        if self.seeds < 2 or self.mean is None or self.low is None or self.high is None:
            return 0.0, inf
        width = half_width(self.seeds, self.high - self.low)
        return max(self.mean - width, min(self.low, 0.0)), self.mean + width


# Lord (Biometrika, 1947): for n normal numbers |mean − μ| ≤ u · (max − min) with probability 0.95
_LORD = {2: 6.353, 3: 1.304, 4: 0.717, 5: 0.507, 6: 0.399, 7: 0.333, 8: 0.288, 9: 0.255, 10: 0.230}


def half_width(seeds: int, spread: float) -> float:
    """Half the 95 % interval of a mean, from the difference of the highest and the lowest of its numbers.

    It needs no more than what tables and records have; more than ten numbers count as ten, which errs on the safe side.
    """
    return _LORD[min(seeds, 10)] * spread


def compute(entry: PaperEntry, runs: Mapping[str, Sequence[Result]]) -> dict[str, Cell]:
    """Every cell by name.   runs: of each experiment."""
    cells: dict[str, Cell] = {}
    for line in entry.lines:
        groups = _groups(entry, line, runs.get(line.experiment, ()))
        for name in line.paper:
            cells[f"{line.name}:{name}"] = _cell(entry, entry.quantity[name], groups)
    return cells


def _groups(entry: PaperEntry, line: Line, runs: Sequence[Result]) -> list[list[Result]]:
    """The runs of a line, grouped by everything but the seed."""
    groups: dict[str, list[Result]] = {}
    for run in runs:
        if _covers(entry, line, run.algorithm, run.settings):
            groups.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    return list(groups.values())


def printed(entry: PaperEntry, experiment: str, algorithm: str, settings: Mapping[str, Any]) -> bool:
    """Whether a line that fixes every axis covers runs with these settings."""
    largest = {name for name, quantity in entry.quantity.items() if quantity.of == "largest"}
    lines = [line for line in entry.lines if line.experiment == experiment and not largest & line.paper.keys()]
    return any(_covers(entry, line, algorithm, settings) for line in lines)


def _covers(entry: PaperEntry, line: Line, algorithm: str, settings: Mapping[str, Any]) -> bool:
    for axis, wanted in line.at.items():
        value, named = _setting(entry, settings, axis), entry.axis[axis].values
        if value is None or (value != named[wanted] if named else text(value) != wanted):
            return False
    return algorithm == line.algorithm


def _setting(entry: PaperEntry, settings: Mapping[str, Any], axis: str) -> Any:
    """The sweep's value on this axis; None if it has none."""
    return next((settings[key] for key in entry.axis[axis].keys if key in settings), None)


def _cell(entry: PaperEntry, quantity: Quantity, groups: Sequence[Sequence[Result]]) -> Cell:
    if not groups:
        return Cell(None, note=NOT_RUN)
    if quantity.of == "largest":
        return _largest(entry, quantity, groups)
    found = [(_over_seeds(quantity, group), group) for group in groups]
    if len(found) == 1:
        return found[0][0]
    known = [(cell, group) for cell, group in found if cell.mean is not None]
    if not known:
        return found[0][0]
    if not quantity.best:
        return Cell(None, note="several settings, and no rule that chooses one")
    if all(cell.beyond is not None for cell, _ in known):  # none of them is the best
        return min((cell for cell, _ in known), key=lambda cell: cell.beyond or 0.0)
    sign = 1.0 if quantity.best == "lowest" else -1.0
    cell, group = min(known, key=lambda each: sign * (each[0].mean or 0.0))
    chosen = ", ".join(f"{k.split('.')[-1]} {v:g}" for k, v in group[0].settings.items() if isinstance(v, float))
    return replace(cell, note=f"best at {chosen}" if chosen else "")


def _largest(entry: PaperEntry, quantity: Quantity, groups: Sequence[Sequence[Result]]) -> Cell:
    kept = [_setting(entry, group[0].settings, quantity.axis) for group in groups if _kept(quantity, group)]
    kept.sort(reverse=True)
    if len(kept) < quantity.rank:
        return Cell(None, note=f"fewer than {quantity.rank} in the grid")
    value = float(kept[quantity.rank - 1])
    return Cell(value, seeds=len(groups[0]), spread=(value, value))  # a value of the grid, by a rule about all seeds


def _kept(quantity: Quantity, runs: Sequence[Result]) -> bool:
    """Whether every seed ends with a finite loss and, if asked, the mean loss is lower than at the start."""
    if any(run.error is not None or not run.history for run in runs):
        return False
    first, last = ([run.history[at].metrics.get("loss", nan) for run in runs] for at in (0, -1))
    if not all(map(isfinite, last)):
        return False
    return quantity.keep == "finite" or fmean(last) < fmean(first)


def _over_seeds(quantity: Quantity, runs: Sequence[Result]) -> Cell:
    """One setting: mean, minimum and maximum over its seeds."""
    if quantity.of == "time to":
        return _time_to(quantity, runs)
    if any(run.unfinished for run in runs):
        return Cell(None, seeds=len(runs), note=UNDER_WAY)
    if failed := sum(run.error is not None for run in runs):
        return Cell(None, seeds=len(runs), note=f"{failed} of {len(runs)} runs diverged")
    if quantity.of == "finish":
        return _finish(quantity, runs)
    read = {"final": _final, "measure": _measure, "swing": _swing, "step time": _step_time}[quantity.of]
    values = [read(quantity, run) for run in runs]
    numbers = [quantity.scale * v for v in values if v is not None]
    if len(numbers) < len(values):
        return Cell(None, seeds=len(runs), note=f"no {quantity.measure or quantity.task or quantity.metric}")
    return Cell(fmean(numbers), min(numbers), max(numbers), len(runs))


def _final(quantity: Quantity, run: Result) -> float | None:
    if not run.several:
        return _number(run.metrics.get(quantity.metric))
    values = [_number(task.metrics.get(quantity.metric)) for task in _chosen(quantity, run)]
    return None if None in values or not values else fmean(v for v in values if v is not None)


def _chosen(quantity: Quantity, run: Result) -> list[TaskResult]:
    """The quantity's task, or all tasks."""
    return [task for task in run.tasks if not quantity.task or task.name == quantity.task]


def _measure(quantity: Quantity, run: Result) -> float | None:
    node: Any = run.measures
    for key in quantity.measure.split("."):
        node = getattr(node, key, None)
    return _number(node)


def _swing(quantity: Quantity, run: Result) -> float | None:
    curve = [value for _, value in _curve(quantity, run)]
    late = curve[len(curve) // 2 :]
    return fmean(abs(b - a) for a, b in pairwise(late)) if len(late) > 1 else None


def _step_time(quantity: Quantity, run: Result) -> float | None:
    return run.time / run.versions if run.versions and run.time is not None else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isnan(value) else None


def _time_to(quantity: Quantity, runs: Sequence[Result]) -> Cell:
    curves = [list(_curve(quantity, run)) for run in runs]
    ends = min(curve[-1][0] for curve in curves) / quantity.per
    judged = [_mean(curves)] if quantity.curve == "mean" else curves
    metric = runs[0].metric(quantity.metric)
    times = [_first(curve, metric, quantity) for curve in judged]
    cell = replace(_reached([inf if t is None else t / quantity.per for t in times], ends), seeds=len(runs))
    if cell.beyond is None:
        if quantity.curve == "each":
            return cell
        assert cell.mean is not None
        spread = _around(cell.mean, [_first(curve, metric, quantity) for curve in curves], quantity.per)
        return replace(cell, low=None, high=None, spread=spread)
    if failed := sum(run.error is not None for run in runs):
        return replace(
            cell, beyond=inf, note="diverged" if len(runs) == 1 else f"{failed} of {len(runs)} runs diverged"
        )
    return replace(cell, note=UNDER_WAY) if any(run.unfinished for run in runs) else cell


def _around(time: float, own: Sequence[float | None], per: float) -> tuple[float, float] | None:
    """The interval of a time on the mean curve: as wide as the interval of the seeds' own times, if all have one."""
    known = [t / per for t in own if t is not None]
    if len(known) < 2 or len(known) < len(own):
        return None
    width = half_width(len(known), max(known) - min(known))
    return max(0.0, time - width), time + width


def _reached(times: Sequence[float], ends: float) -> Cell:
    """Of the times at which runs reached something, infinite where they did not up to their ends."""
    reached = [t for t in times if isfinite(t)]
    if len(reached) == len(times):
        return Cell(fmean(times), min(times), max(times), len(times))
    note = f"reached in {len(reached)} of {len(times)} runs" if reached else ""
    return Cell(inf, min(reached, default=None), None, len(times), beyond=ends, note=note)


def _curve(quantity: Quantity, run: Result) -> Iterator[tuple[float, float]]:
    """(time or version, metric); with several tasks their mean, in which a finished task keeps its last value."""
    last: dict[int, float] = {}
    worst = run.metric(quantity.metric).worst if run.history else nan
    for at, m in enumerate(run.history):
        value = m.metrics.get(quantity.metric, nan)
        last[m.task] = worst if isnan(value) else value
        after = run.history[at + 1].time if at + 1 < len(run.history) else None
        if len(last) == len(run.tasks) and after != m.time:
            yield (m.time if quantity.by == "time" else m.version), fmean(last.values())


def _mean(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean of curves evaluated at the same times; one that ended early keeps its last value."""
    longest = max(curves, key=len)
    return [
        (at, fmean(curve[min(number, len(curve) - 1)][1] for curve in curves)) for number, (at, _) in enumerate(longest)
    ]


def _first(curve: Sequence[tuple[float, float]], metric: Metric, quantity: Quantity) -> float | None:
    """Where a curve first reaches the target."""
    assert quantity.target is not None
    at = first_reached((value for _, value in curve), metric, quantity.target)
    return None if at is None else curve[at][0]


def _finish(quantity: Quantity, runs: Sequence[Result]) -> Cell:
    """When the task, or the last of all tasks, reached its target."""
    chosen = [_chosen(quantity, run) for run in runs]
    if not all(chosen):
        return Cell(None, note=NOT_RUN)
    return _reached([finish(tasks) for tasks in chosen], min(max(m.time for m in run.history) for run in runs))
