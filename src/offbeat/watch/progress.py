"""The live display of running experiments."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from offbeat.core.metric import Goal
from offbeat.core.run_state import iterations
from offbeat.core.watcher import Measurement
from offbeat.watch.record import Recorder
from offbeat.watch.watched import WatchedRun, left_to_measure

_SECONDS = 0.2  # between two refreshes
_MANY = 50_000  # training samples, of which to say that they are measured
TELL = 60.0  # seconds between two lines about how far it is, on something that is no terminal


class Display:
    """A bar for all runs, one for the current run and a line about it; without a terminal, one line per run
    and one per minute about the current run.

    all runs      ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  1 of 4  0:00:12  00:37 left
    area, seed 1  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━    46 %  0:00:03  00:04 left
    time 183.4 · 2,836 updates/s · staleness 4.0 · accuracy 0.9634
    """

    def __init__(self, console: Console, runs: int) -> None:
        self.console, self.runs, self.done = console, runs, 0
        self.progress = _Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}", justify="right"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.all = self.progress.add_task("all runs", total=runs, status=f"0 of {runs}")
        self.one: TaskID | None = None
        self.name = ""  # of the run at work
        self.began = self.refreshed = self.told = 0.0
        self.updates: int | None = None  # of the run at work, when this display first saw it

    def begin(self, name: str) -> None:
        """A run starts, or continues from its checkpoint."""
        if self.one is not None:
            self.progress.remove_task(self.one)
        self.one = self.progress.add_task(name, total=1.0, status="0 %")
        self.began = self.told = time.perf_counter()
        self.name, self.updates = name, None

    def tick(self, simulation: WatchedRun, recorder: Recorder) -> None:
        """A run has progressed."""
        now = time.perf_counter()
        if self.updates is None:
            self.began, self.updates = now, simulation.world.tally.updates
        if self.one is None or now - self.refreshed < _SECONDS:
            return
        self.refreshed = now
        share = fraction(simulation)
        pace = (simulation.world.tally.updates - self.updates) / max(now - self.began, 1e-9)
        self.progress.line = describe(simulation, recorder.measurements, pace)
        self.progress.update(self.one, completed=share, status=f"{share:.0%}".replace("%", " %"))
        self.progress.update(self.all, completed=self.done + share)
        if not self.console.is_terminal and now - self.told >= TELL:
            self.told = now
            self.say(f"{self.name}: {share:.0%}, {self.progress.line}".replace("\n", " · "))

    def measure(self, simulation: WatchedRun) -> None:
        """A run is over but for its final loss."""
        samples = left_to_measure(simulation)
        if samples < _MANY:
            return
        said = f"measuring the loss on all {samples:,} training samples; evaluate.samples would limit that"
        self.progress.line = said
        if not self.console.is_terminal:
            self.say(f"{self.name}: {said}")

    def end(self, line: str) -> None:
        """A run has ended."""
        self.done += 1
        self.progress.line = ""
        self.progress.update(self.all, completed=self.done, status=f"{self.done} of {self.runs}")
        self.say(line)

    def say(self, line: str) -> None:
        """Print a permanent line."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=not self.console.is_terminal)


class _Bars(Progress):
    """Bars with a line of text below."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.line, no_wrap=True, overflow="ellipsis", style="dim")


@contextmanager
def display(console: Console, runs: int) -> Iterator[Display]:
    """A live display for this many runs."""
    shown = Display(console, runs)
    with shown.progress:
        yield shown


def fraction(simulation: WatchedRun) -> float:
    """The fraction of a run that is done, by its nearest limit."""
    world, until = simulation.world, simulation.until
    shares = [0.0]
    if until.time:
        shares.append(world.now / until.time)
    if until.updates:
        shares.append(world.tally.updates / until.updates)
    if until.versions:
        shares.append(simulation.server.models(world.server)[0].version / until.versions)
    if until.iterations:
        shares.append(iterations(simulation.server, world) / until.iterations)
    return min(max(shares), 1.0)


def describe(simulation: WatchedRun, measurements: list[Measurement], pace: float) -> str:
    """Virtual time, updates per second, mean staleness and the newest metric in one line, plus one line per task."""
    world = simulation.world
    tally = world.tally
    parts = [f"time {world.now:.2f}", f"{pace:,.0f} updates/s"]
    if tally.updates:
        parts.append(f"staleness {tally.staleness_sum / tally.updates:.1f}")
    if len(simulation.problems) > 1:
        lines = [_task_line(simulation, measurements, task) for task in range(len(simulation.problems))]
        return "\n".join([" · ".join(parts), *lines])
    if measurements:
        name = simulation.metrics[0][0].name
        if name in (metrics := measurements[-1].metrics):
            parts.append(f"{name} {metrics[name]:.4g}")
    return " · ".join(parts)


def _task_line(simulation: WatchedRun, measurements: list[Measurement], task: int) -> str:
    """A task's main metric, or the one of its target, its requests and buffer, its mean staleness."""
    world, server = simulation.world, simulation.server
    parts = [f"  {simulation.problems[task].name}"]
    metrics = next((m.metrics for m in reversed(measurements) if m.task == task), {})
    targets: Sequence[Goal | None] = getattr(server, "targets", ())
    goal = targets[task] if targets else None
    shown = goal.metric if goal else simulation.metrics[task][0]
    if shown.name in metrics:
        write = "{:.3f}" if shown.share else "{:.4g}"
        parts.append(
            f"{shown.name} {write.format(metrics[shown.name])}" + (f" of {write.format(goal.value)}" if goal else "")
        )
    if task in world.finished:
        return " · ".join([*parts, f"done at {world.ends[task]:.1f}"])
    said = server.report(world.server).get("tasks")
    if said:
        parts.append(f"requests {said[task]['requests']}, buffer {said[task]['size']}")
    updates, stale = world.tally.tasks.get(task, (0, 0))
    if updates:
        parts.append(f"staleness {stale / updates:.1f}")
    return " · ".join(parts)
