"""Cells of a paper's table, from the runs of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean
from typing import Any

from offbeat.papers.entry import Entry, Line, Quantity
from offbeat.report.beside import NOT_RUN
from offbeat.report.tables import finish

Run = Mapping[str, Any]  # a line of a sweep's runs.jsonl

UNDER_WAY = "under way"


@dataclass(frozen=True)
class Cell:
    """A number over seeds.

    beyond: it is only known to be larger than this; infinite: there will never be one.   note: why there is none, or
    what it is of.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    beyond: float | None = None
    note: str = ""

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which numbers it lies."""
        if self.beyond is not None:
            return self.beyond, inf
        assert self.mean is not None
        return self.mean, self.mean


def compute(entry: Entry, runs: Mapping[str, Sequence[Run]]) -> dict[str, Cell]:
    """Every cell of the lines, by name; runs: of each experiment."""
    cells: dict[str, Cell] = {}
    for line in entry.lines:
        groups = _groups(entry, line, runs.get(line.experiment, ()))
        for name in line.paper:
            cells[f"{line.name}:{name}"] = _cell(entry, entry.quantities[name], groups)
    return cells


def _groups(entry: Entry, line: Line, runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of a line, those that differ in nothing but the seed together."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run["algorithm"] == line.algorithm and all(_is(entry, run, axis, value) for axis, value in line.at.items()):
            groups.setdefault(json.dumps(run["settings"], sort_keys=True), []).append(run)
    return list(groups.values())


def printed(entry: Entry, experiment: str, run: Run) -> bool:
    """Whether some line that says where on every axis it is speaks of this run (or of one with its settings)."""
    lines = [line for line in entry.lines if line.experiment == experiment and not _open(entry, line)]
    return any(
        run["algorithm"] == line.algorithm and all(_is(entry, run, axis, value) for axis, value in line.at.items())
        for line in lines
    )


def _open(entry: Entry, line: Line) -> bool:
    return any(entry.quantities[name].of == "largest" for name in line.paper)


def _is(entry: Entry, run: Run, axis: str, wanted: str) -> bool:
    """Whether the run has this value on this axis."""
    value = setting(entry, run, axis)
    named = entry.axes[axis][1]
    if named:
        return value is not None and _same(value, named[wanted])
    return value is not None and (f"{value:g}" if isinstance(value, int | float) else str(value)) == wanted


def _same(a: Any, b: Any) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True) or (
        isinstance(a, int | float) and isinstance(b, int | float) and float(a) == float(b)
    )


def setting(entry: Entry, run: Run, axis: str) -> Any:
    """What the sweep put in for this axis; None if it put in nothing."""
    return next((run["settings"][key] for key in entry.axes[axis][0] if key in run["settings"]), None)


def _cell(entry: Entry, quantity: Quantity, groups: Sequence[Sequence[Run]]) -> Cell:
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
    chosen = ", ".join(f"{k.split('.')[-1]} {v:g}" for k, v in group[0]["settings"].items() if isinstance(v, float))
    return Cell(cell.mean, cell.low, cell.high, cell.seeds, cell.beyond, f"best at {chosen}" if chosen else "")


def _largest(entry: Entry, quantity: Quantity, groups: Sequence[Sequence[Run]]) -> Cell:
    kept = [setting(entry, group[0], quantity.axis) for group in groups if _kept(quantity, group)]
    kept.sort(reverse=True)
    if len(kept) < quantity.rank:
        return Cell(None, note=f"fewer than {quantity.rank} in the grid")
    return Cell(float(kept[quantity.rank - 1]), seeds=len(groups[0]))


def _kept(quantity: Quantity, runs: Sequence[Run]) -> bool:
    """Whether the loss of every seed is finite at the end, and in the mean below that at the start if that is asked."""
    if any("error" in run or not run["curve"] for run in runs):
        return False
    first, last = ([run["curve"][at][4].get("loss") for run in runs] for at in (0, -1))
    if any(loss is None or not isfinite(loss) for loss in last):
        return False
    return quantity.keep == "finite" or fmean(last) < fmean(first)


def _over_seeds(quantity: Quantity, runs: Sequence[Run]) -> Cell:
    """One setting: mean, lowest and highest over its seeds."""
    failed = sum("error" in run for run in runs)
    if quantity.of != "time to" and any(run.get("unfinished") for run in runs):
        return Cell(None, seeds=len(runs), note=UNDER_WAY)
    if failed and quantity.of != "time to":
        return Cell(None, seeds=len(runs), note=f"{failed} of {len(runs)} runs diverged")
    if quantity.of == "time to":
        return _time_to(quantity, runs)
    if quantity.of == "finish":
        return _finish(quantity, runs)
    read = {"final": _final, "measure": _measure, "swing": _swing, "step time": _step_time}[quantity.of]
    values = [read(quantity, run) for run in runs]
    numbers = [quantity.scale * v for v in values if v is not None]
    if len(numbers) < len(values):
        return Cell(None, seeds=len(runs), note=f"no {quantity.measure or quantity.task or quantity.metric}")
    return Cell(fmean(numbers), min(numbers), max(numbers), len(runs))


def _final(quantity: Quantity, run: Run) -> float | None:
    tasks = run.get("tasks")
    if not tasks:
        return _number(run.get("metrics", {}).get(quantity.metric))
    if quantity.task and quantity.task not in tasks:
        return None
    chosen = [tasks[quantity.task]] if quantity.task else list(tasks.values())
    values = [_number(task["metrics"].get(quantity.metric)) for task in chosen]
    return None if None in values else fmean(v for v in values if v is not None)


def _measure(quantity: Quantity, run: Run) -> float | None:
    node: Any = run.get("measures", {})
    for key in quantity.measure.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return _number(node)


def _swing(quantity: Quantity, run: Run) -> float | None:
    curve = [value for _, value in _curve(quantity, run)]
    late = curve[len(curve) // 2 :]
    return fmean(abs(b - a) for a, b in pairwise(late)) if len(late) > 1 else None


def _step_time(quantity: Quantity, run: Run) -> float | None:
    return float(run["time"]) / run["versions"] if run["versions"] else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _time_to(quantity: Quantity, runs: Sequence[Run]) -> Cell:
    curves = [list(_curve(quantity, run)) for run in runs]
    ends = min(curve[-1][0] for curve in curves) / quantity.per
    if quantity.curve == "mean":
        times = [first(_mean(curves), quantity.target)]
    else:
        times = [first(curve, quantity.target) for curve in curves]
    reached = [t / quantity.per for t in times if t is not None]
    if len(reached) < len(times) and (failed := sum("error" in run for run in runs)):
        note = "diverged" if len(runs) == 1 else f"{failed} of {len(runs)} runs diverged"
        return Cell(inf, min(reached, default=None), None, len(runs), beyond=inf, note=note)
    if len(reached) < len(times):
        note = "" if not reached else f"reached in {len(reached)} of {len(times)} runs"
        if any(run.get("unfinished") for run in runs):
            note = UNDER_WAY
        return Cell(inf, min(reached, default=None), None, len(runs), beyond=ends, note=note)
    low, high = (min(reached), max(reached)) if quantity.curve == "each" else (None, None)
    return Cell(fmean(reached), low, high, len(runs))


def _curve(quantity: Quantity, run: Run) -> Iterator[tuple[float, float]]:
    """(time or version, metric); the mean over tasks where there are several, a finished one with its last value."""
    last: dict[int, float] = {}
    tasks = len(run.get("tasks", {})) or 1
    for at, (task, time, _, version, metrics, *_more) in enumerate(run["curve"]):
        value = metrics.get(quantity.metric)
        last[task] = -inf if value is None else value
        after = run["curve"][at + 1][1] if at + 1 < len(run["curve"]) else None
        if len(last) == tasks and after != time:
            yield (time if quantity.by == "time" else version), fmean(last.values())


def _mean(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean of curves that were measured at the same times; one that ended early keeps its last value."""
    longest = max(curves, key=len)
    return [
        (at, fmean(curve[min(number, len(curve) - 1)][1] for curve in curves)) for number, (at, _) in enumerate(longest)
    ]


def first(curve: Sequence[tuple[float, float]], target: float | None) -> float | None:
    """Where a curve first is at the target or above it."""
    assert target is not None
    return next((at for at, value in curve if value >= target), None)


def _finish(quantity: Quantity, runs: Sequence[Run]) -> Cell:
    """When the task, or the last of all, reached its target."""
    times: list[float] = []
    if quantity.task and any(quantity.task not in run["tasks"] for run in runs):
        return Cell(None, note=NOT_RUN)
    for run in runs:
        chosen = [run["tasks"][quantity.task]] if quantity.task else list(run["tasks"].values())
        times.append(finish(chosen))
    reached = [t for t in times if isfinite(t)]
    if len(reached) < len(times):
        ends = min(max(row[1] for row in run["curve"]) for run in runs)
        note = f"reached in {len(reached)} of {len(times)} runs" if reached else ""
        return Cell(inf, min(reached, default=None), None, len(runs), beyond=ends, note=note)
    return Cell(fmean(times), min(times), max(times), len(times))
