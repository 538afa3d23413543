"""What a run of the suite is judged by."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite

from offbeat.suite.definition import SuiteTask
from offbeat.watch.measures import Measures
from offbeat.watch.results import Result

# name -> what it says, in a head of a table; more is better of those in HIGHER
SCORES = {
    "time": "time to target",
    "area": "area under the curve",
    "final": "at the end",
    "worst": "worst tenth of clients",
    "bytes": "MB to target",
    "client_seconds": "client-seconds to target",
}
HIGHER = ("area", "final", "worst")


def scores(run: Result, task: SuiteTask, clients: int) -> dict[str, float | None]:
    """The scores of one run; None where it has none, as after a divergence or short of the target.

    area: the mean of the task's metric over the time of the run.   worst: mean over the worst tenth of the clients of
    the metric on their own test samples, at the end.   bytes: of all updates that had arrived at the target, both ways.
    client_seconds: time that clients were busy by then, added up.
    Some metrics, such as R², have no lower bound. The first evaluation is of the untrained model: a run that ends
    below it has diverged, and in the area no evaluation counts less.
    """
    if run.error is not None or run.worsened(task.metric):
        return {**dict.fromkeys(SCORES), "updates": float(run.updates) if run.error is None else None}
    reached = run.time_to(task.metric, task.target)
    found: dict[str, float | None] = {
        "time": reached,
        "area": _area(run, task),
        "final": run.metrics.get(task.metric),
        "worst": run.metrics.get("personal_worst"),
        "updates": float(run.updates),
        "bytes": None,
        "client_seconds": None,
    }
    if reached is not None and run.measures is not None:
        arrived = next(m.updates for m in run.history if m.time == reached)
        found["bytes"] = float(arrived * sum(m.down + m.up for m in run.measures.messages[:1]))
        found["client_seconds"] = clients * _busy(run.measures, run.time or reached, reached)
    return {name: None if value is None or not isfinite(value) else value for name, value in found.items()}


def _area(run: Result, task: SuiteTask) -> float | None:
    """The mean of the metric over time, by trapezoids, from the first evaluation to the last."""
    curve = [(m.time, m.metrics[task.metric]) for m in run.history if task.metric in m.metrics]
    if len(curve) < 2:
        return None
    curve = [(time, max(value, curve[0][1])) for time, value in curve]
    total = sum((b[0] - a[0]) * (a[1] + b[1]) / 2.0 for a, b in pairwise(curve))
    return total / (curve[-1][0] - curve[0][0])


def _busy(measures: Measures, span: float, until: float) -> float:
    """The time up to `until` times the mean share of clients that were busy."""
    windows = measures.concurrency.windows
    width = span / len(windows)
    return sum((share or 0.0) * max(0.0, min(width, until - at * width)) for at, share in enumerate(windows))
