"""A data set as the rest of the package sees it: tensors as stored, and who owns which sample."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from offbeat.core.errors import DataError


@dataclass(frozen=True)
class Dataset:
    """Samples kept as stored (bytes stay bytes) and turned into floats only when a mini-batch is gathered.

    scale: factor from stored values to the model's input; None for tokens, which reach the model as int64.
    owner: natural owner of each training sample, −1 for positions that are no sample of anybody.
    """

    name: str
    train_x: torch.Tensor  # [N, ...]
    train_y: torch.Tensor  # [N] int64
    test_x: torch.Tensor
    test_y: torch.Tensor
    classes: int
    scale: float | None
    owner: torch.Tensor | None = None
    test_owner: torch.Tensor | None = None
    _moved: dict[torch.device, Dataset] = field(default_factory=dict, repr=False, compare=False)

    def on(self, device: torch.device) -> Dataset:
        """The same samples on this device; they are moved there once."""
        if device.type == "cpu":
            return self
        if device not in self._moved:
            names = ("train_x", "train_y", "test_x", "test_y")
            self._moved[device] = replace(self, **{name: getattr(self, name).to(device) for name in names}, _moved={})
        return self._moved[device]

    @cached_property
    def normalised(self) -> Dataset:
        """The same with a mean of 0 and a variance of 1 in every channel of the training samples, stored as floats."""
        if self.scale is None:
            raise DataError(f"{self.name} has tokens for inputs, which cannot be normalised; leave `normalise` out")
        train, test = self.train_x * self.scale, self.test_x * self.scale
        over = [0, *range(2, train.dim())]
        spread, mean = torch.std_mean(train, over, correction=0, keepdim=True)
        spread = torch.where(spread > 0, spread, 1.0)
        return replace(self, train_x=(train - mean) / spread, test_x=(test - mean) / spread, scale=1.0, _moved={})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])
