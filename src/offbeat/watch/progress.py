"""What a person sees while runs go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from offbeat.simulate.log import Measurement
from offbeat.simulate.loop import Simulation
from offbeat.watch.record import Recorder

_SECONDS = 0.2  # between two refreshes


class Display:
    """A bar for all runs and one for the run at work; on something that is no terminal, a line a run."""

    def __init__(self, console: Console, runs: int) -> None:
        self.console, self.runs, self.done = console, runs, 0
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.all = self.progress.add_task("all runs", total=runs, status=f"0 of {runs}")
        self.one: TaskID | None = None
        self.refreshed = 0.0

    def begin(self, name: str) -> None:
        """A run starts."""
        if self.one is not None:
            self.progress.remove_task(self.one)
        self.one = self.progress.add_task(name, total=1.0, status="")

    def tick(self, simulation: Simulation, recorder: Recorder) -> None:
        """A run goes on."""
        now = time.perf_counter()
        if self.one is None or now - self.refreshed < _SECONDS:
            return
        self.refreshed = now
        share = fraction(simulation)
        elapsed = self.progress.tasks[-1].elapsed or 1e-9
        status = describe(simulation, recorder.measurements, elapsed)
        self.progress.update(self.one, completed=share, status=status)
        self.progress.update(self.all, completed=self.done + share)

    def end(self, line: str) -> None:
        """A run is over."""
        self.done += 1
        self.progress.update(self.all, completed=self.done, status=f"{self.done} of {self.runs}")
        self.console.print(line, highlight=False)


@contextmanager
def display(console: Console, runs: int) -> Iterator[Display]:
    """A live display for this many runs."""
    shown = Display(console, runs)
    with shown.progress:
        yield shown


def fraction(simulation: Simulation) -> float:
    """How much of a run is done, by whichever of its limits is nearest."""
    world, until = simulation.world, simulation.until
    shares = [0.0]
    if until.time:
        shares.append(world.now / until.time)
    if until.updates:
        shares.append(world.tally.updates / until.updates)
    if until.versions:
        shares.append(simulation.server.models(world.server)[0].version / until.versions)
    return min(max(shares), 1.0)


def describe(simulation: Simulation, measurements: list[Measurement], elapsed: float) -> str:
    """Virtual time, pace, staleness and the newest metric, in one line."""
    world = simulation.world
    tally = world.tally
    parts = [f"t {world.now:.2f}", f"{tally.updates / elapsed:,.0f} updates/s"]
    if tally.updates:
        parts.append(f"staleness {tally.staleness_sum / tally.updates:.1f}")
    if measurements:
        metrics = measurements[-1].metrics
        name = "accuracy" if "accuracy" in metrics else next(iter(metrics))
        parts.append(f"{name} {metrics[name]:.4g}")
    return " · ".join(parts)
