"""How the clients worked: staleness, participation, concurrency, bytes, personalised models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from offbeat.core.metric import Metric
from offbeat.core.watcher import ARRIVED, FAILED
from offbeat.report.bands import Band, Curve, band, clean
from offbeat.report.run import Columns, Floats, Ints, RecordedRun
from offbeat.watch.measures import Messages

WINDOWS = 60  # of equal length, over a run's time
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_MOST = {"down": 10**12, "up": 10**12, "jobs": 10**8}  # beyond it, a number in a message's sizes is damage


@dataclass(frozen=True)
class Fan:
    """A distribution along x: the 10, 25, 50, 75 and 90 % quantiles and the number of values."""

    x: Floats
    p10: Floats
    p25: Floats
    p50: Floats
    p75: Floats
    p90: Floats
    count: Floats


def staleness(logs: Sequence[Columns]) -> Fan | None:
    """The staleness of the updates in each time window, over all seeds."""
    arrived = [log["event"] == ARRIVED for log in logs]
    times = _joined(log["time"][mine] for log, mine in zip(logs, arrived, strict=True))
    values = _joined(log["staleness"][mine] for log, mine in zip(logs, arrived, strict=True))
    if not len(times):
        return None
    span = max(float(times.max()), 1e-300)
    window = np.minimum((times / span * WINDOWS).astype(np.int64), WINDOWS - 1)
    return _fan((np.arange(WINDOWS) + 0.5) * span / WINDOWS, window, values)


def own_values(tables: Sequence[Columns]) -> Fan | None:
    """The metric of personalised models at each evaluation, over all clients and seeds."""
    times = _joined(table["time"] for table in tables)
    values = _joined(table["value"] for table in tables)
    good = np.isfinite(values) & np.isfinite(times)
    if not good.any():
        return None
    x, at = np.unique(times[good], return_inverse=True)
    return _fan(x, at, values[good])


def last_values(tables: Sequence[Columns], metric: Metric) -> Band | None:
    """The final metric of personalised models by share of clients, worst first."""
    sign = 1.0 if metric.higher else -1.0
    last = [table["value"][table["time"] == table["time"].max()] for table in tables if len(table["time"])]
    return band([_ranked(sign * np.sort(sign * values[np.isfinite(values)])) for values in last])


def participation(counts: Sequence[Floats]) -> Band | None:
    """Updates per client relative to the mean, by share of clients, busiest first."""
    return band([_ranked(-np.sort(-each / each.mean())) for each in counts if each.sum() > 0])


def updates_of(run: RecordedRun, log: Columns | None) -> Floats | None:
    """The number of updates from each client."""
    table = run.clients()
    if table is not None and len(table["updates"]):
        return table["updates"].astype(np.float64)
    if log is None or not len(log["client"]):
        return None
    mine = log["client"][log["event"] == ARRIVED]
    return np.bincount(mine, minlength=int(log["client"].max(initial=0)) + 1).astype(np.float64)


def concurrency(runs: Sequence[RecordedRun]) -> Band | None:
    """The share of busy clients in each time window."""
    return band([curve for run in runs if (curve := _windows(run)) is not None])


def messages_of(run: RecordedRun) -> tuple[Messages, ...] | None:
    """The message sizes of each task; None if the result has no plausible ones."""
    found = run.result.measures.messages if run.result and run.result.measures else ()
    good = all(0 <= getattr(each, name) < most for each in found for name, most in _MOST.items())
    return found if good and found else None


def bytes_by(times: Floats, events: Columns, messages: Sequence[Messages]) -> Floats:
    """Bytes sent to clients and received from them by each of these times.

    Jobs are numbered in the order of their sending. One that never ended is in no log: it counts from when the one
    before it was sent, with the mean size of such jobs, so that the end has all that the run sent.
    """
    ended = np.isin(events["event"], (ARRIVED, *FAILED))
    job, sent, task = events["job"][ended], events["sent"][ended], events["task"][ended]
    down, up = (np.array([getattr(m, way) for m in messages], dtype=np.float64) for way in ("down", "up"))
    total = max(sum(m.jobs for m in messages), int(job.max(initial=-1)) + 1)
    size, when = np.full(total, np.nan), np.full(total, np.nan)
    size[job], when[job] = down[task], sent
    unknown = np.isnan(size)
    rest = float(sum(m.jobs * m.down for m in messages) - down[task].sum())
    size[unknown] = max(rest, 0.0) / max(int(unknown.sum()), 1)
    when = np.maximum.accumulate(np.nan_to_num(when))
    arrived = events["event"] == ARRIVED
    return _by(times, when, size) + _by(times, events["time"][arrived], up[events["task"][arrived]])


def _by(times: Floats, when: Floats, sizes: Floats) -> Floats:
    """The sum of the sizes up to each time."""
    sums = np.concatenate([[0.0], np.cumsum(sizes)])
    return np.asarray(sums[np.searchsorted(when, times, side="right")])


def _windows(run: RecordedRun) -> Curve | None:
    if run.result is None or run.result.measures is None or run.time is None:
        return None
    y = np.array(run.result.measures.concurrency.windows, dtype=np.float64)
    return clean((np.arange(len(y)) + 0.5) * run.time / max(len(y), 1), y)


def _ranked(values: Floats) -> Curve:
    """Values against the cumulative share of clients."""
    return (np.arange(len(values)) + 1.0) / max(len(values), 1), values


def _fan(x: Floats, group: Ints, values: Floats) -> Fan:
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(x) + 1))
    parts = [values[order][a:b] for a, b in pairwise(edges)]
    kept = [at for at, part in enumerate(parts) if len(part)]
    count = np.array([len(parts[at]) for at in kept], dtype=np.float64)
    p10, p25, p50, p75, p90 = np.array([np.quantile(parts[at], _QUANTILES) for at in kept]).T
    return Fan(x[kept], p10, p25, p50, p75, p90, count)


def _joined(arrays: Iterable[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *arrays])
