"""Time to a small gradient if client i takes the same time τ_i for every gradient, and all clients have the same data.

Symbols: L smoothness of f, σ² variance of a gradient, Δ = f(w_0) − f*, ε the mean squared gradient to be reached,
τ_1 ≤ … ≤ τ_n. For every m, the m fastest clients together take H_m = (1/m Σ_{i≤m} 1/τ_i)^−1 for m gradients.

No method of this kind needs less than a constant times min_m H_m·(LΔ/ε + σ²LΔ/(mε²)) in the worst case (Tyurin and
Richtárik 2023). Rennala SGD and Ringmaster ASGD need no more than other constants times it. What is known of
asynchronous SGD has m = n, so it grows with the slowest clients, which the best m leaves out.

The three orders were compared with a later paper of Tyurin's that quotes them. The constants of the step sizes and of K
were not compared with the papers' texts. They are large enough for the usual bounds on the mean squared gradient,
2Δ/(γK) + 2γLσ² if delays are below R and γ ≤ 1/(2RL), and 2Δ/(γK) + γLσ²/S for batches of S and γ ≤ 1/L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core.errors import Checked, NotNegative, Positive, SettingError, positive
from offbeat.theory.advice import Advice, changed, halvings


@dataclass(frozen=True)
class FixedTimes(Checked):
    """A problem.   smoothness: L.   sigma: σ.   gap: Δ, f(w_0) − f*."""

    smoothness: Positive
    sigma: NotNegative = 1.0
    gap: Positive = 1.0


def threshold(problem: FixedTimes, epsilon: float) -> int:
    """R = max(1, ⌈σ²/ε⌉): Ringmaster's delay threshold, and S, Rennala's batch."""
    positive(epsilon=epsilon)
    return max(1, math.ceil(problem.sigma**2 / epsilon))


def ringmaster_step(problem: FixedTimes, epsilon: float, delay: int | None = None) -> float:
    """γ = min(1/(2RL), ε/(4Lσ²)), for the threshold R or a given bound on the delay."""
    most = threshold(problem, epsilon) if delay is None else delay
    noise = 4.0 * problem.smoothness * problem.sigma**2
    return min(1.0 / (2.0 * most * problem.smoothness), epsilon / noise if noise else math.inf)


def ringmaster_steps(problem: FixedTimes, epsilon: float) -> int:
    """K = ⌈8RLΔ/ε + 16σ²LΔ/ε²⌉ server steps, after which the mean squared gradient is at most ε."""
    scale = problem.smoothness * problem.gap / epsilon
    return math.ceil(8.0 * threshold(problem, epsilon) * scale + 16.0 * problem.sigma**2 * scale / epsilon)


def rennala_step(problem: FixedTimes, epsilon: float) -> float:
    """γ = min(1/L, εS/(2Lσ²)) for a batch of S."""
    noise = 2.0 * problem.smoothness * problem.sigma**2
    batch = threshold(problem, epsilon)
    return min(1.0 / problem.smoothness, epsilon * batch / noise if noise else math.inf)


def rennala_steps(problem: FixedTimes, epsilon: float) -> int:
    """K = ⌈24LΔ/ε⌉ server steps."""
    return math.ceil(24.0 * problem.smoothness * problem.gap / epsilon)


def fastest(times: Sequence[float], count: float) -> tuple[float, int]:
    """(min_m H_m·(1 + count/m), the m that attains it): the time of `count` gradients and one of each of m clients."""
    ordered, found, speed = _ordered(times), (math.inf, 0), 0.0
    for m, time in enumerate(ordered, 1):
        speed += 1.0 / time
        found = min(found, ((m + count) / speed, m))
    return found


def window_time(times: Sequence[float], steps: int) -> float:
    """t(R) = 2·min_m H_m·(1 + R/m): no R consecutive server steps of Ringmaster take longer, nor a batch of R."""
    return 2.0 * fastest(times, steps)[0]


def ringmaster_time(problem: FixedTimes, times: Sequence[float], epsilon: float) -> float:
    """t(R)·⌈K/R⌉."""
    delay = threshold(problem, epsilon)
    return window_time(times, delay) * math.ceil(ringmaster_steps(problem, epsilon) / delay)


def rennala_time(problem: FixedTimes, times: Sequence[float], epsilon: float) -> float:
    """t(S)·K."""
    return window_time(times, threshold(problem, epsilon)) * rennala_steps(problem, epsilon)


def optimal_order(problem: FixedTimes, times: Sequence[float], epsilon: float) -> float:
    """min_m H_m·(LΔ/ε + σ²LΔ/(mε²)): the lower bound, up to a constant, which Ringmaster and Rennala attain."""
    positive(epsilon=epsilon)
    return fastest(times, problem.sigma**2 / epsilon)[0] * problem.smoothness * problem.gap / epsilon


def asynchronous_order(problem: FixedTimes, times: Sequence[float], epsilon: float) -> float:
    """H_n·(LΔ/ε + σ²LΔ/(nε²)): asynchronous SGD with steps that shrink with the delay, up to a constant."""
    positive(epsilon=epsilon)
    speed = sum(1.0 / time for time in _ordered(times))
    return (len(times) + problem.sigma**2 / epsilon) / speed * problem.smoothness * problem.gap / epsilon


def unlike_order(problem: FixedTimes, times: Sequence[float], epsilon: float) -> float:
    """τ_n·LΔ/ε + mean(τ)·σ²LΔ/(nε²): the lower bound, up to a constant, if the clients' data may differ.

    Malenia SGD and Ringleader ASGD attain it: everybody has to be heard, so the slowest client counts.
    """
    positive(epsilon=epsilon)
    ordered, scale = _ordered(times), problem.smoothness * problem.gap / epsilon
    noise = sum(ordered) / len(ordered) ** 2 * problem.sigma**2 / epsilon
    return (ordered[-1] + noise) * scale


def advise(problem: FixedTimes, rates: Sequence[float], epsilon: float = 0.01) -> Advice:
    """What the theorems mean for a target ε, if client i makes rates[i] gradients in a unit of time."""
    times = [1.0 / rate for rate in rates]
    delay = threshold(problem, epsilon)
    best = optimal_order(problem, times, epsilon)
    _, used = fastest(times, problem.sigma**2 / epsilon)
    facts: dict[str, Any] = {
        "threshold R, batch S": float(delay),
        "Ringmaster's step γ": ringmaster_step(problem, epsilon),
        "its server steps K for ε": float(ringmaster_steps(problem, epsilon)),
        "time": ringmaster_time(problem, times, epsilon),
        "Rennala's step γ": rennala_step(problem, epsilon),
        "its server steps K": float(rennala_steps(problem, epsilon)),
        "its time": rennala_time(problem, times, epsilon),
        "order of the lower bound": best,
        "clients that it needs": f"the {used} fastest of {len(times)}",
        "asynchronous SGD's order": asynchronous_order(problem, times, epsilon),
        "over the lower bound's": asynchronous_order(problem, times, epsilon) / best,
        "order if data differ": unlike_order(problem, times, epsilon),
    }
    names = ("smoothness", "sigma", "gap")
    now = {name: float(getattr(problem, name)) for name in names} | {"epsilon": epsilon}

    def time(values: Mapping[str, float]) -> float:
        return ringmaster_time(changed(problem, values, names), times, values["epsilon"])

    notes = ["the times are upper bounds, with the theorems' constants; the orders have none, so compare them only"]
    return Advice(
        "Ringmaster ASGD and Rennala SGD, fixed times (smooth): E|∇f|² ≤ ε", facts, halvings(time, now), notes
    )


def _ordered(times: Sequence[float]) -> list[float]:
    if not times:
        raise SettingError("times is empty: need one positive time per client")
    for time in times:
        positive(time=time)
    return sorted(times)
