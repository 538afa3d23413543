"""Which settings are best: results put together over seeds and ranked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, isnan
from typing import Any

from offbeat.core.errors import SettingError
from offbeat.core.metric import Metric
from offbeat.experiment.intervals import estimate
from offbeat.report import tables
from offbeat.report.grid import brief
from offbeat.watch.results import Result, finish


@dataclass(frozen=True)
class Ranked:
    """An algorithm at some settings: the mean, the lowest and the highest value over its seeds.

    reached: seeds that have a value; the others diverged or fell short.
    half: half the width of the mean's 95 % interval, by Student's t; None for less than two values.
    """

    algorithm: str
    settings: Mapping[str, Any]
    seeds: int
    reached: int
    mean: float | None
    min: float | None
    max: float | None
    diverged: int
    half: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As in `summary.json`."""
        return asdict(self)


def check_best(best: str | None) -> None:
    """Refuse `time:VALUE` and `time:METRIC:VALUE` without a number."""
    if best is not None and best.startswith("time:"):
        try:
            _, target = aim(best)
        except ValueError:
            target = inf
        if not isfinite(target):
            raise SettingError(f"ranked by {best!r}: the time to a value of a metric, as in time:0.8 or time:rmse:0.5")


def check_metric(best: str | None, known: Sequence[Metric]) -> None:
    """Refuse a metric that runs do not measure. known: what they measure."""
    name = aim(best)[0] if best is not None and best.startswith("time:") else best
    if name and name not in ("finish", *(metric.name for metric in known)):
        raise SettingError(f"ranked by {best!r}: runs measure {', '.join(metric.name for metric in known)}; or finish")


def aim(best: str) -> tuple[str, float]:
    """(metric, value) of `time:METRIC:VALUE` or `time:METRIC=VALUE`; no metric: the main one."""
    name, _, target = best.removeprefix("time:").replace("=", ":").rpartition(":")
    return name, float(target)


def judged_by(results: Sequence[Result], best: str | None) -> str:
    """What decides: what was asked for, or the first of finish, the task's main metric and loss that any run has."""
    own = dict.fromkeys(result.own.name for result in results if result.error is None)
    usual = ("finish", *own, "loss")
    found = (name for name in usual if any(value(result, name) is not None for result in results))
    return best or next(found, next(iter(own), "loss"))


def ranked(results: Sequence[Result], best: str | None = None) -> list[Ranked]:
    """Settings from best to worst, each with its seeds put together; those that diverged or fell short last."""
    by = judged_by(results, best)
    lines = []
    for (label, settings), group in together(results).items():
        good = [v for result in group if (v := value(result, by)) is not None]
        found = estimate(good) if good else None
        mean, half = (found.mean, found.half if found.half < inf else None) if found else (None, None)
        extremes = min(good, default=None), max(good, default=None)
        diverged = sum(result.error is not None for result in group)
        lines.append(Ranked(label, json.loads(settings), len(group), len(good), mean, *extremes, diverged, half))
    sign = -1.0 if any(metric.higher for metric in _measured(results) if metric.name == by) else 1.0
    return sorted(lines, key=lambda e: (e.reached < e.seeds, e.mean is None, sign * (e.mean or 0.0)))


def _measured(results: Sequence[Result]) -> list[Metric]:
    """What is known of the metrics of these runs."""
    return list(dict.fromkeys(metric for result in results for task in result.tasks for metric in task.measured))


def writer(results: Sequence[Result], best: str | None) -> Callable[[float], str]:
    """How the values that decide are written: as in the table of an experiment."""
    by = judged_by(results, best)
    return tables.writer(next((metric for metric in _measured(results) if metric.name == by), Metric(by)))


def missing(results: Sequence[Result], best: str | None) -> str:
    """A line for a metric that no run has."""
    by, known = judged_by(results, best), sorted({name for result in results for name in result.overall})
    if by.startswith("time:"):
        by = aim(by)[0] or "finish"
    if by in (*known, "finish") or not known:
        return ""
    return f"no run has a metric {by!r}; there are {', '.join(known)}"


def markdown(results: Sequence[Result], best: str | None) -> str:
    """All settings, for a text file."""
    lines = [
        f"| algorithm | settings | seeds | {judged_by(results, best)} | from | to |",
        "|---|---|---:|---:|---:|---:|",
    ]
    write = writer(results, best)
    for line in ranked(results, best):
        numbers = " | ".join("–" if n is None else write(n) for n in (line.mean, line.min, line.max))
        lines.append(f"| {line.algorithm} | {shown(line.settings)} | {line.seeds} | {numbers} |")
    return "\n".join(lines) + "\n"


def together(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results that differ in nothing but the seed, by (label, settings)."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.algorithm, json.dumps(result.settings, sort_keys=True)), []).append(result)
    return groups


def value(result: Result, best: str) -> float | None:
    """What a finished run is judged by; None where it has none, as after a divergence.

    Of several tasks the mean of a metric counts, and the last one's time.
    """
    if result.error is not None:
        return None
    if best == "finish":
        last = finish(result.tasks)
        return last if last < inf else None
    if best.startswith("time:"):
        name, target = aim(best)
        known = {metric.name for task in result.tasks for metric in task.measured}
        name = name or result.own.name
        return result.time_to(name, target) if name in known else None
    found = result.overall.get(best)
    return None if found is None or isnan(found) else found


def shown(settings: Mapping[str, Any]) -> str:
    """Settings for people."""
    return ", ".join(f"{k} = {v}" for k, v in brief(settings).items())
