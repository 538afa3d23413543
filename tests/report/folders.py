"""Run folders to report on: a small real one, and a synthetic one of any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from command import DIGITS, run
from worlds import ACCURACY

from offbeat.watch.files import write_table
from offbeat.watch.measures import Bytes, Concurrency, Measures, Messages, Participation, StalenessQuantiles
from offbeat.watch.results import MeanMax, Result

NETWORK = DIGITS.replace(
    "exponential = { rate = 10.0 }",
    "exponential = { rate = 10.0 }\ndownload = { constant = { time = 0.02 } }\n"
    "upload = { constant = { time = 0.05 } }\non_off = { on = 1.0, off = 0.1 }\ndropout = 0.1",
)


def real(folder: Path, *arguments: str, text: str = NETWORK) -> Path:
    """The folder of a finished experiment."""
    outcome = run(folder, text, *arguments)
    assert outcome.code == 0, outcome.err
    return folder / "out"


def synthetic(folder: Path, label: str, seed: int, events: int, clients: int, points: int = 50) -> Path:
    """A run folder as a run of so many arrivals would leave it."""
    place = folder / f"{label}-{seed}"
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, clients, events).astype(np.int32)
    time = np.sort(rng.uniform(0.0, 100.0, events))
    sent = np.zeros(events)
    last: dict[int, float] = {}
    for at, (client, now) in enumerate(zip(owner.tolist(), time.tolist(), strict=True)):
        sent[at] = last.get(client, 0.0)
        last[client] = now
    columns: dict[str, Any] = {
        "number": np.arange(1, events + 1),
        "time": time,
        "event": pa.array(["Arrived"] * events).dictionary_encode(),
        "client": owner,
        "task": np.zeros(events, np.int32),
        "job": np.argsort(np.argsort(sent, kind="stable"), kind="stable"),
        "version": np.arange(1, events + 1) // 4,
        "staleness": rng.integers(0, 50, events),
        "sent": sent,
        "started": sent,
        "finished": time,
        "reason": pa.array([""] * events).dictionary_encode(),
    }
    (place / "events").mkdir(parents=True)
    write_table(pa.table(columns), place / "events" / "part-00000.parquet")
    moments = np.linspace(0.0, 100.0, points)
    updates = np.searchsorted(time, moments)
    accuracy = 1.0 - 0.9 * np.exp(-moments / (10.0 + seed))
    table = {"task": [0] * points, "time": moments, "updates": updates, "version": updates // 4, "accuracy": accuracy}
    write_table(pa.table(table), place / "metrics.parquet")
    measures = Measures(
        Concurrency(0.5, ()),
        0.5,
        Participation(0.1, 0),
        StalenessQuantiles(25.0, 45.0, 49.0, ()),
        (),
        Bytes(400 * events, 400 * events),
        (Messages(400, 400, events),),
        0.5,
        None,
    )
    result = Result(
        label,
        seed,
        time=100.0,
        updates=events,
        versions=events // 4,
        measured=(ACCURACY,),
        metrics={"accuracy": accuracy[-1]},
        targets={"0.8": None},
        staleness=MeanMax(25.0, 49),
        measures=measures,
    )
    (place / "result.json").write_text(json.dumps(result.to_json()))
    return place


def embedded(page: Path) -> dict[str, Any]:
    """What the page's script draws from."""
    text = page.read_text(encoding="utf-8")
    start = text.index('<script type="application/json" id="data">') + len('<script type="application/json" id="data">')
    found: dict[str, Any] = json.loads(text[start : text.index("</script>", start)])
    return found
