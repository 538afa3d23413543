"""A trace of a real run has the times of all its jobs, also of those that were not done."""

from __future__ import annotations

import csv
from math import nan
from pathlib import Path

import pytest

from offbeat.core.events import Job
from offbeat.core.watcher import EventRow
from offbeat.deploy.job_times import Trip
from offbeat.deploy.ledger import ClientRecord, Ledger, SentJob
from offbeat.deploy.trace import Trips, write_trace
from offbeat.watch.record import Recorder


def traced(folder: Path, trips: list[Trip], ledger: Ledger | None = None) -> list[tuple[int, float, float]]:
    """(client, compute, upload) of the rows of a trace."""
    recorder, watcher = Recorder(folder), Trips(folder)
    recorder.event(EventRow(0, 0.0, "Started", -1, 0, -1, 0, -1, nan, nan, nan, ""))
    for trip in trips:
        watcher.trip(trip)
        watcher.event(EventRow(1, 1.0, "Arrived", trip.client, 0, trip.job, 0, 0, nan, nan, nan, ""))
    if ledger is not None:
        watcher.end(ledger, 2.0)
        watcher.end(ledger, 2.0)  # served again after the end
    recorder.flush()
    watcher.flush()
    write_trace(folder, folder / "trace.csv", 2.0)
    with (folder / "trace.csv").open() as file:
        return [(int(row["client"]), float(row["compute"]), float(row["upload"])) for row in csv.DictReader(file)]


def job(number: int, hold: bool = False) -> Job:
    return Job(number, 0, 0, 0, 4, 0.1, number, hold)


def test_jobs_are_in_the_order_of_sending_and_no_client_is_left_out(tmp_path: Path) -> None:
    trips = [Trip(2, 7, 0, 0.0, 9.0, 4.0, 2.0), Trip(0, 5, 0, 0.0, 0.0, 6.0, 2.0), Trip(0, 1, 0, 0.0, 0.0, 2.0, 4.0)]
    assert traced(tmp_path, trips) == [(0, 1.0, 2.0), (0, 3.0, 1.0), (1, 2.0, pytest.approx(4 / 3)), (2, 2.0, 1.0)]


@pytest.mark.parametrize(("elapsed", "taken"), [(1.0, 4.0), (3.0, 5.0), (9.0, 9.0)])
def test_work_that_was_not_done_takes_what_longer_jobs_took(tmp_path: Path, elapsed: float, taken: float) -> None:
    known = [Trip(0, n, 0, 0.0, 0.0, compute, 2.0) for n, compute in enumerate((2.0, 4.0, 6.0))]
    rows = traced(tmp_path, [*known, Trip(0, 3, 0, 0.0, 0.0, elapsed, 0.0, known=False)])
    assert rows[-1] == (0, taken / 2, 1.0)


def test_what_clients_are_at_when_the_run_ends_is_traced_if_that_is_known(tmp_path: Path) -> None:
    flights = {n: SentJob(job(n, hold=n > 2), None, sent=0.5 * n, since=0.5 * n) for n in range(1, 6)}
    queued = ClientRecord(present=True, queue=[1, 2])  # at work on the first, since 0.5
    waited = ClientRecord(present=True, held={0: [3, 4]}, recalls={0: False})  # since 1.5, as nothing came in between
    silent = ClientRecord(present=True, held={0: [5]})  # done or not, nobody knows
    ledger = Ledger(clients=[queued, waited, silent], now=10.0, flights=flights)
    trips = [Trip(client, 0, 0, 0.0, 0.0, 2.0, 0.0) for client in range(3)]
    assert traced(tmp_path, trips, ledger) == [
        (0, 1.0, 0.0),
        (0, 9.5, 0.0),
        (1, 1.0, 0.0),
        (1, 8.5, 0.0),
        (2, 1.0, 0.0),
    ]
