"""Experiment trackers that a file names: TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.watch import trackers


@dataclass(frozen=True)
class Trackers:
    """Experiment trackers that get the measurements, too.

    tensorboard: folder in which every run gets its own.
    wandb: project at Weights & Biases.
    """

    tensorboard: str | None = None
    wandb: str | None = None

    def __post_init__(self) -> None:
        trackers.check(self.tensorboard is not None, self.wandb is not None)

    def open(
        self, run: str, folder: Path, settings: Mapping[str, Any], tasks: Sequence[str], updates: int
    ) -> list[trackers.Tracker]:
        """The trackers of one run, in the folder of its own. updates: that were seen before it was resumed."""
        found: list[trackers.Tracker] = []
        if self.tensorboard is not None:
            found.append(trackers.TensorBoard(Path(self.tensorboard, folder.parent.name, folder.name), tasks, updates))
        if self.wandb is not None:
            group = folder.parent
            found.append(trackers.WandB(self.wandb, run, group.name, settings, group, tasks, updates))
        return found
