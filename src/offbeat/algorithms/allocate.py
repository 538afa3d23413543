"""How many requests each of several tasks gets (FedAST, algorithms 3 and 4, appendix A)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from offbeat.core.errors import SettingError
from offbeat.core.vectors import Vector, norm


def variance(updates: Sequence[Vector]) -> float:
    """(1/V) Σ |Δ_i − mean|² / |mean|²: how unlike the last updates are, whatever their length (algorithm 4, line 2)."""
    total = updates[0]
    for update in updates[1:]:
        total = total + update
    mean = total * (1.0 / len(updates))
    length = _squared(norm(mean))
    spread = sum(_squared(norm(update - mean)) for update in updates) / len(updates)
    return spread / length if length > 0 else math.inf


def _squared(length: float) -> float:
    return length**2 if length < 1e150 else math.inf  # a power that is too large is an error in Python


def divide(total: int, weights: Mapping[int, float]) -> dict[int, int]:
    """Whole numbers in proportion to the weights, each at least 1, which add up to the total.

    >>> divide(10, {0: 1.0, 1: 1.0, 2: 3.0})
    {0: 2, 1: 2, 2: 6}
    """
    if total < len(weights):
        raise SettingError(f"{total} requests for {len(weights)} tasks: each needs at least one")
    finite = [w for w in weights.values() if math.isfinite(w) and w > 0]
    most = max(finite, default=1.0)
    usable = {k: (w / most if math.isfinite(w) else 1.0) for k, w in weights.items()}
    whole = sum(usable.values())
    if whole <= 0:
        usable, whole = dict.fromkeys(weights, 1.0), float(len(weights))
    free = total - len(weights)  # after one for each, the rest as nearly in proportion as whole numbers allow
    exact = {k: max(total * w / whole - 1.0, 0.0) for k, w in usable.items()}
    scale = free / sum(exact.values()) if sum(exact.values()) > 0 else 0.0
    exact = {k: x * scale for k, x in exact.items()}
    parts = {k: int(x) for k, x in exact.items()}
    left = free - sum(parts.values())
    for k in sorted(exact, key=lambda k: (parts[k] - exact[k], k))[:left]:  # the largest remainders
        parts[k] += 1
    return {k: 1 + parts[k] for k in weights}
