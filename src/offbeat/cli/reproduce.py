"""`offbeat reproduce`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offbeat.cli.options import AsJson, Ray
from offbeat.core.errors import SettingError

if TYPE_CHECKING:
    from offbeat.papers.reproduce import Reproduction

_STYLES = {"held": "green", "not held": "red", "undecided": "yellow"}


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of a reproduction. Default: list all of them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version, in minutes; the default.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Run the paper's protocol.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: runs/NAME-SCALE-TIME.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: as for `offbeat sweep`.")] = None,
    ray: Ray = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPERIMENT[/ALGORITHM]",
            help="Run only this experiment, or one algorithm of it. Repeatable. Default: all.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY.PATH=VALUE",
            help="Override a setting of the experiments, e.g. trials=1. Repeatable. Default: the protocol's.",
        ),
    ] = None,
    printed: Annotated[
        bool, typer.Option("--printed", help="Run only the settings in the paper's table, not the grid behind it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiment, compare our numbers with the paper's, and check its claims.

    Ctrl-C saves the active runs; `offbeat resume DIR` continues them.
    """
    from offbeat.papers.reproduce import Request, reproduce as run

    if name is None:
        _list(as_json)
        return
    if quick and full:
        raise SettingError("--quick and --full: choose one of them")
    scale: Literal["full", "quick"] = "full" if full else "quick"
    request = Request(name, scale, device, workers, tuple(only or ()), printed, tuple(set_ or ()), ray)
    show(lambda: run(request, out, _say(as_json)), as_json)


def resume(folder: Path, as_json: bool) -> bool:
    """Continue the reproduction in this folder; False if it holds none."""
    from offbeat.papers import reproduce as library

    if not library.is_reproduction(folder):
        return False
    show(lambda: library.resume(folder, _say(as_json)), as_json)
    return True


def _say(as_json: bool) -> Callable[[str], None]:
    return (lambda line: None) if as_json else (lambda line: print(line, file=sys.stderr))


def show(run: Callable[[], Reproduction], as_json: bool) -> None:
    """Print what came out; of one that the user stops, what is known so far."""
    from offbeat.experiment.folder import json_text
    from offbeat.papers.reproduce import StoppedReproductionError

    try:
        found = run()
    except StoppedReproductionError as error:
        if not as_json:
            _print(error.known)
            print(error.known.so_far)
        raise
    if as_json:
        print(json_text(found.to_json()))
        return
    _print(found)
    if found.request.set:
        print(f"not the whole protocol: {', '.join(found.request.set)}")
    print(f"{found.runs:,} runs in {found.wall_s:.0f} s")
    if found.page is not None:
        print(f"report: {found.page}")
    print(f"folder: {found.folder}, with the comparison in reproduction.md and outcome.json")


def _list(as_json: bool) -> None:
    from offbeat.experiment.folder import json_text
    from offbeat.papers import load, names

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


def _print(found: Reproduction) -> None:
    from offbeat.papers.outcome import remark, scope, shown
    from offbeat.report.comparison import NOT_CHECKED, NOT_RUN

    entry, outcome = found.entry, found.outcome
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
        means = f" (means: {judged.means})" if judged.means != judged.state else ""
        console.print(judged.claim.text + means, markup=False)
    if len(run) < len(outcome.cells) or len(checked) < len(outcome.claims):
        cells, claims = f"{len(run)} of {len(outcome.cells)} cells", f"{len(checked)} of {len(outcome.claims)} claims"
        console.print(f"shown: {cells} and {claims}; the others were not run", style="dim")
    print()
