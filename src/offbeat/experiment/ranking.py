"""Which settings of a sweep are best so far: live, in the end, and in a text file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from offbeat.experiment.grid import Grid, together
from offbeat.report.grid import brief
from offbeat.watch.progress import TELL
from offbeat.watch.results import LESS_IS_BETTER, Result, finish

_SHOWN = 20  # lines of the live table
_USUAL = ("finish", "accuracy", "loss")  # what decides where nobody chose: the first of these that any run has


@dataclass(frozen=True)
class RankedSetting:
    """One setting of a sweep over its seeds.   reached: seeds that have the number that decides."""

    algorithm: str
    settings: Mapping[str, Any]
    seeds: int
    reached: int
    mean: float | None
    min: float | None
    max: float | None
    diverged: int

    def numbers(self, nothing: str) -> list[str]:
        """Mean, lowest and highest, to read."""
        return [nothing if value is None else f"{value:.4g}" for value in (self.mean, self.min, self.max)]


class Standings:
    """Runs that are finished, and what is best of them."""

    def __init__(self, grid: Grid, best: str | None, results: list[Result]) -> None:
        self.grid, self.results, self.best = grid, results, best
        self.console = Console(stderr=True)
        self.began = self.told = time.perf_counter()
        self.updates = 0
        self.shares: dict[int, tuple[float, int]] = {}
        self.before = len(results)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While the runs go on."""
        if not self.console.is_terminal:
            yield
            return
        with Live(self, console=self.console, refresh_per_second=2, transient=True):
            yield

    def share(self, worker: int, done: float, updates: int) -> None:
        """A worker has done so many runs' worth of work."""
        self.shares[worker] = done, updates
        if not self.console.is_terminal and time.perf_counter() - self.told >= TELL:
            self.told = time.perf_counter()
            self.say(self._progress())

    def done(self, result: Result) -> None:
        self.updates += result.updates
        if not self.console.is_terminal:
            end = "diverged" if result.error is not None else _ended(result)
            name = ", ".join(filter(None, (result.algorithm, _shown_settings(result.settings))))
            self.say(f"{len(self.results)} of {len(self.grid.points)}: {name}, seed {result.seed}: {end}")

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __rich__(self) -> Group:
        return Group(self.table(_SHOWN), Text(self._progress(), style="dim"))

    def _progress(self) -> str:
        done = sum(share for share, _ in self.shares.values()) or len(self.results) - self.before
        updates = sum(u for _, u in self.shares.values()) or self.updates
        spent = time.perf_counter() - self.began
        todo = len(self.grid.points) - self.before
        left = f", about {duration(spent * (todo - done) / done)} left" if done > 0.01 * todo else ""
        return (
            f"{len(self.results):,} of {len(self.grid.points):,} runs finished, "
            f"{min(done / max(todo, 1), 1):.0%} of the work done, "
            f"{updates / max(spent, 1e-9):,.0f} updates/s, {duration(spent)}{left}"
        )

    def ranked(self) -> list[RankedSetting]:
        """Settings from best to worst, each with its seeds put together; those that diverged or fell short last."""
        lines, judged_by = [], self.judged_by
        for (label, settings), results in together(self.results).items():
            good = [v for result in results if (v := _value(result, judged_by)) is not None]
            lines.append(
                RankedSetting(
                    algorithm=label,
                    settings=json.loads(settings),
                    seeds=len(results),
                    reached=len(good),
                    mean=sum(good) / len(good) if good else None,
                    min=min(good, default=None),
                    max=max(good, default=None),
                    diverged=sum(result.error is not None for result in results),
                )
            )
        sign = 1.0 if judged_by in (*LESS_IS_BETTER, "finish") or judged_by.startswith("time:") else -1.0
        return sorted(lines, key=lambda e: (e.reached < e.seeds, e.mean is None, sign * (e.mean or 0.0)))

    @property
    def judged_by(self) -> str:
        """What decides."""
        found = (name for name in _USUAL if any(_value(result, name) is not None for result in self.results))
        return self.best or next(found, "accuracy")

    def missing(self) -> str:
        """A line for a metric that no run has."""
        known = sorted({name for result in self.results for name in result.overall})
        if self.judged_by in (*known, "finish") or self.judged_by.startswith("time:") or not known:
            return ""
        return f"no run has a metric {self.judged_by!r}; there are {', '.join(known)}"

    def table(self, most: int) -> Table:
        """The best settings of every algorithm."""
        ranked = self.ranked()
        metric = self.judged_by
        shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in ("algorithm", "settings", "seeds", metric, "from", "to"):
            shown.add_column(name, justify="left" if name in ("algorithm", "settings") else "right", overflow="fold")
        for line in ranked[:most]:
            seeds = f"{line.seeds}" + (f", {line.diverged} diverged" if line.diverged else "")
            shown.add_row(line.algorithm, _shown_settings(line.settings), seeds, *line.numbers(""))
        if len(ranked) > most:
            shown.caption = f"{len(ranked) - most} more"
        return shown

    def markdown(self) -> str:
        """All settings, for a text file."""
        metric = self.judged_by
        lines = [f"| algorithm | settings | seeds | {metric} | from | to |", "|---|---|---:|---:|---:|---:|"]
        for line in self.ranked():
            cells = (line.algorithm, _shown_settings(line.settings), f"{line.seeds}", *line.numbers("–"))
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def _value(result: Result, best: str) -> float | None:
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
    value = result.overall.get(best)
    return None if value is None or isnan(value) else value


def _shown_settings(settings: Mapping[str, Any]) -> str:
    """What a run, or a line of the table, was set to."""
    return ", ".join(f"{k} = {v}" for k, v in brief(settings).items())


def _ended(result: Result) -> str:
    """How a run ended, for a line of text."""
    if not result.several:
        return _shown(result.metrics)
    return "; ".join(
        f"{task.name} {_shown(task.metrics)}" + ("" if task.time is None else f", {task.stopped} at {task.time:g}")
        for task in result.tasks
    )


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def duration(seconds: float) -> str:
    """For people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
