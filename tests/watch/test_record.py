"""The record of a run: Parquet in parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from command import events

from offbeat.core.watcher import EventRow, Measurement
from offbeat.watch.record import Recorder

NAN = float("nan")


def row(number: int) -> EventRow:
    return EventRow(number, number / 10, "Arrived", number % 3, 0, number, 7, 2, 0.1, 0.2, 0.3, "")


def measurement(time: float, **metrics: float) -> Measurement:
    return Measurement(0, time, int(10 * time), 3, metrics)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.event(EventRow(1, 0.0, "Started", -1, 0, -1, 0, -1, NAN, NAN, NAN, ""))
    recorder.event(row(2))
    recorder.flush()
    start, arrival = events(tmp_path)
    assert (start["event"], start["client"], repr(start["sent"])) == ("Started", -1, "nan")
    assert arrival == row(2)._asdict()


def test_reasons_may_be_any_text_and_as_many_as_there_are_rows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for number in range(300):
        recorder.event(row(number)._replace(event="Lost", reason=f"failed: {number}"))
    recorder.event(row(300)._replace(event="Lost", reason="a\ud800b\x00"))
    recorder.flush()
    assert [each["reason"] for each in events(tmp_path)] == [*(f"failed: {n}" for n in range(300)), "a?b\x00"]


def test_memory_holds_no_more_than_one_part(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, size=10)
    for number in range(1005):
        recorder.event(row(number))
        assert len(recorder.rows) < 10
    recorder.flush()
    assert len(list((tmp_path / "events").iterdir())) == 101
    assert [r["number"] for r in events(tmp_path)] == list(range(1005))


def test_nothing_to_write_writes_nothing(tmp_path: Path) -> None:
    Recorder(tmp_path).flush()
    assert list((tmp_path / "events").iterdir()) == []
    assert not (tmp_path / "metrics.parquet").exists()


def test_one_made_from_a_checkpoint_drops_what_was_written_after_it(tmp_path: Path) -> None:
    first = Recorder(tmp_path, size=10)
    for number in range(25):
        first.event(row(number))
    first.measured(measurement(1.0, loss=0.5))
    first.flush()
    state = first.state
    for number in range(25, 60):
        first.event(row(number))
    first.measured(measurement(2.0, loss=99.0))
    first.flush()
    (tmp_path / "events" / "part-00009.parquet.part").write_bytes(b"half")
    second = Recorder(tmp_path, state, size=10)
    assert [r["number"] for r in events(tmp_path)] == list(range(25))
    second.event(row(25))
    second.measured(measurement(2.0, loss=0.25))
    second.flush()
    assert [r["number"] for r in events(tmp_path)] == list(range(26))
    assert pq.read_table(tmp_path / "metrics.parquet").column("loss").to_pylist() == [0.5, 0.25]
    assert not list((tmp_path / "events").glob("*.part"))


def test_one_made_without_a_checkpoint_starts_with_nothing(tmp_path: Path) -> None:
    first = Recorder(tmp_path)
    first.event(row(0))
    first.flush()
    Recorder(tmp_path)
    assert events(tmp_path) == []


def test_metrics_are_columns_and_those_not_measured_are_null(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.measured(measurement(0.5, loss=1.0))
    recorder.measured(measurement(1.0, loss=0.5, accuracy=0.9))
    recorder.flush()
    assert pq.read_table(tmp_path / "metrics.parquet").to_pylist() == [
        {"task": 0, "time": 0.5, "updates": 5, "version": 3, "accuracy": None, "loss": 1.0},
        {"task": 0, "time": 1.0, "updates": 10, "version": 3, "accuracy": 0.9, "loss": 0.5},
    ]
