"""What Gaussian noise is worth: exact formulas for sums to which each client contributes a known number of times.

A client that contributes m vectors of length at most C to m sums, each with noise of standard deviation z·C in every
coordinate, is as hidden as by one Gaussian mechanism with noise √(1/m)·z times its sensitivity: Gaussian mechanisms
compose exactly, so no numerical accountant is needed. ε follows from δ by the analytic form of Balle and Wang (2018).
Nothing there assumes that clients are drawn at random.

Only a client that draws its own samples in secret, each of them with the same probability and independently of the
others, gains from that: `sampled_epsilon` composes steps of the Poisson-sampled Gaussian mechanism numerically. The
privacy loss of a step is put on a grid so that its hockey-stick divergence is met on the grid and exceeded between
(Doroshenko et al. 2022, "connect the dots"), and the loss of many steps is a power of its Fourier transform.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, exp, inf, log, sqrt

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import SettingError

_LARGEST = 1e6  # ε beyond which nothing is claimed
_COARSEST, _FINEST = 5e-4, 1e-5  # spacing of the grid of privacy losses
_BEYOND = 600.0  # losses beyond it count as without bound; e to this power is a number
_STRAY = 1e-4  # of δ: what may lie beyond the ends of the grid; it is added to δ

Numbers = npt.NDArray[np.float64]


def _log_normal(x: npt.ArrayLike) -> Numbers:
    """log Φ."""
    from scipy.special import log_ndtr  # slow to import, and of no use to runs without budgets

    return np.asarray(log_ndtr(x), dtype=np.float64)


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest δ with which a Gaussian mechanism of sensitivity/noise = μ is (ε, δ)-differentially private.

    Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    if mu == 0:
        return 0.0
    first, second = (float(_log_normal(at - epsilon / mu)) for at in (mu / 2, -mu / 2))
    second += epsilon
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
        raise SettingError(f"epsilon = {epsilon:g}, delta = {delta:g}: no useful amount of noise reaches this")
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
    """The first coefficients of (1 − x)^(−1/2): the lower-triangular matrix whose square sums prefixes."""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return found


def column_norm(bands: int) -> float:
    """How much correlated noise of so many bands needs more of: the length of a column of its matrix."""
    return sqrt(sum(c * c for c in toeplitz(bands)))


# Steps on Poisson samples


@lru_cache(maxsize=4096)
def sampled_epsilon(rate: float, multiplier: float, steps: int, delta: float) -> float:
    """ε of so many steps on Poisson samples, of adding or removing one sample.

    rate: probability with which a sample is in a step, independently of everything else; 1: it is in all.
    multiplier: standard deviation of the noise over the clipping length.
    """
    if rate == 1.0 or steps == 0:
        return epsilon_of(delta, mu_of(multiplier, steps))
    return max(_composed_epsilon(rate, multiplier, steps, delta, removed) for removed in (True, False))


@lru_cache(maxsize=4096)
def steps_within(rate: float, multiplier: float, epsilon: float, delta: float) -> int:
    """The largest number of steps on Poisson samples that are (ε, δ)-differentially private."""
    if sampled_epsilon(rate, multiplier, 1, delta) > epsilon:
        return 0
    low, high = 1, 2
    while sampled_epsilon(rate, multiplier, high, delta) <= epsilon:
        low, high = high, 2 * high
        if high > 1 << 40:
            raise SettingError(f"epsilon = {epsilon:g}: no number of steps would exceed it, so no noise is needed")
    while high - low > 1:
        middle = (low + high) // 2
        within = sampled_epsilon(rate, multiplier, middle, delta) <= epsilon
        low, high = (middle, high) if within else (low, middle)
    return low


def _composed_epsilon(rate: float, multiplier: float, steps: int, delta: float, removed: bool) -> float:
    spacing = min(_COARSEST, max(_FINEST, rate / (10 * max(1.0, multiplier))))  # losses are of the order of rate/z
    losses, masses, certain = _one_step(rate, multiplier, removed, delta / steps, spacing)
    down, up = (_reach(sign * losses, masses, steps, _STRAY * delta) for sign in (-1.0, 1.0))
    first, last = -ceil(down / spacing) - 1, ceil(up / spacing) + 1
    size = 1 << (max(last - first, len(losses)) + 1).bit_length()
    spread = np.fft.rfft(masses, size) ** steps
    # entry j of the result is a loss of (steps · lowest + j) · spacing, modulo the size of the grid
    lowest = steps * round(losses[0] / spacing)
    together = np.roll(np.maximum(np.fft.irfft(spread, size), 0.0), (lowest - first) % size)[: last - first + 1]
    lost = 1.0 - (1.0 - certain) ** steps + 2 * _STRAY * delta
    return _epsilon_from(spacing * np.arange(first, first + len(together), dtype=np.float64), together, lost, delta)


@lru_cache(maxsize=256)
def _one_step(
    rate: float, multiplier: float, removed: bool, delta: float, spacing: float
) -> tuple[Numbers, Numbers, float]:
    """(privacy losses on the grid, their probabilities, the probability of an unbounded loss) of one step."""

    def hockey_stick(epsilon: Numbers) -> Numbers:
        """δ of the pair (mixture, normal law) or, if a sample is added, of (normal law, mixture)."""
        a = np.exp(epsilon)
        if removed:
            inside = np.maximum((a - (1.0 - rate)) / rate, 1e-300)
            at = multiplier**2 * np.log(inside) + 0.5  # beyond it the mixture is more than e^ε times as likely
            above = (1.0 - rate - a) * _tail(at / multiplier) + rate * _tail((at - 1.0) / multiplier)
            return np.where(a > 1.0 - rate, above, 1.0 - a)
        inside = np.maximum((1.0 / a - (1.0 - rate)) / rate, 1e-300)
        at = multiplier**2 * np.log(inside) + 0.5  # below it the normal law is
        below = (1.0 - a * (1.0 - rate)) * _tail(-at / multiplier) - a * rate * _tail((1.0 - at) / multiplier)
        return np.where(1.0 / a > 1.0 - rate, below, 0.0)

    far = _farthest(hockey_stick, _STRAY * delta)
    # a sample that is removed makes no output less likely than by 1 − rate
    near = -log(1.0 - rate) if removed else _farthest(lambda e: hockey_stick(-e) - (1.0 - np.exp(-e)), 1e-18)
    first, last = -ceil(near / spacing) - 1, ceil(far / spacing) + 1
    grid = spacing * np.arange(first, last + 1, dtype=np.float64)
    found = np.maximum(hockey_stick(grid), 0.0)
    # δ is convex in e^ε; between the points of the grid it becomes a straight line, whose kinks are the probabilities
    rise = np.diff(found) / np.diff(np.exp(grid))
    kinks = np.concatenate([[rise[0] + 1.0], np.diff(rise), [-rise[-1]]])
    masses = np.maximum(kinks * np.exp(grid), 0.0)
    return grid, masses, float(found[-1])


def _tail(x: Numbers) -> Numbers:
    """The probability that a normal number is larger."""
    return np.asarray(np.exp(_log_normal(-x)), dtype=np.float64)


def _farthest(of: Callable[[Numbers], Numbers], least: float) -> float:
    """Where something that falls is below a number, or where `_BEYOND` is."""
    at = 1.0
    while float(of(np.array([at]))[0]) > least and at < _BEYOND:
        at = min(1.25 * at, _BEYOND)
    return at


def _reach(losses: Numbers, masses: Numbers, steps: int, least: float) -> float:
    """What the sum of so many losses exceeds with at most this probability (Chernoff's bound)."""
    best = inf
    for power in np.geomspace(1e-3, 60.0, 60):
        shift = float(np.max(losses))
        moment = power * shift + log(max(float(np.sum(masses * np.exp(power * (losses - shift)))), 1e-300))
        best = min(best, (steps * moment - log(least)) / power)
    return best


def _epsilon_from(losses: Numbers, masses: Numbers, lost: float, delta: float) -> float:
    """The smallest ε of privacy losses on a grid, given what δ has lost already."""
    if lost >= delta:
        return inf
    above = np.cumsum(masses[::-1])[::-1]
    scaled = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]

    def holds(epsilon: float) -> bool:
        at = int(np.searchsorted(losses, epsilon, side="right"))
        return at >= len(losses) or lost + above[at] - exp(min(epsilon, _BEYOND)) * scaled[at] <= delta

    return 0.0 if holds(0.0) else _smallest(holds, _LARGEST)
