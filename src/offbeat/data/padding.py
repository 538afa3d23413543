"""Items of unlike lengths, padded to one length when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import DataError, at_least
from offbeat.data.columns import column, default_names

_LABELS = ("y", "label", "labels", "target")
_IGNORED = -100  # a class that does not count, as in torch and HuggingFace's models


class Padded:
    """A `collate` for items with lists or arrays of unlike lengths: pads them to one length and adds the column `mask`.

    length: of all; longer ones are cut.   columns: which to pad; by default, those of more than a single number.
    fill: by column, what is put where nothing is; by default −100, which does not count, for whole-number labels, and 0
    for others.
    """

    def __init__(
        self, length: int, columns: Sequence[str] | None = None, fill: Mapping[str, float] | None = None
    ) -> None:
        at_least(1, length=length)
        self.length, self.columns, self.fill = length, columns, dict(fill or {})

    def __call__(self, items: list[Any]) -> dict[str, Any]:
        first = items[0]
        names = tuple(first) if isinstance(first, Mapping) else default_names(len(first))
        keys: Sequence[Any] = names if isinstance(first, Mapping) else range(len(first))
        found: dict[str, Any] = {}
        mask: Tensor | None = None
        for name, key in zip(names, keys, strict=True):
            values = [item[key] for item in items]
            if not self._pads(name, values[0]):
                if not isinstance(values[0], str):
                    found[name] = torch.stack([torch.as_tensor(value) for value in values])
                continue
            found[name], mask = self._padded(name, values)
        if mask is None:
            raise DataError(f"Padded({self.length}): no column to pad; there are {', '.join(names)}")
        return {**found, "mask": mask}

    def _pads(self, name: str, value: Any) -> bool:
        if self.columns is not None:
            return name in self.columns
        return not isinstance(value, str) and hasattr(value, "__len__") and getattr(value, "shape", True) != ()

    def _padded(self, name: str, values: Sequence[Any]) -> tuple[Tensor, Tensor]:
        parts = [column(value, name).values[: self.length] for value in values]
        whole = not parts[0].is_floating_point()
        fill = self.fill.get(name, _IGNORED if whole and name in _LABELS else 0)
        made = torch.full((len(parts), self.length, *parts[0].shape[1:]), fill, dtype=parts[0].dtype)
        for row, part in zip(made, parts, strict=True):
            row[: len(part)] = part
        lengths = torch.tensor([len(part) for part in parts])
        return made, torch.arange(self.length) < lengths.unsqueeze(1)
