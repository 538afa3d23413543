"""A data set as the rest of the package sees it: samples to train on and to test on, and who owns which of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch

from offbeat.core.errors import Checked, DataError, Positive, SettingError, unknown
from offbeat.data.samples import Samples, Stored
from offbeat.data.tokens import Tokeniser

INPUTS = ("unit", "signed", "standard")


@dataclass(frozen=True)
class Normalised(Checked):
    """Inputs in [0, 1], minus a mean and divided by a standard deviation.

    mean: one number, or one for each channel.
    std: one number, or one for each channel.
    """

    mean: float | tuple[float, ...]
    std: Positive | tuple[Positive, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._count(self.mean) != self._count(self.std):
            raise SettingError(f"mean = {self.mean}, std = {self.std}: give both for every channel, or both for all")

    @staticmethod
    def _count(value: float | tuple[float, ...]) -> int:
        return len(value) if isinstance(value, tuple) else 1

    def columns(self, name: str, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(std, mean) so that they broadcast over inputs [samples, channels, ...]."""
        shape = [1, -1, *[1] * (values.dim() - 2)]
        spread, mean = (torch.tensor(each).reshape(-1) for each in (self.std, self.mean))
        if len(mean) > 1 and len(mean) != values.shape[1]:
            raise DataError(f"{name} has {values.shape[1]} channels, mean and std {len(mean)}")
        return spread.view(shape), mean.view(shape)


@dataclass(frozen=True)
class Dataset:
    """Samples to train on and to test on.

    inputs: the columns that a model gets.   target: the column that a loss compares its output with.
    classes: how many, if the target is the number of a class.
    grouped: the columns that were put together as the input x.   left: columns that are no inputs because they are no
    numbers, and what they are.   notes: what else is worth knowing about how the data were understood.
    owner: natural owner of each training sample, −1 for positions that are no sample of anybody.   owners: their names.
    tokens: between its numbers and text.
    """

    name: str
    train: Samples
    test: Samples
    classes: int | None = None
    owner: torch.Tensor | None = None
    test_owner: torch.Tensor | None = None
    inputs: tuple[str, ...] = ("x",)
    target: str = "y"
    owners: tuple[str, ...] = ()
    tokens: Tokeniser | None = None
    fitted: bool = False  # whether inputs are scaled by numbers that were computed from all training samples
    grouped: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    _made: dict[str | Normalised, Dataset] = field(default_factory=dict, repr=False, compare=False)  # with other inputs

    def __post_init__(self) -> None:
        for samples in (self.train, self.test):
            samples.has(*self.inputs, self.target)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to other processes: without the same samples in other ranges."""
        return {**vars(self), "_made": {}}

    def __repr__(self) -> str:
        kind = f", one of {self.classes} classes" if self.classes else ""
        owners = f"; {len(self.owners)} owners" if self.owners else ""
        return (
            f"Dataset({self.name}: {len(self.train):,} training and {len(self.test):,} test samples; "
            f"{', '.join(self.inputs)} -> {self.target}{kind}{owners})"
        )

    @classmethod
    def pairs(
        cls,
        name: str,
        train_x: torch.Tensor,
        train_y: torch.Tensor,
        test_x: torch.Tensor,
        test_y: torch.Tensor,
        classes: int | None = None,
        scale: float | None = None,
        owner: torch.Tensor | None = None,
        test_owner: torch.Tensor | None = None,
    ) -> Dataset:
        """Of inputs and targets in memory. scale: from stored inputs to the model's; None: they stay as they are."""
        scales: Mapping[str, float] = {} if scale is None else {"x": scale}
        train, test = (Stored({"x": x, "y": y}, scales) for x, y in ((train_x, train_y), (test_x, test_y)))
        return cls(name, train, test, classes, owner, test_owner)

    def as_inputs(self, way: str | Normalised) -> Dataset:
        """The same with inputs in another range, stored as floats; made once.

        way: "unit", pixels in [0, 1]; "signed", in [−1, 1]; "standard", a mean of 0 and a variance of 1 in every
        channel of the training samples; or a given mean and standard deviation.
        """
        if not isinstance(way, Normalised) and way not in INPUTS:
            raise unknown("inputs:", way, INPUTS)
        if way == "unit":
            return self
        if way not in self._made:
            train, test = self.train, self.test
            for name in self.inputs:
                train, test = self._ranged(name, train, test, way)
            self._made[way] = replace(self, train=train, test=test, fitted=way == "standard", _made={})
        return self._made[way]

    def _ranged(self, name: str, train: Samples, test: Samples, way: str | Normalised) -> tuple[Stored, Stored]:
        if not isinstance(train, Stored) or not isinstance(test, Stored):
            raise DataError(f"{self.name} is read when needed; scale its inputs where it is read, or keep it in memory")
        if not train.real(name):
            said = way if isinstance(way, str) else "normalised"
            raise DataError(f"{self.name} has tokens for inputs, which cannot be {said}; leave `inputs` out")
        both = [samples.columns[name] * samples.scales.get(name, 1.0) for samples in (train, test)]
        mean, spread = torch.tensor(0.5), torch.tensor(0.5)
        if isinstance(way, Normalised):
            spread, mean = way.columns(self.name, both[0])
        elif way == "standard":
            spread, mean = torch.std_mean(both[0], [0, *range(2, both[0].dim())], correction=0, keepdim=True)
            spread = torch.where(spread > 0, spread, 1.0)
        made = []
        for samples, values in zip((train, test), both, strict=True):
            others = {other: scale for other, scale in samples.scales.items() if other != name}
            made.append(Stored({**samples.columns, name: (values - mean) / spread}, {**others, name: 1.0}))
        return made[0], made[1]

    def owned(self, column: str) -> Dataset:
        """The same with the values of a column, text or numbers, as owners."""
        self.train.has(column)
        parts = [samples for samples in (self.train, self.test) if column in samples.names]
        if self.train.shape(column):
            raise DataError(f"{column!r} is {list(self.train.shape(column))} a sample; owners are one name or number")
        codes = [samples.column(column) for samples in parts]
        words = [samples.words.get(column) for samples in parts]
        values = [c if w is None else np.array([*w, None], object)[c] for c, w in zip(codes, words, strict=True)]
        names = sorted({value for each in values for value in each.tolist() if value is not None})
        number = {name: at for at, name in enumerate(names)}
        found = [torch.tensor([number.get(value, -1) for value in each.tolist()]) for each in values]
        whose = found[1] if len(found) == 2 else None
        return replace(self, owner=found[0], test_owner=whose, owners=tuple(map(str, names)), _made={})

    @property
    def remarks(self) -> list[str]:
        """Its notes, and the columns that are left out."""
        said = f"not used as inputs: {'; '.join(self.left.values())}; make numbers of those that you need"
        return [*self.notes, said] if self.left else [*self.notes]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, the first."""
        return self._shape(self.inputs[0])

    @property
    def outputs(self) -> int:
        """What a model has to give for each sample: a value for each class, or as many as the target has."""
        return self.classes or max(1, prod(self._shape(self.target)))

    def _shape(self, name: str) -> tuple[int, ...]:
        one = self.train.take(torch.zeros(1, dtype=torch.int64), [name])[name]
        return tuple(one.shape[1:])
