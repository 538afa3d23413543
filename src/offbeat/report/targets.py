"""When accuracies were first reached, in time, updates or bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from offbeat.report.run import Columns
from offbeat.report.tables import NOTHING, TableCell, spread
from offbeat.watch.results import first_reached

_LADDER = (*(tenths / 10 for tenths in range(1, 10)), 0.95, 0.99)  # shown in addition to the targets
_RUNGS = 6  # of them, the highest


def first(history: Columns, target: float, axis: str) -> float | None:
    """Where on the axis an evaluation first reached this accuracy; None: never."""
    at = first_reached(history["accuracy"], "accuracy", target)
    value = np.nan if at is None else float(history[axis][at])
    return value if np.isfinite(value) else None


def ladder(histories: Sequence[Columns], asked: Sequence[float]) -> list[float]:
    """Accuracies worth a column: the targets, and those that some run reached but not all started with."""
    judged = _judged(histories)
    starts = [h["accuracy"][0] for h in judged]
    best = max((float(np.nanmax(h["accuracy"], initial=0.0)) for h in judged), default=0.0)
    steps = [target for target in _LADDER if min(starts, default=0.0) < target <= best]
    return sorted({*steps[-_RUNGS:], *asked}) if judged else []


def cell(histories: Sequence[Columns], target: float, axis: str, write: Callable[[float], str]) -> TableCell:
    """Mean and range over seeds, and how many seeds reached the target if not all did."""
    judged = _judged(histories)
    found = [value for h in judged if (value := first(h, target, axis)) is not None]
    if not judged or not any(np.isfinite(h[axis]).any() for h in judged):
        return TableCell(NOTHING)
    if not found:
        return TableCell("never")
    shown = spread(found, write)
    return shown if len(found) == len(judged) else TableCell(shown.main, f"by {len(found)} of {len(judged)}")


def _judged(histories: Sequence[Columns]) -> list[Columns]:
    return [h for h in histories if "accuracy" in h and len(h["accuracy"])]
