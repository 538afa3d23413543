"""What a command that runs experiments prints and writes at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from offbeat.cli import tables
from offbeat.cli.report import draw_report
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.folder import report
from offbeat.watch.files import SUMMARY, json_text, write_json
from offbeat.watch.results import Result

# What --json prints of a run; its result.json holds a few things more.
_PRINTED = (
    *("algorithm", "seed", "error", "time", "updates", "versions", "metrics"),
    *("time_to", "staleness", "wall_s", "updates_per_s", "tasks", "notes", "measures"),
)


def conclude(experiment: Experiment, folder: Path, results: Sequence[Result], as_json: bool) -> None:
    """Write the summary, the report and the page of finished runs, and print their table; exit 1 if one failed."""
    targets = experiment.top.targets
    runs = [result.to_json() for result in results]
    write_json(folder / SUMMARY, {"runs": runs})
    errors = [f"{r.name}: {r.error}" for r in results if r.error is not None]
    several = len(experiment.tasks) > 1
    baseline = "sync-st" if "sync-st" in experiment.labels else experiment.labels[-1]
    first = tables.task_markdown(results, baseline) if several else tables.markdown(results, targets)
    report(folder, experiment, first + "\n" + tables.work_markdown(results), errors)
    page = draw_report(folder)
    if as_json:
        print(json_text({"runs": [{key: run[key] for key in _PRINTED if key in run} for run in runs]}))
    else:
        console = Console()
        console.width = max(console.width, 80 if console.is_terminal else 120)
        console.print(tables.task_table(results, baseline) if several else tables.table(results, targets))
        console.print(tables.work_table(results))
        if page is not None:
            print(f"report: {page}")
        print(f"run folder: {folder}")
    for line in _unreached(experiment, results):
        print(f"offbeat: {line}", file=sys.stderr)
    for error in errors:
        print(f"offbeat: {error}", file=sys.stderr)
    if errors:
        sys.exit(1)


def _unreached(experiment: Experiment, results: Sequence[Result]) -> list[str]:
    """A line for every target that a run did not reach."""
    goals = {task.name: task.target.accuracy for task in experiment.tasks if task.target}
    return [
        f"{r.name}: {task.name} did not reach its target {goals[task.name]:g} by time {r.time:g}"
        + (f"; its accuracy is {task.metrics['accuracy']:.3f}" if "accuracy" in task.metrics else "")
        for r in results
        for task in r.tasks
        if task.name in goals and task.stopped != "target"
    ]
