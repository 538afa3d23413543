"""What Gaussian noise is worth: exact formulas for sums to which each client contributes a known number of times.

A client that contributes m vectors of length at most C to m sums, each with noise of standard deviation z·C in every
coordinate, is as hidden as by one Gaussian mechanism with noise √(1/m)·z times its sensitivity: Gaussian mechanisms
compose exactly, so no numerical accountant is needed. ε follows from δ by the analytic form of Balle and Wang (2018).
Nothing here assumes that clients are drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, sqrt

from scipy.special import log_ndtr

from offbeat.core.errors import SettingError

_LARGEST = 1e6  # ε beyond which nothing is claimed


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest δ with which a Gaussian mechanism of sensitivity/noise = μ is (ε, δ)-differentially private.

    Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    if mu == 0:
        return 0.0
    first, second = float(log_ndtr(mu / 2 - epsilon / mu)), epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return max(0.0, exp(first) - exp(min(second, 0.0)))


def epsilon_of(delta: float, mu: float) -> float:
    """The smallest ε of a Gaussian mechanism with sensitivity/noise = μ; inf beyond a million."""
    if mu == 0 or delta_of(0.0, mu) <= delta:
        return 0.0
    return _smallest(lambda epsilon: delta_of(epsilon, mu) <= delta, _LARGEST)


def mu_of(multiplier: float, participations: int, norm: float = 1.0) -> float:
    """Sensitivity over noise of a client that contributes so many times.

    multiplier: z, the standard deviation of the noise over the clipping length.   norm: of the matrix column by which
    correlated noise spreads a contribution; 1 for independent noise.
    """
    return norm * sqrt(participations) / multiplier


def multiplier_for(epsilon: float, delta: float, participations: int, norm: float = 1.0) -> float:
    """The smallest noise multiplier with which so many contributions are (ε, δ)-differentially private."""
    found = _smallest(lambda z: delta_of(epsilon, mu_of(z, participations, norm)) <= delta, 1e9)
    if found == inf:
        raise SettingError(f"epsilon = {epsilon:g}, delta = {delta:g}: no noise that is worth adding gives that")
    return found


def _smallest(holds: Callable[[float], bool], most: float) -> float:
    """The smallest number above 0 from which on something holds, from above; inf: none up to `most`."""
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2.0 * high
        if high > most:
            return inf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
        if high - low <= 1e-12 * high:
            break
    return high


def toeplitz(bands: int) -> list[float]:
    """The first coefficients of (1 − x)^(−1/2): the lower-triangular matrix whose square is that of prefix sums."""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return found


def column_norm(bands: int) -> float:
    """How much correlated noise of so many bands needs more of: the length of a column of its matrix."""
    return sqrt(sum(c * c for c in toeplitz(bands)))
