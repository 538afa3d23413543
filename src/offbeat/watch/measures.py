"""How the clients worked: participation, concurrency, staleness, bytes, idleness, taken from a run's event log."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from offbeat.simulate.loop import Simulation
from offbeat.watch.record import write_table

WINDOWS = 20  # of equal length, over a run's time

Floats = npt.NDArray[np.float64]


def measure(folder: Path, simulation: Simulation) -> dict[str, Any]:
    """The measures of a finished run; the values of single clients go to `clients.parquet`.

    concurrency: share of clients at work, mean over time and in windows.
    participation: distance of the clients' shares of the arrived updates from equal shares, ½ Σ |p_i − 1/n|:
        0 when all count the same, near 1 when few clients do all the work.
    staleness: quantiles, and means in windows of time.
    bytes: sent down and up.   idle: mean share of time that a client does nothing.
    waiting: mean time from one server step to the next.
    """
    world, clients = simulation.world, simulation.clients
    columns = ["event", "time", "client", "task", "staleness", "started", "finished"]
    table = ds.dataset(folder / "events", format="parquet").to_table(columns=columns)
    arrived = np.asarray(table["event"].cast(pa.string())) == "Arrived"
    column = {name: table[name].to_numpy()[arrived] for name in columns[1:]}
    span = max(world.now, 1e-300)
    counts = np.bincount(column["client"], minlength=clients)
    starts, ends, owners = _work(simulation, column)
    busy = np.bincount(owners, weights=ends - starts, minlength=clients).astype(np.float64)
    shares = counts / max(counts.sum(), 1)
    wires = [local.wire(p.dim) for local, p in zip(simulation.locals, simulation.problems, strict=True)]
    up = sum(wires[t][1] * int((column["task"] == t).sum()) for t in range(len(wires)))
    versions = sum(m.version for m in simulation.server.models(world.server))
    _write_clients(folder, counts, busy, span)
    return {
        "concurrency": {
            "mean": float(busy.sum() / (clients * span)),
            "windows": _concurrency(starts, ends, span, clients),
        },
        "participation": {
            "distance": float(0.5 * np.abs(shares - 1.0 / clients).sum()),
            "silent": int((counts == 0).sum()),
        },
        "staleness": {**_quantiles(column["staleness"]), "windows": _means(column["time"], column["staleness"], span)},
        "bytes": {"down": _down(simulation, wires), "up": int(up)},
        "idle": float(1.0 - busy.sum() / (clients * span)),
        "waiting": span / versions if versions else None,
    }


def _work(simulation: Simulation, column: dict[str, Any]) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """(start, end, client) of every piece of work up to now, that of jobs still in flight included."""
    now = simulation.world.now
    flights = [f for f in simulation.world.flights.values() if f.start < now]
    starts = np.concatenate([column["started"], [f.start for f in flights]])
    ends = np.concatenate([column["finished"], [min(f.end, now) for f in flights]])
    owners = np.concatenate([column["client"], [f.job.client for f in flights]]).astype(np.int64)
    return starts, np.maximum(ends, starts), owners


def _concurrency(starts: Floats, ends: Floats, span: float, clients: int) -> list[float]:
    """Share of clients at work in each window: work done by its end less work done by its start."""
    edges = np.linspace(0.0, span, WINDOWS + 1)
    done = [float((np.minimum(ends, edge) - np.minimum(starts, edge)).sum()) for edge in edges]
    return [(b - a) / (clients * span / WINDOWS) for a, b in pairwise(done)]


def _means(times: Floats, values: Floats, span: float) -> list[float | None]:
    window = np.minimum((times / span * WINDOWS).astype(np.int64), WINDOWS - 1)
    counts = np.bincount(window, minlength=WINDOWS)
    sums = np.bincount(window, weights=values, minlength=WINDOWS)
    return [float(s / c) if c else None for s, c in zip(sums, counts, strict=True)]


def _quantiles(values: Floats) -> dict[str, float | None]:
    if not len(values):
        return {"p50": None, "p90": None, "p99": None}
    found = np.quantile(values, (0.5, 0.9, 0.99))
    return dict(zip(("p50", "p90", "p99"), map(float, found), strict=True))


def _down(simulation: Simulation, wires: list[tuple[int, int]]) -> int:
    """Bytes sent to clients; with several tasks the jobs of each are counted by the world."""
    return sum(wires[task][0] * jobs for task, jobs in simulation.world.tally.sent.items())


def _write_clients(folder: Path, counts: npt.NDArray[np.int64], busy: Floats, span: float) -> None:
    table = pa.table(
        {
            "client": np.arange(len(counts)),
            "updates": counts,
            "busy": busy,
            "idle": span - busy,
        }
    )
    write_table(table, folder / "clients.parquet")
