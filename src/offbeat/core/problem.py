"""What is being learnt: a vector, and for each client an oracle that answers questions about its own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from offbeat.core.metric import Metric
from offbeat.core.vectors import Vector

Numbers: TypeAlias = Sequence[int] | npt.NDArray[np.int64]


class Oracle(Protocol):
    """A few clients' data, asked about at stacked models [n, d]: row i is asked of client i and of nobody else.

    `step` is the local step and `sample` numbers the independent mini-batches within it: the same (step, sample)
    is the same mini-batch, on every executor and device.

    An oracle may also have `descend(w, lr, step)`, which gives w − lr · gradient(w, step): see `Work.descend`, and
    `descend_often(w, lr, steps)`, which gives what so many of these come to, or None: see `Work.descend_often`. One of
    models with running statistics has `renewed(w)`, which sets them: see `Work.renewed`. Gradients are 0 there.
    """

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        """Stochastic gradients, [n, d]."""

    def full(self, w: Vector) -> Vector:
        """Gradients over the clients' whole data, [n, d]."""

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        """Stochastic Hessians at w times the rows of v, [n, d]."""

    def loss(self, w: Vector, step: int, sample: int = 0) -> torch.Tensor:
        """Stochastic losses, [n]."""


@runtime_checkable
class BySample(Protocol):
    """An oracle that knows the gradients of single samples.

    sizes: how many samples each client has.   expected: how many of them a mini-batch has on average.
    """

    @property
    def sizes(self) -> Sequence[int]: ...

    @property
    def expected(self) -> Sequence[int]: ...

    def noised(
        self, w: Vector, step: int, chosen: torch.Tensor, shorten: Callable[[Vector], Vector], noise: Vector
    ) -> Vector:
        """Gradients at w from the sum of the chosen samples' shortened ones and noise, [n, d].

        chosen: which samples of each client, [n, most samples].   noise: [n, d], of the sum.
        """


class ClientTask(Protocol):
    """One client's model and samples, for a training loop of the user's own.

    data: the samples, with len() and [i].   batch: mini-batch size.
    """

    data: Any
    batch: int

    @property
    def device(self) -> torch.device:
        """Where the model and the samples are."""

    def module(self, w: Vector) -> nn.Module:
        """A copy of the model with these parameters [d], to be trained."""

    def vector(self, module: nn.Module, w: Vector) -> Vector:
        """The parameters of such a copy that began at w, after it was trained."""

    def precise(self) -> AbstractContextManager[Any]:
        """Within, arithmetic is as precise as the experiment says."""

    def loss(self, module: nn.Module, batch: Any) -> torch.Tensor:
        """The client's objective on some samples, the regulariser and the client's weight included."""

    def minibatch(self, step: int) -> Any:
        """The mini-batch that this local step draws."""


@runtime_checkable
class ByClientOracle(Protocol):
    """An oracle that hands out what it knows of one client."""

    def client(self, row: int) -> ClientTask:
        """The model and the samples of the client of this row."""


@runtime_checkable
class Pairing(Protocol):
    """A problem whose clients do more than follow gradients in everything that the server knows."""

    def pair(self, local: Any) -> Any:
        """The local trainer as this problem needs it."""


@runtime_checkable
class Sampled(Protocol):
    """A problem that may measure the global objective on a sample, and exactly if asked."""

    @property
    def sample(self) -> int | None:
        """How many samples `measure` takes the objective from; None: all."""

    @property
    def sampled_to_end(self) -> bool:
        """Whether a finished run's objective is that of these samples, too; else it is measured on all."""

    def exact(self, model: Vector) -> float:
        """The global objective f at a model [d]."""

    def measuring(self, samples: int | Literal["all"]) -> Problem:
        """The same problem, measured on at most so many training and test samples."""


@runtime_checkable
class Named(Protocol):
    """A problem whose clients may have names."""

    @property
    def client_names(self) -> Sequence[str]:
        """By number; none where they have none."""


@runtime_checkable
class Countable(Protocol):
    """A problem whose clients have so many samples each."""

    def samples_of(self, client: int) -> int:
        """How many training samples a client has."""


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

    @property
    def metrics(self) -> Sequence[Metric]:
        """What `measure` gives besides "loss", the task's main metric first; without any, that is the loss."""

    def initial(self) -> Vector:
        """The model that everybody starts from."""

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> Oracle:
        """An oracle for these clients; `keys` drive their draws, `batch` of None is a client's whole data."""

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        """Metrics of several models [v, d] in one pass; "loss" is the global objective f."""
