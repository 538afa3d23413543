"""`offbeat list`, `offbeat schema` and `offbeat data`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def list_(
    what: Annotated[
        str | None, typer.Argument(help="algorithms, locals, models, data, splits or timing. Default: all of them.")
    ] = None,
) -> None:
    """List everything that an experiment file can name, one line each."""
    from offbeat.core.errors import unknown
    from offbeat.experiment.catalogue import catalogue

    shelves = catalogue()
    if what is not None and what not in shelves:
        raise unknown("list", what, shelves)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a line each, for grep
    for shelf, lines in shelves.items() if what is None else [(what, shelves[what])]:
        grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for name, line in lines.items():
            grid.add_row(name, line)
        if what is None:
            console.print(f"\n{shelf}", style="bold")
        console.print(grid)


def schema() -> None:
    """Print the JSON Schema of an experiment file, for completion and checks in editors."""
    from offbeat.experiment.experiment import json_schema

    print(json.dumps(json_schema(), indent=1, ensure_ascii=False))


def data(
    get: Annotated[str | None, typer.Option(metavar="NAME", help="Download this data set and verify it.")] = None,
) -> None:
    """Show where data sets are stored, which ones are installed, and how to get the others."""
    from offbeat.data import fetch, status
    from offbeat.data.folder import VARIABLE, root

    if get is not None:
        fetch(get, say=lambda line: print(line, file=sys.stderr))
    rows = status()
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("set", "state", "size", "where"):
        grid.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for row in rows:
        grid.add_row(row.name, row.state, f"{row.size / 1e6:.1f} MB" if row.size else "", Path(row.where).name)
    console = Console(highlight=False, markup=False)
    console.print(f"Data sets are looked for in {root()}; {VARIABLE} names another folder.\n", soft_wrap=True)
    console.print(grid)
    for row in rows:
        if row.state != "present":
            console.print(f"\n{row.name} is {row.state}: {row.get}", soft_wrap=not console.is_terminal)
