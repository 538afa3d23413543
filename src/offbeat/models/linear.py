"""Softmax regression and the multilayer perceptron."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn

from offbeat.core.errors import SettingError


class Softmax(nn.Module):
    """One linear layer that starts at zero: multinomial logistic regression (AREA eq. 4).

    bias: AREA has none.
    """

    def __init__(self, shape: Sequence[int], classes: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(shape), classes, bias=bias)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Fully connected layers with ReLU: 784-200-100-10 on MNIST (FAST table 1)."""

    def __init__(self, shape: Sequence[int], classes: int, hidden: Sequence[int] = (200, 100)) -> None:
        super().__init__()
        if any(width < 1 for width in hidden):
            raise SettingError(f"hidden = {list(hidden)}: a layer needs at least one unit")
        sizes = (math.prod(shape), *hidden, classes)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]
