"""DeFedAvg: theorem 1 (unlike data), theorem 2 (equal data) and the high-probability bound on the delay λ.

Symbols: L smoothness, K local steps, n draws a round of N clients, λ largest delay in rounds, σ² gradient noise,
ν² ≥ E|∇F_i − ∇F|², G² ≥ E|∇F_i|², gap = F(w_0) − F*, η the global and η̄ the local step size, T rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from offbeat.core.errors import Checked, Count, NotNegative, Positive, SettingError, at_least, positive
from offbeat.theory.advice import Advice, changed, halvings, largest_term
from offbeat.theory.bound import Bound, Condition, horizon


@dataclass(frozen=True)
class DeFedAvgProblem(Checked):
    """The constants of a problem that both theorems use.

    smoothness: L.   steps: K.   sampled: n.   delay: λ ≥ 1.   sigma: σ.   nu: ν.   gradient: G.   gap: F(w_0) − F*.
    """

    smoothness: Positive
    steps: Count = 1
    sampled: Count = 1
    delay: float = 1.0
    sigma: NotNegative = 1.0
    nu: NotNegative = 1.0
    gradient: NotNegative = 1.0
    gap: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delay >= 1:
            raise SettingError(f"delay = {self.delay:g}: λ is at least 1")

    @property
    def spread(self) -> float:
        """S = 4σ²L + 2LKG²."""
        found = 4.0 * self.sigma**2 * self.smoothness + 2.0 * self.smoothness * self.steps * self.gradient**2
        positive(spread=found)
        return found


# Theorem 1: unlike data


def global_step(problem: DeFedAvgProblem) -> float:
    """η = sqrt(4·n·K·(F(w_0) − F*))."""
    return math.sqrt(4.0 * problem.sampled * problem.steps * problem.gap)


def local_step(problem: DeFedAvgProblem, rounds: float) -> float:
    """η̄ = 1/(sqrt(S·T)·K)."""
    return 1.0 / (math.sqrt(problem.spread * rounds) * problem.steps)


def conditions(problem: DeFedAvgProblem, rounds: float) -> list[Condition]:
    """Theorem 1's (11)."""
    L, K, late = problem.smoothness, problem.steps, problem.delay
    noise, slope = problem.sigma**2, problem.gradient**2
    third = (2.0 * noise + slope * K) / (8.0 * noise * L * K * late + 4.0 * L * slope * K**2 * late**2)
    both = global_step(problem) * local_step(problem, rounds)
    return [
        Condition("η̄ ≤ 1/(8LK)", local_step(problem, rounds), 1.0 / (8.0 * L * K)),
        Condition("η·η̄ ≤ 1/(4LKλ)", both, 1.0 / (4.0 * L * K * late)),
        Condition("η·η̄ ≤ (2σ² + G²K)/(8σ²LKλ + 4LG²K²λ²)", both, third),
    ]


def least_rounds(problem: DeFedAvgProblem) -> tuple[float, str]:
    """(smallest T that satisfies (11), the condition that binds); it grows as n·K·λ⁴ where G dominates."""
    return _least(conditions(problem, 1.0))


def bound(problem: DeFedAvgProblem, rounds: float, tight: bool = False) -> Bound:
    """Theorem 1's bound (12) on (1/T) Σ E|∇F(w_t)|².

    tight: 10·sqrt(gap·S/(nKT)), which is what its proof's last line gives, in place of the printed 32.
    """
    L, K, n, T = problem.smoothness, problem.steps, problem.sampled, rounds
    factor = 10.0 if tight else 32.0
    return Bound(
        {
            "start and noise": factor * math.sqrt(problem.gap * problem.spread / (n * K * T)),
            "drift": (problem.sigma**2 + 8.0 * K * problem.nu**2) * 8.0 * L**2 / (problem.spread * K * T),
        }
    )


# Theorem 2: equal data


def iid_global_step(problem: DeFedAvgProblem) -> float:
    """η = sqrt(n·K·(F(w_0) − F*)/2)."""
    return math.sqrt(problem.sampled * problem.steps * problem.gap / 2.0)


def iid_local_step(problem: DeFedAvgProblem, rounds: float) -> float:
    """η̄ = 1/(sqrt(σ²·L·T)·K)."""
    positive(sigma=problem.sigma)
    return 1.0 / (math.sqrt(problem.sigma**2 * problem.smoothness * rounds) * problem.steps)


def iid_conditions(problem: DeFedAvgProblem, rounds: float) -> list[Condition]:
    """Theorem 2's (13)."""
    L, K = problem.smoothness, problem.steps
    local = iid_local_step(problem, rounds)
    return [
        Condition("η̄ ≤ 1/(4·sqrt(3)·LK)", local, 1.0 / (4.0 * math.sqrt(3.0) * L * K)),
        Condition("η·η̄ ≤ 1/(4LKλ)", iid_global_step(problem) * local, 1.0 / (4.0 * L * K * problem.delay)),
    ]


def iid_least_rounds(problem: DeFedAvgProblem) -> tuple[float, str]:
    """(smallest T that satisfies (13), the condition that binds); it grows as n·K·λ²."""
    return _least(iid_conditions(problem, 1.0))


def _least(after_one: Sequence[Condition]) -> tuple[float, str]:
    found = {c.name: (c.value / c.limit) ** 2 for c in after_one}  # every left side falls as 1/sqrt(T)
    name = max(found, key=lambda key: found[key])
    return max(1.0, found[name]), name


def iid_bound(problem: DeFedAvgProblem, rounds: float, printed: bool = False) -> Bound:
    """Theorem 2's bound on (1/T) Σ E|∇F(w_t)|²: sqrt(128·σ²·L·gap/(nKT)) + 8L/(KT).

    printed: without σ² under the root, as the last line of the paper's proof has it. Putting its step sizes into the
    line before gives σ²·L there; the two agree for σ² = 1. (The theorem itself lacks L, too, and draws the root over
    both terms.)
    """
    L, K, n, T = problem.smoothness, problem.steps, problem.sampled, rounds
    scale = L if printed else problem.sigma**2 * L
    return Bound({"start and noise": math.sqrt(128.0 * scale * problem.gap / (n * K * T)), "drift": 8.0 * L / (K * T)})


# How late a client can be


def drawn(clients: int, sampled: int) -> float:
    """p = 1 − (1 − 1/N)^n: the probability that a client is drawn in a round."""
    at_least(1, clients=clients, sampled=sampled)
    return 1.0 if clients == 1 else -math.expm1(sampled * math.log1p(-1.0 / clients))


def delay_bound(clients: int, sampled: int, rounds: float, failure: float) -> float:
    """A λ with every constant: no client goes undrawn for λ rounds in a row, with probability 1 − δ.

    A union bound: N·T stretches of m rounds, each missed by a client with probability (1 − p)^m.
    """
    if not 0 < failure < 1:
        raise SettingError(f"failure = {failure:g}: a probability between 0 and 1")
    p = drawn(clients, sampled)
    if p >= 1.0:
        return 1.0
    return max(1.0, math.ceil(math.log(clients * rounds / failure) / -math.log1p(-p)))


# Advice


def advise(
    problem: DeFedAvgProblem,
    clients: int,
    round_time: float = 1.0,
    delay: float | None = None,
    epsilon: float = 0.01,
    failure: float = 0.01,
) -> Advice:
    """What theorem 1 means for a target ε.

    delay: λ; None: the bound that holds with probability 1 − failure.
    """
    positive(epsilon=epsilon)
    at_least(1, clients=clients)

    def longest(rounds: float) -> float:
        return delay_bound(clients, problem.sampled, rounds, failure) if delay is None else delay

    def rounds_for(p: DeFedAvgProblem, goal: float) -> float:
        return horizon(lambda T: bound(p, T).total, goal, least_rounds(p)[0])

    late = replace(problem, delay=longest(1.0))
    needed = rounds_for(late, epsilon)
    for _ in range(20):  # λ grows with the logarithm of T
        worse = longest(needed)
        if worse <= late.delay:
            break
        late = replace(problem, delay=worse)
        needed = rounds_for(late, epsilon)
    fewest, condition = least_rounds(late)
    names = ("smoothness", "steps", "sampled", "sigma", "nu", "gradient", "gap", "delay")
    now = {name: float(getattr(late, name)) for name in names} | {"epsilon": epsilon}

    def time(values: Mapping[str, float]) -> float:
        return rounds_for(changed(late, values, names), values["epsilon"]) * round_time

    binds = needed <= math.ceil(fewest - 1e-9)
    facts = {
        "global step η": global_step(late),
        "local step η̄": local_step(late, needed),
        "delay λ": f"{late.delay:g}" + (f" (probability {1 - failure:g})" if delay is None else ""),
        "drawn in a round, p": drawn(clients, problem.sampled),
        "rounds T for ε": needed,
        "at least, by (11)": fewest,
        "of that for λ = 1": least_rounds(replace(late, delay=1.0))[0],
        "time": needed * round_time,
        "what binds": f"(11): {condition}" if binds else largest_term(bound(late, needed)),
    }
    notes = ["(11) grows as n·K·λ⁴: with λ from sampling alone it is far beyond what anybody runs"] if binds else []
    return Advice("DeFedAvg, theorem 1 (smooth): (1/T) Σ E|∇F|² ≤ ε", facts, halvings(time, now), notes)
