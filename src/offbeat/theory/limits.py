"""The points to which methods converge on quadratics f_i(w) = ½ Σ_j h_ij (w_j − c_ij)² when steps are small.

A job of Q local steps of size η moves coordinate j of client i by a_ij·(w_j − c_ij), a_ij = 1 − (1 − η·h_ij)^Q.
A method in which client i contributes a share p_i of the updates converges to where Σ p_i·a_ij·(w_j − c_ij) = 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offbeat.core.errors import SettingError

Matrix = Sequence[Sequence[float]] | np.ndarray


def pull(curvatures: Matrix, lr: float, steps: int) -> np.ndarray:
    """a_ij = 1 − (1 − η·h_ij)^Q."""
    pulled: np.ndarray = 1.0 - (1.0 - lr * np.asarray(curvatures, dtype=np.float64)) ** steps
    return pulled


def limit_point(
    curvatures: Matrix,
    centres: Matrix,
    shares: Sequence[float] | None = None,
    lr: float | None = None,
    steps: int = 1,
) -> np.ndarray:
    """The limit of a client-driven method whose server step is small, to first order in it.

    shares: p_i, those of the arrivals for FedBuff, FedAsync, AsFedAvg; equal for methods without that bias (AREA,
    DeFedAvg, one job at a time). lr and steps: the local η and Q, whose drift moves the limit where Q > 1; without lr,
    the limit for η → 0.

    >>> limit_point([[1.0], [1.0]], [[0.0], [1.0]], shares=[3.0, 1.0])
    array([0.25])
    """
    h, c = np.asarray(curvatures, dtype=np.float64), np.asarray(centres, dtype=np.float64)
    if h.shape != c.shape or h.ndim != 2:
        raise SettingError(f"curvatures {h.shape} and centres {c.shape}: both must be clients × coordinates")
    p = np.ones(len(h)) if shares is None else np.asarray(shares, dtype=np.float64)
    if p.shape != (len(h),) or p.min() < 0 or p.sum() <= 0:
        raise SettingError(f"shares: need {len(h)} numbers, none negative, not all zero")
    weights = p[:, None] * (h if lr is None else pull(h, lr, steps))
    point: np.ndarray = (weights * c).sum(axis=0) / weights.sum(axis=0)
    return point


def bias(
    curvatures: Matrix, centres: Matrix, shares: Sequence[float], lr: float | None = None, steps: int = 1
) -> float:
    """|limit − optimum|."""
    away = limit_point(curvatures, centres, shares, lr, steps) - limit_point(curvatures, centres)
    return float(np.linalg.norm(away))
