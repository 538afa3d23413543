"""A sweep: a grid of runs as one program, with one record for all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from offbeat.core.errors import InterruptedRunError, SettingError
from offbeat.experiment import folder as folders, mps, ranking, sweep_workers
from offbeat.experiment.dispatch import Processes, WorkerPool, dispatch
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.grid import Grid, Point, bundles
from offbeat.experiment.logbook import Logbook
from offbeat.experiment.results import Results, SweepTotals
from offbeat.experiment.session import Session
from offbeat.experiment.sweep_display import SweepDisplay
from offbeat.experiment.sweep_workers import Message, Orders, alone
from offbeat.simulate.pool import cores
from offbeat.simulate.ray import reach
from offbeat.watch.files import METRICS, SUMMARY, SWEEP_TABLE, locked, write_json, write_table
from offbeat.watch.record import metrics_table
from offbeat.watch.results import Result
from offbeat.watch.session import interruptible

_MEASURED = ("problem", "task", "evaluate")  # settings on which it depends what runs measure
ABREAST = 8  # runs that are done as one on a GPU, at most: a worker has all of them


@dataclass(frozen=True)
class Options:
    """How a sweep is run.

    events: also keep the event log of every run.   workers: processes; None: one a core, on a GPU at most 8, on a
        cluster as many as it has room for.
    ray: the address of a Ray cluster to run on, HOST:PORT or "auto"; None: this machine.
    sweeps: how many of this kind run at the same time, and share the memory of the machine's GPUs.
    best: what settings are ranked by: a metric, `time:0.8` for the time to a value of the task's main metric,
        `time:rmse:0.5` to one of another, or `finish` for when the last of several tasks reached its target; None: the
        first of finish, the task's main metric and loss that the runs have.
    """

    events: bool = False
    best: str | None = None
    workers: int | None = None
    ray: str | None = None
    sweeps: int = 1

    def __post_init__(self) -> None:
        ranking.check_best(self.best)


class StoppedSweepError(InterruptedRunError):
    """The user stopped a sweep. runs: those that are finished, and as far as they came those that are not."""

    def __init__(self, message: str, runs: list[Result]) -> None:
        super().__init__(message)
        self.runs = runs


def sweep(table: Mapping[str, Any], out: Path | str | None, options: Options, *, progress: bool = True) -> Results:
    """Run a grid, the [sweep] of a table, into a new folder."""
    grid = Grid(table)
    if not grid.axes and grid.experiment.trials < 2:
        raise SettingError(
            "the experiment has no [sweep] table; name at least one key and its values there, or with --over"
        )
    check(grid, options.best, options.ray)
    return run(create(out, grid, options), grid, options, progress)


def check(grid: Grid, best: str | None = None, ray: str | None = None) -> None:
    """Find mistakes before anything is written. best, ray: of its options."""
    experiment = grid.experiment
    if experiment.executor in ("processes", "ray") or experiment.workers is not None:
        raise SettingError("a sweep has its own processes: leave out executor and workers, and use --workers N")
    reach(ray)
    here = experiment.device == "cpu"  # on a GPU, building runs would cost more than it saves
    swept = [key for path in grid.axes for key in path.split(" & ")]
    named = best is not None and not any(key.startswith(_MEASURED) for key in swept)
    if here or named:
        with closing(Session(experiment if here else replace(experiment, device="cpu", precision="single"))) as session:
            if here:
                session.check()
            if named:
                ranking.check_metric(best, session.measured)


def create(out: Path | str | None, grid: Grid, options: Options) -> Path:
    """A new folder for a sweep."""
    return folders.create(out, grid.experiment, {"axes": grid.table.get("sweep", {}), "options": vars(options)})


def resume(folder: Path, experiment: Experiment, saved: Mapping[str, Any], *, progress: bool = True) -> Results:
    """Continue the sweep in this folder."""
    return run(folder, Grid({**experiment.table, "sweep": saved["axes"]}), Options(**saved["options"]), progress)


def read(folder: Path, experiment: Experiment) -> Results:
    """What the finished runs of a sweep found."""
    results = sorted(Logbook(folder).results, key=lambda result: result.number or 0)
    return Results(results, folder)


def run(folder: Path, grid: Grid, options: Options, progress: bool = True) -> Results:
    """Do what is not done yet, write down what came out and draw the report."""
    found = work(folder, grid, options, progress)
    folders.draw_report(folder)
    return found


def work(folder: Path, grid: Grid, options: Options, progress: bool = True) -> Results:
    """Do what is not done yet, and write down what came out."""
    with locked(folder):
        began = time.perf_counter()
        logbook = Logbook(folder)
        known = {result.number for result in logbook.results}
        left = [point for point in grid.points if point.number not in known]
        orders, messages = _workers(folder, grid.experiment.device, options, left)
        display = SweepDisplay(len(grid.points), logbook.results, options.best, progress)
        if left and not orders.apart and (line := mps.advice(orders.device, orders.workers, orders.gpus)):
            display.say(line)
        with interruptible(display.say) as patience, display.shown(), logbook.open():
            for kind, value in messages(lambda: patience.asked) if left else ():
                if kind == "share":
                    display.share(*value)
                elif kind == "so far":
                    logbook.note(value)
                else:
                    logbook.end(value)
                    display.done(value)
            if patience.asked and len(logbook.results) < len(grid.points):
                raise StoppedSweepError(
                    f"stopped with {len(logbook.results)} of {len(grid.points)} runs finished; "
                    f"continue with `offbeat resume {folder}`",
                    [*logbook.results, *logbook.under_way],
                )
        logbook.close()
        totals = SweepTotals(options.best, time.perf_counter() - began, orders.workers)
        return _sum_up(folder, grid, logbook.results, totals)


def _workers(
    folder: Path, device: str, options: Options, left: Sequence[Point]
) -> tuple[Orders, Callable[[Callable[[], bool]], Iterator[Message]]]:
    """The orders for workers, and a function that has them do these runs until it is told to stop."""
    pool: WorkerPool
    gpus = max(1, torch.cuda.device_count()) if device == "cuda" else 1
    if options.ray is None or not left:
        room = min(8 * gpus, max(gpus, cores() // 2)) if device.startswith("cuda") else cores()
        pool = Processes()
    else:
        from offbeat.experiment.sweep_ray import Actors

        pool = actors = Actors(options.ray, device)
        room, gpus = actors.workers, max(1, actors.gpus)
    most = ABREAST if device.startswith("cuda") else 1
    parts = bundles(left, most)
    apart, many = not isinstance(pool, Processes), min(options.workers or room, max(1, len(parts)))
    save, sweeps = sweep_workers.SAVE, options.sweeps
    orders = Orders(str(folder), device, options.events, many, len(parts), gpus, apart, save, sweeps)
    if many == 1 and not apart:
        return orders, lambda stop: alone(orders, parts, stop)
    return orders, lambda stop: dispatch(pool, orders, parts, stop)


def _sum_up(folder: Path, grid: Grid, results: Sequence[Result], totals: SweepTotals) -> Results:
    found = Results(results, folder, sweep=totals)
    write_table(_runs_table(results), folder / SWEEP_TABLE)
    curves = metrics_table([m for r in results for m in r.history])  # one row per evaluation of any run
    numbers = pa.array([r.number for r in results for _ in r.history])
    write_table(curves.add_column(0, "run", numbers), folder / METRICS)
    write_json(folder / SUMMARY, found.summary)
    errors = [
        f"{r.algorithm}, {json.dumps(r.settings)}, seed {r.seed}: {r.error}" for r in results if r.error is not None
    ]
    folders.write_report(folder, grid.experiment, ranking.markdown(results, totals.best), errors)
    return found


def _runs_table(results: Sequence[Result]) -> pa.Table:
    """One row a run."""
    metrics = sorted({name for r in results for name in r.metrics})
    targets = sorted({name for r in results for name in r.targets})
    paths = sorted({path for r in results for path in r.settings})
    columns: dict[str, Any] = {
        "run": [r.number for r in results],
        **{name: [getattr(r, name) for r in results] for name in ("algorithm", "seed", "time", "updates", "versions")},
        "error": [r.error for r in results],
    }
    for path in paths:
        values = [r.settings.get(path) for r in results]
        numbers = all(v is None or isinstance(v, int | float) for v in values)
        columns[path] = [None if v is None else float(v) if numbers else json.dumps(v) for v in values]
    for name in metrics:
        columns[name] = [r.metrics.get(name) for r in results]
    for name in targets:
        columns[f"time_to_{name}"] = [r.targets.get(name) for r in results]
    return pa.table(columns)
