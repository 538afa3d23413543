"""How many bytes had crossed the wires by a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from offbeat.report.run import Columns, Floats, Run

_MOST = {"down": 10**12, "up": 10**12, "jobs": 10**8}  # beyond it, a number is damage

Wires = list[dict[str, int]]  # by task: bytes of a download and of an upload, jobs sent


def wires_of(run: Run) -> Wires | None:
    """What the run's result says about its messages; None where it says nothing that can be."""
    found = run.value("measures", "wires")
    if not isinstance(found, list) or not all(isinstance(wire, dict) for wire in found):
        return None
    good = all(
        isinstance(wire.get(key), int) and 0 <= wire[key] < most for wire in found for key, most in _MOST.items()
    )
    return found if good and found else None


def bytes_by(times: Floats, events: Columns, wires: Wires) -> Floats:
    """Bytes sent to clients and arrived from them by each of these times.

    Jobs are numbered in the order of their sending. One that never ended is in no log: it counts from when the one
    before it was sent, with the mean size of such jobs, so that the end has all that the run sent.
    """
    ended = np.isin(events["event"], ("Arrived", "Lost"))
    job, sent, task = events["job"][ended], events["sent"][ended], events["task"][ended]
    down, up = (np.array([wire[way] for wire in wires], dtype=np.float64) for way in ("down", "up"))
    total = max(sum(wire["jobs"] for wire in wires), int(job.max(initial=-1)) + 1)
    size, when = np.full(total, np.nan), np.full(total, np.nan)
    size[job], when[job] = down[task], sent
    unknown = np.isnan(size)
    rest = float(sum(wire["jobs"] * wire["down"] for wire in wires) - down[task].sum())
    size[unknown] = max(rest, 0.0) / max(int(unknown.sum()), 1)
    when = np.maximum.accumulate(np.nan_to_num(when))
    arrived = events["event"] == "Arrived"
    return _by(times, when, size) + _by(times, events["time"][arrived], up[events["task"][arrived]])


def _by(times: Floats, when: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> Floats:
    """The sum of the sizes up to each time."""
    sums = np.concatenate([[0.0], np.cumsum(sizes)])
    return np.asarray(sums[np.searchsorted(when, times, side="right")])
