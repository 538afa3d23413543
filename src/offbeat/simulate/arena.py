"""The rows that lazy vectors stand in: filled at once on a CPU, noted and filled later on a GPU (see `lazy`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from offbeat.core.errors import OffbeatError
from offbeat.core.vectors import Vector
from offbeat.simulate.lazy import OPERATIONS, LazyVector

_ROWS = 64  # at first
_MOVED = 256e6  # bytes of one gather, at most
_LARGE = 1e9  # bytes of a matrix
_add, _multiply = np.add, np.multiply  # with a third argument: into it
_SUM = "sum"


class Arena:
    """Rows of one length in a CPU's memory, handed out and taken back."""

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dim = dim
        self.matrix = torch.empty(_ROWS, dim, dtype=dtype, device=device)
        self.free = list(range(_ROWS))
        self.returned = self.free  # rows that nobody holds any longer: nothing is still to read them
        self.open: set[int] = set()  # rows that are owed, and those that depend on them: none here
        self._look()

    def add(self, left: int, a: float, right: int, b: float) -> LazyVector:
        """A vector that is a · left + b · right."""
        out = self.free.pop() if self.free else self._more()
        lines = self.lines
        row = lines[out]
        if a == 1.0 and b == 1.0:
            _add(lines[left], lines[right], row)
        elif a == 1.0:
            _multiply(lines[right], b, row)
            _add(lines[left], row, row)
        else:
            _multiply(lines[left], a, row)
            if b != 0.0:
                _add(row, lines[right] * b, row)
        return LazyVector(self, out)

    def apply(self, name: str, left: int, a: float, right: int, b: float) -> LazyVector:
        """A vector that is an operation on a · left, and on b · right, or on the number b."""
        out = self.free.pop() if self.free else self._more()
        lines, operation = self.lines, OPERATIONS[name]
        row = lines[out]
        first = lines[left] if a == 1.0 else lines[left] * a
        with np.errstate(all="ignore"):  # what is not finite is found where everything else is
            if not operation.takes:
                operation.rows(first, out=row)
            else:
                second = b if operation.takes == "number" else lines[right] if b == 1.0 else lines[right] * b
                operation.rows(first, second, out=row)
        return LazyVector(self, out)

    def keep(self, rows: Vector, owed: Sequence[LazyVector | None] = ()) -> list[LazyVector]:
        """Rows of these values [n, d]. owed: of each, the row that it belongs into, if that was handed out before."""
        while len(self.free) < len(rows):
            self._grow()
        if owed:
            kept = [LazyVector(self, self.free.pop()) if place is None else place for place in owed]
            self._put([vector.slot for vector in kept], rows)
            return kept
        slots = [self.free.pop() for _ in range(len(rows))]
        self._put(slots, rows)
        return [LazyVector(self, slot) for slot in slots]

    def rows(self, vectors: Sequence[LazyVector]) -> Vector:
        """Their values [n, d], as a copy."""
        self.demand(vectors)
        self.materialise()
        found = self._get([vector.slot for vector in vectors])
        scales = [v.scale for v in vectors]
        if scales.count(1.0) < len(scales):
            column = torch.tensor(scales, dtype=found.dtype).to(found.device, non_blocking=True)
            found *= column.unsqueeze(1)
        return found

    def materialise(self) -> None:
        """Fill all rows that are still to be filled: none here."""

    def demand(self, vectors: Sequence[LazyVector]) -> None:
        """Have those pay who owe what these depend on: nobody here."""

    def _more(self) -> int:
        self._grow()
        return self.free.pop()

    def _grow(self) -> None:
        """Twice as many rows; a quarter more once they take much memory, since both matrices are there for a moment."""
        old = self.matrix
        large = old.numel() * old.element_size() >= _LARGE
        self.matrix = old.new_empty(len(old) + (len(old) // 4 if large else len(old)), old.shape[1])
        self.matrix[: len(old)] = old
        self.free += range(len(old), len(self.matrix))
        self._look()
        if large and old.is_cuda:
            del old
            torch.cuda.empty_cache()  # no later matrix fits where this one was, and other processes need room, too

    def _look(self) -> None:
        """The matrix and its rows as numpy sees them: short ones it moves and adds in a fraction of torch's time."""
        self.array = self.matrix.numpy()
        self.lines = list(self.array)

    def _put(self, slots: Sequence[int], rows: Vector) -> None:
        self.array[slots] = rows.numpy()

    def _get(self, slots: Sequence[int]) -> Vector:
        return torch.from_numpy(self.array.take(slots, axis=0))


class LazyArena(Arena):
    """Rows on any device, and what is still to be put into some of them."""

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dim, dtype, device)
        self.returned = []
        # by level, for each operation: (out, left, right) and their two factors, one by one
        self.levels: list[dict[str, tuple[list[int], list[float]]]] = []
        self.depth: dict[int, int] = {}  # of rows that are still to be filled
        self.waiting: list[tuple[str, int, int, float, int, float]] = []  # what was noted about those in `open`
        self.debtors: dict[int, Callable[[], None]] = {}  # who owes rows: how they are made to pay

    def owe(self) -> LazyVector:
        """A row whose value will be known later, through `keep`; until then its producer is among the `debtors`."""
        out = self.free.pop() if self.free else self._more()
        self.open.add(out)
        return LazyVector(self, out)

    def paid(self, vectors: Sequence[LazyVector]) -> None:
        """These rows are owed no longer: what was noted about them need not wait."""
        waiting, self.waiting = self.waiting, []
        self.open.difference_update(vector.slot for vector in vectors)
        self.open.difference_update(out for _, out, *_ in waiting)
        for name, out, left, a, right, b in waiting:
            self._note(name, out, left, a, right, b)

    def demand(self, vectors: Sequence[LazyVector]) -> None:
        if self.open and not self.open.isdisjoint(vector.slot for vector in vectors):
            for pay in list(self.debtors.values()):
                pay()

    def add(self, left: int, a: float, right: int, b: float) -> LazyVector:
        """A vector that will be a · left + b · right."""
        return self.apply(_SUM, left, a, right, b)

    def apply(self, name: str, left: int, a: float, right: int, b: float) -> LazyVector:
        """A vector that will be an operation on a · left, and on b · right, or on the number b."""
        out = self.free.pop() if self.free else self._more()
        self._note(name, out, left, a, right, b)
        return LazyVector(self, out)

    def _note(self, name: str, out: int, left: int, a: float, right: int, b: float) -> None:
        if self.open and (left in self.open or right in self.open):
            self.open.add(out)
            self.waiting.append((name, out, left, a, right, b))
            return
        depth = self.depth
        level = max(depth.get(left, 0), depth.get(right, 0)) if depth else 0
        if level == len(self.levels):
            self.levels.append({})
        noted = self.levels[level]
        if name not in noted:
            noted[name] = [], []
        slots, factors = noted[name]
        slots += (out, left, right)
        factors += (a, b)
        depth[out] = level + 1

    def materialise(self) -> None:
        """Fill all rows that are still to be filled."""
        if self.levels:
            levels, self.levels, self.depth = self.levels, [], {}
            self._fill([(name, *noted) for level in levels for name, noted in level.items()])
        back, self.returned = self.returned, []  # one step: rows may come back at any moment
        if self.waiting:
            needed = {row for _, out, left, _, right, _ in self.waiting for row in (out, left, right)}
            self.returned += [row for row in back if row in needed]
            back = [row for row in back if row not in needed]
        self.free += back

    def _fill(self, noted: Sequence[tuple[str, list[int], list[float]]]) -> None:
        """What was noted, one kind of operation of a level after the other."""
        slots = self._index([slot for _, some, _ in noted for slot in some]).view(-1, 3)
        numbers = [number for _, _, some in noted for number in some]
        factors = torch.tensor(numbers, dtype=self.matrix.dtype).to(self.matrix.device, non_blocking=True).view(-1, 2)
        most = max(1, int(_MOVED / (self.matrix.shape[1] * self.matrix.element_size())))
        begin = 0
        for name, some, _ in noted:
            end = begin + len(some) // 3
            for at in range(begin, end, most):
                part = slice(at, min(at + most, end))
                out, left, right = slots[part].unbind(1)
                a, b = factors[part].unsqueeze(2).unbind(1)
                self.matrix.index_copy_(0, out, self._outcome(name, left, a, right, b))
            begin = end

    def _outcome(self, name: str, left: Vector, a: Vector, right: Vector, b: Vector) -> Vector:
        """One operation on the rows left and right, with a column of factors each."""
        first = self.matrix.index_select(0, left).mul_(a)
        if name == _SUM:
            first += self.matrix.index_select(0, right).mul_(b)
            return first
        operation = OPERATIONS[name]
        if not operation.takes:
            found: Vector = operation.tensors(first)
        else:
            second = b if operation.takes == "number" else self.matrix.index_select(0, right).mul_(b)
            found = operation.tensors(first, second)
        return found

    def _more(self) -> int:
        if len(self.returned) * 4 >= len(self.matrix):
            self.materialise()
        return self.free.pop() if self.free else super()._more()

    def _look(self) -> None:
        """numpy sees no GPU."""

    def _put(self, slots: Sequence[int], rows: Vector) -> None:
        self.matrix.index_copy_(0, self._index(slots), rows)

    def _get(self, slots: Sequence[int]) -> Vector:
        return self.matrix.index_select(0, self._index(slots))

    def _index(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(np.array(slots, dtype=np.int64)).to(self.matrix.device, non_blocking=True)


class ApartError(OffbeatError):
    """Something depends on the numbers of a run, which therefore cannot be done abreast with others."""


class WideArena(LazyArena):
    """Lazy rows that each hold the vectors of several runs, side by side: [count · d].

    What servers do with such a vector they do with all of them. Nobody can read it as if it were one.
    """

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device, count: int) -> None:
        super().__init__(count * dim, dtype, device)
        self.dim, self.count = dim, count

    def rows(self, vectors: Sequence[LazyVector]) -> Vector:
        raise ApartError("the numbers of several runs are read as if they were those of one")

    def apart(self, vectors: Sequence[LazyVector]) -> Vector:
        """Their values [n · count, d], those of the runs of one vector after each other, as a copy."""
        return super().rows(vectors).view(-1, self.dim)


class Arenas:
    """One arena for each kind of vector."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, torch.dtype, torch.device], Arena] = {}
        self._wide: dict[int, WideArenas] = {}

    def like(self, vector: Vector) -> Arena:
        """The arena for vectors like this one."""
        kind = (vector.numel(), vector.dtype, vector.device)
        if kind not in self._kinds:
            self._kinds[kind] = Arena(*kind) if vector.device.type == "cpu" else LazyArena(*kind)
        return self._kinds[kind]

    def adopt(self, vector: Any) -> Any:
        """The same vector as a row."""
        if isinstance(vector, LazyVector):
            if vector.arena in self._kinds.values():
                return vector
            vector = vector.tensor()
        return self.like(vector).keep(vector.detach().unsqueeze(0))[0]

    def wide(self, count: int) -> WideArenas:
        """Arenas for so many runs abreast."""
        return self._wide.setdefault(count, WideArenas(count))


class WideArenas(Arenas):
    """One arena for each kind of vectors that are side by side."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def like(self, vector: Vector) -> Arena:
        kind = (vector.numel() // self.count, vector.dtype, vector.device)
        if kind not in self._kinds:
            self._kinds[kind] = WideArena(*kind, self.count)
        return self._kinds[kind]
