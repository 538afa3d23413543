"""Models with running statistics and dropout, for tests that compare ways of training them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.core.random import key, signed
from offbeat.data.base import Dataset
from offbeat.data.samples import Stored
from offbeat.models.build import build
from offbeat.problems.supervised import Supervised

SHARDS = [np.arange(0, 9), np.arange(9, 21), np.array([21, 5, 22, 8]), np.array([23, 2])]
KEYS = [signed(key(0, 3, c)) for c in range(4)]
G = torch.Generator().manual_seed(0)
IMAGES = 1.0 + 2.0 * torch.randn(24, 2, 8, 8, generator=G)
LABELS = torch.randint(3, (24,), generator=G)


def conv(dropout: float = 0.3, norm: bool = True) -> nn.Module:
    """A small convolutional network."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, 2),
        nn.BatchNorm2d(4) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(36, 8),
        nn.BatchNorm1d(8) if norm else nn.Identity(),
        nn.Linear(8, 3),
    )


def normed(shape: Any, classes: int) -> nn.Module:
    """With batch normalisation and dropout, for an experiment file."""
    width = int(np.prod(shape))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, classes)
    )


def resnet() -> nn.Module:
    return build("resnet18", (2, 8, 8), 3, seed=0)


def problem(module: nn.Module | None = None, shards: Any = SHARDS, **settings: Any) -> Supervised:
    columns: dict[str, Tensor] = {"x": IMAGES, "y": LABELS}
    data = Dataset("made", Stored(columns), Stored(columns), 3, inputs=("x",), target="y")
    return Supervised(data, module or conv(), shards, **settings)
