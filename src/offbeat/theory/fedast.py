"""FedAST: theorems 1 and 2, corollary 1.1, the optimum of (6); with the constants that appendices E and F derive.

Symbols, for one task: L smoothness, τ local steps, b buffer, R active requests, γ^max largest staleness, σ_l² noise,
σ_g² = max_i |∇f_i − ∇f|², δ = f(x_0) − min f, η_s and η_c the server's and the clients' step sizes, T server steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offbeat.algorithms.allocate import divide
from offbeat.core.errors import Checked, Count, NotNegative, Positive, SettingError, at_least
from offbeat.theory.advice import Advice, Arrivals, Theorem
from offbeat.theory.bound import Bound, Condition


@dataclass(frozen=True)
class FedASTTask(Checked):
    """The constants of one task that theorem 1 uses.

    smoothness: L.   steps: τ.   size: b.   requests: R.   staleness: γ^max.   sigma: σ_l.   gamma: σ_g.   gap: δ.
    """

    smoothness: Positive
    steps: Count = 1
    size: Count = 1
    requests: Count = 1
    staleness: NotNegative = 0.0
    sigma: NotNegative = 1.0
    gamma: NotNegative = 1.0
    gap: Positive = 1.0


def server_step(task: FedASTTask) -> float:
    """η_s = sqrt(τ·b), the largest that theorem 1 allows and corollary 1.1's choice."""
    return math.sqrt(task.steps * task.size)


def client_step(task: FedASTTask, server_steps: float) -> float:
    """Corollary 1.1: η_c = 1/(τ·L·sqrt(T))."""
    return 1.0 / (task.steps * task.smoothness * math.sqrt(server_steps))


def largest_client_step(task: FedASTTask) -> float:
    """Theorem 1: η_c ≤ min(1/(6Lτ·sqrt(τb)), 1/(4Lτ·sqrt(τ·R·γ^max)))."""
    L, tau = task.smoothness, task.steps
    first = 1.0 / (6.0 * L * tau * math.sqrt(tau * task.size))
    late = task.requests * task.staleness
    return first if late == 0 else min(first, 1.0 / (4.0 * L * tau * math.sqrt(tau * late)))


def least_steps(task: FedASTTask) -> float:
    """Corollary 1.1: T ≥ τ·max(36b, 16·R·γ^max)."""
    return task.steps * max(36.0 * task.size, 16.0 * task.requests * task.staleness)


def conditions(task: FedASTTask, server: float, client: float) -> list[Condition]:
    """What theorem 1 asks of the step sizes."""
    return [
        Condition("η_s ≤ sqrt(τb)", server, server_step(task)),
        Condition("η_c ≤ min(1/(6Lτ·sqrt(τb)), 1/(4Lτ·sqrt(τRγ)))", client, largest_client_step(task)),
    ]


def rate_terms(task: FedASTTask, server: float, client: float, server_steps: float) -> Bound:
    """Theorem 1's (4) as printed, without constants."""
    L, tau, b, R, T = task.smoothness, task.steps, task.size, task.requests, server_steps
    local, unlike = task.sigma**2, task.gamma**2
    return Bound(
        {
            "start": task.gap / (T * client * server * tau),
            "noise and heterogeneity": (L * client * server / b + L**2 * client**2 * tau) * (local + tau * unlike),
            "asynchrony": L**2 * server**2 * client**2 * tau * R / b**2 * (local + tau * R * unlike),
        },
        exact=False,
    )


def corollary_terms(task: FedASTTask, server_steps: float) -> Bound:
    """Corollary 1.1's (5) as printed, without constants."""
    tau, b, R, T = task.steps, task.size, task.requests, server_steps
    local, unlike = task.sigma**2, task.gamma**2
    return Bound(
        {
            "start": task.gap * task.smoothness / math.sqrt(b * tau * T),
            "noise and heterogeneity": (1.0 / math.sqrt(T * b * tau) + 1.0 / (tau * T)) * (local + tau * unlike),
            "asynchrony": R / (T * b) * (local + tau * R * unlike),
        },
        exact=False,
    )


def bound(task: FedASTTask, server: float, client: float, server_steps: float) -> Bound:
    """The bound on (1/T) Σ E|∇f(x_t)|² with its constants, from the end of theorem 1's proof (appendix E.3.1)."""
    L, tau, b, R, T = task.smoothness, task.steps, task.size, task.requests, server_steps
    scaled = tau * server  # η̃_s
    D = L**2 * client**2 * tau * (tau - 1)
    if D >= 1:
        raise SettingError(f"client step = {client:g}: L²η_c²τ(τ−1) = {D:g} must stay below 1")
    step, rest = L * scaled * client, 1.0 - D
    late = (1.0 + 3.0 * R * (L * client * tau) ** 2 / (2.0 * rest)) * step**2 * R / (2.0 * b**2 * tau)
    local = step / (2.0 * tau * b) + 3.0 * step * (L * client) ** 2 * tau / (4.0 * rest)
    local += (L * client) ** 2 * tau / (4.0 * rest)
    unlike = 3.0 * step / (2.0 * b) + 3.0 * step * D / (2.0 * rest) + D / (2.0 * rest)
    late_unlike = (1.0 + D) / rest * 3.0 * step**2 * R**2 / (2.0 * b**2)
    return Bound(
        {
            "start": 11.0 * task.gap / (T * scaled * client),
            "noise": 11.0 * local * task.sigma**2,
            "heterogeneity": 11.0 * unlike * task.gamma**2,
            "asynchrony": 11.0 * (late * task.sigma**2 + late_unlike * task.gamma**2),
        }
    )


def corollary_bound(task: FedASTTask, server_steps: float) -> Bound:
    """The same under corollary 1.1's step sizes."""
    return bound(task, server_step(task), client_step(task, server_steps), server_steps)


# Theorem 2: requests that are divided anew


def dynamic_conditions(task: FedASTTask, skew: float, server: float, client: float) -> list[Condition]:
    """What theorem 2 asks of the step sizes.   task: with b_min and R_max.   skew: ρ_b = b_max/b_min.

    Differs from the paper: it prints sqrt(τR)·γ, where its proof needs no more than sqrt(τRγ), as in theorem 1.
    """
    L, tau, late, part = task.smoothness, task.steps, task.requests * task.staleness, _part(skew)
    largest = part / (24.0 * L * tau * math.sqrt(tau * task.size))
    if late:
        largest = min(largest, part / (16.0 * L * tau * math.sqrt(tau * late)))
    return [
        Condition("η_s ≤ ρ^(−3/2)·sqrt(τb)", server, part * server_step(task)),
        Condition("η_c ≤ ρ^(−3/2)·min(1/(24Lτ·sqrt(τb)), 1/(16Lτ·sqrt(τRγ)))", client, largest),
    ]


def dynamic_bound(task: FedASTTask, skew: float, server: float, client: float, server_steps: float) -> Bound:
    """Theorem 2's bound on (1/T) Σ E|∇f(x_t)|² for option D, with the constants of its proof (appendix F).

    task: with the smallest buffer b_min and the most requests R_max that the task ever has.   skew: ρ_b = b_max/b_min.
    The proof assumes that all requests of a round come back to rounds of one buffer size (assumption 5).
    """
    _part(skew)
    L, tau, b, R, T = task.smoothness, task.steps, task.size, task.requests, server_steps
    D = L**2 * client**2 * tau * (tau - 1)
    if D >= 1:
        raise SettingError(f"client step = {client:g}: L²η_c²τ(τ−1) = {D:g} must stay below 1")
    step, rest = L * tau * server * client, 1.0 - D
    noise = skew**3 * step * (2.0 / (tau * b) + 3.0 * (L * client) ** 2 * tau / rest)
    noise += skew**2 * (L * client) ** 2 * tau / (2.0 * rest)
    unlike = 6.0 * skew**3 * step * (1.0 / b + D / rest) + skew**2 * D / rest
    late = (skew * step / b) ** 2 * R
    stale = late / tau * (1.0 + 3.0 * R * (L * client * tau) ** 2 / (2.0 * rest)) * task.sigma**2
    stale += 3.0 * (1.0 + D) / rest * late * R * task.gamma**2
    return Bound(
        {
            "start": 11.0 * skew * task.gap / (T * tau * server * client),
            "noise": 11.0 * noise * task.sigma**2,
            "heterogeneity": 11.0 * unlike * task.gamma**2,
            "asynchrony": 11.0 * stale,
        }
    )


def _part(skew: float) -> float:
    if not skew >= 1:
        raise SettingError(f"skew = {skew:g}: b_max/b_min is at least 1")
    return float(skew**-1.5)


def objective(requests: Sequence[float], weights: Sequence[float]) -> float:
    """(6): Σ η_s·η_c·τ·σ_g²/R over the tasks; a weight is sqrt(η_s·η_c·τ)·σ_g."""
    return sum(w**2 / r for w, r in zip(weights, requests, strict=True))


def allocation(total: int, weights: Sequence[float]) -> list[float]:
    """The real numbers R_m that minimise (6) under Σ R_m = R: in proportion to sqrt(η_s·η_c·τ)·σ_g."""
    at_least(1, total=total)
    if not weights or min(weights) < 0 or sum(weights) <= 0:
        raise SettingError(f"weights = {list(weights)}: need one number per task, none negative, not all zero")
    return [total * w / sum(weights) for w in weights]


def whole_allocation(total: int, weights: Sequence[float]) -> list[int]:
    """The same in whole numbers of at least 1, as FedAST divides its requests."""
    named: Mapping[int, float] = dict(enumerate(weights))
    return list(divide(total, named).values())


# Advice

COROLLARY = Theorem[FedASTTask](
    "FedAST, corollary 1.1 (smooth): (1/T) Σ E|∇f|² ≤ ε",
    least_steps,
    corollary_bound,
    lambda p, T: {"client step η_c": client_step(p, T), "server lr η_s": server_step(p)},
    ("smoothness", "steps", "size", "sigma", "gamma", "gap"),
)


def advise(task: FedASTTask, arrivals: Arrivals, staleness: float | None = None, epsilon: float = 0.01) -> Advice:
    """What corollary 1.1 with the proof's constants means for a target ε.

    staleness: the largest; None: the largest to expect.
    """
    notes = ["the paper states this bound in O(·); the constants are those of its appendix E.3.1"]
    return COROLLARY.advise(task, arrivals, staleness, epsilon, notes)


def advise_allocation(requests: int, weights: Sequence[float]) -> Advice:
    """How (6) divides the requests among tasks.   weights: sqrt(η_s·η_c·τ)·σ_g of each."""
    exact, whole = allocation(requests, weights), whole_allocation(requests, weights)
    equal = [requests / len(weights)] * len(weights)
    facts = {
        "requests R_m": ", ".join(f"{r:.4g}" for r in exact),
        "in whole numbers": ", ".join(map(str, whole)),
        "(6) at the optimum": objective(exact, weights),
        "(6) with equal parts": objective(equal, weights),
    }
    return Advice("FedAST, equation (6): requests in proportion to sqrt(η_s·η_c·τ)·σ_g", facts)
