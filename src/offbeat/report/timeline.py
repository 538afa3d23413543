"""The clients' lanes: every job from when it was sent to its end, compact enough for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offbeat.core.watcher import ARRIVED, FAILED
from offbeat.report.bands import thin
from offbeat.report.run import Columns, Floats, Ints

TICKS = 1_000_000  # times are whole numbers of the run's length over this
LANES, FEWEST = 40, 16  # lanes to show: at most, and at least before time is cut
JOBS = 3000  # of one timeline
STEPS = 2000  # marks of one timeline
BINS = 200  # of a lane, where its jobs are too many to be shown one by one


@dataclass(frozen=True)
class Timeline:
    """Some clients' jobs. Lanes go from the busiest client to the least busy one.

    span: the run's length.   until: jobs sent later than this are only in `bins`.   counts: jobs of each lane.
    jobs: columns, one entry a job, lane after lane; a column of one entry holds for all; a fate is 0 for a job that
        arrived, 1 for a lost or cancelled one and 2 for one that the end of the run cut off.   steps: server steps.
    names: of the clients, where they have some.
    away: [lane, from, to] while a client was offline.   bins: a lane's share of time spent computing, in per cent.
    """

    run: str
    span: float
    until: float
    total: dict[str, int]  # clients, jobs and steps of the run
    clients: list[int]
    names: list[str]
    counts: list[int]
    jobs: dict[str, list[int]]
    reasons: list[str]  # of lost jobs
    steps: list[int]
    away: list[list[int]]
    bins: list[list[int]]

    @property
    def note(self) -> str:
        """What is not shown."""
        parts = []
        if len(self.clients) < self.total["clients"]:
            parts.append(
                f"{len(self.clients)} of {self.total['clients']:,} clients, from the busiest to the least busy"
            )
        if self.bins:
            parts.append(
                f"single jobs up to time {self.until:.4g}; later, the share of time spent computing in {BINS} bins"
            )
        if len(self.steps) < self.total["steps"]:
            parts.append(f"{len(self.steps):,} of {self.total['steps']:,} server steps marked")
        return "; ".join(parts)


def timeline(
    run: str, log: Columns, underway: Columns | None, clients: int, end: float | None, sites: Sequence[str] = ()
) -> Timeline | None:
    """The lanes of a run.

    end: its length, by default the time of the last event.   sites: the names of the clients, by number.
    """
    if not len(log["time"]):
        return None
    span = max(end or 0.0, float(log["time"].max()), 1e-300)
    jobs = _jobs(log, underway, span)
    clients = max(clients, int(log["client"].max()) + 1)
    busy = np.bincount(jobs["client"][jobs["fate"] == 0], minlength=clients)
    lanes, until = _choose(np.argsort(-busy, kind="stable"), jobs, span)
    mine = np.isin(jobs["client"], lanes)
    lane = np.full(clients, -1)
    lane[lanes] = np.arange(len(lanes))
    bins = _bins(jobs, mine, lane, len(lanes), span) if until < span else []
    shown = np.flatnonzero(mine & (jobs["sent"] <= until))
    shown = shown[np.lexsort((jobs["job"][shown], lane[jobs["client"][shown]]))]
    steps = _steps(log)
    reasons = sorted(set(log["reason"].tolist()) - {""})
    return Timeline(
        run,
        span,
        until,
        {"clients": clients, "jobs": len(jobs["job"]), "steps": len(steps)},
        lanes.tolist(),
        [sites[client] if client < len(sites) else str(client) for client in lanes.tolist()] if sites else [],
        np.bincount(lane[jobs["client"][shown]], minlength=len(lanes)).tolist(),
        _columns({name: column[shown] for name, column in jobs.items()}, span),
        reasons,
        _ticks(thin(steps, STEPS), span).tolist(),
        _away(log, lane, span),
        bins,
    )


def _jobs(log: Columns, underway: Columns | None, span: float) -> Columns:
    """All jobs: client, times, version, staleness and fate."""
    ended = np.flatnonzero(np.isin(log["event"], (ARRIVED, *FAILED)))
    found = {name: log[name][ended] for name in ("client", "task", "job", "staleness", "sent", "started", "finished")}
    found["end"] = log["time"][ended]
    found["fate"] = np.where(log["event"][ended] == ARRIVED, 0, 1)
    found["version"] = np.where(found["fate"] == 0, _before(log)[ended] - found["staleness"], -1)
    reasons = sorted(set(log["reason"].tolist()) - {""})
    found["reason"] = np.searchsorted(reasons, log["reason"][ended]) if reasons else np.zeros(len(ended), np.int64)
    if underway is not None:
        size = len(underway["job"])
        more = {name: underway[name] for name in ("client", "task", "job", "version", "sent", "started", "finished")}
        more |= {"staleness": np.full(size, -1), "end": np.full(size, span), "fate": np.full(size, 2)}
        more["reason"] = np.zeros(size, np.int64)
        found = {name: np.concatenate([column, more[name]]) for name, column in found.items()}
    for name in ("started", "finished"):  # what was lost or cut off did not get that far
        found[name] = np.clip(np.nan_to_num(found[name]), found["sent"], found["end"])
    return found


def _before(log: Columns) -> Ints:
    """The version of each event's task before the event."""
    before = np.zeros(len(log["version"]), np.int64)
    for task in np.unique(log["task"]):
        mine = np.flatnonzero(log["task"] == task)
        before[mine[1:]] = log["version"][mine[:-1]]
    return before


def _steps(log: Columns) -> Floats:
    """The times at which a task's model changed."""
    return np.asarray(log["time"][log["version"] > _before(log)])


def _choose(ranked: Ints, jobs: Columns, span: float) -> tuple[Ints, float]:
    """The clients to show, and the time up to which their single jobs can be shown."""
    counts = np.bincount(jobs["client"], minlength=len(ranked))
    lanes = _spread(ranked, LANES)
    if counts[lanes].sum() > JOBS:
        fewer = max(FEWEST, int(len(lanes) * JOBS / counts[lanes].sum()))
        lanes = _spread(ranked, fewer)
    sent = np.sort(jobs["sent"][np.isin(jobs["client"], lanes)])
    return lanes, span if len(sent) <= JOBS else float(sent[JOBS - 1])


def _spread(ranked: Ints, size: int) -> Ints:
    """This many of the clients, evenly spaced from first to last."""
    return ranked[thin(np.arange(len(ranked), dtype=np.float64), size).astype(np.int64)]


def _bins(jobs: Columns, mine: npt.NDArray[np.bool_], lane: Ints, lanes: int, span: float) -> list[list[int]]:
    """The share of each bin that each lane spent computing: work done by its end minus work done by its start."""
    start, end, row = jobs["started"][mine], jobs["finished"][mine], lane[jobs["client"][mine]]
    edges = np.linspace(0.0, span, BINS + 1)
    done = np.array(
        [np.bincount(row, np.minimum(end, edge) - np.minimum(start, edge), minlength=lanes) for edge in edges]
    )
    shares = np.clip(np.diff(done, axis=0) * BINS / span, 0.0, 1.0)
    return [[round(100 * value) for value in column] for column in shares.T.tolist()]


def _away(log: Columns, lane: Ints, span: float) -> list[list[int]]:
    """[lane, from, to] of absences: before a client joins and after it leaves."""
    found, gone = [], dict[int, float]()
    turns = np.flatnonzero(np.isin(log["event"], ("Joined", "Left")))
    seen = set[int]()
    for at in turns.tolist():
        client, time = int(log["client"][at]), float(log["time"][at])
        if log["event"][at] == "Left":
            gone[client] = time
        elif client in gone or client not in seen:
            found.append((client, gone.pop(client, 0.0), time))
        seen.add(client)
    found += [(client, time, span) for client, time in gone.items()]
    kept = [(int(lane[client]), a, b) for client, a, b in found if lane[client] >= 0]
    return [[row, *_ticks(np.array([a, b]), span).tolist()] for row, a, b in sorted(kept)]


def _columns(jobs: Columns, span: float) -> dict[str, list[int]]:
    """As integers: time sent, then the time until start, finish and end."""
    at = [_ticks(jobs[name], span) for name in ("sent", "started", "finished", "end")]
    columns = {
        "job": jobs["job"],
        "sent": at[0],
        "wait": at[1] - at[0],
        "work": at[2] - at[1],
        "back": at[3] - at[2],
        **{name: jobs[name] for name in ("task", "version", "staleness", "fate", "reason")},
    }
    return {name: _short(column) for name, column in columns.items()}


def _short(column: Ints) -> list[int]:
    same = len(column) > 0 and bool((column == column[0]).all())
    return [int(value) for value in (column[:1] if same else column)]


def _ticks(times: Floats, span: float) -> Ints:
    return np.rint(np.clip(times / span, 0.0, 1.0) * TICKS).astype(np.int64)
