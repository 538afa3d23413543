"""Lazy arithmetic: what servers do with vectors is noted on a GPU and done later, for many runs at once.

Servers mostly add vectors and scale them (core/vectors.py). Here a server's vector is a `LazyVector`: a row of one
large matrix, and a number that it is multiplied with. Adding two of them takes a new row. On a CPU the row is filled at
once, which takes no longer than a note of it would (`Arena`). On a GPU it is noted that the row is still to be filled
(`LazyArena`); `materialise` fills all such rows, those that do not depend on each other in one operation. So thousands
of small additions, each of which would have to be launched, become a few large ones; the order of the roundings is the
same as if each had been done at once.

Elementwise functions that optimisers need (`OPERATIONS`) are noted in the same way. Any other function of torch sees
the value, as a plain tensor, and gives one.

A row that is no longer referenced is used again; a lazy one only after the next `materialise`: until then what was
noted may still read it. So in between every row is written once, and nothing has to be ordered but by what it reads.

A lazy row may also be owed: handed out before its value has been computed (`owe`). What is noted about it
waits. Reading the value of such a row computes it first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from offbeat.core.errors import OffbeatError

if TYPE_CHECKING:
    from offbeat.simulate.arena import Arena


def _root(row: Any, out: Any) -> None:
    torch.sqrt(torch.from_numpy(row), out=torch.from_numpy(out))  # on a CPU, the last bit is not always numpy's


def _sign(row: Any, out: Any) -> None:
    np.copyto(out, row > 0)  # of nan it is 0, as for torch
    out -= row < 0


class Operation(NamedTuple):
    """An elementwise function of a row, or of a row and something else: another `row`, or a `number`."""

    rows: Callable[..., Any]  # of numpy, into `out`
    tensors: Callable[..., Any]
    takes: str = ""


OPERATIONS: Mapping[str, Operation] = {
    "product": Operation(np.multiply, torch.mul, "row"),
    "quotient": Operation(np.divide, torch.div, "row"),
    "maximum": Operation(np.maximum, torch.maximum, "row"),
    "minimum": Operation(np.minimum, torch.minimum, "row"),
    "shifted": Operation(np.add, torch.add, "number"),
    "divided": Operation(np.divide, torch.div, "number"),
    "root": Operation(_root, torch.sqrt),
    "size": Operation(np.absolute, torch.abs),
    "sign": Operation(_sign, torch.sign),
}


class LazyVector:
    """A vector at a server: `scale` times a row. It can be added, subtracted and scaled, and read as a tensor.

    base: who owns the row, if that is another one; a row goes back when its owner is gone, and so is kept by `base`.
    """

    __slots__ = ("arena", "base", "scale", "slot")

    def __init__(self, arena: Arena, slot: int, scale: float = 1.0, base: LazyVector | None = None) -> None:
        self.arena, self.slot, self.scale, self.base = arena, slot, scale, base

    def __del__(self) -> None:
        if self.base is None:
            self.arena.returned.append(self.slot)

    def _scaled(self, scale: float) -> LazyVector:
        return LazyVector(self.arena, self.slot, scale, self if self.base is None else self.base)

    def __add__(self, other: Any) -> Any:
        if type(other) is not LazyVector:
            return self._apply("shifted", other, torch.add)
        if other.arena is not self.arena:
            return self.tensor() + other.tensor()
        if other.scale == 0.0:
            return self
        if self.scale == 0.0:
            return other
        return self.arena.add(self.slot, self.scale, other.slot, other.scale)

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> LazyVector:
        return self._scaled(-self.scale)

    def __mul__(self, factor: Any) -> Any:
        if not isinstance(factor, float | int):
            return self._apply("product", factor, torch.mul)
        scale = self.scale
        if scale == 1.0 or factor in (0.0, -1.0):
            return self._scaled(scale * float(factor))
        if factor == 1.0 or scale == 0.0:
            return self
        # two factors are two roundings, as in any arithmetic
        return self.arena.add(self.slot, scale, self.slot, 0.0)._scaled(float(factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        if not isinstance(divisor, Real):
            return self._apply("quotient", divisor, torch.div)
        if self.arena.matrix.is_cuda:  # where torch multiplies with the reciprocal, too, rounded once
            with np.errstate(divide="ignore"):
                return self * float(np.divide(1.0, float(divisor)))
        return self._apply("divided", divisor, torch.div)

    def __pow__(self, power: Any) -> Any:
        if power == 2:
            return self * self
        return self.sqrt() if power == 0.5 else self.tensor() ** power

    def __abs__(self) -> LazyVector:
        return self._unary("size")

    def sqrt(self) -> LazyVector:
        """Its square root, elementwise."""
        return self._unary("root")

    def square(self) -> Any:
        """Its square, elementwise."""
        return self * self

    def abs(self) -> LazyVector:
        """Its absolute values."""
        return self._unary("size")

    def sign(self) -> LazyVector:
        """The sign of each number: −1, 0 or 1."""
        return self._unary("sign")

    def maximum(self, other: Any) -> Any:
        """The larger of two, elementwise."""
        return self._apply("maximum", other, torch.maximum)

    def minimum(self, other: Any) -> Any:
        """The smaller of two, elementwise."""
        return self._apply("minimum", other, torch.minimum)

    def _unary(self, name: str) -> LazyVector:
        return self.arena.apply(name, self.slot, self.scale, self.slot, 1.0)

    def _apply(self, name: str, other: Any, function: Callable[..., Any]) -> Any:
        """An operation on this and another row or a number; anything else sees the value."""
        if OPERATIONS[name].takes == "number":
            if isinstance(other, Real):
                return self.arena.apply(name, self.slot, self.scale, self.slot, float(other))
        elif type(other) is LazyVector and other.arena is self.arena:
            return self.arena.apply(name, self.slot, self.scale, other.slot, other.scale)
        return function(self.tensor(), _plain(other))

    def tensor(self) -> torch.Tensor:
        """A copy of its value; reading it changes nothing."""
        return self.arena.rows([self])[0]

    def __getitem__(self, which: Any) -> torch.Tensor:
        return self.tensor()[which]

    def __float__(self) -> float:
        return float(self.tensor())

    def __len__(self) -> int:
        return self.arena.dim

    def __repr__(self) -> str:
        return f"LazyVector({self.tensor()!r})"

    def __eq__(self, other: object) -> Any:
        return self.tensor() == other

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Those that can be noted are; any other function of torch sees the value."""
        noted = _NOTED.get(function)
        if noted is not None and len(args) == noted[1] and not kwargs and type(args[0]) is LazyVector:
            return noted[0](*args)
        written = function.__name__.endswith("_") and not function.__name__.endswith("__")
        if (written and type(args[0]) is LazyVector) or type((kwargs or {}).get("out")) is LazyVector:
            raise _in_place(function.__name__)
        return function(*_plain(args), **_plain(kwargs or {}))


_NOTED: Mapping[Any, tuple[Callable[..., Any], int]] = {  # functions of torch: what does the same here, of how many
    torch.add: (LazyVector.__add__, 2),
    torch.sub: (LazyVector.__sub__, 2),
    torch.mul: (LazyVector.__mul__, 2),
    torch.div: (LazyVector.__truediv__, 2),
    torch.maximum: (LazyVector.maximum, 2),
    torch.minimum: (LazyVector.minimum, 2),
    torch.neg: (LazyVector.__neg__, 1),
    torch.sqrt: (LazyVector.sqrt, 1),
    torch.square: (LazyVector.square, 1),
    torch.abs: (LazyVector.abs, 1),
    torch.sign: (LazyVector.sign, 1),
}


def _read(name: str) -> Any:
    return property(lambda self: getattr(self.tensor(), name))


def _in_place(name: str) -> OffbeatError:
    return OffbeatError(
        f"{name} writes into a server's vector, which others may hold: make a new one, as in v = v + w, or take a copy "
        f"to write into, v = materialise(v).clone() of offbeat.core.vectors"
    )


def _refused(name: str) -> Any:
    def refuse(self: LazyVector, *args: Any, **kwargs: Any) -> Any:
        raise _in_place(name)

    return refuse


# Whatever else tensors have is asked of the value. A `__getattr__` would do, but slow down every look at a slot.
_ASKED = {"__array__", "__deepcopy__", "__lt__", "__le__", "__gt__", "__ge__", "__rtruediv__", "__rpow__", "__matmul__"}
for _name in _ASKED.union(name for name in dir(torch.Tensor) if not name.startswith("_")):
    if _name not in vars(LazyVector):
        setattr(LazyVector, _name, _refused(_name) if _name.endswith("_") and _name[0] != "_" else _read(_name))
for _name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"):
    setattr(LazyVector, _name, _refused(_name))


def _plain(value: Any) -> Any:
    if isinstance(value, LazyVector):
        return value.tensor()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return type(value)(_plain(v) for v in value) if isinstance(value, list | tuple) else value
