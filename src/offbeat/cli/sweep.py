"""`offbeat sweep`: a grid of runs as one program, with one record for all of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import pyarrow as pa
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from offbeat.cli.crew import Message, Orders, alone, several
from offbeat.cli.experiment import override_with, read_table
from offbeat.cli.folder import SUMMARY, create, json_text, open_experiment, open_sweep, report, taken, write_json
from offbeat.cli.grid import Grid, short, together
from offbeat.cli.report import draw_report
from offbeat.core.errors import SettingError
from offbeat.report.grid import SWEEP, UNFINISHED
from offbeat.simulate.log import Measurement, time_to
from offbeat.watch.record import write_table
from offbeat.watch.session import InterruptedRunError, interruptible


class StoppedSweepError(InterruptedRunError):
    """The user stopped a sweep. runs: those that are finished, and as far as they came those that are not."""

    def __init__(self, message: str, runs: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.runs = runs


_SHOWN = 20  # lines of the live table
_LINES = 200  # of the final one
_SMALL = ("loss", "gap", "distance")  # metrics of which less is better


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
        typer.Option(help="What is best: accuracy, loss, another metric, or the time to a target, such as time:0.8."),
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
    """Do what is not done yet, sum up and print."""
    _print(folder, do(folder, grid, options), as_json)


def do(folder: Path, grid: Grid, options: Mapping[str, Any]) -> Done:
    """Do what is not done yet, and write what came out."""
    with taken(folder):
        return _do(folder, grid, options)


def _do(folder: Path, grid: Grid, options: Mapping[str, Any]) -> Done:
    began = time.perf_counter()
    results = _recorded(folder / SWEEP)
    known = {result["run"] for result in results}
    left = [point for point in grid.points if point.number not in known]
    device = grid.experiment.top.device
    wanted = options.get("workers") or _default_workers(device)
    orders = Orders(str(folder), device, bool(options.get("events")), min(wanted, max(1, len(left))), len(left))
    board = Board(grid, options.get("best"), results)
    saved = {int(run["run"]): run for run in _recorded(folder / UNFINISHED)}
    with interruptible(board.say) as patience, board.shown(), (folder / SWEEP).open("a", encoding="utf-8") as record:
        hands = alone if orders.workers == 1 else several
        for message in hands(orders, left, lambda: patience.asked) if left else ():
            _take(message, results, saved, record, board)
        if patience.asked and len(results) < len(grid.points):
            under_way = [{**run, "unfinished": True} for run in saved.values() if run["curve"]]
            (folder / UNFINISHED).write_text("".join(json_text(run) + "\n" for run in under_way), encoding="utf-8")
            raise StoppedSweepError(
                f"stopped with {len(results)} of {len(grid.points)} runs finished; "
                f"go on with `offbeat resume {folder}`",
                [*results, *under_way],
            )
    (folder / UNFINISHED).unlink(missing_ok=True)
    results.sort(key=lambda result: int(result["run"]))
    return _sum_up(folder, grid, results, board, time.perf_counter() - began, orders)


def _check_best(best: str | None) -> None:
    if best is not None and best.startswith("time:"):
        try:
            target = float(best[5:])
        except ValueError:
            target = 0.0
        if not 0 < target <= 1:
            raise SettingError(f"--best {best}: the time to an accuracy in (0, 1], as in time:0.8")


def _take(
    message: Message,
    results: list[dict[str, Any]],
    saved: dict[int, dict[str, Any]],
    record: TextIO,
    board: Board,
) -> None:
    kind, value = message
    if kind == "share":
        board.share(*value)
        return
    if kind == "saved":
        saved[value["run"]] = value
        return
    saved.pop(value["run"], None)
    record.write(json_text(value) + "\n")
    record.flush()
    os.fsync(record.fileno())
    results.append(value)
    board.done(value)


def _recorded(path: Path) -> list[dict[str, Any]]:
    """Runs that are on record; a line that was cut off by a crash is a run to be done again."""
    results: list[dict[str, Any]] = []
    if path.exists():
        whole = path.read_bytes()
        for line in whole.splitlines():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if isinstance(result, dict) and result.keys() >= {"run", "algorithm", "seed", "settings", "curve"}:
                results.append(result)
        if whole and not whole.endswith(b"\n"):
            part = path.with_name(path.name + ".part")
            part.write_text("".join(json_text(r) + "\n" for r in results), encoding="utf-8")
            part.replace(path)
    return results


def _default_workers(device: str) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // 2)) if device.startswith("cuda") else cores


class Board:
    """What is best so far, live."""

    def __init__(self, grid: Grid, best: str | None, results: Sequence[Mapping[str, Any]]) -> None:
        self.grid, self.results = grid, results
        self.best = best or "accuracy"
        self.chosen = best is not None
        self.console = Console(stderr=True)
        self.began, self.updates = time.perf_counter(), 0
        self.shares: dict[int, tuple[float, int]] = {}
        self.before = len(results)
        self.live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While the runs go on."""
        if not self.console.is_terminal:
            yield
            return
        with Live(self, console=self.console, refresh_per_second=2, transient=True) as self.live:
            yield

    def share(self, worker: int, done: float, updates: int) -> None:
        self.shares[worker] = done, updates

    def done(self, result: Mapping[str, Any]) -> None:
        self.updates += int(result.get("updates", 0))
        if not self.console.is_terminal:
            end = "diverged" if "error" in result else _shown(result["metrics"])
            settings = "".join(f", {k} = {v}" for k, v in short(result["settings"]).items())
            total = len(self.grid.points)
            self.say(f"{len(self.results)} of {total}: {result['algorithm']}{settings}, seed {result['seed']}: {end}")

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __rich__(self) -> Group:
        done = sum(share for share, _ in self.shares.values()) or len(self.results) - self.before
        updates = sum(u for _, u in self.shares.values()) or self.updates
        spent = time.perf_counter() - self.began
        todo = len(self.grid.points) - self.before
        left = f", about {_duration(spent * (todo - done) / done)} left" if done > 0.01 * todo else ""
        line = (
            f"{len(self.results):,} of {len(self.grid.points):,} runs finished, "
            f"{min(done / max(todo, 1), 1):.0%} of the work done, "
            f"{updates / max(spent, 1e-9):,.0f} updates/s, {_duration(spent)}{left}"
        )
        return Group(self.table(_SHOWN), Text(line, style="dim"))

    def ranked(self) -> list[dict[str, Any]]:
        """Settings from best to worst, each with its seeds put together; those that diverged or fell short last."""
        lines = []
        for (label, settings), results in together(self.results).items():
            values = [_value(result, self.best) for result in results]
            if not self.chosen and all(v is None for v in values):
                values = [_value(result, "loss") for result in results]
            good = [v for v in values if v is not None]
            lines.append(
                {
                    "algorithm": label,
                    "settings": json.loads(settings),
                    "seeds": len(results),
                    "reached": len(good),
                    "mean": sum(good) / len(good) if good else None,
                    "min": min(good, default=None),
                    "max": max(good, default=None),
                    "diverged": sum("error" in result for result in results),
                }
            )
        sign = 1.0 if self.judged_by in _SMALL or self.best.startswith("time:") else -1.0
        return sorted(lines, key=lambda e: (e["reached"] < e["seeds"], e["mean"] is None, sign * (e["mean"] or 0.0)))

    @property
    def judged_by(self) -> str:
        """The metric that decides: the loss where nobody chose and there is no accuracy."""
        return "loss" if self._lost() else self.best

    def missing(self) -> str:
        """A line for a metric that no run has."""
        known = sorted({name for result in self.results for name in result.get("metrics", {})})
        if self.judged_by in known or self.best.startswith("time:") or not known:
            return ""
        return f"no run has a metric {self.judged_by!r}; there are {', '.join(known)}"

    def _lost(self) -> bool:
        """Whether there is no accuracy, so that the loss decides."""
        return not self.chosen and all("accuracy" not in r.get("metrics", {}) for r in self.results)

    def table(self, most: int) -> Table:
        """The best settings of every algorithm."""
        ranked = self.ranked()
        metric = self.judged_by
        shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in ("algorithm", "settings", "seeds", metric, "from", "to"):
            shown.add_column(name, justify="left" if name in ("algorithm", "settings") else "right", overflow="fold")
        for line in ranked[:most]:
            settings = ", ".join(f"{k} = {v}" for k, v in short(line["settings"]).items())
            seeds = f"{line['seeds']}" + (f", {line['diverged']} diverged" if line["diverged"] else "")
            numbers = ("" if line[k] is None else f"{line[k]:.4g}" for k in ("mean", "min", "max"))
            shown.add_row(line["algorithm"], settings, seeds, *numbers)
        if len(ranked) > most:
            shown.caption = f"{len(ranked) - most} more"
        return shown


@dataclass(frozen=True)
class Done:
    """A finished sweep. content: of its summary.   page: of its report, None if it could not be drawn."""

    results: list[dict[str, Any]]
    content: dict[str, Any]
    board: Board
    page: Path | None


def _value(result: Mapping[str, Any], best: str) -> float | None:
    """What a finished run is judged by; None where it has none, as after a divergence."""
    if "error" in result:
        return None
    if best.startswith("time:"):
        found = time_to([Measurement(*m) for m in result["curve"]], float(best[5:]))
    else:
        found = result.get("metrics", {}).get(best)
    return None if found is None else float(found)


def _sum_up(folder: Path, grid: Grid, results: list[dict[str, Any]], board: Board, wall: float, orders: Orders) -> Done:
    write_table(_runs_table(results), folder / "runs.parquet")
    write_table(_curves_table(results), folder / "metrics.parquet")
    plain = [{k: v for k, v in result.items() if k != "curve"} for result in results]
    updates = sum(int(result.get("updates", 0)) for result in results)
    content = {
        "runs": plain,
        "best": board.ranked(),
        "judged_by": board.judged_by,
        "wall_s": wall,
        "updates": updates,
        "workers": orders.workers,
    }
    write_json(folder / SUMMARY, content)
    errors = [
        f"{r['algorithm']}, {json.dumps(r['settings'])}, seed {r['seed']}: {r['error']}"
        for r in results
        if "error" in r
    ]
    report(folder, grid.experiment, _markdown(board), errors)
    return Done(results, content, board, draw_report(folder))


def _print(folder: Path, done: Done, as_json: bool) -> None:
    """The table, or JSON; a run that diverged is a result like others, but if all did, the command failed."""
    total, failed = len(done.results), sum("error" in result for result in done.results)
    if as_json:
        print(json_text(done.content))
    else:
        _print_table(folder, done)
    if line := done.board.missing():
        print(f"offbeat: {line}", file=sys.stderr)
    if failed:
        print(f"offbeat: {failed} of {total} runs diverged; {folder / SWEEP} says which", file=sys.stderr)
    if failed == total:
        sys.exit(1)


def _print_table(folder: Path, done: Done) -> None:
    console = Console()
    console.width = max(console.width, 80 if console.is_terminal else 120)
    console.print(done.board.table(_LINES))
    total, workers = len(done.results), done.content["workers"]
    spent = _duration(done.content["wall_s"])
    print(f"{total:,} runs, {done.content['updates']:,} updates in {spent} with {workers} workers")
    if done.page is not None:
        print(f"report: {done.page}")
    print(f"sweep folder: {folder}")


def _runs_table(results: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row a run."""
    metrics = sorted({name for r in results for name in r.get("metrics", {})})
    targets = sorted({name for r in results for name in r.get("time_to", {})})
    paths = sorted({path for r in results for path in r["settings"]})
    columns: dict[str, Any] = {
        name: [r.get(name) for r in results]
        for name in ("run", "algorithm", "seed", "time", "updates", "versions", "error")
    }
    for path in paths:
        values = [r["settings"].get(path) for r in results]
        numbers = all(v is None or isinstance(v, int | float) for v in values)
        columns[path] = [None if v is None else float(v) if numbers else json.dumps(v) for v in values]
    for name in metrics:
        columns[name] = [r.get("metrics", {}).get(name) for r in results]
    for name in targets:
        columns[f"time_to_{name}"] = [r.get("time_to", {}).get(name) for r in results]
    return pa.table(columns)


def _curves_table(results: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row a measurement of any run."""
    rows = [(r["run"], *m[:4], m[4]) for r in results for m in r["curve"]]
    names = sorted({name for *_, metrics in rows for name in metrics})
    columns: dict[str, Any] = {
        name: [row[at] for row in rows] for at, name in enumerate(("run", "task", "time", "updates", "version"))
    }
    for name in names:
        columns[name] = [row[5].get(name) for row in rows]
    return pa.table(columns)


def _markdown(board: Board) -> str:
    metric = board.judged_by
    lines = [f"| algorithm | settings | seeds | {metric} | from | to |", "|---|---|---:|---:|---:|---:|"]
    for line in board.ranked():
        settings = ", ".join(f"{k} = {v}" for k, v in short(line["settings"]).items())
        numbers = " | ".join("–" if line[k] is None else f"{line[k]:.4g}" for k in ("mean", "min", "max"))
        lines.append(f"| {line['algorithm']} | {settings} | {line['seeds']} | {numbers} |")
    return "\n".join(lines) + "\n"


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
