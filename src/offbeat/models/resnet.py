"""ResNet-18 for small images, with group or with batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from offbeat.core.errors import SettingError
from offbeat.models.conv import CHANNELS_LAST, channels_last

Norm = Callable[[int], nn.Module]  # of so many channels


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3 × 3 stem without pooling, group instead of batch normalisation.

    groups: groups of every normalisation; has to divide 64.
    """

    def __init__(self, shape: Sequence[int], classes: int, groups: int = 32) -> None:
        super().__init__()
        if groups < 1 or 64 % groups:
            raise SettingError(f"groups = {groups}: has to divide the 64 channels of the first layers")
        self._build(shape, classes, partial(nn.GroupNorm, groups), "resnet18-gn")

    def _build(self, shape: Sequence[int], classes: int, norm: Norm, name: str) -> None:
        if len(shape) != 3 or channels_last(shape):
            remedy = CHANNELS_LAST if channels_last(shape) else ""
            raise SettingError(f"{name} takes images [channels, height, width], the data are {list(shape)}{remedy}")
        self.stem = nn.Sequential(nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), norm(64))
        blocks, width = [], 64
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(_Block(width, 64 << stage, stride, norm))
                width = 64 << stage
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(torch.relu(self.stem(x)))
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


class BatchNormResNet18(ResNet18):
    """ResNet-18 for small images: a 3 × 3 stem without pooling, batch normalisation."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        nn.Module.__init__(self)
        self._build(shape, classes, nn.BatchNorm2d, "resnet18")


class _Block(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut, which is a 1 × 1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = norm(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, norm(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))
