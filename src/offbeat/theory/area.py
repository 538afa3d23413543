"""AREA: theorems 7 and 8, lemmas 10 and 11 and the recursions behind them, as functions of plain numbers.

Symbols: n clients with message rates λ_i, server rate λ_s, M local steps, every f_i μ-strongly convex with L-Lipschitz
gradients, gradient noise E|g − ∇f_i|² ≤ σ², ζ = max_i |x* − argmin f_i|, K iterations (messages *and* server steps).

Differs from the paper where its algebra is wrong; docstrings and docs/theory.md name each place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from offbeat.algorithms.criteria import optimal_rate as optimal_rate
from offbeat.algorithms.schedules import Decay
from offbeat.core.errors import Checked, Count, NotNegative, Positive, SettingError, positive
from offbeat.theory.advice import Advice, changed, halvings, largest_term
from offbeat.theory.bound import Bound, horizon

TERMS = ("2/(M(μ+L))", "γ/(L²(M−1))", "sqrt(Mγ²/(64L⁴(M−1)³))", "cbrt(γ/(32L⁴(M−1)³))")


@dataclass(frozen=True)
class Events:
    """The probabilities that the next iteration is a client's message, p_i, or a server step, p_s (AREA, example 3).

    >>> Events.from_rates([10.0] * 4, 10.0).least
    0.2
    """

    clients: tuple[float, ...]
    server: float
    total: float  # iterations per unit of time, λ̄

    @classmethod
    def from_rates(cls, rates: Sequence[float], server: float) -> Events:
        """p_i = λ_i / λ̄ and p_s = λ_s / λ̄ with λ̄ = λ_s + Σλ_i."""
        if not rates:
            raise SettingError("rates is empty: need one positive rate per client")
        positive(slowest_rate=min(rates), rates=sum(rates), server_rate=server)
        total = server + sum(rates)
        return cls(tuple(rate / total for rate in rates), server / total, total)

    @cached_property
    def least(self) -> float:
        """p_min = min(min_i p_i, p_s)."""
        return min(min(self.clients), self.server)

    @cached_property
    def mean_inverse(self) -> float:
        """q̄ = (1/n) Σ 1/p_i."""
        return sum(1.0 / p for p in self.clients) / len(self.clients)


@dataclass(frozen=True)
class Smooth(Checked):
    """The constants of a strongly convex, smooth problem that theorem 7 uses.

    mu: μ.   smoothness: L.   steps: M.   sigma: σ.   zeta: ζ.   distance: |x_0 − x*|.
    """

    mu: Positive
    smoothness: Positive
    steps: Count = 1
    sigma: NotNegative = 1.0
    zeta: NotNegative = 1.0
    distance: NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu > self.smoothness:
            raise SettingError(f"mu = {self.mu:g} exceeds smoothness = {self.smoothness:g}: μ ≤ L always")

    @property
    def gamma(self) -> float:
        """γ = 2μL/(μ + L)."""
        return 2.0 * self.mu * self.smoothness / (self.mu + self.smoothness)


def largest_steps(problem: Smooth) -> Mapping[str, float]:
    """The four terms of D; those with M − 1 below the line are infinite for M = 1 (theorem 7).

    The second and the fourth are never the smallest: the third over the second is sqrt(M/(M−1))/8 and the third over
    the fourth is 0.4·(γ/L)^(2/3)·sqrt(M/(M−1)) with γ ≤ L. The first is the smallest for M = 1 and the third for
    M ≥ 2, always.
    """
    L, M, gamma = problem.smoothness, problem.steps, problem.gamma
    first = 2.0 / (M * (problem.mu + L))
    if M == 1:
        return dict(zip(TERMS, (first, math.inf, math.inf, math.inf), strict=True))
    others = (
        gamma / (L**2 * (M - 1)),
        math.sqrt(M * gamma**2 / (64.0 * L**4 * (M - 1) ** 3)),
        (gamma / (32.0 * L**4 * (M - 1) ** 3)) ** (1.0 / 3.0),
    )
    return dict(zip(TERMS, (first, *others), strict=True))


def largest_step(problem: Smooth) -> tuple[float, str]:
    """(D, which of its four terms it is)."""
    terms = largest_steps(problem)
    name = min(terms, key=lambda key: terms[key])
    return terms[name], name


def schedule(problem: Smooth, events: Events) -> Decay:
    """Theorem 7's α_k = 1/(p_min·M·γ·k/48 + 1/D) in lemma 11's form c/(k + d), ready for `AREA(schedule=...)`."""
    c = 48.0 / (events.least * problem.steps * problem.gamma)
    return Decay(c, c / largest_step(problem)[0])


def contraction(alpha: float, problem: Smooth, events: Events) -> float:
    """ρ = 1 − p_min + p_min·(1 − α·M·γ/4)^(1/3): the factor by which an iteration shrinks the error (lemma 10).

    Two phases: close to 1 − p_min while α is large, 1 − p_min·α·M·γ/12 once it is small.
    """
    beta = 1.0 - alpha * problem.steps * problem.gamma / 4.0
    if not (alpha >= 0 and beta > 0):
        raise SettingError(f"alpha = {alpha:g}: lemma 10 asks for 0 ≤ alpha < 4/(M·gamma)")
    return 1.0 - events.least + events.least * math.cbrt(beta)


def rate_terms(problem: Smooth, events: Events, iterations: float) -> Bound:
    """Theorem 7's O(·) exactly as printed in (3), without constants.

    The printed terms also lack powers of 1/γ: appendix B.4 takes γ ≥ 1, which is true for μ ≥ 1 only. `leading`
    keeps them.
    """
    L, M, K = problem.smoothness, problem.steps, iterations
    p, q, ratio = events.least, events.mean_inverse, events.server / events.least
    delta, kappa = 1.0 - 1.0 / M, L / problem.mu
    sigma, zeta = problem.sigma, problem.zeta
    return Bound(
        {
            "noise, 1/K": ratio * (1 + delta * kappa) * sigma**2 / (p * M * K),
            "noise × heterogeneity, 1/K^1.5": (
                ratio * math.sqrt(q * (1 + delta * kappa)) * L * sigma * zeta / (p * math.sqrt(M) * K**1.5)
                + ratio * math.sqrt(q) * L**1.5 * math.sqrt(sigma * zeta**3) / (math.sqrt(p) * K**1.5)
            ),
            "heterogeneity, 1/K²": ratio * (delta + math.sqrt(p) * q) * L**4 * zeta**2 / (p**2 * K**2),
        },
        exact=False,
    )


def leading(problem: Smooth, events: Events, iterations: float) -> Bound:
    """Theorem 7's closed form: a bound on E|x_K − x*|² under its `schedule`, with every constant and for every K.

    The proof's steps with their constants c_1 … c_9, γ kept where appendix B.4 drops it, and with sums bounded by
    integrals, so that no O(·) is left. `trajectory`, the same inequalities iterated, is below it.

    Differs from the paper: lemma 16's noise term has a factor 2c, which its next line drops and c_8 then lacks; the
    weights of lemma 10 add up to at most ψ = 1/p_s + 4q̄, not 1 + q̄; lemma 20 has the drift error three times. Steps
    contract by α_{k+1} at least (see `trajectory`), so d stands where the paper has d − 1, and clients have trained
    once before they first speak, which adds to the start.
    """
    L, M, gamma = problem.smoothness, problem.steps, problem.gamma
    ps, q = events.server, events.mean_inverse
    sigma, zeta, distance = problem.sigma, problem.zeta, problem.distance
    steps = schedule(problem, events)
    c, d, psi, alpha = steps.c, steps.d, 1.0 / ps + 4.0 * q, steps(0)
    slack = ((d + 1.0) / d) ** 4  # (k + d + 1)⁴ ≤ slack · (k + d)⁴
    c_zeta_hat = L**2 * M * (M - 1) / 2.0
    c_sigma_hat = (1.0 + gamma / (4.0 * L)) * M
    c_sigma, c_zeta = _constants(problem)
    Q = 4.0 * c * q * L * M + 2.0 * c**2 * c_zeta_hat
    c1, c2 = 2.0 * c * L * M, 8.0 * (c * L * M) ** 2 * q * slack
    c3, c4 = 2.0 * c**2 * c_sigma * slack, 2.0 * c**3 * c_zeta * slack
    c5, c6 = math.sqrt(psi) * d**2, d**2 * math.sqrt(2.0 * psi * c1)
    c7 = math.sqrt(psi * (c1 * Q + c4) / 2.0)
    c8, c9 = math.sqrt(psi * slack * c * c_sigma_hat * c1 / 6.0), math.sqrt(psi * c3 / 3.0)
    start2 = (1.0 / ps + 8.0 * q) * distance**2 + 8.0 * (alpha * L * M * zeta) ** 2 * q  # Λ_0
    start2 += 2.0 * q * (alpha**2 * c_sigma * sigma**2 + alpha**3 * c_zeta * zeta**2)
    start1 = (1.0 / ps + 4.0 * q) * distance + 4.0 * alpha * L * M * zeta * q  # λ_0
    start1 += 2.0 * q * (alpha**2 * c_zeta_hat * zeta + alpha * c_sigma_hat * sigma)
    from_start = c5 * math.sqrt(start2) + c6 * math.sqrt(zeta * start1)
    from_noise = c8 * math.sqrt(sigma * zeta) + c9 * sigma
    K = iterations + d
    return Bound(
        {
            "start, 1/K⁴": ps * d**4 * start2 / K**4,
            "start × heterogeneity, 1/K³": ps * (c1 * zeta * from_start + c2 * zeta**2) / K**3,
            "heterogeneity, 1/K²": ps * (c1 * c7 + c4) * zeta**2 / (2.0 * K**2),
            "noise × heterogeneity, 1/K^1.5": ps * c1 * zeta * from_noise / (2.0 * K**1.5),
            "noise, 1/K": ps * c3 * sigma**2 / (3.0 * K),
        }
    )


def _constants(problem: Smooth) -> tuple[float, float]:
    """(c_σ, c_ζ) of lemma 20, with its drift error three times: 6/(μ + L) where it prints 2/(μ + L)."""
    L, M, mu, gamma = problem.smoothness, problem.steps, problem.mu, problem.gamma
    delta = 1.0 - 1.0 / M
    c_sigma = 2.0 * M * (1.0 + 2.0 * L * delta / mu + 4.0 * L**2 * delta / (M * (mu + L) ** 2))
    return c_sigma, 4.0 * L**4 * (M - 1) ** 3 * (2.0 / gamma + 6.0 / (mu + L))


def trajectory(problem: Smooth, events: Events, iterations: int) -> np.ndarray:
    """Bounds on E|x_k − x*|², k = 0 … K, with every constant: the lemmas' inequalities iterated, nothing left out.

    Lemmas 13–15 bound expected distances, lemmas 18–20 expected squares, from one iteration to the next; the theorem
    solves that recursion by hand and hides what is left in an O(·), here it is simply run.

    Differs from the paper: lemma 12's geometric sum is twice what it says, so its drift terms are αL²M(M−1)/2 (not /4);
    in lemma 20 the drift error enters three times (its own square and two inner products), not once, and the square of
    α_k − α_{k+1} twice; algorithm 1 hands out α_k where the analysis has α_{k−1}, so the larger of both errors and the
    weaker of the two contractions is taken. D is small enough for the contraction to stay 1 − αMγ/4 all the same.
    """
    L, M, gamma = problem.smoothness, problem.steps, problem.gamma
    sigma, zeta, distance = problem.sigma, problem.zeta, problem.distance
    p, ps, steps = np.array(events.clients), events.server, schedule(problem, events)
    alpha = steps(0)
    grade = L * M * zeta  # bounds M·|∇f_i(x*)|

    def trained(a: float) -> tuple[float, float, float]:
        """(factor on |x_s − x*|, added norm, added square) of M local steps of size a."""
        drift = 0.5 * a**2 * L**2 * M * (M - 1)
        norm = drift * zeta + 0.5 * a**2 * L * M * (M - 1) * sigma + a * M * sigma
        weight = 3.0 * a**2 + 2.0 * a / (M * gamma)  # on E|ε_d|²
        square = weight * (4.0 * a**2 * L**4 * (M - 1) ** 3 * M * zeta**2 + 2.0 * a**2 * L**2 * (M - 1) ** 3 * sigma**2)
        return 1.0 - a * M * gamma / 4.0, norm, square + 2.0 * a**2 * M * sigma**2

    shrink, norm, square = trained(alpha)
    away = distance + alpha * grade  # |x_0 − x*_i|
    xs1, xs2 = distance, distance**2
    y1, y2 = np.full(len(p), away), np.full(len(p), away**2)
    # The paper's clients start with x_i = x_0; here, as in its algorithm 2, they train before they first speak.
    x1 = np.maximum(y1, shrink * xs1 + norm)
    x2 = np.maximum(y2, shrink * xs2 + square)
    found = np.empty(iterations + 1)
    found[0] = xs2
    for k in range(iterations):
        alpha, after = steps(k), steps(k + 1)
        gap = (alpha - after) * grade
        _, norm, square = trained(alpha)
        shrink, half = 1.0 - after * M * gamma / 4.0, 1.0 - after * M * gamma / 2.0
        next_x2 = (1 - p) * (x2 + 2 * gap * x1) + p * (shrink * xs2 + 2 * gap * half * xs1 + square) + 2 * gap**2
        next_y2 = (1 - p) * (y2 + 2 * gap * y1) + p * (x2 + 2 * gap * x1) + gap**2
        next_xs2 = (1 - ps) * xs2 + ps * float(y2.mean())
        next_x1 = (1 - p) * x1 + p * (shrink * xs1 + norm) + gap
        next_y1 = (1 - p) * y1 + p * x1 + gap
        next_xs1 = (1 - ps) * xs1 + ps * float(y1.mean())
        x2, y2, xs2, x1, y1, xs1 = next_x2, next_y2, next_xs2, next_x1, next_y1, next_xs1
        found[k + 1] = xs2
    return found


# Convex and Lipschitz: theorem 8


@dataclass(frozen=True)
class Nonsmooth(Checked):
    """The constants of a convex problem with B-Lipschitz functions that theorem 8 uses.

    lipschitz: B.   steps: M.   sigma: σ.   distance: |x_0 − x*|.
    """

    lipschitz: Positive
    steps: Count = 1
    sigma: NotNegative = 0.0
    distance: Positive = 1.0

    def spread(self, printed: bool) -> float:
        """σ² + (M+1)B²/2 as the theorem has it, σ² + M·B² as its proof gives.

        The proof multiplies lemma 21 by 2α and then adds it as if by α; for M = 1 the two are the same.
        """
        factor = (self.steps + 1) / 2.0 if printed else float(self.steps)
        return self.sigma**2 + factor * self.lipschitz**2


def delay(events: Events) -> float:
    """1/p_s + 2q̄: what asynchrony costs in theorem 8."""
    return 1.0 / events.server + 2.0 * events.mean_inverse


def rate_within(rates: Sequence[float], excess: float = 0.05) -> float:
    """The smallest λ_s whose time to any ε, by theorem 8, is at most so much longer than that of any other.

    An iteration takes 1/λ̄, so the time to ε is proportional to (1/p_s + 2q̄)/λ̄ = 1/λ_s + (2/n) Σ 1/λ_i: it falls
    with every increase of λ_s, and λ_s*, which is best for a number of iterations, is not best for the time.

    >>> round(rate_within([10.0] * 128), 3)
    100.0
    """
    positive(excess=excess)
    return len(rates) / (2.0 * excess * sum(1.0 / rate for rate in rates))


def nonsmooth_step(problem: Nonsmooth, events: Events, iterations: float, printed: bool = True) -> float:
    """Theorem 8's constant α = sqrt((1/p_s + 2q̄)·|x_0 − x*|² / ((σ² + (M+1)B²/2)·M·K))."""
    spread = problem.spread(printed)
    return math.sqrt(delay(events) * problem.distance**2 / (spread * problem.steps * iterations))


def nonsmooth_bound(problem: Nonsmooth, events: Events, iterations: float, printed: bool = True) -> Bound:
    """Theorem 8: E[f(x̄_K) − f*] ≤ sqrt((1/p_s + 2q̄)·(σ² + (M+1)B²/2)·|x_0 − x*|² / (M·K)), in equal halves."""
    whole = math.sqrt(delay(events) * problem.spread(printed) * problem.distance**2 / (problem.steps * iterations))
    return Bound({"start": whole / 2.0, "subgradients": whole / 2.0})


# Advice


def advise(
    problem: Smooth | Nonsmooth, rates: Sequence[float], server: float | None = None, epsilon: float = 0.01
) -> Advice:
    """What theorem 7 (of a smooth problem) or 8 means for a target ε.   server: λ_s; None: λ_s* of theorem 8."""
    positive(epsilon=epsilon)
    rate = optimal_rate(rates) if server is None else server
    events = Events.from_rates(rates, rate)
    names = [field.name for field in fields(problem)]
    now = {name: float(getattr(problem, name)) for name in names}
    now |= {"server rate": rate, "slowest rate": min(rates), "epsilon": epsilon}

    def time(values: Mapping[str, float]) -> float:
        quicker = [max(r, values["slowest rate"]) if r == min(rates) else r for r in rates]
        other = Events.from_rates(quicker, values["server rate"])
        return _iterations(changed(problem, values, names), other, values["epsilon"]) / other.total

    needed = _iterations(problem, events, epsilon)
    if isinstance(problem, Smooth):
        steps, (largest, term) = schedule(problem, events), largest_step(problem)
        facts: dict[str, Any] = {
            "p_min": f"{events.least:.4g} ({'the server' if events.server == events.least else 'the slowest client'})",
            "step size α_k": f"{steps.c:.4g} / (k + {steps.d:.4g})",
            "largest step D": largest,
            "which is": term,
            "contraction at first (lemma 10)": f"1 − {1 - contraction(steps(0), problem, events):.3g} an iteration",
        }
        best = _lowest(lambda r: time({**now, "server rate": r}), min(rates) / 100, 100 * sum(rates))
        facts |= {
            "server rate λ_s": rate,
            "best for this bound": best,
            "best for theorem 8, λ_s*": optimal_rate(rates),
        }
        theorem = "AREA, theorem 7 (strongly convex, smooth): E|x_K − x*|² ≤ ε"
        limit = largest_term(leading(problem, events, needed)) if math.isfinite(needed) else "none"
        notes = [
            "K comes from the proof's closed form, constants included; runs on quadratics end up hundreds to "
            "thousands of times below them (docs/theory.md), so read it as an order of magnitude at most",
        ]
    else:
        printed = problem.steps == 1
        facts = {"step size α": nonsmooth_step(problem, events, needed, printed)}
        facts["best server rate λ_s*"] = optimal_rate(rates)
        facts["server rate for a time within 5 % of the least"] = rate_within(rates)
        theorem = "AREA, theorem 8 (convex, Lipschitz): E f(x̄_K) − f* ≤ ε"
        late = {"the server's rate": 1.0 / events.server, "the clients' rates": 2.0 * events.mean_inverse}
        limit = largest_term(Bound(late))
        notes = (
            [] if printed else ["for M > 1 the proof supports M·B² where the theorem prints (M+1)B²/2; M·B² is used"]
        )
    notes.append("λ_s* is best for a number of iterations; for the time, theorem 8's bound is better the higher λ_s is")
    facts |= {
        "iterations K for ε": needed,
        "server steps": needed * events.server,
        "time": needed / events.total,
        "binding term": limit,
    }
    return Advice(theorem, facts, halvings(time, now), notes)


def _iterations(problem: Smooth | Nonsmooth, events: Events, epsilon: float) -> float:
    """K for ε; for theorem 8 with M > 1 by what its proof gives."""
    if isinstance(problem, Smooth):
        return horizon(lambda K: leading(problem, events, K).total, epsilon)
    return horizon(lambda K: nonsmooth_bound(problem, events, K, printed=problem.steps == 1).total, epsilon)


def _lowest(height: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum is lowest, by golden-section search on a logarithmic scale."""
    a, b, part = math.log(low), math.log(high), (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(60):
        c, d = b - part * (b - a), a + part * (b - a)
        if height(math.exp(c)) <= height(math.exp(d)):
            b = d
        else:
            a = c
    return math.exp((a + b) / 2.0)
