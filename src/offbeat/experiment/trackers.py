"""Boards that an experiment file names: TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.watch import trackers

if TYPE_CHECKING:
    from offbeat.experiment.experiment import Experiment, Spec


@dataclass(frozen=True)
class Boards:
    """tensorboard: a folder, in which every run gets its own.   wandb: a project at Weights & Biases."""

    tensorboard: str | None = None
    wandb: str | None = None

    def __post_init__(self) -> None:
        trackers.check(self.tensorboard is not None, self.wandb is not None)

    def open(self, experiment: Experiment, spec: Spec, folder: Path, updates: int) -> list[trackers.Tracker]:
        """The boards of one run."""
        names = [task.name for task in experiment.tasks]
        found: list[trackers.Tracker] = []
        if self.tensorboard is not None:
            found.append(trackers.TensorBoard(Path(self.tensorboard) / folder.name / spec.folder, names, updates))
        if self.wandb is not None:
            settings = {**experiment.table, "label": spec.label, "seed": spec.seed}
            found.append(trackers.WandB(self.wandb, spec.name, folder.name, settings, folder, names, updates))
        return found


@contextmanager
def closing() -> Iterator[list[trackers.Tracker]]:
    """A list for boards; whatever happens, all in it are closed at the end."""
    opened: list[trackers.Tracker] = []
    try:
        yield opened
    finally:
        for board in opened:
            board.close()


def settings(tensorboard: Path | None, wandb: str | None) -> list[str]:
    """Options of the command line as settings of the file."""
    named = {"tensorboard": None if tensorboard is None else str(tensorboard), "wandb": wandb}
    return [f"boards.{name}={json.dumps(value)}" for name, value in named.items() if value is not None]
