"""The results of all runs of an experiment or a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from offbeat.core.errors import FolderError, SettingError, not_installed
from offbeat.core.problem import Problem
from offbeat.core.watcher import Measurement
from offbeat.experiment import ranking
from offbeat.experiment.intervals import estimate
from offbeat.experiment.ranking import Ranked
from offbeat.watch.files import PAGE, SWEEP
from offbeat.watch.results import Result

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class SweepTotals:
    """Totals over all runs of a sweep. best: what they are ranked by, if it was chosen."""

    best: str | None
    wall_s: float
    workers: int


class Results(Sequence[Result]):
    """The results of several runs, as a sequence.

    folder: where they are; None: in memory.   sweep: the totals of a finished sweep.
    goals: the target of each task, a metric and its value.
    """

    def __init__(
        self,
        runs: Sequence[Result],
        folder: Path | None = None,
        goals: Mapping[str, Mapping[str, float]] | None = None,
        sweep: SweepTotals | None = None,
    ) -> None:
        self.runs, self.folder = tuple(_reproducible(run) for run in runs), folder
        self.goals, self.sweep = goals or {}, sweep

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.runs)

    @overload
    def __getitem__(self, at: int) -> Result: ...
    @overload
    def __getitem__(self, at: slice) -> Results: ...
    def __getitem__(self, at: int | slice) -> Result | Results:
        if isinstance(at, slice):
            return Results(self.runs[at], self.folder, self.goals, self.sweep)
        return self.runs[at]

    @property
    def page(self) -> Path | None:
        """The HTML report, if it has been drawn."""
        path = None if self.folder is None else self.folder / PAGE
        return path if path is not None and path.exists() else None

    @property
    def record(self) -> Path:
        """The file with a line for each run of a sweep."""
        return self._place() / SWEEP

    @property
    def summary(self) -> dict[str, Any]:
        """As `summary.json` has it."""
        runs = [replace(result, curve=None).to_json() for result in self.runs]
        if self.sweep is None:
            return {"runs": runs}
        return {
            "runs": runs,
            "best": [each.to_json() for each in ranking.ranked(self.runs, self.sweep.best)],
            "judged_by": ranking.judged_by(self.runs, self.sweep.best),
            "wall_s": self.sweep.wall_s,
            "updates": sum(result.updates for result in self.runs),
            "workers": self.sweep.workers,
        }

    @property
    def baseline(self) -> str:
        """The algorithm that others are compared with: Sync-ST, or else the last."""
        labels = [result.algorithm for result in self.runs]
        return "sync-st" if "sync-st" in labels else labels[-1]

    def ranked(self, by: str | None = None) -> list[Ranked]:
        """Every algorithm and setting, with means over its seeds, from best to worst.

        by: a metric, "time:0.8" for the time to a value of the task's main metric, "time:rmse:0.5" to one of another,
            or "finish" for when the last of several tasks finished.
        """
        ranking.check_best(by)
        if by is not None and (wrong := ranking.missing(self.runs, by)):
            raise SettingError(wrong)
        return ranking.ranked(self.runs, by)

    def best(self, by: str | None = None) -> Ranked:
        """The best of `ranked`."""
        if not self.runs:
            raise SettingError(f"{self.folder or 'these results'} has no finished run")
        return self.ranked(by)[0]

    def frame(self) -> pandas.DataFrame:
        """A pandas DataFrame with one row per run: algorithm, seed, settings, metrics, times to targets, counts."""
        return _pandas().DataFrame([_row(result) for result in self.runs])

    def history(self) -> pandas.DataFrame:
        """A pandas DataFrame with one row per evaluation of any run."""
        rows = [
            {"algorithm": r.algorithm, "seed": r.seed, **r.settings, **_evaluation(m, r)}
            for r in self.runs
            for m in r.history
        ]
        return _pandas().DataFrame(rows)

    def plot(self, metric: str | None = None, against: str = "time", ax: Axes | None = None) -> Axes:
        """Plot a metric's progress with matplotlib, a line per algorithm and setting; return the axes.

        Where there are several seeds, the line is their mean, in a band from the lowest to the highest.

        metric: by default the main one.   against: "time", "updates" or "versions".   ax: axes to draw in; by default
        a figure is made. Where they have lines already, colours go on from theirs, and a label that is taken also names
        the folder.
        """
        from offbeat.report import curves

        return curves.plot(curves.curves(self.runs, metric, against), ax, self.folder.name if self.folder else "")

    def report(self, path: Path | str | None = None) -> Path:
        """Write the HTML report, by default `report.html` in the folder; return its path."""
        from offbeat import report

        return report.write(self._place(), None if path is None else Path(path))

    def _place(self) -> Path:
        if self.folder is None:
            raise SettingError("these runs are in memory only; give run a folder, out=")
        return self.folder

    def unreached(self) -> list[str]:
        """A line for every task that did not reach its target."""
        return [
            f"{r.name}: {task.name} did not reach its target {value:g} by time {r.time:g}"
            + (f"; its {metric} is {task.metrics[metric]:.3g}" if metric in task.metrics else "")
            for r in self.runs
            for task in r.tasks
            for metric, value in self.goals.get(task.name, {}).items()
            if r.error is None and task.stopped != "target"
        ]

    def untrained(self) -> list[str]:
        """A line for every run that made no server step, or whose loss is larger than before training."""
        found = []
        for result in self.runs:
            if result.error is None and not result.versions:
                arrived = f"{result.updates:,} update{'' if result.updates == 1 else 's'} arrived"
                found.append(f"{result.name}: no server step was made: {arrived}, and the server waits for more")
            with suppress(FolderError):  # a curve that cannot be read is reported on the page
                for number, task in enumerate(result.tasks):
                    losses = [m.metrics["loss"] for m in result.history if m.task == number and "loss" in m.metrics]
                    if result.error is None and losses and losses[-1] > losses[0]:
                        name = f"{result.name}, {task.name}" if result.several else result.name
                        said = f"the loss is larger than before training ({losses[0]:.4g}, then {losses[-1]:.4g})"
                        found.append(f"{name}: {said}: a smaller step?")
        return found

    def __repr__(self) -> str:
        count = f"{len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"
        place = f" in {self.folder}" if self.folder else ""
        lines = [f"Results of {count}{place}", *(f"  {result!r}" for result in self.runs[:10])]
        lines += [f"  and {len(self.runs) - 10} more"] if len(self.runs) > 10 else []
        return "\n".join([*lines, *self._means()])

    def _means(self) -> list[str]:
        """A line with means for every algorithm and setting that has several seeds."""
        lines = []
        for (label, settings), group in list(ranking.together(self.runs).items())[:10]:
            good = [result.overall for result in group if result.error is None and result.overall]
            if len(good) > 1:
                name = ", ".join(filter(None, (label, ranking.shown(json.loads(settings)))))
                means = ", ".join(f"{m} {estimate([each[m] for each in good]).text(3)}" for m in good[0])
                lines.append(f"  {name}, mean of {len(good)} seeds: {means}")
        return lines

    def _repr_html_(self) -> str:
        rows = [_row(result) for result in self.runs[:50]]
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>" for row in rows)
        more = f"<p>and {len(self.runs) - 50} more</p>" if len(self.runs) > 50 else ""
        return f"<table><tr>{head}</tr>{body}</table>{more}{self._image()}"

    def _image(self) -> str:
        """The task's main metric against time, small; empty where it was not measured, or lines are too many."""
        from offbeat.report import curves, looks

        if len({(run.algorithm, str(run.settings)) for run in self.runs}) <= looks.LOOKS:
            with suppress(SettingError):
                return curves.image(curves.curves(self.runs))
        return ""


def _reproducible(result: Result) -> Result:
    """The same, and it can make its problems again from the experiment in its folder."""
    folder = result.folder
    if folder is None or result.problems is not None:
        return result

    def problems() -> Sequence[Problem]:
        from offbeat.experiment.folder import open_run
        from offbeat.experiment.session import Session

        experiment, spec = open_run(folder)
        return Session(experiment).problems(spec)

    return replace(result, problems=problems)


def _row(result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {"algorithm": result.algorithm, "seed": result.seed, **result.settings}
    if result.error is not None:
        return {**row, "error": result.error}
    for task in result.tasks:
        prefix = f"{task.name}." if result.several else ""
        row |= {f"{prefix}{name}": value for name, value in task.metrics.items()}
    row |= {f"time_to_{target}": when for target, when in result.targets.items()}
    return row | {"time": result.time, "updates": result.updates, "versions": result.versions}


def _evaluation(measurement: Measurement, result: Result) -> dict[str, Any]:
    task = {"task": result.tasks[measurement.task].name} if result.several else {}
    counts = {name: getattr(measurement, name) for name in ("time", "updates", "version")}
    return {**task, **counts, **measurement.metrics}


def _cell(value: Any) -> str:
    return "" if value is None else escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise not_installed("a frame needs pandas", "frames") from None
    return pandas
