"""Experiment trackers: TensorBoard, Weights & Biases and MLflow. All are optional extras."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from offbeat.core.errors import SettingError, not_installed
from offbeat.core.metric import Metric
from offbeat.core.watcher import ARRIVED, EventRow, Measurement

EVERY = 100  # updates between two points of staleness
_PARAMETERS = 100  # that MLflow takes at once


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
        front = self._front(measurement.task)
        numbers = {front + name: float(value) for name, value in measurement.metrics.items()}
        self._add(numbers, measurement.time, measurement.updates)

    def _front(self, task: int) -> str:
        """What stands before a task's metrics."""
        return f"{self._tasks[task]}/" if len(self._tasks) > 1 else ""

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
    """Sends metrics and staleness to Weights & Biases; every point has its virtual time and number of updates, and the
    summary of a run has the best value of each metric.

    project, name, group: of the run there.   config: its settings.   folder: for its files.   metrics: by task.
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
        metrics: Sequence[Sequence[Metric]] = (),
    ) -> None:
        super().__init__(tasks, updates)
        wandb = _needed("wandb", "Weights & Biases", "wandb")
        where = None if folder is None else str(folder)
        self._run = wandb.init(project=project, name=name, group=group, config=dict(config or {}), dir=where)
        self._run.define_metric("*", step_metric="time")
        for task, each in enumerate(metrics):
            for metric in each:
                best = "max" if metric.higher else "min"
                self._run.define_metric(self._front(task) + metric.name, step_metric="time", summary=best)

    def close(self) -> None:
        self._run.finish()

    def _add(self, numbers: Mapping[str, float], time: float, updates: int) -> None:
        self._run.log({**numbers, "time": time, "updates": updates})


class MLflow(Tracker):
    """Logs metrics and staleness to MLflow, against the number of updates; `time`, virtual, is a metric of its own.

    experiment, name: of the run there.   group: of the runs of one experiment file.   config: its settings.
    Where to is MLflow's own setting, MLFLOW_TRACKING_URI: a server, a database or a folder.
    """

    def __init__(
        self,
        experiment: str,
        name: str,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
        tasks: Sequence[str] = (),
        updates: int = 0,
    ) -> None:
        super().__init__(tasks, updates)
        mlflow, entities = (_needed(name, "MLflow", "mlflow") for name in ("mlflow", "mlflow.entities"))
        self._metric = entities.Metric
        try:
            self._client = mlflow.MlflowClient()
            found = self._client.get_experiment_by_name(experiment)
            where = self._client.create_experiment(experiment) if found is None else found.experiment_id
            run = self._client.create_run(where, run_name=name, tags={} if group is None else {"offbeat.group": group})
            self._id = run.info.run_id
            given = [entities.Param(path, value) for path, value in _flat(config or {})]
            for at in range(0, len(given), _PARAMETERS):
                self._client.log_batch(self._id, params=given[at : at + _PARAMETERS])
        except mlflow.exceptions.MlflowException as error:
            line = str(error).splitlines()[0]
            raise SettingError(f"MLflow cannot log to MLFLOW_TRACKING_URI or its default: {line}") from None

    def close(self) -> None:
        self._client.set_terminated(self._id)

    def _add(self, numbers: Mapping[str, float], time: float, updates: int) -> None:
        stamp = round(1000.0 * time)  # milliseconds: "relative" there is virtual time
        values = {**numbers, "time": time}
        self._client.log_batch(self._id, [self._metric(k, v, stamp, updates) for k, v in values.items()])


def _flat(table: Mapping[str, Any], front: str = "") -> list[tuple[str, str]]:
    """A table's values by their path, in the letters and the length that MLflow takes."""
    found: list[tuple[str, str]] = []
    for key, value in table.items():
        path = front + re.sub(r"[^\w.\- /]", "_", str(key))
        found += _flat(value, f"{path}.") if isinstance(value, Mapping) else [(path, str(value)[:500])]
    return found


@dataclass(frozen=True)
class Trackers:
    """Experiment trackers that also get the measurements.

    tensorboard: folder in which every run gets its own.
    wandb: project at Weights & Biases.
    mlflow: experiment at MLflow.
    """

    tensorboard: str | None = None
    wandb: str | None = None
    mlflow: str | None = None

    def __post_init__(self) -> None:
        if self.tensorboard is not None:
            _needed("tensorboard.summary.writer.event_file_writer", "TensorBoard", "tensorboard")
        if self.wandb is not None:
            _needed("wandb", "Weights & Biases", "wandb")
        if self.mlflow is not None:
            _needed("mlflow", "MLflow", "mlflow")

    def open(
        self,
        run: str,
        folder: Path,
        settings: Mapping[str, Any],
        tasks: Sequence[str],
        updates: int,
        metrics: Sequence[Sequence[Metric]],
    ) -> list[Tracker]:
        """The trackers of one run, in the folder of its own. updates: that were seen before it was resumed.

        metrics: by task, what is known of each.
        """
        found: list[Tracker] = []
        if self.tensorboard is not None:
            found.append(TensorBoard(Path(self.tensorboard, folder.parent.name, folder.name), tasks, updates))
        if self.wandb is not None:
            group = folder.parent
            found.append(WandB(self.wandb, run, group.name, settings, group, tasks, updates, metrics))
        if self.mlflow is not None:
            found.append(MLflow(self.mlflow, run, folder.parent.name, settings, tasks, updates))
        return found


def _needed(module: str, product: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        raise not_installed(f"{product} is not installed", extra) from None
