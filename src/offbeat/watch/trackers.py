"""Experiment trackers: TensorBoard and Weights & Biases. Both are optional extras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from offbeat.core.errors import SettingError
from offbeat.core.watcher import ARRIVED, EventRow, Measurement, Watcher

EVERY = 100  # updates between two points of staleness


class Tracker(Watcher, Protocol):
    """A watcher that must be closed at the end of its run."""

    def close(self) -> None:
        """Write everything that is pending."""


class _Staleness:
    """Mean and maximum staleness over a fixed number of updates."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def seen(self, row: EventRow) -> dict[str, float]:
        """The numbers to log after this event, usually none."""
        if row.event != ARRIVED:
            return {}
        self.values.append(row.staleness)
        if len(self.values) < EVERY:
            return {}
        values, self.values = self.values, []
        return {"staleness/mean": sum(values) / len(values), "staleness/max": float(max(values))}


class TensorBoard:
    """Writes metrics and staleness as TensorBoard's scalars, against the number of updates.

    folder: of this run; `tensorboard --logdir` of a folder above it shows several.   tasks: their names, if several.
    updates: that arrived before, in a resumed run.
    Points carry the virtual time, in seconds, as their time: "relative" on the board is virtual time.
    """

    def __init__(self, folder: Path, tasks: Sequence[str] = (), updates: int = 0) -> None:
        files = _needed("tensorboard.summary.writer.event_file_writer", "TensorBoard", "tensorboard")
        self._proto = _needed("tensorboard.compat.proto.event_pb2", "TensorBoard", "tensorboard")
        self._summary = _needed("tensorboard.compat.proto.summary_pb2", "TensorBoard", "tensorboard").Summary
        self._writer = files.EventFileWriter(str(folder))
        self._tasks, self._staleness, self._updates = tasks, _Staleness(), updates

    def event(self, row: EventRow) -> None:
        self._updates += row.event == ARRIVED
        self._add(self._staleness.seen(row), self._updates, row.time)

    def measured(self, measurement: Measurement) -> None:
        self._add(_named(measurement, self._tasks), measurement.updates, measurement.time)

    def close(self) -> None:
        """Write everything that is pending."""
        self._writer.close()

    def _add(self, numbers: Mapping[str, float], step: int, time: float) -> None:
        for name, value in numbers.items():
            summary = self._summary(value=[self._summary.Value(tag=name, simple_value=value)])
            self._writer.add_event(self._proto.Event(wall_time=time, step=step, summary=summary))


class WandB:
    """Sends metrics and staleness to Weights & Biases; every point has its virtual time and number of updates.

    project, name, group: of the run there.   config: its settings.   folder: for its files.
    tasks, updates: as for TensorBoard.
    Without a network set WANDB_MODE=offline and send the run later with `wandb sync`.
    """

    def __init__(
        self,
        project: str,
        name: str,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        tasks: Sequence[str] = (),
        updates: int = 0,
    ) -> None:
        wandb = _needed("wandb", "Weights & Biases", "wandb")
        where = None if folder is None else str(folder)
        self._run = wandb.init(project=project, name=name, group=group, config=dict(config or {}), dir=where)
        self._run.define_metric("*", step_metric="time")
        self._tasks, self._staleness, self._updates = tasks, _Staleness(), updates

    def event(self, row: EventRow) -> None:
        self._updates += row.event == ARRIVED
        numbers = self._staleness.seen(row)
        if numbers:
            self._run.log({**numbers, "time": row.time, "updates": self._updates})

    def measured(self, measurement: Measurement) -> None:
        numbers = _named(measurement, self._tasks)
        self._run.log({**numbers, "time": measurement.time, "updates": measurement.updates})

    def close(self) -> None:
        """Send everything that is pending."""
        self._run.finish()


def _named(measurement: Measurement, tasks: Sequence[str]) -> dict[str, float]:
    """The metrics, prefixed with the task's name if there are several."""
    front = f"{tasks[measurement.task]}/" if len(tasks) > 1 else ""
    return {front + name: float(value) for name, value in measurement.metrics.items()}


def check(tensorboard: bool, wandb: bool) -> None:
    """Refuse a tracker whose package is not installed, before anything runs."""
    if tensorboard:
        _needed("tensorboard.summary.writer.event_file_writer", "TensorBoard", "tensorboard")
    if wandb:
        _needed("wandb", "Weights & Biases", "wandb")


def _needed(module: str, product: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        raise SettingError(f"{product} is not installed; install it with `pip install 'offbeat[{extra}]'`") from None
