"""Runs of a study as one program, in memory, with a JSON record: for a machine without pyarrow and a network."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Problems, Session
from offbeat.simulate.arena import Arenas
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.threads import use
from offbeat.watch.history import History

_WRITE = 5.0  # seconds


def recorded(path: Path) -> list[dict[str, Any]]:
    """The runs of a record; none if there is no such file."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return found


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file in one step: a reader sees the old one or the new one."""
    replacement = path.with_suffix(".new")
    replacement.write_text(json.dumps(data, separators=(",", ":")))
    replacement.replace(path)


class InMemory:
    """What the runs of one process share, and how long they have been at work.

    limit: seconds that they may take.   share: of a GPU's memory that this process may take.
    """

    def __init__(self, limit: float, share: float = 1.0) -> None:
        if share < 1.0:
            torch.cuda.set_per_process_memory_fraction(share)
        self.limit = limit
        self.began = self.written = time.monotonic()
        self.problems, self.arenas, self.executors = Problems(), Arenas(), dict[bool, Executor]()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def late(self) -> bool:
        return self.seconds > self.limit

    def make(self, experiment: Experiment, history: History) -> Simulation:
        """The only run of an experiment."""
        session = Session(experiment, self.problems)
        run = session.shared(experiment.runs[0], [history], None, self._executor, self.arenas)
        use(run.problems, experiment.threads, experiment.precision, 1)
        if experiment.precision == "bf16":  # for what is not in bf16, such as evaluations
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        return run

    def _executor(self, made: Executor) -> Executor:
        return self.executors.setdefault(made.stacked, made)

    def rounds(self, program: Program, save: Callable[[], None]) -> Iterator[dict[int, Simulation]]:
        """The rounds of a program, saving every few seconds and at the end."""
        for active in program.rounds():
            yield active
            if time.monotonic() - self.written > _WRITE:
                save()
                self.written = time.monotonic()
        save()
