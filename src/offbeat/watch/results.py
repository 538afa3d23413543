"""The result of a run, as frozen types that are stored as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from html import escape
from math import inf, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from offbeat.core.errors import FolderError, SettingError, unknown
from offbeat.core.metric import LOSS, Metric
from offbeat.core.problem import Problem
from offbeat.core.vectors import Vector
from offbeat.core.watcher import Measurement
from offbeat.models.modules import trained
from offbeat.watch.files import COLUMNS, METRICS, MODEL, OUTPUTS, OWN_PARTS, read_table
from offbeat.watch.measures import Measures
from offbeat.watch.typed_json import json_key, read_as, read_object, to_plain


def first_reached(values: Iterable[float], metric: Metric, target: float) -> int | None:
    """The index of the first value of a metric that reaches the target; None: none does."""
    return next((at for at, v in enumerate(values) if metric.better(v, target)), None)


def time_to(history: Sequence[Measurement], metric: Metric, target: float) -> float | None:
    """When a task's metric first reached the target; None: never."""
    at = first_reached((m.metrics.get(metric.name, nan) for m in history), metric, target)
    return None if at is None else history[at].time


def time_to_all(
    history: Sequence[Measurement], measured: Sequence[Sequence[Metric]], name: str, target: float
) -> float | None:
    """When the last of the tasks that have this metric first reached the target; None where one never did.

    measured: by task, its metrics.
    """
    found = {task: metric for task, metrics in enumerate(measured) for metric in metrics if metric.name == name}
    if not found:
        raise unknown("metric", name, {metric.name for metrics in measured for metric in metrics})
    times = [time_to([m for m in history if m.task == task], metric, target) for task, metric in found.items()]
    reached = [time for time in times if time is not None]
    return max(reached) if len(reached) == len(times) else None


def to_metrics(value: Any, where: str) -> tuple[tuple[Metric, ...], ...]:
    """By task, its metrics, from JSON."""
    found: tuple[tuple[Metric, ...], ...] = read_as(tuple[tuple[Metric, ...], ...], value, where)
    return found


@dataclass(frozen=True)
class MeanMax:
    """Mean and maximum over all updates."""

    mean: float
    max: float


@dataclass(frozen=True)
class TaskResult:
    """One task of a run.

    time: when it finished; None if it never did.   stopped: why it ended.   staleness: mean.
    metrics: at its last evaluation.   measured: what is known of each metric, the main one first.
    allocation: the server's report, if it divides requests among tasks.
    """

    name: str
    time: float | None
    stopped: str
    versions: int
    updates: int
    staleness: float
    metrics: Mapping[str, float]
    allocation: Mapping[str, Any] | None = None
    measured: tuple[Metric, ...] = ()


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except Exception as error:
        raise FolderError(f"{path} is damaged ({error})") from None
    return found


def _task(tasks: Sequence[TaskResult], which: int | str) -> int:
    """A task's number, by that or its name."""
    names = [task.name for task in tasks]
    if isinstance(which, str):
        if which not in names:
            raise unknown("task", which, names)
        return names.index(which)
    if not 0 <= which < len(tasks):
        raise SettingError(f"task = {which}: there are {len(tasks)}, numbered from 0")
    return which


def finish(tasks: Iterable[TaskResult]) -> float:
    """When the last of these tasks reached its target; infinite if one did not, or if there are none."""
    times = (inf if task.time is None or task.stopped != "target" else task.time for task in tasks)
    return max(times, default=inf)


@dataclass(frozen=True)
class Deployment:
    """What only a real run has.

    run: its name on the wire.   unit: seconds of a unit of time.   position: of the log's last entry.
    repeated: messages that came again.   fingerprint: of the final state.   limits, dtype: as they were set.
    """

    run: str
    unit: float
    position: int
    repeated: int
    fingerprint: str
    limits: Mapping[str, Any]
    dtype: str


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run.

    number, settings: in a sweep, the run's number and the values that the sweep set.
    measured: of each metric, which way is better and whether it is a share, the main one first; with several tasks,
        each task has its own.
    error: why it failed; numbers that were not reached keep their defaults.
    time: virtual time at the end; None if it failed or is unfinished.
    updates: results that arrived.   versions: server steps.
    metrics: of the last evaluation, with the loss over all training samples; with several tasks, each task has its own.
    sample: how many training samples the loss was measured on during the run; None: all.
    sampled_to_end: whether the final loss was measured on that sample, too; None: on all.
    targets: when each target of the task's main metric was reached; None: never.
    staleness, notes: mean and maximum over the updates.   lost, computed: numbers of jobs.   stopped: why it ended.
    cancelled: jobs that the server stopped; None: it has stopped none.
    cut: under secure aggregation, updates of which a part was lost because `secure.bits` left no room; None: none.
    wall_s, updates_per_s: None in a sweep, whose runs share them.
    tasks: at least one.   server: what the server reports.   measures: how the clients worked.
    outputs: metrics of what the server gives besides its model, such as the mean of AREA's models, by name.
    refused, real: of a real run.
    curve: the evaluations, in a sweep.   vectors: norms of the final models by task, in a sweep.
    unfinished: whether it is still running.   folder: of its files, if it has any.   tensors: what these would hold,
        by file, of a run without a folder.   problems: makes what it was trained on once more.
    """

    number: int | None = field(default=None, kw_only=True, metadata={"key": "run"})
    algorithm: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    measured: tuple[Metric, ...] = ()
    error: str | None = None
    time: float | None = None
    updates: int = 0
    versions: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    sample: int | None = None
    sampled_to_end: bool | None = None
    targets: Mapping[str, float | None] = field(default_factory=dict, metadata={"key": "time_to"})
    staleness: MeanMax = MeanMax(0.0, 0)
    notes: Mapping[str, MeanMax] = field(default_factory=dict)
    lost: int = 0
    computed: int = 0
    stopped: str = ""
    executor: str = ""
    executor_reason: str = ""
    workers: int = 1
    wall_s: float | None = None
    updates_per_s: float | None = None
    tasks: tuple[TaskResult, ...] = ()
    server: Mapping[str, Any] | None = None
    measures: Measures | None = None
    cancelled: int | None = None
    cut: int | None = None
    outputs: Mapping[str, Mapping[str, float]] | None = None
    refused: Mapping[str, int] | None = None
    real: Deployment | None = None
    curve: tuple[Measurement, ...] | None = None
    vectors: Mapping[str, float] | None = None
    unfinished: bool | None = None
    folder: Path | None = field(default=None, compare=False)
    tensors: Mapping[str, Mapping[str, Vector]] = field(default_factory=dict, compare=False)
    problems: Callable[[], Sequence[Problem]] | None = field(default=None, compare=False)

    @property
    def remark(self) -> str:
        """A warning to print with the result; "" if there is none."""
        if not self.cut:
            return ""
        return (
            f"; WARNING: numbers of {self.cut:,} updates were too large and were cut: give fewer secure.bits, or clip"
        )

    def __post_init__(self) -> None:
        if not self.tasks:
            mean, metrics = self.staleness.mean, self.metrics
            counts = self.versions, self.updates, mean
            only = TaskResult("", None, self.stopped, *counts, metrics, measured=self.measured)
            object.__setattr__(self, "tasks", (only,))

    @property
    def name(self) -> str:
        """The name that people read."""
        return f"{self.algorithm}, seed {self.seed}"

    @property
    def several(self) -> bool:
        """Whether it trained several tasks."""
        return len(self.tasks) > 1

    @property
    def overall(self) -> Mapping[str, float]:
        """The metrics; of several tasks their means."""
        each = [task.metrics for task in self.tasks]
        return {name: fmean(metrics[name] for metrics in each) for name in each[0] if all(name in m for m in each)}

    @property
    def own(self) -> Metric:
        """The (first task's) own metric."""
        return next(iter(self.tasks[0].measured), LOSS)

    def metric(self, name: str) -> Metric:
        """What is known of a metric."""
        known = {metric.name: metric for task in self.tasks for metric in task.measured}
        if name not in known:
            raise unknown("metric", name, known)
        return known[name]

    @cached_property
    def history(self) -> tuple[Measurement, ...]:
        """Every evaluation; of a run in a folder they are read when first asked for."""
        if self.curve is not None:
            return self.curve
        path = None if self.folder is None else self.folder / METRICS
        if path is None or not path.exists():
            return ()
        try:
            return tuple(_evaluation(row) for row in read_table(path).to_pylist())
        except KeyError as error:
            raise FolderError(f"{path} is damaged: it has no {error}") from None

    def time_to(self, metric: str, value: float) -> float | None:
        """When an evaluation first showed this value or a better one; None: never. Of several tasks the last counts."""
        return time_to_all(self.history, [task.measured for task in self.tasks], metric, value)

    def worsened(self, metric: str) -> bool:
        """Whether its last evaluation is worse than its first, or no number. Of several tasks one is enough."""
        known = self.metric(metric)
        for task in {m.task for m in self.history}:
            values = [m.metrics[metric] for m in self.history if m.task == task and metric in m.metrics]
            if values and not known.better(values[-1], values[0]):
                return True
        return False

    @cached_property
    def models(self) -> Mapping[str, Vector]:
        """The final model of each task, by its name, read when first asked for."""
        found = self._tensors(MODEL)
        if not found:
            raise FolderError(f"{self.name}: its model was not saved")
        return {task.name: found[task.name] for task in self.tasks} if self.several else found

    def _tensors(self, name: str) -> Mapping[str, Vector]:
        """Those that a file of this name holds; none without it."""
        path = None if self.folder is None else self.folder / name
        return self.tensors.get(name, {}) if path is None or not path.exists() else _read_tensors(path)

    @property
    def model(self) -> Vector:
        """The (first task's) final model, one flat vector."""
        return next(iter(self.models.values()))

    def output(self, name: str) -> Vector:
        """What the server gives under this name besides its model, one flat vector."""
        found = self._tensors(OUTPUTS)
        if name not in found:
            raise unknown("output", name, found)
        return found[name]

    def module(self, task: int | str = 0, problem: Problem | None = None, client: int | None = None) -> nn.Module:
        """The trained `torch.nn.Module` of a task, by number or name, in evaluation mode.

        problem: what it was trained on, for a run of Python objects; for a file's run it is built again from the file.
        client: with what this client of a simulation keeps of the model.
        """
        number = _task(self.tasks, task)
        vector = list(self.models.values())[number]
        if client is not None:
            vector = torch.cat([vector, self._own_part(number, client)])
        if problem is None:
            if self.problems is None:
                raise SettingError(f"{self.name}: its problem is not known here; pass problem=")
            problem = self.problems()[number]
        return trained(problem, vector)

    def _own_part(self, task: int, client: int) -> Vector:
        """What a client has at the end in its part of a task's model."""
        found = self._tensors(OWN_PARTS)
        if f"{task}/{client}" not in found:
            raise SettingError(f"client = {client}: {self.name} has kept no part of a model of this client")
        return found[f"{task}/{client}"]

    def to_json(self) -> dict[str, Any]:
        """As in `result.json`, or a line of `runs.jsonl`."""
        names = [each.name for each in fields(self)]
        totals = names[names.index("time") : names.index("tasks")]  # only a finished run has them
        left_out = {"folder", "tensors", "problems"} | ({"tasks"} if not self.several else set())
        left_out |= {"settings"} if self.number is None else set()
        left_out |= {"measured"} if not self.measured else set()
        if self.unfinished:
            left_out |= set(totals) - {"updates"}
        elif self.time is None:
            left_out |= set(totals)
        kept = (f for f in fields(self) if f.name not in left_out and getattr(self, f.name) is not None)
        table = {json_key(f): to_plain(getattr(self, f.name)) for f in kept}
        if "tasks" in table:
            table["tasks"] = {task.pop("name"): task for task in table["tasks"]}
        return table

    @classmethod
    def from_json(cls, value: Any, folder: Path | None = None) -> Result:
        """The inverse; a FolderError names what is wrong.   folder: where the run's files are."""
        table = read_as(Mapping[str, Any], value, "")
        if "error" not in table and not table.get("unfinished"):
            for name in ("time", "updates", "versions", "metrics", "staleness"):
                if table.get(name) is None:
                    raise FolderError(f"{name} is missing")
        tasks = read_as(Mapping[str, Any], table.get("tasks", {}), "tasks").items()
        found = tuple(read_object(TaskResult, task, f"tasks.{name}", name=name) for name, task in tasks)
        return read_object(cls, table, "", tasks=found, folder=folder)

    def __repr__(self) -> str:
        return f"<Result {self.name}: {self._end}>"

    @property
    def _end(self) -> str:
        """How it ended, in a few words."""
        if self.error is not None:
            return "failed"
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.overall.items())
        return f"{metrics or 'no evaluation'} after {self.updates:,} updates{', unfinished' * bool(self.unfinished)}"

    def _repr_html_(self) -> str:
        rows: dict[str, Any] = {"algorithm": self.algorithm, "seed": self.seed}
        if self.error is not None:
            rows["error"] = self.error
        else:
            rows |= {name: f"{value:.4g}" for name, value in self.overall.items()}
            rows |= {"updates": f"{self.updates:,}", "time": f"{self.time or 0.0:g}"}
        return html_table(rows)


def html_table(rows: Mapping[str, Any]) -> str:
    """Names and values, for a notebook."""
    lines = (f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in rows.items())
    return f"<table>{''.join(lines)}</table>"


def _evaluation(row: dict[str, Any]) -> Measurement:
    task, time, updates, version = (row.pop(name) for name in COLUMNS[METRICS])
    return Measurement(task, time, updates, version, {name: v for name, v in row.items() if v is not None})
