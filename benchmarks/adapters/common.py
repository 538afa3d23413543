"""What every adapter shares: the work as files, the model, the clock, the report.

An adapter runs in its simulator's own environment, as `python adapters/NAME.py FOLDER`. The folder holds the work:
`work.json` (clients, steps, batch, lr, size, updates), `arrays.npz` (x, y, shards one after the other with their
sizes, the first model, mean times). The adapter writes `model.npy` there, the final model as one vector, and prints
one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

torch.set_num_threads(1)


class Work(SimpleNamespace):
    """The work, as `work.json` and `arrays.npz` have it: everything a simulator could ask for."""

    def draw(self, client: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """A mini-batch of one client: float inputs and labels."""
        shard = self.shards[client]
        chosen = torch.from_numpy(shard[rng.integers(len(shard), size=self.batch)])
        return self.x[chosen].float() * (1 / 255), self.y[chosen]


def load(folder: Path | None = None) -> Work:
    """The work in a folder, by default the one that the command line names."""
    folder = folder or Path(sys.argv[1])
    arrays = np.load(folder / "arrays.npz")
    shards = np.split(arrays["order"], np.cumsum(arrays["sizes"])[:-1])
    settings = json.loads((folder / "work.json").read_text())
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return Work(
        folder=folder, x=x, y=y, shards=shards, first=arrays["first"], means=arrays["means"].tolist(), **settings
    )


class CNN(nn.Module):
    """Two 5 × 5 convolutions with pooling, then full layers of 512 and 10."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.full1, self.full2 = nn.Linear(1024, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.full2(torch.relu(self.full1(x.flatten(1))))


def module(work: Work) -> nn.Module:
    """The model with its first parameters."""
    made = nn.Sequential(nn.Flatten(), nn.Linear(784, 10, bias=False)) if work.model == "softmax" else CNN()
    nn.utils.vector_to_parameters(torch.from_numpy(work.first).clone(), made.parameters())
    return made


@cache
def given(folder: Path) -> tuple[Work, nn.Module]:
    """The work and the model, read once by each process of a simulator that has several."""
    work = load(folder)
    return work, module(work)


def vector(made: nn.Module) -> np.ndarray:
    """Its parameters, one after the other."""
    return torch.cat([p.detach().reshape(-1) for p in made.parameters()]).numpy()


class Clock:
    """Wall-clock and CPU seconds between `start` and `stop`; CPU time includes processes that have ended."""

    def start(self) -> None:
        self.wall, self.cpu = time.perf_counter(), _cpu()

    def stop(self) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, _cpu() - self.cpu


def report(work: Work, clock: Clock, model: np.ndarray, updates: int, **facts: Any) -> None:
    """Write the model, print what was measured."""
    np.save(work.folder / "model.npy", model.astype(np.float32))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    measured = {"updates": updates, "wall": clock.wall, "cpu": clock.cpu, "memory": memory, **facts}
    print("RESULT " + json.dumps(measured), flush=True)


def _cpu() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime
