"""Finished runs as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from offbeat import Result
from offbeat.report.tables import UNEQUAL_SHARES, TableCell, note, rows, task_rows, work_rows


def table(results: Sequence[Result], targets: Sequence[float]) -> Table:
    """For the terminal: two lines an algorithm, so that it fits into 80 columns."""
    return _table(*rows(results, targets), note(results))


def task_table(results: Sequence[Result], baseline: str) -> Table:
    """For the terminal: several tasks."""
    return _table(*task_rows(results, baseline), "time at which a task finished, and its accuracy then")


def work_table(results: Sequence[Result]) -> Table:
    """For the terminal: how the clients worked."""
    return _table(*work_rows(results), UNEQUAL_SHARES)


def _table(head: Sequence[str], body: Sequence[Sequence[TableCell]], caption: str) -> Table:
    shown = Table(box=SIMPLE_HEAD, caption=caption or None, padding=(0, 1, 0, 0), pad_edge=False)
    for at, name in enumerate(head):
        shown.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    for line in body:
        shown.add_row(*(Text.assemble(cell.main, "\n" if cell.detail else "", (cell.detail, "dim")) for cell in line))
    return shown
