"""The record of a run: events and metrics as Parquet, written in parts to bound memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from offbeat.core.metric import Metric
from offbeat.core.watcher import EventRow, Measurement
from offbeat.watch.files import (
    COLUMNS,
    EVENTS,
    MEASURED,
    METRICS,
    PERSONAL,
    drop_parts,
    json_text,
    part_name,
    schema,
    write_table,
)

ROWS = 100_000  # of a part


class Recorder:
    """A watcher that writes `events/part-*.parquet` and `metrics.parquet` into a run's folder.

    `state` goes into the checkpoint; a recorder made with it goes on from there and drops what was written later.
    size: rows of a part, which is all that is ever kept in memory.   metrics: by task, what is known of each metric;
    the tables say it.
    """

    metrics: Sequence[Sequence[Metric]] = ()

    def __init__(self, folder: Path, state: Mapping[str, Any] | None = None, size: int = ROWS) -> None:
        self.folder, self.size = folder, size
        self.rows: list[EventRow] = []
        self.parts = 0 if state is None else int(state["parts"])
        self.measurements = [] if state is None else [Measurement(*m) for m in state["measurements"]]
        (folder / EVENTS).mkdir(parents=True, exist_ok=True)
        drop_parts(folder / EVENTS, self.parts)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to continue; call `flush` first."""
        return {"parts": self.parts, "measurements": [list(m) for m in self.measurements]}

    def event(self, row: EventRow) -> None:
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
            write_table(metrics_table(self.measurements, self.metrics), self.folder / METRICS)
        each = [
            (m.task, m.time, client, own)
            for m in self.measurements
            for client, own in enumerate(m.each)
            if own is not None
        ]
        if each:  # one row per evaluation and client: the own metric of the client's personalised model
            columns = dict(zip(COLUMNS[PERSONAL], zip(*each, strict=True), strict=True))
            table = pa.table(columns, schema=schema(PERSONAL).with_metadata(_said(self.metrics)))
            write_table(table, self.folder / PERSONAL)

    def _write_part(self) -> None:
        columns: dict[str, Any] = dict(zip(COLUMNS[EVENTS], zip(*self.rows, strict=True), strict=True))
        columns["reason"] = [reason.encode(errors="replace").decode() for reason in columns["reason"]]  # any text
        write_table(pa.table(columns, schema=schema(EVENTS)), self.folder / EVENTS / part_name(self.parts))
        self.parts += 1
        self.rows = []


def metrics_table(measurements: Sequence[Measurement], metrics: Sequence[Sequence[Metric]] = ()) -> pa.Table:
    """One row per evaluation, one column per metric. metrics: by task, what is known of each."""
    names = sorted({name for m in measurements for name in m.metrics})
    columns: dict[str, Any] = {name: [getattr(m, name) for m in measurements] for name in COLUMNS[METRICS]}
    for name in names:
        columns[name] = [m.metrics.get(name) for m in measurements]
    return pa.table(columns, metadata=_said(metrics))


def _said(metrics: Sequence[Sequence[Metric]]) -> dict[str, str]:
    return {MEASURED: json_text([[asdict(metric) for metric in each] for each in metrics])}
