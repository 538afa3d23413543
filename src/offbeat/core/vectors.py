"""A model is one flat vector, and servers mostly add vectors and scale them.

A runtime may put the arithmetic of servers off and do it later, all at once: that of `+`, `-`, `*`, `/`, `sqrt`,
`square`, `abs`, `sign`, `maximum` and `minimum` of vectors and numbers. Any other function of torch takes the value,
as a plain tensor (`materialise`), and gives one; nothing writes into a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

Vector = torch.Tensor  # [d] at a server; local trainers see stacked rows [..., d], one row a client
Payload = Mapping[str, Vector]  # what travels: vectors by name


def norm(vector: Vector) -> float:
    """Euclidean length of a server's vector."""
    return float(torch.linalg.vector_norm(materialise(vector)))


def dot(a: Vector, b: Vector) -> float:
    """Inner product of two of a server's vectors."""
    return float(torch.dot(materialise(a), materialise(b)))


def materialise(vector: Any) -> Vector:
    """The value of a vector whose arithmetic may not have been done yet."""
    found: Vector = vector if isinstance(vector, torch.Tensor) else vector.tensor()
    return found


def alike(vector: Any, values: Vector) -> Vector:
    """These values [d] as a vector of the same kind as another one of a server's."""
    if isinstance(vector, torch.Tensor):
        return values
    found: Vector = vector.arena.keep(values.unsqueeze(0))[0]
    return found


def marked(vector: Any, first: int, last: int) -> Vector:
    """1 from `first` to before `last` and 0 elsewhere, as a vector of the same kind as this one."""
    values = torch.zeros_like(materialise(vector))
    values[first:last] = 1.0
    return alike(vector, values)


def stacked(vectors: Iterable[Any]) -> Vector:
    """The values of several vectors as rows [n, d]."""
    given: Sequence[Any] = list(vectors)
    if isinstance(given[0], torch.Tensor) or len({*map(type, given)}) > 1:
        return torch.stack([materialise(v) for v in given])
    found: Vector = given[0].arena.rows(given)
    return found


def lengths(rows: Vector) -> Vector:
    """Euclidean length of every row, [..., d] -> [..., 1]: local trainers scale rows with it."""
    found: Vector = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return found


def descend(w: Vector, lr: float | Vector, g: Vector) -> Vector:
    """w − lr · g of rows [n, d]; lr is a number or a column [n, 1]."""
    way = lr * g
    return torch.sub(w, way, out=way)  # without memory of its own


def even(rows: int, most: int) -> int:
    """How many rows go into each part, if so many are cut into as few parts as can be, of equal size.

    >>> even(9, 4)  # 3, 3 and 3
    3
    """
    parts = -(-rows // most)
    return -(-rows // parts)
