"""How often clients report, how stale updates are and how long a round takes: closed forms for memoryless clients.

The mean staleness holds for any distribution of times: in steady state an arrival finds C − 1 other jobs in flight, so
a job waits through C − 1 arrivals on average, which are (C − 1)/K server steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from offbeat.core.errors import SettingError, at_least, positive


def shares(rates: Sequence[float], concurrency: int | None = None) -> list[float]:
    """The share of each client among the arrivals.

    concurrency: None: client-driven, λ_i/Σλ. C clients at work, the next drawn among the idle: the busy sets have
    probability ∝ Π 1/λ_i (detailed balance), so the share of client i is ∝ e_{C−1} of the others' mean times, the
    elementary symmetric polynomial: uniform for C = 1 and ∝ λ_i for C = n. Between the two it favours fast clients.
    """
    _rates(rates)
    if concurrency is None:
        return [rate / sum(rates) for rate in rates]
    _concurrency(concurrency, len(rates))
    means = _means(rates)
    if concurrency == 1:
        return [1.0 / len(rates)] * len(rates)
    raw = [_symmetric(means[:i] + means[i + 1 :], concurrency - 1) for i in range(len(means))]
    return [x / sum(raw) for x in raw]


def arrival_rate(rates: Sequence[float], concurrency: int | None = None) -> float:
    """Arrivals in a unit of time: Σλ_i client-driven; (n − C + 1)·e_{C−1}/e_C of the mean times when C are at work."""
    _rates(rates)
    if concurrency is None:
        return sum(rates)
    n = len(rates)
    _concurrency(concurrency, n)
    means = _means(rates)
    scale = sum(1.0 / rate for rate in rates) / n  # _means are relative to it
    return (n - concurrency + 1) * _symmetric(means, concurrency - 1) / _symmetric(means, concurrency) / scale


def staleness(in_flight: float, size: float) -> float:
    """(C − 1)/K: mean staleness over all arrivals, for C jobs in flight and a server step every K arrivals.

    FedBuff: C = n client-driven or its concurrency. FedAST: C = R, K = b. FedAsync: K = 1.
    """
    positive(in_flight=in_flight, size=size)
    return max(0.0, in_flight - 1.0) / size


def worst_staleness(
    rates: Sequence[float], size: int, arrivals: float, failure: float = 0.01, concurrency: int | None = None
) -> float:
    """A τ that no update exceeds in so many arrivals, with probability 1 − δ; memoryless times have no upper bound.

    A union bound. The number of arrivals during a job of the slowest client exceeds m with probability (1 − q)^m, where
    q is its rate over that of all arrivals; client-driven it is its share, with C at work an upper bound is used.
    """
    positive(arrivals=arrivals, failure=failure)
    if len(rates) == 1 or concurrency == 1:
        return 0.0
    slow = min(rates)
    q = min(0.5, slow / max(arrival_rate(rates, concurrency), slow))
    return math.ceil(math.log(max(arrivals, 1.0) / failure) / -math.log1p(-q) / size)


def area_staleness(rates: Sequence[float], server: float) -> list[float]:
    """λ_s/λ_i: server steps between two messages of each client, under a Poisson criterion."""
    _rates(rates)
    positive(server_rate=server)
    return [server / rate for rate in rates]


def buffer_time(rates: Sequence[float], size: int, concurrency: int | None = None) -> float:
    """Time between two server steps of FedBuff: K over the arrival rate."""
    at_least(1, size=size)
    return size / arrival_rate(rates, concurrency)


def synchronous_time(rate: float, clients: int, first: int | None = None) -> float:
    """(1/λ)·Σ_{k=s−m+1}^{s} 1/k: time until the first m of s equal clients are done, by default all (FedAST, §4)."""
    positive(rate=rate)
    at_least(1, clients=clients)
    wanted = clients if first is None else first
    if not 1 <= wanted <= clients:
        raise SettingError(f"first = {wanted}: between 1 and clients = {clients}")
    return sum(1.0 / k for k in range(clients - wanted + 1, clients + 1)) / rate


def slowest_time(rates: Sequence[float], points: int = 20_000) -> float:
    """∫ 1 − Π(1 − e^{−λ_i t}) dt: time until all of these unequal clients are done, by Simpson's rule."""
    _rates(rates)
    slow = min(rates)
    powers = [rate / slow for rate in rates]
    # with u = e^{−λ_min·t}: (1/λ_min) ∫_0^1 (1 − Π(1 − u^{λ_i/λ_min}))/u du; at 0, the number of the slowest
    width = 1.0 / points

    def height(u: float) -> float:
        if u == 0.0:
            return float(sum(power == 1.0 for power in powers))
        return -math.expm1(sum(math.log1p(-(u**power)) for power in powers)) / u if u < 1.0 else 1.0

    inner = sum((4.0 if i % 2 else 2.0) * height(i * width) for i in range(1, points))
    return (height(0.0) + inner + height(1.0)) * width / 3.0 / slow


def _rates(rates: Sequence[float]) -> None:
    if not rates:
        raise SettingError("rates is empty: need one positive rate per client")
    for rate in rates:
        positive(rate=rate)


def _concurrency(concurrency: int, clients: int) -> None:
    if not 1 <= concurrency <= clients:
        raise SettingError(f"concurrency = {concurrency}: between 1 and the {clients} clients")


def _means(rates: Sequence[float]) -> list[float]:
    scale = sum(1.0 / rate for rate in rates) / len(rates)
    return [1.0 / rate / scale for rate in rates]


def _symmetric(values: Sequence[float], order: int) -> float:
    """The elementary symmetric polynomial e_order: the sum of the products of all sets of so many values."""
    found = [1.0] + [0.0] * order
    for value in values:
        for k in range(order, 0, -1):
            found[k] += value * found[k - 1]
    return found[order]
