"""Finished runs as a table: for the terminal and for a text file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from offbeat.report.tables import UNEQUAL_SHARES, TableCell, note, rows, task_rows, work_rows
from offbeat.watch.results import Result

__all__ = ["TableCell", "markdown", "rows", "table", "task_markdown", "task_table", "work_markdown", "work_table"]


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


def markdown(results: Sequence[Result], targets: Sequence[float]) -> str:
    """For a text file."""
    text = _markdown(*rows(results, targets))
    return text + (f"\n{note(results)[0].upper()}{note(results)[1:]}.\n" if note(results) else "")


def task_markdown(results: Sequence[Result], baseline: str) -> str:
    """For a text file: several tasks."""
    return _markdown(*task_rows(results, baseline))


def work_markdown(results: Sequence[Result]) -> str:
    """For a text file: how the clients worked."""
    return _markdown(*work_rows(results))


def _markdown(head: Sequence[str], body: Sequence[Sequence[TableCell]]) -> str:
    cells = [[cell.main + (f" ({cell.detail})" if cell.detail else "") for cell in line] for line in body]
    lines = [[name.replace("\n", " ") for name in head], ["---", *("---:" for _ in head[1:])], *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
