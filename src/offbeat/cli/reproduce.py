"""`offbeat reproduce`: a paper's experiment, with our numbers beside its own."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offbeat.cli.report import draw_report
from offbeat.cli.sweep import StoppedSweepError, do
from offbeat.core.errors import FolderError, SettingError, unknown
from offbeat.experiment.experiment import override_with
from offbeat.experiment.folder import changes, create
from offbeat.experiment.grid import Grid
from offbeat.papers import Entry, Outcome, conclude, load, names
from offbeat.papers.cells import printed as shows
from offbeat.papers.outcome import rehearse, remark, scope, shown
from offbeat.report.comparison import NOT_CHECKED, NOT_RUN
from offbeat.watch.files import EXPERIMENT, OUTCOME, REPRODUCTION, REPRODUCTION_REPORT, json_text, versions, write_json
from offbeat.watch.results import Result
from offbeat.watch.session import InterruptedRunError

_STYLES = {"held": "green", "not held": "red", "undecided": "yellow"}


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which one; without it, a list of all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller, in minutes on two cores; the default.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's protocol.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder to write; default runs/NAME-SCALE-TIME.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default as for `offbeat sweep`.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPERIMENT[/ALGORITHM]",
            help="Run this experiment alone, or one algorithm of it. Repeatable.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY.PATH=VALUE", help="Override a setting of its experiments, e.g. trials=1. Repeatable."
        ),
    ] = None,
    printed: Annotated[
        bool, typer.Option("--printed", help="Only settings that the paper's table shows, not the grid behind them.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
    ] = False,
) -> None:
    """Run a paper's experiment and print our numbers next to the paper's, and which of its claims held.

    Ctrl-C saves what is at work; `offbeat resume DIR` goes on with it.
    """
    if name is None:
        _list(as_json)
        return
    if quick and full:
        raise SettingError("--quick and --full: choose one of them")
    scale = "full" if full else "quick"
    entry = load(name, scale)
    rehearse(entry)
    asked = {"name": name, "scale": scale, "device": device, "workers": workers, "only": only, "printed": printed}
    asked |= {"set": set_ or []}
    for grid in _grids(entry, asked).values():  # a mistake is found before anything is written
        grid.experiment.check()
    folder = out or Path("runs") / f"{name}-{scale}-{time.strftime('%Y%m%d-%H%M%S')}"
    if (folder / REPRODUCTION).exists() or (folder / EXPERIMENT).exists():
        raise FolderError(f"{folder} already holds a run; go on with `offbeat resume {folder}` or name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = {"name": str(Path(name).resolve())} if name.endswith(".toml") else {}
        write_json(folder / REPRODUCTION, asked | own)
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror}; name another folder with --out") from None
    _go_on(folder, as_json)


def resume_reproduction(folder: Path, as_json: bool) -> bool:
    """Go on with the reproduction in this folder; False if it holds none."""
    if not (folder / REPRODUCTION).is_file():
        return False
    _go_on(folder, as_json)
    return True


def _go_on(folder: Path, as_json: bool) -> None:
    """Do what is not done yet, compare and print."""
    try:
        asked = json.loads((folder / REPRODUCTION).read_text(encoding="utf-8"))
        entry = load(asked["name"], asked["scale"])
    except (ValueError, KeyError, TypeError):
        raise FolderError(f"{folder / REPRODUCTION} is damaged; start anew in another folder") from None
    options = {"events": entry.events, "best": None, "workers": asked["workers"]}
    runs: dict[str, Sequence[Result]] = {}
    grids = _grids(entry, asked)
    for name, grid in grids.items():
        place = folder / name if len(entry.experiments) > 1 else folder
        if not (place / EXPERIMENT).exists():
            create(place, grid.experiment, {"axes": grid.table.get("sweep", {}), "options": options})
        for change in changes(place):
            print(f"offbeat: {change}: the end may differ from that of an unbroken run", file=sys.stderr)
        if not as_json:
            print(f"{name}: {len(grid.points):,} runs", file=sys.stderr)
        began, stopped = time.perf_counter(), None
        try:
            done = do(place, grid, options)
        except StoppedSweepError as error:
            stopped = error
        finally:  # what an interrupted one has cost counts, too
            asked["wall_s"] = asked.get("wall_s", 0.0) + time.perf_counter() - began
            write_json(folder / REPRODUCTION, asked)
        if stopped is not None:
            _so_far(folder, entry, asked, grids, {**runs, name: stopped.runs}, as_json)
            raise InterruptedRunError(f"stopped and saved; go on with `offbeat resume {folder}`")
        runs[name] = done.standings.results
        if place != folder:
            draw_report(place)
    outcome, wall = conclude(entry, runs, whole=not asked.get("printed")), asked["wall_s"]
    _write(folder, outcome, asked, grids)
    page = draw_report(folder)
    if as_json:
        print(json_text({**outcome.data, "wall_s": wall, "folder": str(folder), "report": page and str(page)}))
        return
    _print(entry, outcome)
    if asked.get("set"):
        print(f"not the whole protocol: {', '.join(asked['set'])}")
    print(f"{sum(map(len, runs.values())):,} runs in {wall:.0f} s")
    if page is not None:
        print(f"report: {page}")
    print(f"folder: {folder}, with the comparison in {REPRODUCTION_REPORT} and {OUTCOME}")


def _so_far(
    folder: Path,
    entry: Entry,
    asked: Mapping[str, Any],
    grids: Mapping[str, Grid],
    runs: Mapping[str, Sequence[Result]],
    as_json: bool,
) -> None:
    """What is known of one that was stopped, until it goes on."""
    outcome = conclude(entry, runs, whole=False)
    left = sum(bool(run.unfinished) for group in runs.values() for run in group)
    so_far = f"so far: {sum(map(len, runs.values())) - left:,} runs finished, {left:,} under way"
    _write(folder, outcome, asked, grids, so_far)
    draw_report(folder)
    if not as_json:
        _print(entry, outcome)
        print(so_far)


def _grids(entry: Entry, asked: Mapping[str, Any]) -> dict[str, Grid]:
    """The runs that were asked for: of every experiment, or of those, and the algorithms of them, that `only` names."""
    wanted: dict[str, list[str]] = {}
    for each in asked.get("only") or entry.experiments:
        name, _, algorithm = each.partition("/")
        if name not in entry.experiments:
            raise unknown("experiment", name, entry.experiments)
        wanted.setdefault(name, []).append(algorithm)
    return {name: _grid(entry, asked, name, wanted[name]) for name in entry.experiments if name in wanted}


def _grid(entry: Entry, asked: Mapping[str, Any], name: str, algorithms: Sequence[str]) -> Grid:
    """The runs of one experiment: of the algorithms named, or of all if a name is empty."""
    table = entry.experiments[name]
    for override in asked.get("set") or ():
        try:
            table = override_with(table, override)
        except SettingError as error:
            if len(entry.experiments) == 1:
                raise
            raise SettingError(f"experiment {name}: {error}; --only runs some of the experiments") from None
    grid = Grid({**table, "device": asked["device"]})
    if all(algorithms):
        labels = dict.fromkeys(point.label for point in grid.points)
        for label in algorithms:
            if label not in labels:
                raise unknown("algorithm", label, labels)
        grid.points = [point for point in grid.points if point.label in algorithms]
    if asked.get("printed"):
        grid.points = [point for point in grid.points if shows(entry, name, point.label, point.settings)]
    return grid


def _write(
    folder: Path, outcome: Outcome, asked: Mapping[str, Any], grids: Mapping[str, Grid], so_far: str = ""
) -> None:
    wall = asked["wall_s"]
    command = ["offbeat", "reproduce", asked["name"], f"--{asked['scale']}", "--device", asked["device"]]
    command += ["--printed"] if asked.get("printed") else []
    command += [word for only in asked.get("only") or () for word in ("--only", only)]
    command += [word for override in asked.get("set") or () for word in ("--set", override)]
    data = {**outcome.data, "command": shlex.join(command), "wall_s": wall, "versions": versions()}
    data["seeds"] = {name: sorted({run.seed for run in grid.experiment.runs}) for name, grid in grids.items()}
    write_json(folder / OUTCOME, data | ({"stopped": so_far} if so_far else {}))
    end = f"\nStopped, {so_far}.\n" if so_far else ""
    end += f"\nCommand: `{shlex.join(command)}`; {wall:.0f} s on {asked['device']}; seeds {data['seeds']}.\n"
    (folder / REPRODUCTION_REPORT).write_text(outcome.markdown + end, encoding="utf-8")


def _list(as_json: bool) -> None:
    entries = [load(name) for name in names()]
    if as_json:
        lines = [{"name": e.name, "paper": e.paper, "where": e.where, "title": e.title} for e in entries]
        print(json_text({"reproductions": lines}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a line each, for grep
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for entry in entries:
        grid.add_row(entry.name, f"{entry.paper}, {entry.where}", entry.title)
    console.print(grid)


def _print(entry: Entry, outcome: Outcome) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, 80 if console.is_terminal else 150)
    console.print(f"{entry.name}: {entry.title} ({entry.paper}, {entry.where})", style="bold", markup=False)
    if entry.says:
        console.print(f"quick: {scope(entry)}", style="yellow", markup=False)
    for note in entry.notes:
        console.print(f"- {note}", style="dim", markup=False)
    run = [cell for cell in outcome.cells if cell.ours.note != NOT_RUN]
    checked = [judged for judged in outcome.claims if judged.state != NOT_CHECKED]
    if run:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in ("cell", "ours", "paper", ""):
            table.add_column(column, justify="right" if column in ("ours", "paper") else "left", overflow="fold")
        for cell in run:
            style = "yellow" if cell.outside else "dim" if cell.ours.mean is None else None
            table.add_row(cell.name, shown(cell.ours), cell.paper.text, remark(cell), style=style)
        console.print(table)
    for judged in checked:
        console.print(f"{judged.state:>11}", style=_STYLES[judged.state], end="  ")
        console.print(judged.claim.text, markup=False)
    if len(run) < len(outcome.cells) or len(checked) < len(outcome.claims):
        cells, claims = f"{len(run)} of {len(outcome.cells)} cells", f"{len(checked)} of {len(outcome.claims)} claims"
        console.print(f"shown: {cells} and {claims}; the others were not run", style="dim")
    print()
