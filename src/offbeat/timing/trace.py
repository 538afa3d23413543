"""A recorded trace: what real jobs took and when real clients were there, replayed.

A trace is a CSV file with a header, or the same rows as JSON: a list of objects, or {"period": …, "rows": [...]}.

    client, compute, download, upload, on, off
    a,      12.5,    0.8,      3.1,    0,  3600
    a,      11.9,    0.9,      2.7,    ,
    b,      40.0,    1.2,      6.0,    ,

A row is one job of one client, one stay (`on` to `off`) of it, or both; absent columns and empty cells say nothing.
Without a download or an upload column that way takes no time; a client without a stay is always there.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from offbeat.core.errors import Checked, DataError, Positive, SettingError
from offbeat.timing.delays import RecordedTimes
from offbeat.timing.network import Links
from offbeat.timing.phones import located, read_json
from offbeat.timing.presence import Intervals, Presence

_COLUMNS = ("client", "compute", "download", "upload", "on", "off")

Row = Mapping[str, float]  # the cells that say something
Columns = Sequence[Sequence[float]]  # by client


class TraceParts(NamedTuple):
    """The parts of a timing model that a trace holds."""

    compute: RecordedTimes
    network: Links | None
    presence: Intervals | None


@dataclass(frozen=True)
class Trace(Checked):
    """Recorded jobs and times online, replayed.

    file: CSV or JSON file; a path, or a name in $OFFBEAT_DATA/traces.
    period: time after which the times online repeat; by default the file's own, else the last `off`.
    """

    file: str
    period: Positive | None = None

    def read(self) -> TraceParts:
        """The parts that the file holds."""
        return _recorded(located(self.file), self.period)

    def bind(self, clients: int, seed: int) -> Presence:
        """The recorded stays alone, as the presence of clients whose times are another part."""
        path = located(self.file)
        found, own = _by_client(path)
        presence = _stays(path, found, own if self.period is None else self.period)
        if presence is None:
            raise SettingError(f"file = {self.file!r}: records no stays; it needs the columns on and off")
        return presence.bind(clients, seed)


def _recorded(path: Path, period: float | None) -> TraceParts:
    clients, own = _by_client(path)
    compute, download, upload = (_column(clients, name) for name in ("compute", "download", "upload"))
    silent = [client for client, times in zip(clients, compute, strict=True) if not times]
    if silent:
        remedy = "every client needs at least one job; for times online alone, use intervals"
        raise DataError(f"{path}: client {silent[0]!r} has no compute time; {remedy}")
    try:
        times, network = _replay(compute), _network(compute, download, upload)
    except SettingError as error:
        raise DataError(f"{path}: {error}") from None
    return TraceParts(times, network, _stays(path, clients, own if period is None else period))


def _by_client(path: Path) -> tuple[dict[str, list[Row]], Any]:
    """The rows of each client, in the order in which the file names them first; the file's own period."""
    rows, period = _rows(path)
    clients: dict[str, list[Row]] = {}
    for row in rows:
        clients.setdefault(str(row["client"]), []).append(_cells(path, row))
    return clients, period


def _network(compute: Columns, download: Columns, upload: Columns) -> Links | None:
    if not any(download) and not any(upload):
        return None
    for way in (download, upload):
        if any(len(times) not in (0, len(jobs)) for times, jobs in zip(way, compute, strict=True)):
            raise SettingError("some jobs lack a download or an upload time; give it for all jobs of a client")
    return Links(_replay([times or [0.0] for times in download]), _replay([times or [0.0] for times in upload]))


def _replay(times: Columns) -> RecordedTimes:
    return RecordedTimes(tuple(map(tuple, times)))


def _stays(path: Path, clients: Mapping[str, Sequence[Row]], period: Any) -> Intervals | None:
    on, off = _column(clients, "on"), _column(clients, "off")
    if not any(on):
        return None
    stays = tuple(tuple(zip(begins, ends, strict=True)) for begins, ends in zip(on, off, strict=True))
    try:
        return Intervals(stays, max(max(ends, default=0.0) for ends in off) if period is None else period)
    except SettingError as error:
        raise DataError(f"{path}: {error}") from None


def _column(clients: Mapping[str, Sequence[Row]], name: str) -> Columns:
    return [[row[name] for row in rows if name in row] for rows in clients.values()]


def _cells(path: Path, row: Mapping[str, Any]) -> Row:
    cells = {name: row[name] for name in _COLUMNS[1:] if row.get(name) is not None and str(row[name]).strip()}
    if ("on" in cells) != ("off" in cells):
        raise DataError(f"{path}: row {row!r}; a stay needs both on and off")
    if "compute" not in cells and ("download" in cells or "upload" in cells):
        raise DataError(f"{path}: row {row!r}; a transfer belongs to a job, give its compute time in the same row")
    try:
        return {name: float(cell) for name, cell in cells.items()}
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: row {row!r}; {error}") from None


def _rows(path: Path) -> tuple[list[Mapping[str, Any]], Any]:
    content: Any = _read_csv(path) if path.suffix == ".csv" else read_json(path)
    rows, period = (content.get("rows"), content.get("period")) if isinstance(content, Mapping) else (content, None)
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path}: no rows; a trace has the columns {', '.join(_COLUMNS)}")
    for row in rows:
        if not isinstance(row, Mapping) or row.get("client") in (None, "") or not set(row) <= set(_COLUMNS):
            raise DataError(f"{path}: row {row!r}; a row names its client, and may have {', '.join(_COLUMNS[1:])}")
    return rows, period


def _read_csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is not readable as CSV: {error}; save it as UTF-8") from None
