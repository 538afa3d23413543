"""One run of an experiment, read from its folder; what cannot be read is reported and skipped."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from offbeat.core.errors import FolderError
from offbeat.core.metric import Metric
from offbeat.watch.files import CLIENTS, COLUMNS, EVENTS, MEASURED, METRICS, PERSONAL, REAL_RUN, UNDERWAY, part_name
from offbeat.watch.results import Result, to_metrics

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

_REAL, _WHOLE = pa.float64(), pa.int64()
_KINDS = {"int32": _WHOLE, "int64": _WHOLE, "float64": _REAL, "word": pa.string(), "text": pa.string()}
_UNREAD = ("number", "name")  # of events, and of clients, see `sites`
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, pa.lib.ArrowException)


@dataclass
class RecordedRun:
    """One run: an algorithm and a seed. Its tables are read lazily.

    warnings: a line for everything that could not be read.   result: None while the run is not finished.
    curve: its evaluations, if they are not in a separate file; such a run may have no other files either.
    known: by task, what is known of each metric, if that is not in its files.
    """

    path: Path
    label: str
    seed: int
    result: Result | None
    curve: Columns | None = None
    known: tuple[tuple[Metric, ...], ...] = ()
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return self.result.error if self.result else None

    @property
    def time(self) -> float | None:
        """When it ended, if it did."""
        return self.result.time if self.result else None

    @cached_property
    def measured(self) -> tuple[tuple[Metric, ...], ...]:
        """By task, what is known of each metric, its own first; empty if nothing is."""
        if self.known or self.curve is not None:
            return self.known
        if self.result is not None and self.result.tasks[0].measured:
            return tuple(task.measured for task in self.result.tasks)
        try:
            said = (pq.read_schema(self.path / METRICS).metadata or {}).get(MEASURED.encode(), b"[]")
            return to_metrics(json.loads(said), MEASURED)
        except (*DAMAGE, FolderError, RecursionError):
            return ()

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The names of the clients, by number: of those that a real run began with, or that the problem knows."""
        try:
            return tuple(map(str, json.loads((self.path / REAL_RUN).read_text(encoding="utf-8"))["roster"]))
        except (*DAMAGE, RecursionError):
            pass
        try:
            names = pq.read_table(self.path / CLIENTS, columns=["name"], partitioning=None)["name"].to_pylist()
        except DAMAGE:
            return ()
        return tuple("" if name is None else str(name) for name in names) if any(names) else ()

    def metrics(self) -> Columns | None:
        """One row per evaluation: task, time, updates, version and one column per metric."""
        if self.curve is not None:
            return dict(self.curve)
        return self._table(METRICS, others=_REAL)

    def personal(self) -> Columns | None:
        """One row per evaluation and client; None if personalised models were not evaluated."""
        return self._table(PERSONAL) if (self.path / PERSONAL).is_file() else None

    def clients(self) -> Columns | None:
        """One row per client."""
        wanted = self.result and not self.error and not self._without_events
        return self._table(CLIENTS) if wanted else None

    def underway(self) -> Columns | None:
        """One row per job in flight at the end of the run."""
        return self._table(UNDERWAY) if (self.path / UNDERWAY).is_file() else None

    def events(self) -> Columns | None:
        """One row per event, from all readable parts."""
        if self._without_events:
            return None
        names = sorted(path.name for path in (self.path / EVENTS).glob("part-*.parquet"))
        if not names:
            self.warn(f"{EVENTS}/ is missing or empty")
            return None
        numbers = [int(name[5:10]) for name in names if name[5:10].isdigit()]
        for lost in sorted(set(range(max(numbers, default=0))) - set(numbers)):
            self.warn(f"{EVENTS}/{part_name(lost)} is missing")
        parts = [part for name in names if (part := self._table(f"{EVENTS}/{name}", EVENTS)) is not None]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else None

    def warn(self, what: str) -> None:
        """Add a warning, once."""
        line = f"{self.path.name if self.curve is None else self.name}: {what}"
        if line not in self.warnings:
            self.warnings.append(line)

    @property
    def _without_events(self) -> bool:
        return self.curve is not None and not (self.path / EVENTS).is_dir()

    def _table(self, name: str, like: str = "", others: pa.DataType | None = None) -> Columns | None:
        """like: the table whose columns it must have.   others: the type of all other columns; None ignores them."""
        path = self.path / name
        if not path.is_file():
            self.warn(f"{name} is missing")
            return None
        try:
            table = pq.read_table(path, partitioning=None)
            wanted = {column: _KINDS[kind] for column, kind in COLUMNS[like or name].items() if column not in _UNREAD}
            if others is not None:
                wanted |= {column: others for column in table.column_names if column not in wanted}
            return _plausible({column: _array(table[column], kind) for column, kind in wanted.items()})
        except DAMAGE as error:
            self.warn(f"{name} is damaged and left out ({short(error)})")
            return None


def _array(column: pa.ChunkedArray, kind: pa.DataType) -> npt.NDArray[Any]:
    """The column as a numpy array; null becomes nan or −1."""
    column = column.cast(kind)
    if column.null_count:
        column = column.fill_null({_WHOLE: -1, _REAL: float("nan")}.get(kind, ""))
    return np.asarray(column.to_numpy())


def _plausible(columns: Columns) -> Columns:
    """The columns, unless they hold numbers so large (flipped bits) that memory would run out."""
    for name, most in (("client", 10**7), ("task", 10**4), ("job", 10**9)):
        if name in columns and len(columns[name]) and not -1 <= columns[name].min() <= columns[name].max() < most:
            raise ValueError(f"{name} has implausible numbers")
    return columns


def short(error: BaseException) -> str:
    """An error message in one line."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 200 else words[:199] + "…"
