"""`offbeat sweep`: a grid of runs as one program, with one record for all of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console

from offbeat.cli.report import draw_report
from offbeat.core.errors import SettingError
from offbeat.experiment.experiment import override_with, read_table
from offbeat.experiment.folder import create, open_experiment, open_sweep, report
from offbeat.experiment.grid import Grid
from offbeat.experiment.logbook import Logbook
from offbeat.experiment.ranking import Standings, duration
from offbeat.experiment.sweep_workers import Orders, alone, several
from offbeat.simulate.pool import cores
from offbeat.watch.files import METRICS, SUMMARY, SWEEP, SWEEP_TABLE, json_text, locked, write_json, write_table
from offbeat.watch.record import metrics_table
from offbeat.watch.results import Result
from offbeat.watch.session import InterruptedRunError, interruptible

_LINES = 200  # of the final table


class StoppedSweepError(InterruptedRunError):
    """The user stopped a sweep. runs: those that are finished, and as far as they came those that are not."""

    def __init__(self, message: str, runs: list[Result]) -> None:
        super().__init__(message)
        self.runs = runs


def sweep(
    file: Annotated[
        Path, typer.Argument(help="Experiment file in TOML with a [sweep] table of keys and lists of values.")
    ],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a setting. Repeatable.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", metavar="KEY.PATH=[VALUES]", help="Sweep over this key, too: algorithm.*.local.sgd.lr=[1,10]."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default runs/TIME.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one a core, on a GPU at most 8.")
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="Also keep the event log of every run.")] = False,
    best: Annotated[
        str | None,
        typer.Option(
            help="What is best: accuracy, loss, another metric, the time to an accuracy, such as time:0.8, or finish, "
            "when the last of several tasks reached its target."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
    ] = False,
) -> None:
    """Run a grid of experiments as one program: every algorithm, seed and combination of the values in [sweep].

    Jobs of all runs that are ready are computed in one batch, in several processes. Ctrl-C saves what is at work;
    `offbeat resume DIR` goes on with it.
    """
    table = read_table(file, set_ or ())
    for axis in over or ():
        table = override_with(table, f"sweep.{axis}")
    grid = Grid(table)
    if not grid.axes and grid.experiment.top.trials < 2:
        raise SettingError(f"{file} has no [sweep] table; name at least one key and its values, or use --over")
    _check_best(best)
    top = grid.experiment.top
    if top.executor in ("processes", "ray") or top.workers is not None:
        raise SettingError("a sweep has processes of its own: leave out executor and workers, and say --workers N")
    if top.device == "cpu":  # on a GPU it would cost more than it saves
        grid.experiment.check()
    options = {"events": events, "best": best, "workers": workers}
    folder = create(out, grid.experiment, {"axes": table.get("sweep", {}), "options": options})
    go_on(folder, grid, options, as_json)


def resume_sweep(folder: Path, as_json: bool) -> bool:
    """Go on with the sweep in this folder; False if it holds none."""
    saved = open_sweep(folder)
    if saved is None:
        return False
    table = {**open_experiment(folder).table, "sweep": saved["axes"]}
    go_on(folder, Grid(table), saved["options"], as_json)
    return True


def go_on(folder: Path, grid: Grid, options: Mapping[str, Any], as_json: bool) -> None:
    """Do what is not done yet, sum up, draw the report and print."""
    done = do(folder, grid, options)
    _print(folder, done, draw_report(folder), as_json)


def do(folder: Path, grid: Grid, options: Mapping[str, Any]) -> Done:
    """Do what is not done yet, and write what came out."""
    with locked(folder):
        return _do(folder, grid, options)


def _do(folder: Path, grid: Grid, options: Mapping[str, Any]) -> Done:
    began = time.perf_counter()
    logbook = Logbook(folder)
    known = {result.number for result in logbook.results}
    left = [point for point in grid.points if point.number not in known]
    device = grid.experiment.top.device
    wanted = options.get("workers") or _default_workers(device)
    orders = Orders(str(folder), device, bool(options.get("events")), min(wanted, max(1, len(left))), len(left))
    standings = Standings(grid, options.get("best"), logbook.results)
    with interruptible(standings.say) as patience, standings.shown(), logbook.open():
        hands = alone if orders.workers == 1 else several
        for kind, value in hands(orders, left, lambda: patience.asked) if left else ():
            if kind == "share":
                standings.share(*value)
            elif kind == "so far":
                logbook.note(value)
            else:
                logbook.end(value)
                standings.done(value)
        if patience.asked and len(logbook.results) < len(grid.points):
            raise StoppedSweepError(
                f"stopped with {len(logbook.results)} of {len(grid.points)} runs finished; "
                f"go on with `offbeat resume {folder}`",
                [*logbook.results, *logbook.under_way],
            )
    logbook.close()
    return _sum_up(folder, grid, standings, time.perf_counter() - began, orders)


def _check_best(best: str | None) -> None:
    if best is not None and best.startswith("time:"):
        try:
            target = float(best[5:])
        except ValueError:
            target = 0.0
        if not 0 < target <= 1:
            raise SettingError(f"--best {best}: the time to an accuracy in (0, 1], as in time:0.8")


def _default_workers(device: str) -> int:
    return min(8, max(1, cores() // 2)) if device.startswith("cuda") else cores()


@dataclass(frozen=True)
class Done:
    """A finished sweep. content: of its summary."""

    content: dict[str, Any]
    standings: Standings


def _sum_up(folder: Path, grid: Grid, standings: Standings, wall: float, orders: Orders) -> Done:
    results = standings.results
    write_table(_runs_table(results), folder / SWEEP_TABLE)
    write_table(_curves_table(results), folder / METRICS)
    updates = sum(result.updates for result in results)
    content = {
        "runs": [replace(result, curve=None).to_json() for result in results],
        "best": [asdict(line) for line in standings.ranked()],
        "judged_by": standings.judged_by,
        "wall_s": wall,
        "updates": updates,
        "workers": orders.workers,
    }
    write_json(folder / SUMMARY, content)
    errors = [
        f"{r.algorithm}, {json.dumps(r.settings)}, seed {r.seed}: {r.error}" for r in results if r.error is not None
    ]
    report(folder, grid.experiment, standings.markdown(), errors)
    return Done(content, standings)


def _print(folder: Path, done: Done, page: Path | None, as_json: bool) -> None:
    """The table, or JSON; a run that diverged is a result like others, but if all did, the command failed."""
    total, failed = len(done.standings.results), sum(r.error is not None for r in done.standings.results)
    if as_json:
        print(json_text(done.content))
    else:
        _print_table(folder, done, page)
    if line := done.standings.missing():
        print(f"offbeat: {line}", file=sys.stderr)
    if failed:
        print(f"offbeat: {failed} of {total} runs diverged; {folder / SWEEP} says which", file=sys.stderr)
    if failed == total:
        sys.exit(1)


def _print_table(folder: Path, done: Done, page: Path | None) -> None:
    console = Console()
    console.width = max(console.width, 80 if console.is_terminal else 120)
    console.print(done.standings.table(_LINES))
    total, workers = len(done.standings.results), done.content["workers"]
    spent = duration(done.content["wall_s"])
    print(f"{total:,} runs, {done.content['updates']:,} updates in {spent} with {workers} workers")
    if page is not None:
        print(f"report: {page}")
    print(f"sweep folder: {folder}")


def _runs_table(results: Sequence[Result]) -> pa.Table:
    """One row a run."""
    metrics = sorted({name for r in results for name in r.metrics})
    targets = sorted({name for r in results for name in r.targets})
    paths = sorted({path for r in results for path in r.settings})
    columns: dict[str, Any] = {"run": [r.number for r in results]}
    columns |= {
        name: [getattr(r, name) for r in results]
        for name in ("algorithm", "seed", "time", "updates", "versions", "error")
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


def _curves_table(results: Sequence[Result]) -> pa.Table:
    """One row a measurement of any run."""
    runs = [r.number for r in results for _ in r.history]
    table = metrics_table([m for r in results for m in r.history])
    return table.add_column(0, "run", pa.array(runs))
