"""Finished runs as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from offbeat.report.tables import TableCell


def table(head: Sequence[str], body: Sequence[Sequence[TableCell]], caption: str) -> Table:
    """For the terminal: two lines an algorithm, so that it fits into 80 columns."""
    shown = Table(box=SIMPLE_HEAD, caption=caption or None, padding=(0, 1, 0, 0), pad_edge=False)
    for at, name in enumerate(head):
        shown.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    for line in body:
        shown.add_row(*(Text.assemble(cell.main, "\n" if cell.detail else "", (cell.detail, "dim")) for cell in line))
    return shown
