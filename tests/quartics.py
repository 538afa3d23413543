"""Clients with quartic losses that differ, and noise that depends on the client, the step and the mini-batch.

In numpy for tests that write an algorithm anew, and as a problem for the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from worlds import ACCURACY

from offbeat.core.metric import Metric

DIM = 3
Array = np.ndarray[Any, Any]


@cache
def constants(task: int, client: int) -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(100 * task + client)
    square = draw.normal(size=(DIM, DIM))
    return square @ square.T / DIM + 0.3 * np.eye(DIM), 2 * draw.normal(size=DIM), 0.005 * draw.uniform(size=DIM)


def noise(client: int, step: int, batch: int) -> Array:
    return np.asarray(0.1 * np.sin(np.arange(DIM) + 1.7 * client + 3.1 * step + 7.7 * batch))


def gradient(task: int, client: int, w: Array, step: int, batch: int = 0) -> Array:
    (a, b, c), z = constants(task, client), noise(client, step, batch)
    return np.asarray(a @ (w - b) + c * (w - b) ** 3 + z + z[0] * w)


def whole_gradient(task: int, client: int, w: Array) -> Array:
    """Of all data of a client: without noise."""
    a, b, c = constants(task, client)
    return np.asarray(a @ (w - b) + c * (w - b) ** 3)


def hessian(task: int, client: int, w: Array, step: int, batch: int = 0) -> Array:
    (a, b, c), z = constants(task, client), noise(client, step, batch)
    return np.asarray(a + np.diag(3 * c * (w - b) ** 2) + z[0] * np.eye(DIM))


def start(task: int = 0) -> Array:
    return np.random.default_rng(99 + task).normal(size=DIM)


@dataclass(frozen=True)
class Quartics:
    """The same losses for the servers."""

    clients: int
    task: int = 0
    dim: int = DIM
    stacks: bool = True
    metrics: Sequence[Metric] = (ACCURACY,)

    @property
    def name(self) -> str:
        return f"quartics {self.task}"

    def initial(self) -> torch.Tensor:
        return torch.tensor(start(self.task))

    def oracle(self, clients: Sequence[int], keys: Sequence[int], steps: int, batch: int | None, shuffle: bool) -> Any:
        return Oracle(self.task, clients)

    def measure(self, models: torch.Tensor) -> list[Mapping[str, float]]:
        return [{"loss": 0.0, "accuracy": 0.0} for _ in models]


@dataclass(frozen=True)
class Oracle:
    task: int
    clients: Sequence[int]

    def gradient(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        rows = [gradient(self.task, c, x, step, sample) for c, x in zip(self.clients, w.numpy(), strict=True)]
        return torch.tensor(np.stack(rows))

    def full(self, w: torch.Tensor) -> torch.Tensor:
        rows = [whole_gradient(self.task, c, x) for c, x in zip(self.clients, w.numpy(), strict=True)]
        return torch.tensor(np.stack(rows))

    def hvp(self, w: torch.Tensor, v: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        both = zip(self.clients, w.numpy(), v.numpy(), strict=True)
        return torch.tensor(np.stack([hessian(self.task, c, x, step, sample) @ y for c, x, y in both]))
