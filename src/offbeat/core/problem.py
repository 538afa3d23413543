"""What is being learnt: a vector, and for each client an oracle that answers questions about its own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.vectors import Vector

Numbers: TypeAlias = Sequence[int] | npt.NDArray[np.int64]


class Oracle(Protocol):
    """A few clients' data, asked about at stacked models [n, d]: row i is asked of client i and of nobody else.

    `step` is the local step and `sample` numbers the independent mini-batches within it: the same (step, sample)
    is the same mini-batch, on every executor and device.

    An oracle may also have `descend(w, lr, step)`, which gives w − lr · gradient(w, step): see `Work.descend`.
    """

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        """Stochastic gradients, [n, d]."""

    def full(self, w: Vector) -> Vector:
        """Gradients over the clients' whole data, [n, d]."""

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        """Stochastic Hessians at w times the rows of v, [n, d]."""

    def loss(self, w: Vector, step: int, sample: int = 0) -> torch.Tensor:
        """Stochastic losses, [n]."""


class Problem(Protocol):
    """A task: `min over w of f(w)`, f made of one function a client."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def clients(self) -> int:
        """How many clients hold a part of it."""

    @property
    def dim(self) -> int:
        """Length of the model vector."""

    @property
    def stacks(self) -> bool:
        """Whether stacking clients pays on this device: what the executor `auto` asks."""

    def initial(self) -> Vector:
        """The model that everybody starts from."""

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> Oracle:
        """An oracle for these clients; `keys` drive their draws, `batch` of None is a client's whole data."""

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        """Metrics of several models [v, d] in one pass; "loss" is the global objective f."""
