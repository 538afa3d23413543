"""FedBuff, theorem 1 of Toghani and Uribe: β = 1/K and η = 1/(Q·sqrt(L·T)).

Symbols: L smoothness of each f_i, Q local steps, τ largest staleness, n clients, σ²/b variance of a mini-batch,
γ² = (1/n) Σ|∇f_i − ∇f|², gap = f(w_0) − f*. The theorem assumes that reports come from clients drawn uniformly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from offbeat.core.errors import Checked, Count, NotNegative, Positive
from offbeat.theory.advice import Advice, Arrivals, Theorem
from offbeat.theory.bound import Bound


@dataclass(frozen=True)
class FedBuffProblem(Checked):
    """The constants of a problem that theorem 1 uses.

    smoothness: L.   steps: Q.   staleness: τ.   clients: n.   sigma: σ/sqrt(b).   gamma: γ.   gap: f(w_0) − f*.
    uniform: remark 2, where γ bounds every |∇f_i − ∇f| and n disappears.
    """

    smoothness: Positive
    steps: Count = 1
    staleness: NotNegative = 0.0
    clients: Count = 1
    sigma: NotNegative = 1.0
    gamma: NotNegative = 1.0
    gap: Positive = 1.0
    uniform: bool = False


def local_step(problem: FedBuffProblem, server_steps: float) -> float:
    """η = 1/(Q·sqrt(L·T))."""
    return 1.0 / (problem.steps * math.sqrt(problem.smoothness * server_steps))


def least_steps(problem: FedBuffProblem) -> float:
    """T ≥ 160·L·(Q + 7)·(τ + 1)³."""
    return 160.0 * problem.smoothness * (problem.steps + 7) * (problem.staleness + 1) ** 3


def bound(problem: FedBuffProblem, server_steps: float) -> Bound:
    """Theorem 1's bound on (1/T) Σ E|∇f(w_t)|²."""
    L, Q, T = problem.smoothness, problem.steps, server_steps
    noise, unlike = problem.sigma**2, problem.gamma**2
    many = 1 if problem.uniform else problem.clients
    return Bound(
        {
            "start": 8.0 * math.sqrt(L / T) * problem.gap,
            "noise and heterogeneity": 16.0 * math.sqrt(L / T) * (noise + unlike),
            "staleness": 320.0 * L * (Q + 1) * (problem.staleness**2 + 1) * (noise + many * unlike) / T,
        }
    )


THEOREM_1 = Theorem[FedBuffProblem](
    "FedBuff, theorem 1 (smooth): (1/T) Σ E|∇f|² ≤ ε",
    least_steps,
    bound,
    lambda p, T: {"local step η": local_step(p, T), "server lr (β·K)": 1.0},
    ("smoothness", "steps", "sigma", "gamma", "gap"),
)


def advise(
    problem: FedBuffProblem, arrivals: Arrivals, staleness: float | None = None, epsilon: float = 0.01
) -> Advice:
    """What theorem 1 means for a target ε.   staleness: the largest; None: the largest to expect."""
    return THEOREM_1.advise(problem, arrivals, staleness, epsilon, arrivals.warnings())
