"""Data that clients bring: the server has only the model, a client only its own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from offbeat.core.errors import DataError, SettingError
from offbeat.core.problem import Oracle
from offbeat.core.vectors import Vector
from offbeat.data.base import Dataset
from offbeat.models.flat import Flat
from offbeat.problems.supervised import Supervised

Rows = Sequence[int] | npt.NDArray[np.int64]


class ModelOnly:
    """A task of which only the model is known: what a server without data has."""

    stacks = False

    def __init__(self, name: str, model: nn.Module, clients: int) -> None:
        self.name, self.clients, self.flat = name, clients, Flat(model)
        self.dim = self.flat.dim

    def initial(self) -> Vector:
        return self.flat.initial()

    def oracle(self, clients: Rows, keys: Rows, steps: int, batch: int | None, shuffle: bool) -> Oracle:
        raise SettingError(f"{self.name}: the data are the clients' own; use `offbeat serve` and `offbeat join`")

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        raise SettingError(f"{self.name}: the server has no data to evaluate on")


class ClientProblem(ModelOnly):
    """One client's own task: its samples, under whatever number it has in the federation."""

    def __init__(
        self, name: str, model: nn.Module, clients: int, data: Dataset, l2: float = 0.0, device: str = "cpu"
    ) -> None:
        super().__init__(name, model, clients)
        everything = [np.arange(len(data.train_y))]
        self.inner = Supervised(data, model, everything, l2=l2, device=device, name=name)

    def initial(self) -> Vector:
        return self.inner.initial()

    def oracle(self, clients: Rows, keys: Rows, steps: int, batch: int | None, shuffle: bool) -> Oracle:
        return self.inner.oracle([0] * len(clients), keys, steps, batch, shuffle)

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        return self.inner.measure(models)

    def judge(self, vector: Vector) -> tuple[int, int, float]:
        """(right answers, samples, summed loss) of a model on the held-out samples."""
        inner = self.inner
        with torch.no_grad():
            outputs = self.flat(vector.to(inner.device), inner.inputs(inner.test_x))
            right = int((outputs.argmax(dim=-1) == inner.test_y).sum())
            loss = float(cross_entropy(outputs, inner.test_y, reduction="sum"))
        return right, len(inner.test_y), loss


def dataset(given: Any, classes: int, shape: tuple[int, ...], holdout: float = 0.2) -> Dataset:
    """Samples as a client's loader gives them: (inputs, labels), or a torch dataset of such pairs.

    holdout: the share that is kept for evaluation, the last ones.
    """
    if not 0 <= holdout < 1:
        raise SettingError(f"holdout = {holdout}: is a share in [0, 1)")
    x, y = _tensors(given)
    if tuple(x.shape[1:]) != tuple(shape):
        raise DataError(f"the loader's inputs have the shape {list(x.shape[1:])}, the experiment says {list(shape)}")
    if len(x) != len(y) or not len(y):
        raise DataError(f"the loader gives {len(x)} inputs and {len(y)} labels")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(f"the loader's labels run from {int(y.min())} to {int(y.max())}; there are {classes} classes")
    cut = max(1, len(y) - round(holdout * len(y)))
    scale = 1.0 if x.is_floating_point() else 1.0 / 255 if x.dtype == torch.uint8 else None  # bytes are pixels
    return Dataset("own", x[:cut], y[:cut], x[cut:], y[cut:], classes, scale)


def _tensors(given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(given, tuple | list) and len(given) == 2:
        x, y = (torch.as_tensor(part) for part in given)
        return x, y.long()
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        pairs = [given[number] for number in range(len(given))]
        x = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
        return x, torch.tensor([int(pair[1]) for pair in pairs])
    raise DataError(f"the loader gave a {type(given).__name__}; it should give (inputs, labels) or a torch dataset")
