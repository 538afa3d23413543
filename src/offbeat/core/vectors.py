"""A model is one flat vector, and servers only ever add vectors and scale them.

Servers use `+`, `-` and multiplication by a number; anything else they want of a vector they ask for by name
here. Nothing else is promised, so that a runtime may record the arithmetic and do it later, all at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

Vector = torch.Tensor  # [d] at a server; local halves see stacked rows [..., d], one row a client
Payload = Mapping[str, Vector]  # what travels: vectors by name


def norm(vector: Vector) -> float:
    """Euclidean length of a server's vector."""
    return float(torch.linalg.vector_norm(vector))


def dot(a: Vector, b: Vector) -> float:
    """Inner product of two of a server's vectors."""
    return float(torch.dot(a, b))


def lengths(rows: Vector) -> Vector:
    """Euclidean length of every row, [..., d] -> [..., 1]: local halves scale rows with it."""
    found: Vector = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return found


def nbytes(payload: Payload) -> int:
    """Size of a payload on the wire."""
    return sum(v.numel() * v.element_size() for v in payload.values())
