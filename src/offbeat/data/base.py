"""A data set as the rest of the package sees it: tensors as stored, and who owns which sample."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from offbeat.core.errors import DataError, unknown

INPUTS = ("unit", "signed", "standard")


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
    _made: dict[str, Dataset] = field(default_factory=dict, repr=False, compare=False)  # with other inputs

    def on(self, device: torch.device) -> Dataset:
        """The same samples on this device; they are moved there once."""
        if device.type == "cpu":
            return self
        if device not in self._moved:
            names = ("train_x", "train_y", "test_x", "test_y")
            self._moved[device] = replace(self, **{name: getattr(self, name).to(device) for name in names}, _moved={})
        return self._moved[device]

    def as_inputs(self, way: str) -> Dataset:
        """The same with inputs in another range, stored as floats; made once.

        way: "unit", pixels in [0, 1]; "signed", in [−1, 1]; "standard", a mean of 0 and a variance of 1 in every
        channel of the training samples.
        """
        if way not in INPUTS:
            raise unknown("inputs:", way, INPUTS)
        if way == "unit":
            return self
        if self.scale is None:
            raise DataError(f"{self.name} has tokens for inputs, which cannot be {way}; leave `inputs` out")
        if way not in self._made:
            train, test = self.train_x * self.scale, self.test_x * self.scale
            mean, spread = torch.tensor(0.5), torch.tensor(0.5)
            if way == "standard":
                spread, mean = torch.std_mean(train, [0, *range(2, train.dim())], correction=0, keepdim=True)
                spread = torch.where(spread > 0, spread, 1.0)
            train, test = (train - mean) / spread, (test - mean) / spread
            self._made[way] = replace(self, train_x=train, test_x=test, scale=1.0, _moved={}, _made={})
        return self._made[way]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])
