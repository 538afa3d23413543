"""Radial-directional averaging, RDA (Douillard et al. 2026, appendix D.2): lengths and directions, each by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offbeat.core.vectors import Vector, alike, materialise


def apart(vector: Vector, blocks: Sequence[int] = ()) -> tuple[Vector, Vector]:
    """The direction v/‖v‖ and the length ‖v‖ of every tensor; 0 has the direction 0.

    blocks: sizes of the tensors, by default one of all numbers. A length stands at each of its tensor's numbers.

    >>> apart(torch.tensor([3.0, 4.0, -2.0]), (2, 1))
    (tensor([ 0.6000,  0.8000, -1.0000]), tensor([5., 5., 2.]))
    """
    whole = materialise(vector)
    parts = torch.split(whole, list(blocks) or whole.numel())
    lengths = torch.cat([torch.linalg.vector_norm(part).expand_as(part) for part in parts])
    ways = torch.where(lengths == 0, whole, whole / lengths)
    return alike(vector, ways), alike(vector, lengths)
