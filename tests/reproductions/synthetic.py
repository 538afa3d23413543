"""Runs that nobody made, in the form of a sweep's record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat.core.metric import Metric, all_metrics
from offbeat.core.watcher import Measurement
from offbeat.experiment.grid import Grid, Point
from offbeat.papers import PaperEntry
from offbeat.watch.measures import Bytes, Concurrency, Measures, Participation, StalenessQuantiles
from offbeat.watch.results import Result, TaskResult

NOTHING = StalenessQuantiles(None, None, None, ())
MEASURES = Measures(Concurrency(0.5, ()), 0.5, Participation(0.0, 0), NOTHING, (), Bytes(0, 0), (), 0.5, None)


MEASURED = all_metrics([Metric("accuracy", higher=True, share=True)], personal=True)


def runs(entry: PaperEntry) -> dict[str, list[Result]]:
    """One for every run that the entry asks for; all reach every target, later ones later."""
    return {name: [_run(table, point) for point in Grid(table).points] for name, table in entry.experiment.items()}


def _run(table: Mapping[str, Any], point: Point) -> Result:
    tasks = [task["name"] for task in table.get("task", ())]
    start, places = 1.0 + 0.01 * point.number, range(max(1, len(tasks)))
    before, after = (
        {"accuracy": 0.1, "loss": 2.3, "personal": 0.1},
        {"accuracy": 0.99, "loss": 0.1, "personal": 0.9},
    )
    curve = [Measurement(m, 0.0, 0, 0, before) for m in places]
    curve += [Measurement(m, start, 10, 5, after) for m in places]
    curve += [Measurement(m, start + 1, 20, 9, after) for m in places]
    return Result(
        point.label,
        point.seed,
        number=point.number,
        settings=dict(point.settings),
        time=start + 1,
        versions=9,
        measured=() if len(tasks) > 1 else MEASURED,
        metrics={} if len(tasks) > 1 else after,
        measures=MEASURES,
        tasks=tuple(
            TaskResult(name, start, "target", 9, 20, 0.0, after, measured=MEASURED) for name in tasks if len(tasks) > 1
        ),
        curve=tuple(curve),
    )
