"""The record of a run: events and metrics as Parquet, written in parts so that memory stays flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offbeat.core.watcher import Measurement, Row

ROWS = 100_000  # of a part

_EVENTS = pa.schema(
    [
        ("number", pa.int64()),
        ("time", pa.float64()),
        ("event", pa.dictionary(pa.int8(), pa.string())),
        ("client", pa.int32()),
        ("task", pa.int32()),
        ("job", pa.int64()),
        ("version", pa.int64()),
        ("staleness", pa.int64()),
        ("sent", pa.float64()),
        ("started", pa.float64()),
        ("finished", pa.float64()),
        ("reason", pa.dictionary(pa.int8(), pa.string())),
    ]
)


class Recorder:
    """A watcher that writes `events/part-*.parquet` and `metrics.parquet` into a run's folder.

    `state` goes into the checkpoint; a recorder made with it goes on from there and drops what was written later.
    size: rows of a part, which is all that is ever kept in memory.
    """

    def __init__(self, folder: Path, state: Mapping[str, Any] | None = None, size: int = ROWS) -> None:
        self.folder, self.size = folder, size
        self.rows: list[Row] = []
        self.parts = 0 if state is None else int(state["parts"])
        self.measurements = [] if state is None else [Measurement(*m) for m in state["measurements"]]
        (folder / "events").mkdir(parents=True, exist_ok=True)
        for path in list((folder / "events").glob("part-*.parquet*")):
            if int(path.name[5:10]) >= self.parts:
                path.unlink()

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to go on; call `flush` first."""
        return {"parts": self.parts, "measurements": [list(m) for m in self.measurements]}

    def event(self, row: Row) -> None:
        self.rows.append(row)
        if len(self.rows) >= self.size:
            self._write_part()

    def measured(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)

    def flush(self) -> None:
        """Everything seen so far is on disk."""
        if self.rows:
            self._write_part()
        if self.measurements:
            write_table(metrics_table(self.measurements), self.folder / "metrics.parquet")
        if any(m.each for m in self.measurements):
            write_table(personal_table(self.measurements), self.folder / "personal.parquet")

    def _write_part(self) -> None:
        columns = list(zip(*self.rows, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _EVENTS, strict=True)]
        write_table(
            pa.Table.from_arrays(arrays, schema=_EVENTS), self.folder / "events" / f"part-{self.parts:05d}.parquet"
        )
        self.parts += 1
        self.rows = []


def metrics_table(measurements: Sequence[Measurement]) -> pa.Table:
    """One row a measurement, one column a metric."""
    names = sorted({name for m in measurements for name in m.metrics})
    columns: dict[str, Any] = {
        "task": [m.task for m in measurements],
        "time": [m.time for m in measurements],
        "updates": [m.updates for m in measurements],
        "version": [m.version for m in measurements],
    }
    for name in names:
        columns[name] = [m.metrics.get(name) for m in measurements]
    return pa.table(columns)


def personal_table(measurements: Sequence[Measurement]) -> pa.Table:
    """One row a measurement and client: the accuracy of the client's own model."""
    rows = [(m.task, m.time, client, value) for m in measurements for client, value in enumerate(m.each)]
    task, time, client, accuracy = zip(*rows, strict=True)
    return pa.table({"task": task, "time": time, "client": client, "accuracy": accuracy})


def write_table(table: pa.Table, path: Path) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    pq.write_table(table, part, compression="zstd")
    part.replace(path)
