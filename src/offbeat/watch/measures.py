"""How the clients worked: participation, concurrency, staleness, bytes and idle time, from a run's event log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.run_state import InFlight
from offbeat.core.watcher import ARRIVED, FAILED
from offbeat.watch.files import CLIENTS, COLUMNS, EVENTS, UNDERWAY, read_table, schema, write_table
from offbeat.watch.watched import WatchedRun

WINDOWS = 20  # of equal length, over a run's time
EVENT_COLUMNS = ("event", "time", "client", "task", "staleness", "sent", "started", "finished")  # that it needs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Concurrency:
    """The share of clients that have work: mean over time, and means in time windows."""

    mean: float
    windows: tuple[float | None, ...]


@dataclass(frozen=True)
class Participation:
    """distance: of the clients' shares of the updates from equal shares, ½ Σ |p_i − 1/n|.   silent: clients without
    an update."""

    distance: float
    silent: int


@dataclass(frozen=True)
class Quantiles:
    """The 50, 90 and 99 % quantiles; None without values."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True)
class StalenessQuantiles(Quantiles):
    """Quantiles of the staleness.   windows: means in time windows."""

    windows: tuple[float | None, ...]


@dataclass(frozen=True)
class Bytes:
    """Bytes sent to clients and received from them."""

    down: int
    up: int


@dataclass(frozen=True)
class Messages(Bytes):
    """The messages of one task: bytes per download and per upload, and the number of jobs sent."""

    jobs: int


@dataclass(frozen=True)
class Measures:
    """How the clients worked; see `watch.measures.measure`."""

    concurrency: Concurrency
    computing: float
    participation: Participation
    staleness: StalenessQuantiles
    tasks: tuple[Quantiles, ...]
    bytes: Bytes
    messages: tuple[Messages, ...] = field(metadata={"key": "wires"})
    idle: float
    waiting: float | None


def measure(folder: Path, simulation: WatchedRun) -> Measures:
    """Measure a finished run; also write the values of single clients to `clients.parquet` and the jobs in flight at
    its end, which no event reports, to `underway.parquet`.
    """
    import pyarrow as pa

    table = read_table(folder / EVENTS, list(EVENT_COLUMNS))
    columns = {name: table[name].to_numpy() for name in EVENT_COLUMNS[1:]}
    found, each = of_events({"event": np.asarray(table["event"].cast(pa.string())), **columns}, simulation)
    names = [*simulation.client_names, *[None] * simulation.clients][: simulation.clients]
    write_table(pa.table({**each, "name": names}, schema=schema(CLIENTS)), folder / CLIENTS)
    _write_underway(folder, list(simulation.world.flights.values()))
    return found


def of_events(
    events: Mapping[str, npt.NDArray[Any]], simulation: WatchedRun
) -> tuple[Measures, dict[str, npt.NDArray[Any]]]:
    """The measures of a finished run, and the values of single clients, from the columns of its event log.

    concurrency: share of clients that are downloading, computing or uploading, mean over time and in windows; PersA-FL
        calls them active (figure 2a).   computing: mean share of clients that are computing.
    participation: distance of the clients' shares of the updates from equal shares, ½ Σ |p_i − 1/n|: 0 = all clients
        contribute equally, 1 = one client does all the work.
    staleness: quantiles, and means in time windows.
    bytes: sent down and up.   messages: by task, bytes per download and per upload, and the number of jobs sent.
    idle: mean share of time without work.   waiting: mean time between server steps.
    Held work that was overwritten before it was taken is in no log; it counts only in the bytes sent down.
    """
    world, clients = simulation.world, simulation.clients
    kinds = (events["event"] == ARRIVED, np.isin(events["event"], FAILED))
    column, lost = ({name: events[name][kind] for name in EVENT_COLUMNS[1:]} for kind in kinds)
    span = max(world.now, 1e-300)
    counts = np.bincount(column["client"], minlength=clients)
    flights = list(world.flights.values())

    def joined(name: str, underway: Sequence[float]) -> Floats:
        return np.concatenate([column[name], lost[name], underway])

    lost["finished"] = np.minimum(lost["finished"], lost["time"])  # who leaves or is cancelled stops
    began = joined("started", [f.start for f in flights])
    work = np.maximum(joined("finished", [min(f.end, world.now) for f in flights]) - began, 0.0)
    trips = joined("sent", [f.sent for f in flights]), joined("time", [world.now] * len(flights))
    owners = joined("client", [f.job.client for f in flights]).astype(np.int64)
    starts, ends, owners = _apart(*trips, owners, span)
    busy = np.bincount(owners, weights=ends - starts, minlength=clients).astype(np.float64)
    shares = counts / max(counts.sum(), 1)
    sizes = [local.wire(p.dim) for local, p in zip(simulation.locals, simulation.problems, strict=True)]
    up = sum(sizes[t][1] * int((column["task"] == t).sum()) for t in range(len(sizes)))
    versions = sum(m.version for m in simulation.server.models(world.server))
    down = sum(sizes[task][0] * jobs for task, jobs in world.tally.sent.items())
    each = {"client": np.arange(len(counts)), "updates": counts, "busy": busy, "idle": span - busy}
    found = Measures(
        concurrency=Concurrency(float(busy.sum() / (clients * span)), _concurrency(starts, ends, span, clients)),
        computing=float(work.sum() / (clients * span)),
        participation=Participation(float(0.5 * np.abs(shares - 1.0 / clients).sum()), int((counts == 0).sum())),
        staleness=StalenessQuantiles(
            *_quantiles(column["staleness"]), _means(column["time"], column["staleness"], span)
        ),
        tasks=tuple(Quantiles(*_quantiles(column["staleness"][column["task"] == t])) for t in range(len(sizes))),
        bytes=Bytes(down, int(up)),
        messages=tuple(Messages(d, u, world.tally.sent.get(t, 0)) for t, (d, u) in enumerate(sizes)),
        idle=float(1.0 - busy.sum() / (clients * span)),
        waiting=span / versions if versions else None,
    )
    return found, each


def _apart(starts: Floats, ends: Floats, owners: Ints, span: float) -> tuple[Floats, Floats, Ints]:
    """The same intervals without overlaps within a client, whose queued jobs are in flight at the same time."""
    order = np.lexsort((starts, owners))
    starts, ends, owners = starts[order], ends[order], owners[order]
    shift = owners * (2.0 * span)  # clients one after the other, so that one running maximum serves all
    latest = np.maximum.accumulate(ends + shift)
    starts = np.maximum(starts, np.concatenate([[0.0], latest[:-1]]) - shift)
    return starts, np.maximum(ends, starts), owners


def _concurrency(starts: Floats, ends: Floats, span: float, clients: int) -> tuple[float, ...]:
    """The share of busy clients in each window: work done by its end minus work done by its start."""
    edges = np.linspace(0.0, span, WINDOWS + 1)
    done = [float((np.minimum(ends, edge) - np.minimum(starts, edge)).sum()) for edge in edges]
    return tuple((b - a) / (clients * span / WINDOWS) for a, b in pairwise(done))


def _means(times: Floats, values: Floats, span: float) -> tuple[float | None, ...]:
    window = np.minimum((times / span * WINDOWS).astype(np.int64), WINDOWS - 1)
    counts = np.bincount(window, minlength=WINDOWS)
    sums = np.bincount(window, weights=values, minlength=WINDOWS)
    return tuple(float(s / c) if c else None for s, c in zip(sums, counts, strict=True))


def _quantiles(values: Floats) -> tuple[float | None, float | None, float | None]:
    if not len(values):
        return None, None, None
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99))
    return float(p50), float(p90), float(p99)


def _write_underway(folder: Path, flights: Sequence[InFlight]) -> None:
    """One row per job in flight, with the times it would have had."""
    import pyarrow as pa

    rows = [(f.job.client, f.job.task, f.job.id, f.job.version, f.sent, f.start, f.end) for f in flights]
    each = [dict(zip(COLUMNS[UNDERWAY], row, strict=True)) for row in rows]  # the version is the one it was sent with
    write_table(pa.Table.from_pylist(each, schema=schema(UNDERWAY)), folder / UNDERWAY)
