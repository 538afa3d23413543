"""What a person sees while a sweep goes on: the best settings so far, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from offbeat.experiment import ranking
from offbeat.watch.progress import TELL
from offbeat.watch.results import Result

_SHOWN = 20  # lines of the live table


class SweepDisplay:
    """A table in a terminal; elsewhere a line a run, and one a minute about how far it is.

    results: of the runs that have ended; the caller adds each as it ends.
    """

    def __init__(self, runs: int, results: Sequence[Result], best: str | None, progress: bool = True) -> None:
        self.runs, self.results, self.best = runs, results, best
        self.console = Console(stderr=True, quiet=not progress)
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
        """A run has ended."""
        self.updates += result.updates
        if not self.console.is_terminal:
            end = "diverged" if result.error is not None else _ended(result)
            name = ", ".join(filter(None, (result.algorithm, ranking.shown(result.settings))))
            self.say(f"{len(self.results)} of {self.runs}: {name}, seed {result.seed}: {end}")

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __rich__(self) -> Group:
        return Group(table(self.results, self.best, _SHOWN), Text(self._progress(), style="dim"))

    def _progress(self) -> str:
        done = sum(share for share, _ in self.shares.values()) or len(self.results) - self.before
        updates = sum(u for _, u in self.shares.values()) or self.updates
        spent = time.perf_counter() - self.began
        todo = self.runs - self.before
        left = f", about {duration(spent * (todo - done) / done)} left" if done > 0.01 * todo else ""
        return (
            f"{len(self.results):,} of {self.runs:,} runs finished, "
            f"{min(done / max(todo, 1), 1):.0%} of the work done, "
            f"{updates / max(spent, 1e-9):,.0f} updates/s, {duration(spent)}{left}"
        )


def table(results: Sequence[Result], best: str | None, most: int) -> Table:
    """The best settings of every algorithm."""
    ranked, write = ranking.ranked(results, best), ranking.writer(results, best)
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("algorithm", "settings", "seeds", ranking.judged_by(results, best), "from", "to"):
        shown.add_column(name, justify="left" if name in ("algorithm", "settings") else "right", overflow="fold")
    for line in ranked[:most]:
        seeds = f"{line.seeds}" + (f", {line.diverged} diverged" if line.diverged else "")
        numbers = ("" if n is None else write(n) for n in (line.mean, line.min, line.max))
        shown.add_row(line.algorithm, ranking.shown(line.settings), seeds, *numbers)
    if len(ranked) > most:
        shown.caption = f"{len(ranked) - most} more"
    return shown


def _ended(result: Result) -> str:
    """How a run ended, for a line of text."""
    if not result.several:
        return _metrics(result.metrics)
    return "; ".join(
        f"{task.name} {_metrics(task.metrics)}" + ("" if task.time is None else f", {task.stopped} at {task.time:g}")
        for task in result.tasks
    )


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def duration(seconds: float) -> str:
    """For people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
