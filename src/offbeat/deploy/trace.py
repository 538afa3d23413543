"""What real jobs took, kept beside a run's record, and turned into a trace that a simulation can replay."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from offbeat.core.errors import FolderError
from offbeat.deploy.chronicle import Clockwatcher, Trip
from offbeat.simulate.log import Measurement, Row
from offbeat.watch.record import write_table

TRIPS = "trips"


class Trips(Clockwatcher):
    """A watcher that writes `trips/part-*.parquet`: seconds of download, waiting, computing and upload of every job."""

    def __init__(self, folder: Path, state: Mapping[str, Any] | None = None) -> None:
        self.folder = folder / TRIPS
        self.rows: list[Trip] = []
        self.parts = 0 if state is None else int(state["parts"])
        for path in list(self.folder.glob("part-*.parquet*")):
            if int(path.name[5:10]) >= self.parts:  # written after the checkpoint; it will be written again
                path.unlink()

    @property
    def state(self) -> dict[str, Any]:
        return {"parts": self.parts}

    def event(self, row: Row) -> None:
        """Of no interest here."""

    def measured(self, measurement: Measurement) -> None:
        """Of no interest here."""

    def trip(self, trip: Trip) -> None:
        self.rows.append(trip)

    def flush(self) -> None:
        """Everything seen so far is on disk."""
        if self.rows:
            self.folder.mkdir(exist_ok=True)
            columns = dict(zip(Trip._fields, map(list, zip(*self.rows, strict=True)), strict=True))
            write_table(pa.table(columns), self.folder / f"part-{self.parts:05d}.parquet")
            self.parts, self.rows = self.parts + 1, []


def write_trace(run: Path, out: Path, unit: float = 1.0) -> int:
    """A trace (docs/timing.md) of a real run: its jobs' times and its clients' stays; gives the number of rows."""
    if not (run / TRIPS).is_dir():
        raise FolderError(f"{run} has no {TRIPS}: it is not the folder of a real run with at least one update")
    trips = ds.dataset(run / TRIPS, format="parquet").to_table().to_pylist()
    rows: list[dict[str, Any]] = [
        {
            "client": trip["client"],
            "compute": trip["compute"] / unit,
            "download": trip["download"] / unit,
            "upload": trip["upload"] / unit,
        }
        for trip in trips
        if trip["compute"] == trip["compute"]  # unless it was interrupted before its first step
    ]
    rows += _stays(run)
    rows.sort(key=lambda row: int(row["client"]))  # a trace's clients are numbered in the order in which they appear
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["client", "compute", "download", "upload", "on", "off"])
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def _stays(run: Path) -> list[dict[str, Any]]:
    """When clients were there, if any came or went while the run was on."""
    columns = ["time", "event", "client"]
    events = ds.dataset(run / "events", format="parquet").to_table(columns=columns).to_pylist()
    end = max((row["time"] for row in events), default=0.0)
    moves = [row for row in events if row["event"] in ("Joined", "Left")]
    if not moves or end <= 0:
        return []
    since: dict[int, float | None] = {}
    stays = list[dict[str, Any]]()
    for row in moves:
        client, time = row["client"], row["time"]
        if row["event"] == "Joined":
            since[client] = time
        else:
            start = since.get(client, 0.0)
            since[client] = None
            if start is not None and time > start:
                stays.append({"client": client, "on": start, "off": time})
    there = {row["client"] for row in events if row["event"] == "Arrived"}
    for client in there | set(since):
        start = since.get(client, 0.0)
        if start is not None and end > start:
            stays.append({"client": client, "on": start, "off": end})
    return stays
