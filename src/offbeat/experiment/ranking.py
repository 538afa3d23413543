"""Which settings are best: results put together over seeds and ranked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isnan
from typing import Any

from offbeat.core.errors import SettingError
from offbeat.report.grid import brief
from offbeat.watch.results import LESS_IS_BETTER, Result, finish

_USUAL = ("finish", "accuracy", "loss")  # what decides where nobody chose: the first of these that any run has


@dataclass(frozen=True)
class Ranked:
    """An algorithm at some settings: the mean, the lowest and the highest value over its seeds.

    reached: seeds that have a value; the others diverged or fell short.
    """

    algorithm: str
    settings: Mapping[str, Any]
    seeds: int
    reached: int
    mean: float | None
    min: float | None
    max: float | None
    diverged: int

    def to_json(self) -> dict[str, Any]:
        """As in `summary.json`."""
        return asdict(self)


def check_best(best: str | None) -> None:
    """Refuse `time:TARGET` without an accuracy."""
    if best is not None and best.startswith("time:"):
        try:
            target = float(best[5:])
        except ValueError:
            target = 0.0
        if not 0 < target <= 1:
            raise SettingError(f"best = {best!r}: the time to an accuracy in (0, 1], as in time:0.8")


def judged_by(results: Sequence[Result], best: str | None) -> str:
    """What decides: what was asked for, or the first usual measure that any run has."""
    found = (name for name in _USUAL if any(value(result, name) is not None for result in results))
    return best or next(found, "accuracy")


def ranked(results: Sequence[Result], best: str | None = None) -> list[Ranked]:
    """Settings from best to worst, each with its seeds put together; those that diverged or fell short last."""
    by = judged_by(results, best)
    lines = []
    for (label, settings), group in together(results).items():
        good = [v for result in group if (v := value(result, by)) is not None]
        mean = sum(good) / len(good) if good else None
        extremes = min(good, default=None), max(good, default=None)
        diverged = sum(result.error is not None for result in group)
        lines.append(Ranked(label, json.loads(settings), len(group), len(good), mean, *extremes, diverged))
    sign = 1.0 if by in (*LESS_IS_BETTER, "finish") or by.startswith("time:") else -1.0
    return sorted(lines, key=lambda e: (e.reached < e.seeds, e.mean is None, sign * (e.mean or 0.0)))


def missing(results: Sequence[Result], best: str | None) -> str:
    """A line for a metric that no run has."""
    by, known = judged_by(results, best), sorted({name for result in results for name in result.overall})
    if by in (*known, "finish") or by.startswith("time:") or not known:
        return ""
    return f"no run has a metric {by!r}; there are {', '.join(known)}"


def markdown(results: Sequence[Result], best: str | None) -> str:
    """All settings, for a text file."""
    lines = [
        f"| algorithm | settings | seeds | {judged_by(results, best)} | from | to |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for line in ranked(results, best):
        numbers = " | ".join("–" if n is None else f"{n:.4g}" for n in (line.mean, line.min, line.max))
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
        known = any("accuracy" in m.metrics for m in result.history)
        return result.time_to("accuracy", float(best[5:])) if known else None
    found = result.overall.get(best)
    return None if found is None or isnan(found) else found


def shown(settings: Mapping[str, Any]) -> str:
    """Settings for people."""
    return ", ".join(f"{k} = {v}" for k, v in brief(settings).items())
