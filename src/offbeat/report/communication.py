"""Bytes sent and received over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from offbeat.core.watcher import ARRIVED
from offbeat.report.run import Columns, Floats, RecordedRun
from offbeat.watch.results import Messages

_MOST = {"down": 10**12, "up": 10**12, "jobs": 10**8}  # beyond it, a number is damage


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
    ended = np.isin(events["event"], (ARRIVED, "Lost"))
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


def _by(times: Floats, when: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> Floats:
    """The sum of the sizes up to each time."""
    sums = np.concatenate([[0.0], np.cumsum(sizes)])
    return np.asarray(sums[np.searchsorted(when, times, side="right")])
