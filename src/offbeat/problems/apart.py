"""One client of a supervised problem by itself: its samples as a data set of PyTorch's, its model as a module."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from offbeat.core.vectors import Vector
from offbeat.models.modules import to_train, vector_of

if TYPE_CHECKING:
    from offbeat.problems.rows import Rows
    from offbeat.problems.supervised import Supervised

Sample: TypeAlias = "tuple[Tensor, Tensor] | Mapping[str, Tensor]"


class ClientSamples(Dataset[Any]):
    """A client's training samples as a map-style data set: (x, y), or a dict where the loss wants more columns.

    data[3] is one sample, data[:] and data[[3, 5]] are several, stacked.
    """

    def __init__(self, problem: Supervised, which: npt.NDArray[np.int64]) -> None:
        self.problem, self.which = problem, which
        objective = problem.objective
        self.names = objective.columns
        self.pairs = objective.inputs == 1 and objective.target == 1 and len(self.names) == 2 and not objective.whole

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, at: int | slice | list[int] | Tensor) -> Any:
        if isinstance(at, Tensor | np.ndarray):
            at = at.tolist()
        if isinstance(at, slice | list):
            return self.batch(torch.from_numpy(np.ascontiguousarray(self.which[at])))
        if not -len(self) <= at < len(self):
            raise IndexError(f"sample {at} of {len(self)}")
        return self.__getitems__([int(at)])[0]

    def __getitems__(self, places: list[int]) -> list[Any]:
        """These samples, read at once: what a DataLoader asks for."""
        parts = self._parts(torch.from_numpy(self.which[places]))
        return [self._shaped(sample) for sample in zip(*parts, strict=True)]

    def batch(self, indices: Tensor) -> Sample:
        """These samples of the problem, stacked."""
        return self._shaped(self._parts(indices))

    def _parts(self, indices: Tensor) -> tuple[Tensor, ...]:
        return self.problem.samples(indices.to(self.problem.device))

    def _shaped(self, parts: tuple[Tensor, ...]) -> Sample:
        return (parts[0], parts[1]) if self.pairs else dict(zip(self.names, parts, strict=True))


class ClientAlone:
    """A client of some that were given to an oracle, by its row; see `ClientTask`."""

    def __init__(self, rows: Rows, row: int) -> None:
        self.rows, self.row, self.problem = rows, row, rows.problem
        self.data = ClientSamples(rows.problem, rows.shards[int(rows.which[row])])
        self.batch = len(self.data) if rows.draws is None else rows.draws.batch

    @property
    def device(self) -> torch.device:
        return self.problem.device

    def module(self, w: Vector) -> nn.Module:
        return to_train(self.problem.flat, w, self.device)

    def vector(self, module: nn.Module, w: Vector) -> Vector:
        return vector_of(self.problem.flat, module, w)

    def precise(self) -> AbstractContextManager[Any]:
        half = self.problem.flat.autocast
        return torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext()

    def loss(self, module: nn.Module, batch: Sample) -> Tensor:
        p = self.problem
        found = p.objective.mean(module, *(batch if isinstance(batch, tuple | list) else batch.values()))
        if p.l2:
            flat = p.flat
            named = dict(module.named_parameters())
            squares = [named[name].square().sum() for name in flat.views(flat.whole(p.initial())) if name in named]
            found = found + (0.5 * p.l2) * torch.stack(squares).sum()
        share = float(self.rows.shards.shares[self.rows.which[self.row]])
        return found if share == 1.0 else found * share

    def minibatch(self, step: int) -> Sample:
        draws = self.rows.draws
        if draws is None:
            found: Sample = self.data[:]
            return found
        return self.data.batch(draws.indices(step, 0)[self.row])
