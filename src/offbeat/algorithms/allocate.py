"""How many requests each of several tasks gets (FedAST, algorithms 3 and 4, appendix A)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from offbeat.core.errors import SettingError
from offbeat.core.vectors import Vector, materialise, norm


def variance(updates: Sequence[Vector]) -> float:
    """(1/V) Σ |Δ_i − mean|² / |mean|²: how unlike the last updates are, whatever their length (algorithm 4, line 2)."""
    total = updates[0]
    for update in updates[1:]:
        total = total + update
    mean = total * (1.0 / len(updates))
    length = _squared(norm(mean))
    spread = sum(_squared(norm(update - mean)) for update in updates) / len(updates)
    return spread / length if length > 0 else math.inf


def spread(updates: Sequence[Vector], left_out: Sequence[tuple[int, int]]) -> Vector:
    """`variance` without some parts of the vectors, as a number [1] that nobody waits for on a GPU.

    left_out: from where to where, in order.
    """
    rows = torch.stack([materialise(update) for update in updates])
    edges = [0, *(edge for part in left_out for edge in part), rows.shape[1]]
    kept = [rows[:, a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    means = [part.mean(0) for part in kept]
    apart = torch.stack([(part - mean).square().sum() for part, mean in zip(kept, means, strict=True)]).sum()
    length = torch.stack([mean.square().sum() for mean in means]).sum()
    return (apart / (len(rows) * length)).reshape(1)


def _squared(length: float) -> float:
    return length**2 if length < 1e150 else math.inf  # a power that is too large is an error in Python


def divide(total: int, weights: Mapping[int, float]) -> dict[int, int]:
    """Whole numbers in proportion to the weights, each at least 1, which add up to the total.

    >>> divide(10, {0: 1.0, 1: 1.0, 2: 3.0})
    {0: 2, 1: 2, 2: 6}
    """
    if total < len(weights):
        raise SettingError(f"{total} requests for {len(weights)} tasks: each needs at least one")
    free = total - len(weights)  # after one for each, the rest as nearly in proportion as whole numbers allow
    exact = {k: max(total * share - 1.0, 0.0) for k, share in _shares(weights).items()}
    scale = free / sum(exact.values()) if sum(exact.values()) > 0 else 0.0
    exact = {k: x * scale for k, x in exact.items()}
    parts = {k: int(x) for k, x in exact.items()}
    left = free - sum(parts.values())
    for k in sorted(exact, key=lambda k: (parts[k] - exact[k], k))[:left]:  # the largest remainders
        parts[k] += 1
    return {k: 1 + parts[k] for k in weights}


def divide_in(total: int, weights: Mapping[int, float], packet: int) -> dict[int, int]:
    """In packets: one for each, then one after the other for the task that is furthest below its part.

    That is how the authors of FedAST divide requests in their demonstration. If the total is no multiple of a packet,
    what is left goes the same way.

    >>> divide_in(384, {0: 2.0, 1: 1.0, 2: 1.0}, 32)
    {0: 192, 1: 96, 2: 96}
    """
    if total < packet * len(weights):
        raise SettingError(f"{total} requests for {len(weights)} tasks: each needs at least {packet}")
    lacking = {k: int(total * share) - packet for k, share in _shares(weights).items()}
    parts = dict.fromkeys(weights, packet)
    while (left := total - sum(parts.values())) > 0:
        next_ = max(lacking, key=lambda k: lacking[k])
        parts[next_] += min(packet, left)
        lacking[next_] -= packet
    return parts


def _shares(weights: Mapping[int, float]) -> dict[int, float]:
    """Weights as shares of one; those that are not finite count as the largest there is."""
    most = max((w for w in weights.values() if math.isfinite(w) and w > 0), default=1.0)
    usable = {k: (w / most if math.isfinite(w) else 1.0) for k, w in weights.items()}
    whole = sum(usable.values())
    return {k: w / whole if whole > 0 else 1.0 / len(weights) for k, w in usable.items()}
