"""Whatever a client sends is decoded, folded and recorded without an error, and the same when folded again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from faults import freeze, same, thaw
from fuzz import ALGORITHMS, Fuzzer, plan

from offbeat.deploy.assignment import Models, read_assignment, write_assignment
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.trace import Trips
from offbeat.deploy.wire import LogEntry
from offbeat.watch.files import EVENTS, METRICS, TRIPS, read_table
from offbeat.watch.history import History
from offbeat.watch.record import Recorder


def fuzz(name: str, seed: int, entries: int, folder: Path) -> dict[str, int]:
    """Fold spoiled entries; record, save and load, assign and fold again what came of them. Gives the refusals."""
    made, fuzzer = plan(name, 0.99 if seed % 5 == 4 else None), Fuzzer(seed)
    recorder, trips, history = Recorder(folder), Trips(folder), History(keep_events=True)
    reducer, log, clock = Reducer(made, None, [recorder, trips, history]), list[LogEntry](), 0.0
    for seq in range(1, entries + 1):
        clock += fuzzer.random.choice([0.0, 0.01, 0.3, -5.0, 20.0])
        entry = fuzzer.entry(reducer, seq, clock)
        log.append(entry)
        reducer.fold(entry)
        if seq == entries // 2:  # a restart
            reducer = Reducer(made, thaw(freeze(reducer.ledger)), [recorder, trips, history])
    ledger, models = reducer.ledger, Models()
    for client in range(len(ledger.clients)):
        read_assignment(write_assignment("run", ledger, client, models, lambda name, data: None))
    recorder.flush()
    trips.flush()
    assert read_table(folder / EVENTS).num_rows == len(history.events)
    for table in (METRICS, TRIPS):
        if (folder / table).exists():
            read_table(folder / table)
    json.dumps(recorder.state, allow_nan=False)
    again = Reducer(made)
    for entry in log:
        again.fold(entry)
    assert same(freeze(again.ledger), freeze(ledger))
    return dict(ledger.tally.refused)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_anything_is_folded_recorded_and_folded_again(name: str, tmp_path: Path) -> None:
    refused = fuzz(name, 0, 400, tmp_path)
    assert len(refused) > 5, refused  # otherwise the fuzzer is too dull, or too wild, to reach the checks
    assert "quarantined" not in refused


@pytest.mark.slow
def test_for_as_long_as_one_likes(tmp_path: Path) -> None:
    """`make fuzz`; FUZZ_SECONDS says for how long."""
    end, seed = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "60")), 1
    while time.monotonic() < end:
        for name in ALGORITHMS:
            folder = tmp_path / f"{name}-{seed}"
            folder.mkdir()
            refused = fuzz(name, seed, 2000, folder)
            assert "quarantined" not in refused, (name, seed)
        seed += 1
    print(f"{seed - 1} seeds of {len(ALGORITHMS)} algorithms")
