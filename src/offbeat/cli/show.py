"""What came out of a command, for the terminal or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offbeat.experiment import ranking
from offbeat.experiment.folder import json_text
from offbeat.experiment.rehearsal import Rehearsal
from offbeat.experiment.results import Results, SweepTotals
from offbeat.experiment.sweep_display import duration, table as ranking_table
from offbeat.report import tables

_LINES = 200  # of a sweep's table
# What --json prints of a run; its result.json holds a few things more.
_PRINTED = (
    *("algorithm", "seed", "error", "time", "updates", "versions", "metrics"),
    *("time_to", "staleness", "wall_s", "updates_per_s", "tasks", "notes", "measures"),
)


def results(found: Results, as_json: bool) -> None:
    """Of an experiment or a sweep; exit code 1 if a run of an experiment, or every run of a sweep, failed."""
    failed = [result for result in found if result.error is not None]
    if found.sweep is not None:
        _sweep(found, found.sweep, as_json)
        if failed:
            _say(f"{len(failed)} of {len(found)} runs diverged; {found.record} says which")
    else:
        _runs(found, as_json)
        for result in failed:
            _say(f"{result.name}: {result.error}")
    if failed and (found.sweep is None or len(failed) == len(found)):
        sys.exit(1)


def _runs(found: Results, as_json: bool) -> None:
    if as_json:
        runs = [result.to_json() for result in found]
        print(json_text({"runs": [{key: run[key] for key in _PRINTED if key in run} for run in runs]}))
    else:
        console = _console()
        if any(result.several for result in found):
            said = "time at which a task finished, and its own metric then"
            console.print(table(*tables.task_rows(found, found.baseline), said))
        else:
            console.print(table(*tables.rows(found), tables.note(found)))
        if any(result.error is None for result in found):
            console.print(table(*tables.work_rows(found), tables.UNEQUAL_SHARES))
        _print_places(found, "run folder")
    for line in [*found.unreached(), *found.untrained()]:
        _say(line)


def _sweep(found: Results, totals: SweepTotals, as_json: bool) -> None:
    if as_json:
        print(json_text(found.summary))
    else:
        _console().print(ranking_table(found, totals.best, _LINES))
        updates, spent = sum(result.updates for result in found), duration(totals.wall_s)
        print(f"{len(found):,} runs, {updates:,} updates in {spent} with {totals.workers} workers")
        _print_places(found, "sweep folder")
    if line := ranking.missing(found, totals.best):
        _say(line)


def rehearsal(found: Rehearsal, as_json: bool) -> None:
    """What `offbeat check` has seen."""
    total = found.seconds
    if as_json:
        trials = [{**vars(t), "seconds": t.seconds, "total_updates": t.total_updates} for t in found.trials]
        remarks = [vars(remark) for remark in found.remarks]
        plain = {name: getattr(found, name) for name in ("what", "runs", "start", "end", "seconds", "memory")}
        print(json_text({**plain, "trials": trials, "remarks": remarks}))
        return
    print(found.what)
    head = ("algorithm", "updates", "evaluations", "one run", "tried", "loss then")
    body = [
        [
            tables.TableCell(text)
            for text in (
                trial.label,
                "?" if trial.total_updates is None else f"{trial.total_updates:,.0f}",
                f"{trial.evaluations:,.0f}",
                _seconds(trial.seconds),
                f"{trial.share:.0%}",
                "diverged" if trial.error else f"{trial.before:.3g} → {trial.after:.3g}",
            )
        ]
        for trial in found.trials
    ]
    _console().print(table(head, body, ""))
    apart = f"{_seconds(found.start)} to start and {_seconds(found.end)} for files and the report"
    spent = f"an unknown time, and {apart}" if total is None else f"about {_seconds(total)}, of which {apart}"
    print(f"{found.runs} run{'' if found.runs == 1 else 's'}: {spent}; {found.memory / 1e6:,.0f} MB of memory")
    for remark in found.remarks:
        print(f"{remark.level}: {remark.text}")


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def table(head: Sequence[str], body: Sequence[Sequence[tables.TableCell]], caption: str) -> Table:
    """For the terminal: two lines an algorithm, so that it fits into 80 columns."""
    shown = Table(box=SIMPLE_HEAD, caption=caption or None, padding=(0, 1, 0, 0), pad_edge=False)
    for at, name in enumerate(head):
        shown.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    for line in body:
        shown.add_row(*(Text.assemble(cell.main, "\n" if cell.detail else "", (cell.detail, "dim")) for cell in line))
    return shown


def _print_places(found: Results, what: str) -> None:
    if found.page is not None:
        print(f"report: {found.page}")
    print(f"{what}: {found.folder}")


def _console() -> Console:
    console = Console()
    console.width = max(console.width, 80 if console.is_terminal else 120)
    return console


def _say(line: str) -> None:
    print(f"offbeat: {line}", file=sys.stderr)
