"""What real jobs took, kept beside a run's record, and turned into a trace that a simulation can replay."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa

from offbeat.core.errors import FolderError
from offbeat.core.watcher import ARRIVED, EventRow, Measurement
from offbeat.deploy.job_times import Trip, TripWatcher
from offbeat.deploy.ledger import Ledger, SentJob
from offbeat.watch.files import EVENTS, TRIPS, drop_parts, part_name, read_table, write_table

_TIMES = ("compute", "download", "upload")


class Trips(TripWatcher):
    """A watcher that writes `trips/part-*.parquet`: seconds of download, waiting, computing and upload of every job."""

    def __init__(self, folder: Path, state: Mapping[str, Any] | None = None) -> None:
        self.folder = folder / TRIPS
        self.rows: list[Trip] = []
        state = state or {"parts": 0, "ended": False, "landed": []}
        self.parts, self.ended = int(state["parts"]), bool(state["ended"])
        self.landed: dict[int, float] = {int(c): t for c, t in state["landed"]}  # last arrivals
        drop_parts(self.folder, self.parts)  # written after the checkpoint; they will be written again

    @property
    def state(self) -> dict[str, Any]:
        return {"parts": self.parts, "ended": self.ended, "landed": list(self.landed.items())}

    def event(self, row: EventRow) -> None:
        if row.event == ARRIVED:
            self.landed[row.client] = row.time

    def measured(self, measurement: Measurement) -> None:
        """Of no interest here."""

    def trip(self, trip: Trip) -> None:
        self.rows.append(trip)

    def end(self, ledger: Ledger, unit: float) -> None:
        """The run is over; what clients were still at takes at least as long as they had been at it.

        Without these the trace would lack its longest jobs: those are the ones that an end most likely falls into.
        """
        if self.ended:
            return
        self.ended = True
        for client, record in enumerate(ledger.clients):
            flight, since = self._at_work(ledger, client)
            if flight is not None and record.present:
                elapsed = max(0.0, (ledger.now - since) * unit)
                self.rows.append(Trip(client, flight.job.id, flight.job.task, 0.0, 0.0, elapsed, 0.0, known=False))

    def _at_work(self, ledger: Ledger, client: int) -> tuple[SentJob | None, float]:
        """What a client is certainly at, and since when: the head of its queue, or held work that is waited for."""
        record = ledger.clients[client]
        if record.queue:
            flight = ledger.flights[record.queue[0]]
            return flight, flight.since
        for task, partial in record.recalls.items():
            if not partial:
                flight = ledger.flights[record.held[task][0]]
                return flight, max(flight.sent, self.landed.get(client, 0.0))
        return None, 0.0

    def flush(self) -> None:
        """Everything seen so far is on disk."""
        if self.rows:
            self.folder.mkdir(exist_ok=True)
            columns = dict(zip(Trip._fields, map(list, zip(*self.rows, strict=True)), strict=True))
            write_table(pa.table(columns), self.folder / part_name(self.parts))
            self.parts, self.rows = self.parts + 1, []


def write_trace(run: Path, out: Path, unit: float = 1.0) -> int:
    """A trace (docs/timing.md) of a real run: its jobs' times and its clients' stays; gives the number of rows."""
    if not (run / TRIPS).is_dir():
        raise FolderError(f"{run} has no {TRIPS}: it is not the folder of a real run with at least one update")
    trips = [Trip(**row) for row in read_table(run / TRIPS).to_pylist()]
    owned: list[list[Trip]] = [[] for _ in range(max(trip.client for trip in trips) + 1)]
    for trip in sorted(trips, key=lambda trip: trip.job):
        owned[trip.client].append(trip)
    everybody = [trip for trip in trips if trip.known]
    rows = [row for client, mine in enumerate(owned) for row in _jobs(client, mine, everybody, unit)]
    rows += _stays(run)
    rows.sort(key=lambda row: int(row["client"]))  # a trace's clients are numbered in the order in which they appear
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["client", *_TIMES, "on", "off"])
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def _jobs(client: int, mine: Sequence[Trip], everybody: Sequence[Trip], unit: float) -> list[dict[str, Any]]:
    """A client's jobs in the order in which it was sent them; one that never had any is taken to be like everybody."""
    known = [trip for trip in mine if trip.known] or everybody
    sent = [trip for trip in known if trip.upload == trip.upload]
    typical = {name: fmean(getattr(trip, name) for trip in sent) if sent else 0.0 for name in _TIMES[1:]}
    rows = list[dict[str, Any]]()
    for trip in mine or [Trip(client, 0, 0, 0.0, 0.0, 0.0, 0.0, known=False)]:
        times = {name: getattr(trip, name) for name in _TIMES}
        if not trip.known:
            times["compute"] = _at_least(trip.compute, known)
        if not trip.known or trip.upload != trip.upload:
            times |= typical
        rows.append({"client": client, **{name: seconds / unit for name, seconds in times.items()}})
    return rows


def _at_least(compute: float, known: Sequence[Trip]) -> float:
    """What a job takes that took at least so long: the mean of those that took longer (Efron 1967, censored data)."""
    longer = [trip.compute for trip in known if trip.compute > compute]
    return fmean(longer) if longer else compute


def _stays(run: Path) -> list[dict[str, Any]]:
    """When clients were there, if any came or went while the run was on."""
    events = read_table(run / EVENTS, ["time", "event", "client"]).to_pylist()
    end = max((row["time"] for row in events), default=0.0)
    moves = [row for row in events if row["event"] in ("Joined", "Left")]
    if not moves or end <= 0:
        return []
    since = {row["client"]: 0.0 for row in events if row["event"] in ("Joined", "Left", ARRIVED)}
    moves += [{"event": "Left", "client": client, "time": end} for client in since]
    stays = list[dict[str, Any]]()
    for row in moves:
        client, time = row["client"], row["time"]
        if row["event"] == "Joined":
            since[client] = time
        elif client in since and time > (start := since.pop(client)):
            stays.append({"client": client, "on": start, "off": time})
    return stays
