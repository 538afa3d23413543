"""Experiment trackers: TensorBoard and Weights & Biases. Both are optional extras."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from offbeat.core.errors import SettingError
from offbeat.core.watcher import ARRIVED, EventRow, Measurement

EVERY = 100  # updates between two points of staleness


class Tracker(ABC):
    """A watcher that passes metrics on, and staleness now and then; it must be closed at the end of its run.

    tasks: their names, if several.   updates: that arrived before, in a resumed run.
    """

    def __init__(self, tasks: Sequence[str] = (), updates: int = 0) -> None:
        self._tasks, self._updates, self._staleness = tasks, updates, list[int]()

    def event(self, row: EventRow) -> None:
        if row.event == ARRIVED:
            self._updates += 1
            self._staleness.append(row.staleness)
        if len(self._staleness) == EVERY:
            values, self._staleness = self._staleness, []
            numbers = {"staleness/mean": sum(values) / EVERY, "staleness/max": float(max(values))}
            self._add(numbers, row.time, self._updates)

    def measured(self, measurement: Measurement) -> None:
        front = f"{self._tasks[measurement.task]}/" if len(self._tasks) > 1 else ""
        numbers = {front + name: float(value) for name, value in measurement.metrics.items()}
        self._add(numbers, measurement.time, measurement.updates)

    @abstractmethod
    def close(self) -> None:
        """Write everything that is pending."""

    @abstractmethod
    def _add(self, numbers: Mapping[str, float], time: float, updates: int) -> None:
        """Pass a point on."""


class TensorBoard(Tracker):
    """Writes metrics and staleness as TensorBoard's scalars, against the number of updates.

    folder: of this run; `tensorboard --logdir` of a folder above it shows several.
    Points carry the virtual time, in seconds, as their time: "relative" on the board is virtual time.
    """

    def __init__(self, folder: Path, tasks: Sequence[str] = (), updates: int = 0) -> None:
        super().__init__(tasks, updates)
        files = _needed("tensorboard.summary.writer.event_file_writer", "TensorBoard", "tensorboard")
        self._proto = _needed("tensorboard.compat.proto.event_pb2", "TensorBoard", "tensorboard")
        self._summary = _needed("tensorboard.compat.proto.summary_pb2", "TensorBoard", "tensorboard").Summary
        self._writer = files.EventFileWriter(str(folder))

    def close(self) -> None:
        self._writer.close()

    def _add(self, numbers: Mapping[str, float], time: float, updates: int) -> None:
        for name, value in numbers.items():
            summary = self._summary(value=[self._summary.Value(tag=name, simple_value=value)])
            self._writer.add_event(self._proto.Event(wall_time=time, step=updates, summary=summary))


class WandB(Tracker):
    """Sends metrics and staleness to Weights & Biases; every point has its virtual time and number of updates.

    project, name, group: of the run there.   config: its settings.   folder: for its files.
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
        super().__init__(tasks, updates)
        wandb = _needed("wandb", "Weights & Biases", "wandb")
        where = None if folder is None else str(folder)
        self._run = wandb.init(project=project, name=name, group=group, config=dict(config or {}), dir=where)
        self._run.define_metric("*", step_metric="time")

    def close(self) -> None:
        self._run.finish()

    def _add(self, numbers: Mapping[str, float], time: float, updates: int) -> None:
        self._run.log({**numbers, "time": time, "updates": updates})


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
