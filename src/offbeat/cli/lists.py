"""`offbeat list`, `offbeat schema` and `offbeat data`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="algorithms, server-optimisers, locals, optimisers, schedules, compressors, models, data, losses, "
            "metrics, splits, timing, rules or attacks. Default: all."
        ),
    ] = None,
) -> None:
    """List everything that an experiment file can name, one line each."""
    from offbeat.core.errors import unknown
    from offbeat.experiment.catalogue import catalogue

    shelves = catalogue()
    if what is not None and what not in shelves:
        raise unknown("list", what, shelves)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000  # a line each, for grep
    for shelf, lines in shelves.items() if what is None else [(what, shelves[what])]:
        grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for name, line in lines.items():
            grid.add_row(name, line)
        if what is None:
            console.print(f"\n{shelf}", style="bold")
        _print(console, grid)


def schema() -> None:
    """Print the JSON Schema of an experiment file, for completion and checks in editors."""
    from offbeat.experiment.experiment import json_schema

    print(json.dumps(json_schema(), indent=1, ensure_ascii=False))


def data(
    get: Annotated[
        str | None, typer.Option(metavar="NAME", help="Download this data set and verify it. Default: none.")
    ] = None,
) -> None:
    """Show every data set: its task, size and licence, whether it is installed, and how to get it."""
    from offbeat.data import fetch, status
    from offbeat.data.facts import FACTS
    from offbeat.data.folder import VARIABLE, root

    if get is not None:
        fetch(get, say=lambda line: print(line, file=sys.stderr))
    rows = status()
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("set", "task", "samples", "clients", "licence", "state", "size"):
        grid.add_column(name, justify="right" if name in ("samples", "clients", "size") else "left", overflow="fold")
    for row in rows:
        facts = FACTS[row.name]
        samples = "" if facts.samples is None else f"{facts.samples:,}"
        owners = "by role" if facts.owners is None else str(facts.owners or "")
        about = (facts.task, samples, owners, facts.licence)
        grid.add_row(row.name, *about, row.state, _size(row.size))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # a line each, for grep
    console.print(f"Data sets are looked for in {root()}; {VARIABLE} names another folder.\n", soft_wrap=True)
    _print(console, grid)
    for row in rows:
        if row.state != "present":
            console.print(f"\n{row.name} is {row.state} in {row.where}: {row.get}", soft_wrap=not console.is_terminal)


def _print(console: Console, grid: Table) -> None:
    """Without the spaces that fill each line."""
    with console.capture() as captured:
        console.print(grid)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _size(size: int) -> str:
    if not size:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
