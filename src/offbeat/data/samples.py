"""Samples: named columns of equal length, gathered when a mini-batch is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import DataError, nearest

Batch = dict[str, Tensor]  # every tensor begins with the shape of the indices


class Samples(ABC):
    """Named columns of equal length, in memory or read when asked for.

    names: of the columns.   words: by column of text, what its numbers stand for; −1 is a missing one.
    left: columns that were left out, and why.
    """

    names: tuple[str, ...]
    words: dict[str, tuple[str, ...]]
    left: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def __len__(self) -> int:
        """How many samples."""

    @abstractmethod
    def take(self, indices: Tensor, names: Sequence[str] | None = None) -> Batch:
        """These samples, in the shape of their indices: whole numbers as int64, others as float32, bool as it is.

        names: of the columns that are wanted; None: all.
        """

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor:
        """One column of all samples, as it is stored."""

    def column(self, name: str) -> npt.NDArray[Any]:
        """The same as an array: what splits read."""
        found: npt.NDArray[Any] = self[name].cpu().numpy()
        return found

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Of one sample's value in a column."""

    @abstractmethod
    def real(self, name: str) -> bool:
        """Whether a column is made of real numbers."""

    @abstractmethod
    def part(self, which: npt.NDArray[np.int64]) -> Samples:
        """These samples alone, in this order."""

    @abstractmethod
    def on(self, device: torch.device) -> Samples:
        """The same on this device, as far as they are kept."""

    def has(self, *names: str) -> None:
        """Raise for a column that is not there."""
        for name in names:
            if name in self.left:
                raise DataError(self.left[name])
            if name not in self.names:
                raise DataError(f"no column {name!r}; {nearest(name, self.names)}")


class Stored(Samples):
    """Columns in memory as they are stored: bytes stay bytes until a mini-batch is gathered.

    columns: tensors that begin with the number of samples.   scales: by column, what stored values are multiplied with;
    such a column is made of real numbers, however it is stored.   masks: by column of lists that were padded, the
    column that says which places are its own.
    """

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        scales: Mapping[str, float] | None = None,
        words: Mapping[str, tuple[str, ...]] | None = None,
        masks: Mapping[str, str] | None = None,
    ) -> None:
        self.columns, self.scales = dict(columns), dict(scales or {})
        self.words, self.masks = dict(words or {}), dict(masks or {})
        self.names = tuple(self.columns)
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise DataError(f"the columns differ in their number of samples: {said}" if said else "there is no column")
        self._length = next(iter(lengths.values()))
        self._moved: dict[torch.device, Stored] = {}
        self._faults: dict[str, tuple[int, int] | None] = {}

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {_short(c)} {list(c.shape[1:])}" for name, c in self.columns.items())
        return f"Stored({len(self):,} samples: {columns})"

    def take(self, indices: Tensor, names: Sequence[str] | None = None) -> Batch:
        flat = indices.reshape(-1)
        found = {}
        for name in self.names if names is None else names:
            column = self.columns[name]
            values = converted(column.index_select(0, flat), self.scales.get(name))
            found[name] = values.view(*indices.shape, *column.shape[1:])
        return found

    def __getitem__(self, name: str) -> Tensor:
        self.has(name)
        return self.columns[name]

    def shape(self, name: str) -> tuple[int, ...]:
        self.has(name)
        return tuple(self.columns[name].shape[1:])

    def real(self, name: str) -> bool:
        return name in self.scales or self.columns[name].is_floating_point()

    def part(self, which: npt.NDArray[np.int64]) -> Stored:
        chosen = torch.from_numpy(which)
        return self.with_columns({name: column[chosen] for name, column in self.columns.items()})

    def with_columns(self, columns: Mapping[str, Tensor]) -> Stored:
        """Other columns, with what is known of those of the same names."""
        known: list[Any] = [self.scales, self.words, self.masks]
        made = Stored(columns, *({name: v for name, v in each.items() if name in columns} for each in known))
        made.left = self.left
        return made

    def not_finite(self, name: str) -> tuple[int, int] | None:
        """(the first sample of a column with a nan or infinity in it, how many there are); None: there is none."""
        if name not in self._faults:
            column = self.columns[name]
            bad = ~torch.isfinite(column).reshape(len(column), -1).all(1) if column.is_floating_point() else None
            found = bad is not None and bool(bad.any())
            self._faults[name] = (int(bad.int().argmax()), int(bad.sum())) if bad is not None and found else None
        return self._faults[name]

    def on(self, device: torch.device) -> Stored:
        if device.type == "cpu":
            return self
        if device not in self._moved:
            self._moved[device] = self.with_columns({n: c.to(device) for n, c in self.columns.items()})
        return self._moved[device]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_moved": {}}


def missing(name: str, sample: str, count: int, unknown: str = "") -> DataError:
    """The error for a column of which so many samples are not finite. sample: the first."""
    if count == 1:
        return DataError(f"{name!r}: {sample} is not finite; fill it in or leave it out{unknown}")
    others = f"{count - 1:,} other{'s' if count > 2 else ''}"
    return DataError(f"{name!r}: {sample} and {others} are not finite; fill them in or leave them out{unknown}")


def converted(values: Tensor, scale: float | None) -> Tensor:
    """Values as a model gets them: whole numbers as int64, others as float32, bool as it is."""
    if scale is not None:
        return values.float().mul_(scale)
    if values.is_floating_point():
        return values.float()
    return values if values.dtype == torch.bool else values.long()


def _short(column: Tensor) -> str:
    return str(column.dtype).removeprefix("torch.")
