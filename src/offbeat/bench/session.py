"""Timed turns of all contenders, and what follows from them.

Every contender has its own process, and they take turns: A B C A B C … Other load on the machine slows turns of the
same round about equally, so ratios are taken within rounds, and their median is reported with the lowest and highest.
CPU time says what one core could do; wall-clock time is used where several cores or a GPU work.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

import offbeat
from offbeat.bench.worker import Turn
from offbeat.bench.workloads import OFFBEAT, WORKLOADS, Workload
from offbeat.core.errors import OffbeatError, SettingError, unknown

QUICK_TURNS = 2
WORKER = "offbeat.bench.worker"
_SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Ratio:
    """How much faster than another contender: the median over the rounds, the lowest and the highest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """One contender at one workload.

    updates_per_s: by the clock.   cpu_ms: CPU time of an update.   memory: peak, MB.   metrics: means over the turns.
    ratio: how much faster offbeat is than this one, or, where `against` names another contender, how much faster
    this one is than that.   aim: the least that the ratio should be.
    """

    contender: str
    updates_per_s: float
    cpu_ms: float
    memory: float
    gpu_memory: float
    metrics: Mapping[str, float]
    ratio: Ratio | None
    against: str | None
    aim: float | None


@dataclass(frozen=True)
class BenchRow:
    """One workload: its contenders, offbeat first.

    metric: shows that the same work was done.   rate: the updates per second to reach, if there is such an aim.
    """

    workload: str
    title: str
    updates: int
    turns: int
    data: Sequence[str]
    metric: str
    rate: float | None
    scores: Sequence[Standing]
    disagreement: str  # empty: the same work was done


@dataclass(frozen=True)
class Report:
    """The results of a session."""

    machine: Mapping[str, Any]
    rows: Sequence[BenchRow]

    @property
    def disagreements(self) -> list[str]:
        """Workloads whose contenders did not do the same work, which makes their figures meaningless."""
        return [f"{row.workload}: {row.disagreement}" for row in self.rows if row.disagreement]

    def plain(self) -> dict[str, Any]:
        """The report as data for JSON."""
        return asdict(self)


class Contender:
    """A worker process that does one turn at a time."""

    def __init__(self, workload: str, name: str, device: str, worker: str = WORKER) -> None:
        env = {**os.environ, **dict.fromkeys(_SINGLE, "1"), "PYTHONPATH": os.pathsep.join(sys.path)}
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", worker, workload, name, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout

    def ready(self) -> list[str]:
        """Wait until it has loaded its data; return their names."""
        sources: list[str] = self._answer()["sources"]
        return sources

    def turn(self, updates: int, seed: int) -> Turn:
        """Do one turn."""
        self.orders.write(json.dumps({"updates": updates, "seed": seed}) + "\n")
        self.orders.flush()
        return Turn(**self._answer())

    def close(self) -> None:
        """End the process."""
        self.orders.close()
        self.process.wait()
        self.answers.close()

    def _answer(self) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            raise OffbeatError(f"the process of {self.name!r} ended with {self.process.wait()}; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def bench(
    names: Sequence[str] = (),
    *,
    quick: bool = False,
    device: str = "cpu",
    turns: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    workloads: Mapping[str, Workload] | None = None,
    worker: str = WORKER,
) -> Report:
    """Measure these workloads, or all of them.

    worker: the module whose process does the work of one contender.
    """
    known = WORKLOADS if workloads is None else workloads
    for name in names:
        if name not in known:
            raise unknown("workload", name, known)
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise SettingError(f"device = {device!r}: is not available; use 'cpu'")
    chosen = [known[name] for name in names or known if names or _there(known[name], device)]
    for workload in chosen:
        if not _there(workload, device):
            raise SettingError(f"{workload.name} is for a GPU: add --device cuda, or leave it out")
    return Report(machine(device), [measure(workload, quick, device, turns, say, worker) for workload in chosen])


def _there(workload: Workload, device: str) -> bool:
    return bool(workload.on_cuda if device == "cuda" else workload.contenders)


def measure(
    workload: Workload, quick: bool, device: str, turns: int | None, say: Callable[[str], None], worker: str = WORKER
) -> BenchRow:
    """One workload, all of its contenders in turns."""
    turns = turns or (QUICK_TURNS if quick else workload.turns)
    names = workload.on_cuda if device == "cuda" else workload.contenders
    updates = workload.cuda if device == "cuda" else workload.quick if quick else workload.updates
    contenders: list[Contender] = []
    try:
        for name in names:
            contenders.append(Contender(workload.name, name, device, worker))
            if device == "cpu":  # one after the other, so that they do not load data against each other
                sources = contenders[-1].ready()
        if device == "cuda":  # compiling takes longer than loading: all at once
            sources = [contender.ready() for contender in contenders][-1]
        taken: dict[str, list[Turn]] = {name: [] for name in names}
        for at in range(turns):
            for contender in contenders:
                turn = contender.turn(updates, seed=at + 1)
                taken[contender.name].append(turn)
                say(f"{workload.name}, turn {at + 1} of {turns}: {contender.name}, {turn.updates / turn.wall:,.0f}/s")
    finally:
        for contender in contenders:
            contender.close()
    return row(workload, taken, workload.total(updates), sources, device)


def row(
    workload: Workload, taken: Mapping[str, Sequence[Turn]], updates: int, data: Sequence[str], device: str
) -> BenchRow:
    """Summarise the turns of a workload's contenders."""
    scores = [score(workload, name, taken, device) for name in taken]
    turns, check = len(taken[OFFBEAT]), workload.check
    apart = disagreement(workload, scores)
    return BenchRow(workload.name, workload.title, updates, turns, data, check.metric, workload.rate, scores, apart)


def score(workload: Workload, name: str, taken: Mapping[str, Sequence[Turn]], device: str) -> Standing:
    """Summarise one contender's turns, compared with those of the others."""
    mine = taken[name]
    return Standing(
        name,
        statistics.median(turn.updates / turn.wall for turn in mine),
        statistics.median(1000 * turn.cpu / turn.updates for turn in mine),
        mine[0].memory,  # of the first turn, when no model had been judged yet
        mine[0].gpu_memory,
        {metric: statistics.fmean(turn.metrics[metric] for turn in mine) for metric in mine[0].metrics},
        ratio(name, taken, device, workload.against),
        workload.against.get(name),
        (workload.cuda_aims if device == "cuda" else workload.aims).get(name),
    )


def ratio(name: str, taken: Mapping[str, Sequence[Turn]], device: str, against: Mapping[str, str]) -> Ratio | None:
    """See `Standing`."""
    if name == OFFBEAT:
        return None
    fast, slow = (name, against[name]) if name in against else (OFFBEAT, name)
    by_wall = device == "cuda" or name in against
    rates = [[turn.updates / (turn.wall if by_wall else turn.cpu) for turn in taken[who]] for who in (fast, slow)]
    return paired([a / b for a, b in zip(*rates, strict=True)])


def paired(ratios: Sequence[float]) -> Ratio:
    """The median, the lowest and the highest of the rounds' ratios."""
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def disagreement(workload: Workload, scores: Sequence[Standing]) -> str:
    """A message if the contenders' metrics differ by more than chance explains, else an empty string."""
    metric, within = workload.check.metric, workload.check.within
    values = {score.contender: score.metrics[metric] for score in scores}
    if max(values.values()) - min(values.values()) <= within:
        return ""
    found = ", ".join(f"{value:.3g} ({name})" for name, value in values.items())
    return f"the contenders did not do the same work, their {metric} is {found}"


def machine(device: str) -> dict[str, Any]:
    """The machine and the versions that the figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "offbeat": offbeat.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
