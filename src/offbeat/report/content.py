"""Everything a report shows, from one or several folders: the source of the page and of the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from offbeat.core.metric import LOSS, Metric, own_metric
from offbeat.report.bands import POINTS, Band, Curve, band, clean
from offbeat.report.comparison import PaperComparison, comparison
from offbeat.report.read import ExperimentFolder, read
from offbeat.report.run import Columns, Floats, RecordedRun
from offbeat.report.timeline import Timeline, timeline
from offbeat.report.work import (
    Fan,
    bytes_by,
    concurrency,
    last_values,
    messages_of,
    own_values,
    participation,
    staleness,
    updates_of,
)
from offbeat.watch.files import COLUMNS, EXPERIMENT, JUDGED, METRICS, REAL_RUN, REPRODUCTION, TUNING
from offbeat.watch.measures import Messages
from offbeat.watch.results import Result, TaskResult

AXES = ("time", "updates", "bytes")
SERIES = 24  # drawn at most; the tables have all
LINES = 36  # runs whose single lines are on the page, at most
TIMELINES = 8
_COUNTS = (*COLUMNS[METRICS], "bytes")  # columns of a history that are no metrics


@dataclass
class Series:
    """One colour of the plots: the runs of one algorithm, over all its seeds.

    progress: by task, metric and axis, the runs' curves as one.   lines: the same, run by run.
    """

    name: str
    places: list[int]  # of its tasks among the report's
    runs: list[RecordedRun] = field(default_factory=list)
    histories: list[Columns] = field(default_factory=list)  # measurements of each run, with a column of bytes
    progress: dict[int, dict[str, dict[str, Band]]] = field(default_factory=dict)
    staleness: Fan | None = None
    participation: Band | None = None
    concurrency: Band | None = None
    personal: Fan | None = None
    last: Band | None = None
    timeline: Timeline | None = None
    allocation: dict[str, list[list[float]]] = field(default_factory=dict)  # task -> [time, requests] of every change
    ends: dict[str, float] = field(default_factory=dict)  # task -> when it was done, in the same run
    until: float = 0.0  # when that run was over


@dataclass
class Content:
    """A report before it is drawn.   warnings: what is missing.   omitted: what is there but not drawn."""

    folders: list[ExperimentFolder]
    series: list[Series]
    drawn: list[Series]  # those with curves
    tasks: list[str]
    warnings: list[str]
    omitted: list[str]
    comparisons: list[PaperComparison]  # what reproductions among them found

    @cached_property
    def measured(self) -> dict[int, dict[str, Metric]]:
        """By task, what is known of each metric, the main one first."""
        found: dict[int, dict[str, Metric]] = {}
        for series in self.series:
            for run in series.runs:
                for place, metrics in zip(series.places, run.measured, strict=False):
                    found.setdefault(place, {}).update({m.name: m for m in metrics})
        for series in self.drawn:  # those of which nothing is known
            for place, names in series.progress.items():
                found.setdefault(place, {}).update({n: Metric(n) for n in names if n not in found.get(place, {})})
        return found

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """All metrics that were measured: the tasks' own first, then in their order."""
        shown = {name for s in self.drawn for by in s.progress.values() for name in by}
        own = [next(iter(each.values())) for each in self.measured.values() if each]
        everything = [*own, *(metric for each in self.measured.values() for metric in each.values())]
        return {metric.name: metric for metric in everything if metric.name in shown}

    @property
    def clock(self) -> str:
        """What the time of the runs is: virtual, or that of real runs; `time` alone if there are both."""
        real = {(run.path / REAL_RUN).exists() for s in self.series for run in s.runs}
        return "time in seconds" if real == {True} else "time" if True in real else "virtual time"

    @property
    def judged(self) -> Metric:
        """What each client's own model is judged by: the first task's main metric."""
        return own_metric(metric for each in self.measured.values() for metric in each.values())

    @property
    def own(self) -> Metric:
        """The first task's main metric, or the one that leads where clients keep a part of the model."""
        return next((metric for each in self.measured.values() for metric in each.values()), LOSS)

    @property
    def results(self) -> list[Result]:
        """The results of finished and failed runs, under the names used on the page."""
        return [replace(run.result, algorithm=s.name) for s in self.series for run in s.runs if run.result]


def gather(paths: Sequence[Path]) -> Content:
    """Read these folders and compute everything a report shows."""
    damaged: list[str] = []
    comparisons = {path: found for path in paths if (found := comparison(path, damaged)) is not None}
    parts = [part for path in paths for part in _parts(path, comparisons.get(path))]
    folders = [read(path) for path in {path.resolve(): path for path in parts}.values()]
    _name_apart(folders)
    names_of = {folder.path: _tasks(folder, apart=bool(comparisons) and len(folders) > 1) for folder in folders}
    tasks = list(dict.fromkeys(name for names in names_of.values() for name in names))
    series = _series(folders, {path: [tasks.index(name) for name in names] for path, names in names_of.items()})
    drawn = _best(series)
    omitted = []
    if len(drawn) < len(series):
        omitted.append(f"Only the {len(drawn)} best of {len(series)} algorithms are drawn; the table lists all.")
    for at, each in enumerate(drawn):
        _fill(each, with_timeline=at < TIMELINES, points=POINTS if len(drawn) <= 8 else POINTS // 2)
    if len(drawn) > TIMELINES and any(each.timeline for each in drawn):
        omitted.append(f"Timelines are shown for the first {TIMELINES} algorithms.")
    lines = [(folder, line) for folder in folders for line in folder.warnings]
    lines += [(folder, line) for folder in folders for run in folder.runs for line in run.warnings]
    warnings = [f"{folder.name}/{line}" if len(folders) > 1 else line for folder, line in lines]
    failed = [f"{run.name}: {run.error}" for s in series for run in s.runs if run.error]
    return Content(folders, series, drawn, tasks, [*failed, *damaged, *warnings], omitted, list(comparisons.values()))


def _name_apart(folders: Sequence[ExperimentFolder]) -> None:
    """Folders of one name get as many of their last parts as tell them apart; whole paths are nobody's business."""
    parts, count = {folder.path: folder.path.resolve().parts for folder in folders}, 1
    while len({f.name for f in folders}) < len(folders):
        count += 1
        names = [folder.name for folder in folders]
        for folder in folders:
            if names.count(folder.name) > 1:
                folder.name = "/".join(parts[folder.path][-count:])


def _parts(path: Path, found: PaperComparison | None) -> list[Path]:
    """The folders of the experiments of a reproduction or a tuning that has several; otherwise the folder itself."""
    if (path / TUNING).exists():  # what was tuned, or as long as that is not known, the trials
        return [path / JUDGED] if (path / JUDGED).exists() else sorted(path.glob("rung-*")) or [path]
    if (path / EXPERIMENT).exists() or not (path / REPRODUCTION).exists():
        return [path]
    order = {name: at for at, name in enumerate(found.seeds if found else ())}
    parts = [child for child in path.iterdir() if (child / EXPERIMENT).exists()]
    return sorted(parts, key=lambda part: (order.get(part.name, len(order)), part.name)) or [path]


def _series(folders: Sequence[ExperimentFolder], places: Mapping[Path, list[int]]) -> list[Series]:
    """Runs by label, prefixed with the folder's name if several folders share it.   places: of each folder's tasks."""
    owners: dict[str, set[Path]] = {}
    for folder in folders:
        for run in folder.runs:
            owners.setdefault(run.label, set()).add(folder.path)
    found: dict[str, Series] = {}
    for folder in folders:
        for run in folder.runs:
            name = run.label if len(owners[run.label]) == 1 else f"{folder.name}: {run.label}"
            found.setdefault(name, Series(name, places[folder.path])).runs.append(run)
    return list(found.values())


def _best(series: Sequence[Series]) -> list[Series]:
    """The series to draw, in order: all of them, or those with the best final metrics."""

    def grade(each: Series) -> tuple[float, float]:
        ends = [run.result for run in each.runs if run.result]
        own = [r.overall[r.own.name] for r in ends if r.own.name in r.overall]
        loss = [r.overall["loss"] for r in ends if "loss" in r.overall]
        sign = -1.0 if ends and ends[0].own.higher else 1.0
        return (sign * float(np.mean(own)) if own else np.inf, float(np.mean(loss)) if loss else np.inf)

    if len(series) <= SERIES:
        return list(series)
    best = sorted(range(len(series)), key=lambda at: grade(series[at]))[:SERIES]
    return [series[at] for at in sorted(best)]


def _fill(series: Series, with_timeline: bool, points: int) -> None:
    """Compute what is drawn of a series; events are read once per run."""
    logs, counts = [], []
    sizes = next((found for run in series.runs if (found := messages_of(run)) is not None), None)
    for run in series.runs:
        log = run.events()
        history = run.metrics()
        if history is not None:
            history["bytes"] = _bytes(history, log, messages_of(run) or sizes)
            series.histories.append(_placed(history, series.places))
        if (mine := updates_of(run, log)) is not None:
            counts.append(mine)
        if log is None:
            continue
        logs.append(log)
        if with_timeline and series.timeline is None and run.error is None:
            clients = len(mine) if mine is not None else 0
            rest = run.underway()
            cut_off = None if rest is None else _placed(rest, series.places)
            events = _placed(log, series.places)
            series.timeline = timeline(run.name, events, cut_off, clients, run.time, run.sites)
    series.progress = _progress(series.histories, series.places, points)
    series.staleness = staleness(logs)
    series.participation = participation(counts)
    series.concurrency = concurrency(series.runs)
    personal = [table for run in series.runs if (table := run.personal()) is not None]
    if personal:
        own = next((run.measured[0][0] for run in series.runs if run.measured), LOSS)
        series.personal, series.last = own_values(personal), last_values(personal, own)
    series.allocation, series.ends, series.until = _allocation(series.runs)


def _bytes(history: Columns, log: Columns | None, messages: Sequence[Messages] | None) -> Floats:
    if log is None or not messages or int(log["task"].max(initial=0)) >= len(messages):
        return np.full(len(history["time"]), np.nan)
    return bytes_by(history["time"], log, messages)


def _placed(columns: Columns, places: Sequence[int]) -> Columns:
    """The columns with task numbers replaced by the report's."""
    return {**columns, "task": np.take(places, columns["task"], mode="clip")}


def of_task(task: int, history: Columns) -> Columns:
    """The evaluations of one task."""
    mine = history["task"] == task
    return {name: column[mine] for name, column in history.items()}


def _progress(histories: Sequence[Columns], tasks: Sequence[int], points: int) -> dict[int, dict[str, dict[str, Band]]]:
    found: dict[int, dict[str, dict[str, Band]]] = {}
    for task in tasks:
        mine = [of_task(task, history) for history in histories]
        for name in dict.fromkeys(name for history in mine for name in history if name not in _COUNTS):
            bands = {axis: made for axis in AXES if (made := band(curves(mine, name, axis), points)) is not None}
            if bands:
                found.setdefault(task, {})[name] = bands
    return found


def curves(histories: Iterable[Columns], metric: str, axis: str) -> list[Curve]:
    """A metric against an axis, one curve per run."""
    return [clean(h[axis].astype(np.float64), h[metric]) for h in histories if metric in h]


def _tasks(folder: ExperimentFolder, apart: bool) -> list[str]:
    """The names of an experiment's tasks: from the file, else from a result, else the name of its data set.

    apart: other experiments with the same data are not to be drawn together with this one.
    """
    experiment = folder.experiment or {}
    tables, problem = experiment.get("task"), experiment.get("problem")
    if isinstance(tables, list) and tables:
        return [str(table.get("name")) if isinstance(table, dict) else "" for table in tables]
    for run in folder.runs:
        if run.result and run.result.several:
            return [task.name for task in run.result.tasks]
    data = problem.get("data") if isinstance(problem, dict) else None
    return [folder.name if apart else str(data or "")]


def _allocation(runs: Sequence[RecordedRun]) -> tuple[dict[str, list[list[float]]], dict[str, float], float]:
    """Of the first run that divides requests among tasks: the requests over time, when tasks finished, and its end."""
    for run in runs:
        tasks = run.result.tasks if run.result else ()
        divided = {task.name: found for task in tasks if (found := _divisions(task))}
        ends = {task.name: task.time for task in tasks if task.time is not None}
        if divided:
            changes = [change[0] for each in divided.values() for change in each]
            return divided, ends, max(run.time or 0.0, *changes, *ends.values())
    return {}, {}, 0.0


def _divisions(task: TaskResult) -> list[list[float]]:
    """[time, requests] at every change."""
    history = (task.allocation or {}).get("history")
    if not isinstance(history, list):
        return []
    good = all(
        isinstance(h, list | tuple) and len(h) >= 2 and all(isinstance(x, int | float) for x in h[:2]) for h in history
    )
    return [[float(h[0]), float(h[1])] for h in history] if good else []
