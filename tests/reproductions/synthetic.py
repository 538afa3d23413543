"""Runs that nobody made, in the form of a sweep's record."""

from __future__ import annotations

from typing import Any

from offbeat.experiment.grid import Grid, Point
from offbeat.papers import Entry


def runs(entry: Entry) -> dict[str, list[dict[str, Any]]]:
    """One for every run that the entry asks for; all reach every target, later ones later."""
    return {name: [_run(table, point) for point in Grid(table).points] for name, table in entry.experiments.items()}


def _run(table: dict[str, Any], point: Point) -> dict[str, Any]:
    tasks = [task["name"] for task in table.get("task", ())]
    start = 1.0 + 0.01 * point.number
    metrics = {"accuracy": 0.99, "loss": 0.1, "personal": 0.9}
    curve = [[m, 0.0, 0, 0, {"accuracy": 0.1, "loss": 2.3, "personal": 0.1}] for m in range(max(1, len(tasks)))]
    curve += [[m, start, 10, 5, metrics] for m in range(max(1, len(tasks)))]
    curve += [[m, start + 1, 20, 9, metrics] for m in range(max(1, len(tasks)))]
    run: dict[str, Any] = {"run": point.number, "algorithm": point.label, "seed": point.seed, "curve": curve}
    run |= {"settings": dict(point.settings), "time": start + 1, "versions": 9}
    run["measures"] = {"concurrency": {"mean": 0.5}}
    if tasks:
        done = {"time": start, "stopped": "target", "metrics": metrics}
        return run | {"metrics": {}, "tasks": dict.fromkeys(tasks, done)}
    return run | {"metrics": metrics}
