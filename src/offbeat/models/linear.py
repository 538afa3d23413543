"""Softmax regression and the multilayer perceptron."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from offbeat.core.errors import at_least, not_negative

Floats = npt.NDArray[np.float32]


class ClosedForm(ABC):
    """A model whose gradient is known, so that nothing is differentiated: many models at once, without overhead."""

    @abstractmethod
    def gradient(self, w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Gradients [n, d] of Σ weights · cross-entropy at models [n, d] on inputs [n, b, ...], labels [n, b]."""

    @abstractmethod
    def outputs(self, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """What models [v, d] make of the same inputs [m, ...]: [v, m, classes]."""

    @abstractmethod
    def one(self, w: Floats, x: Floats, y: npt.NDArray[np.int64], scale: float, out: Floats) -> None:
        """out ← the gradient [d] of the mean cross-entropy at one model, on inputs scale · x [b, inputs], in numpy."""


class Softmax(nn.Module, ClosedForm):
    """Softmax regression, one linear layer that starts at zero (AREA, eq. 4).

    bias: whether the layer has a bias; AREA's has none.
    spread: the first weights are uniform in [−spread, spread] instead of zero.
    """

    def __init__(self, shape: Sequence[int], classes: int, bias: bool = False, spread: float = 0.0) -> None:
        super().__init__()
        not_negative(spread=spread)
        self.linear = nn.Linear(math.prod(shape), classes, bias=bias)
        self.classes, self.inputs, self.biased = classes, math.prod(shape), bias  # a module's own are slow to look up
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        if spread:
            nn.init.uniform_(self.linear.weight, -spread, spread)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]

    def gradient(self, w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """(softmax − one-hot)ᵀ x."""
        classes, inputs = self.linear.weight.shape
        x = x.flatten(2)  # [n, b, inputs]
        weight = w[:, : classes * inputs].view(-1, classes, inputs)
        logits = torch.bmm(x, weight.transpose(1, 2))
        if self.linear.bias is not None:
            logits = logits + w[:, None, classes * inputs :]
        error = torch.softmax(logits, dim=-1)
        error = error.scatter_add(2, y.unsqueeze(2), error.new_full((), -1.0).expand(*y.shape, 1))
        error = error * weights.unsqueeze(2)  # [n, b, classes]
        slope = torch.bmm(error.transpose(1, 2), x).flatten(1)
        return slope if self.linear.bias is None else torch.cat([slope, error.sum(dim=1)], dim=1)

    def outputs(self, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        classes, inputs = self.linear.weight.shape
        weights = w[:, : classes * inputs].reshape(-1, inputs)  # one product for all models
        outputs = torch.mm(x.flatten(1), weights.t()).view(len(x), len(w), classes).transpose(0, 1)
        return outputs if self.linear.bias is None else outputs + w[:, None, classes * inputs :]

    def one(self, w: Floats, x: Floats, y: npt.NDArray[np.int64], scale: float, out: Floats) -> None:
        classes, inputs, count = self.classes, self.inputs, len(y)
        end = classes * inputs
        error = np.dot(w[:end].reshape(classes, inputs), x.T)  # [classes, b]: sums over classes run along memory
        error *= scale
        if self.biased:
            error += w[end:, None]
        error -= np.maximum.reduce(error, 0)
        np.exp(error, error)
        each = scale / count
        error *= each / np.add.reduce(error, 0)
        error[y, _counting(count)] -= each
        if self.biased:
            np.add.reduce(error, 1, out=out[end:])
            out[end:] *= 1.0 / scale
        np.dot(error, x, out[:end].reshape(classes, inputs))


class Linear(Softmax):
    """One linear layer with a bias, which starts at zero: linear regression, or logistic regression of classes."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__(shape, classes, bias=True)


@cache
def _counting(count: int) -> npt.NDArray[np.int64]:
    return np.arange(count)


class MLP(nn.Module):
    """Fully connected layers with ReLU: 784-200-100-10 on MNIST (FedAST, table 1).

    hidden: widths of the hidden layers.
    """

    def __init__(self, shape: Sequence[int], classes: int, hidden: Sequence[int] = (200, 100)) -> None:
        super().__init__()
        at_least(1, **{f"hidden[{i}]": width for i, width in enumerate(hidden)})
        sizes = (math.prod(shape), *hidden, classes)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]
