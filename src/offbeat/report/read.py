"""Reading folders of experiments, also damaged ones: what cannot be read is left out and said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from offbeat.core.errors import FolderError
from offbeat.report.tables import rows, task_rows, work_rows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

_REAL, _WHOLE = pa.float64(), pa.int64()
_TIMES = {"sent": _REAL, "started": _REAL, "finished": _REAL}
_JOB = {"client": _WHOLE, "task": _WHOLE, "job": _WHOLE, "version": _WHOLE, **_TIMES}
_EVENT = {"time": _REAL, "event": pa.string(), "staleness": _WHOLE, "reason": pa.string(), **_JOB}
_METRICS = {"task": _WHOLE, "time": _REAL, "updates": _WHOLE, "version": _WHOLE}
_PERSONAL = {"task": _WHOLE, "time": _REAL, "client": _WHOLE, "accuracy": _REAL}
_CLIENTS = {"client": _WHOLE, "updates": _WHOLE, "busy": _REAL, "idle": _REAL}
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, pa.lib.ArrowException)


@dataclass
class Run:
    """One run: an algorithm under a seed. Its tables are read when they are asked for.

    said: a line for everything that could not be read.   result: None while the run is not finished.
    """

    path: Path
    label: str
    seed: int
    result: dict[str, Any] | None
    said: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return str(self.result["error"]) if self.result and "error" in self.result else None

    def number(self, *path: str) -> float | None:
        """A number of the result, None where it has none."""
        value = self.value(*path)
        return float(value) if isinstance(value, int | float) else None

    def value(self, *path: str) -> Any:
        """Whatever the result holds at this path of keys."""
        found: Any = self.result
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def metrics(self) -> Columns | None:
        """One row a measurement: task, time, updates, version and a column for each metric."""
        return self._table("metrics.parquet", _METRICS, others=_REAL)

    def personal(self) -> Columns | None:
        """One row a measurement and client; None without any word where none were judged."""
        there = (self.path / "personal.parquet").is_file()
        return self._table("personal.parquet", _PERSONAL) if there else None

    def clients(self) -> Columns | None:
        """One row a client."""
        return self._table("clients.parquet", _CLIENTS) if self.result and not self.error else None

    def underway(self) -> Columns | None:
        """One row a job that the end of the run found on its way."""
        there = (self.path / "underway.parquet").is_file()
        return self._table("underway.parquet", _JOB) if there else None

    def events(self) -> Columns | None:
        """One row an event, of all parts that can be read."""
        names = sorted(path.name for path in (self.path / "events").glob("part-*.parquet"))
        if not names:
            self.say("events/ is missing or empty")
            return None
        numbers = [int(name[5:10]) for name in names if name[5:10].isdigit()]
        for lost in sorted(set(range(max(numbers, default=0))) - set(numbers)):
            self.say(f"events/part-{lost:05d}.parquet is missing")
        parts = [part for name in names if (part := self._table(f"events/{name}", _EVENT)) is not None]
        return {name: np.concatenate([part[name] for part in parts]) for name in _EVENT} if parts else None

    def say(self, what: str) -> None:
        """Remember that something is missing, once."""
        line = f"{self.path.name}: {what}"
        if line not in self.said:
            self.said.append(line)

    def _table(self, name: str, columns: dict[str, pa.DataType], others: pa.DataType | None = None) -> Columns | None:
        path = self.path / name
        if not path.is_file():
            self.say(f"{name} is missing")
            return None
        try:
            table = pq.read_table(path, partitioning=None)
            wanted = dict(columns)
            if others is not None:
                wanted |= {column: others for column in table.column_names if column not in wanted}
            return _plausible({column: _array(table[column], kind) for column, kind in wanted.items()})
        except _DAMAGE as error:
            self.say(f"{name} is damaged and left out ({_short(error)})")
            return None


@dataclass
class Folder:
    """One experiment: what was asked for, the versions it was made with, and its runs."""

    path: Path
    name: str
    experiment: dict[str, Any] | None
    resolved: dict[str, Any]
    versions: dict[str, str]
    runs: list[Run]
    said: list[str]


def read(path: Path) -> Folder:
    """The experiment in this folder, or the single run in it together with the experiment around it."""
    if not path.is_dir():
        raise FolderError(f"{path} is not a folder; name the folder of an experiment, such as runs/20250101-120000")
    alone = not (path / "experiment.json").exists() and _is_run(path)
    home = path.resolve().parent if alone else path
    found = [path] if alone else sorted(child for child in path.iterdir() if child.is_dir() and _is_run(child))
    said: list[str] = []
    content = _json(home / "experiment.json", said) or {}
    if not found and not content:
        raise FolderError(f"{path} holds no run: neither experiment.json nor a folder with events or metrics in it")
    experiment = content.get("experiment")
    experiment = experiment if isinstance(experiment, dict) else None
    runs = [_run(child) for child in found]
    order = {label: at for at, label in enumerate(_labels(experiment))}
    runs.sort(key=lambda run: (order.get(run.label, len(order)), run.label, run.seed))
    if not alone:
        said += _absent(home, runs)
    if not runs:
        said.append("no run has begun")
    versions = {str(name): str(value) for name, value in _dict(content.get("versions")).items()}
    return Folder(path, path.resolve().name, experiment, _dict(content.get("resolved")), versions, runs, said)


def _run(path: Path) -> Run:
    said: list[str] = []
    result = _json(path / "result.json", said) if (path / "result.json").exists() else None
    if result is not None:
        try:  # a result is whole if a table can be made of it
            rows([result], [float(target) for target in result.get("time_to", ())])
            work_rows([result])
            task_rows([result] if "tasks" in result else [], "")
            label, seed = str(result["algorithm"]), int(result["seed"])
        except _DAMAGE as error:
            said, result = [f"result.json is damaged and left out ({_short(error)})"], None
    elif not said:
        said = ["not finished: there is no result.json; what was recorded is shown"]
    if result is None:
        name, _, number = path.name.rpartition("-")
        label, seed = (name, int(number)) if name and number.isdigit() else (path.name, 0)
    run = Run(path, label, seed, result)
    for line in said:
        run.say(line)
    return run


def _absent(home: Path, runs: Sequence[Run]) -> Iterator[str]:
    """A line for every run that the summary knows and the folder does not hold."""
    said: list[str] = []
    summary = _json(home / "summary.json", said)
    yield from said
    listed = _dict(summary).get("runs")
    known = {run.name for run in runs}
    for entry in listed if isinstance(listed, list) else []:
        name = f"{entry.get('algorithm')}, seed {entry.get('seed')}" if isinstance(entry, dict) else "a run"
        if name not in known:
            yield f"the folder of {name} is missing"


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("result.json", "metrics.parquet", "events"))


def _labels(experiment: dict[str, Any] | None) -> list[str]:
    tables = _dict(experiment).get("algorithm")
    found = tables if isinstance(tables, list) else []
    return [str(t.get("label", t.get("name"))) for t in found if isinstance(t, dict)]


def _json(path: Path, said: list[str]) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it holds no table")
        return value
    except FileNotFoundError:
        said.append(f"{path.name} is missing")
    except (OSError, ValueError, RecursionError) as error:
        said.append(f"{path.name} is damaged and left out ({_short(error)})")
    return None


def _array(column: pa.ChunkedArray, kind: pa.DataType) -> npt.NDArray[Any]:
    """The column as numpy; no value is nan or −1."""
    column = column.cast(kind)
    if column.null_count:
        column = column.fill_null({_WHOLE: -1, _REAL: float("nan")}.get(kind, ""))
    return np.asarray(column.to_numpy())


def _plausible(columns: Columns) -> Columns:
    """The columns, unless flipped bits have made numbers of them for which no memory would be enough."""
    for name, most in (("client", 10**7), ("task", 10**4), ("job", 10**9)):
        if name in columns and len(columns[name]) and not -1 <= columns[name].min() <= columns[name].max() < most:
            raise ValueError(f"{name} has numbers out of all proportion")
    return columns


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _short(error: BaseException) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 200 else words[:199] + "…"
