"""Random positive numbers, each as a record of three functions: mean, distribution function, draw.

A draw is made from one uniform number and no more, so adding one part to a timing model (a network, dropouts)
leaves the draws of the others where they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from offbeat.core.errors import SettingError
from offbeat.core.random import CLIENT, Stream, key

# What is fixed for each client in a run; two of them never share a key.
RATE, SPEED, PHONE, USER, DELAYS, PHASE = range(6)

_Z = NormalDist()


@dataclass(frozen=True, slots=True)
class Law:
    """A distribution on the positive numbers.

    >>> law = exponential(2.0)
    >>> law.mean, round(law.cdf(2.0), 3), round(law.draw(0.5), 3)
    (2.0, 0.632, 1.386)
    """

    mean: float
    cdf: Callable[[float], float]
    draw: Callable[[float], float]  # from a uniform number in (0, 1)


def point(value: float = 1.0) -> Law:
    """Always this value."""
    return Law(value, lambda t: float(t >= value), lambda u: value)


def exponential(mean: float = 1.0) -> Law:
    """Memoryless, with this mean."""
    return shifted(0.0, mean)


def shifted(shift: float, mean: float) -> Law:
    """`shift` plus an exponential time with this mean."""
    log = math.log
    return Law(
        shift + mean,
        lambda t: -math.expm1((shift - t) / mean) if t > shift else 0.0,
        lambda u: shift - mean * log(u),
    )


def uniform(low: float, high: float) -> Law:
    """Evenly spread over [low, high]."""
    width = high - low
    if width == 0:
        return point(low)
    return Law((low + high) / 2, lambda t: min(1.0, max(0.0, (t - low) / width)), lambda u: low + width * u)


def lognormal(median: float, sigma: float) -> Law:
    """`median` times e to the power of a normal number with standard deviation `sigma`."""
    if sigma == 0:
        return point(median)
    return Law(
        median * math.exp(sigma * sigma / 2),
        lambda t: _Z.cdf(math.log(t / median) / sigma) if t > 0 else 0.0,
        lambda u: median * math.exp(sigma * _Z.inv_cdf(u)),
    )


def pareto(scale: float, shape: float) -> Law:
    """P(T > t) = (scale / t)^shape from `scale` on; the mean is infinite when shape ≤ 1."""
    power = -1 / shape
    return Law(
        scale * shape / (shape - 1) if shape > 1 else math.inf,
        lambda t: 1 - (scale / t) ** shape if t > scale else 0.0,
        lambda u: scale * u**power,
    )


def normal(mean: float, std: float, floor: float) -> Law:
    """A normal number; what falls below `floor` becomes `floor`."""
    if std == 0:
        return point(max(mean, floor))
    z = (floor - mean) / std
    return Law(
        floor * _Z.cdf(z) + mean * _Z.cdf(-z) + std * _Z.pdf(z),
        lambda t: _Z.cdf((t - mean) / std) if t >= floor else 0.0,
        lambda u: max(floor, mean + std * _Z.inv_cdf(u)),
    )


def inverse_normal(mean: float, std: float, floor: float) -> Law:
    """1 / s for a speed s that is normal, with what falls below `floor` raised to it: the time of one unit."""
    if std == 0:
        return point(1 / max(mean, floor))
    return Law(
        _mean_inverse(mean, std, floor),
        lambda t: 0.0 if t <= 0 else _Z.cdf((mean - 1 / t) / std) if t < 1 / floor else 1.0,
        lambda u: 1 / max(floor, mean + std * _Z.inv_cdf(u)),
    )


def _mean_inverse(mean: float, std: float, floor: float, points: int = 400) -> float:
    # No elementary form: the mass at the floor exactly, the rest by Simpson's rule over 8 standard deviations.
    low = (floor - mean) / std
    width = (max(low, 0.0) + 8 - low) / points
    weights = (1 if i in (0, points) else 4 if i % 2 else 2 for i in range(points + 1))
    values = (_Z.pdf(low + i * width) / (floor + std * i * width) for i in range(points + 1))
    return _Z.cdf(low) / floor + sum(w * v for w, v in zip(weights, values, strict=True)) * width / 3


def one_each(name: str, values: Sequence[float], clients: int) -> list[float]:
    """The values, if there is exactly one for each client."""
    if len(values) != clients:
        raise SettingError(f"{name} has {len(values)} numbers for {clients} clients; give one for each")
    return list(values)


def each(law: Law, clients: int, seed: int, what: int) -> list[float]:
    """One draw for every client, fixed for the run; `what` is one of the purposes above."""
    draw = law.draw
    return [draw(Stream(key(seed, CLIENT, client, what)).uniform()) for client in range(clients)]


def divide(shares: Sequence[float], clients: int, seed: int, what: int) -> list[int]:
    """The class of every client: exact shares, rounded by largest remainder, handed out in a random order."""
    exact = [share / sum(shares) * clients for share in shares]
    counts = [math.floor(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: clients - sum(counts)]:
        counts[i] += 1
    classes = [i for i, count in enumerate(counts) for _ in range(count)]
    order = sorted(range(clients), key=lambda client: key(seed, CLIENT, client, what))
    result = [0] * clients
    for client, which in zip(order, classes, strict=True):
        result[client] = which
    return result
