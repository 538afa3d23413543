"""PersA-FL: theorem 1 (FedAsync), theorem 2 (PersA-FL-MAML), theorem 3 (PersA-FL-ME) and the constants of lemmas 1–7.

Symbols: L smoothness, Q local steps, τ largest staleness, σ_g²/b variance of a mini-batch, γ_g heterogeneity of
gradients, σ_h, γ_h of Hessians, ρ Lipschitz constant of Hessians, G largest gradient, gap = f(w_0) − f*. β = 1.
All three assume that reports come from clients drawn uniformly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from offbeat.core.errors import Checked, Count, NotNegative, Positive, SettingError, positive
from offbeat.theory.advice import Advice, Arrivals, Theorem
from offbeat.theory.bound import Bound


@dataclass(frozen=True)
class FedAsyncProblem(Checked):
    """The constants of a problem that theorem 1 uses, and the other two build on.

    smoothness: L.   steps: Q.   staleness: τ.   sigma: σ_g/sqrt(b).   gamma: γ_g.   gap: f(w_0) − f*.
    """

    smoothness: Positive
    steps: Count = 1
    staleness: NotNegative = 0.0
    sigma: NotNegative = 1.0
    gamma: NotNegative = 1.0
    gap: Positive = 1.0


def local_step(smoothness: float, steps: int, server_steps: float) -> float:
    """η = 1/(Q·sqrt(L·T)); theorems 2 and 3 put L_b and L_c in place of L."""
    return 1.0 / (steps * math.sqrt(smoothness * server_steps))


def least_steps(problem: FedAsyncProblem) -> float:
    """Theorem 1: T ≥ 160·L·(Q + 7)·(τ + 1)³."""
    return 160.0 * problem.smoothness * (problem.steps + 7) * (problem.staleness + 1) ** 3


def bound(problem: FedAsyncProblem, server_steps: float) -> Bound:
    """Theorem 1's bound on (1/T) Σ E|∇f(w_t)|² for FedAsync."""
    L, Q, T = problem.smoothness, problem.steps, server_steps
    unsure = problem.sigma**2 + problem.gamma**2
    return Bound(
        {
            "start": 4.0 * math.sqrt(L / T) * problem.gap,
            "noise and heterogeneity": 8.0 * math.sqrt(L / T) * unsure,
            "staleness": 80.0 * L * (1 + Q) * (problem.staleness**2 + 1) * unsure / T,
        }
    )


# Option B: MAML


@dataclass(frozen=True)
class MamlProblem(Checked):
    """The constants that lemmas 1–4 give for the MAML objective F_i(w) = f_i(w − α∇f_i(w)).

    alpha: α.   base: the problem without personalisation.   hessian_sigma: σ_h/sqrt(b).   hessian_gamma: γ_h.
    hessian_lipschitz: ρ.   gradient: G.
    gap: F(w_0) − f*, of the MAML objective.
    """

    base: FedAsyncProblem
    alpha: NotNegative
    gradient: NotNegative
    gap: Positive
    hessian_sigma: NotNegative = 0.0
    hessian_gamma: NotNegative = 0.0
    hessian_lipschitz: NotNegative = 0.0

    @property
    def smoothness(self) -> float:
        """Lemma 1: L_b = L(1 + αL)² + αρG."""
        L = self.base.smoothness
        return L * (1 + self.alpha * L) ** 2 + self.alpha * self.hessian_lipschitz * self.gradient

    @property
    def bias(self) -> float:
        """Lemma 2: μ_b = αL(1 + αL)σ_g/sqrt(b)."""
        aL = self.alpha * self.base.smoothness
        return aL * (1 + aL) * self.base.sigma

    @property
    def variance(self) -> float:
        """Lemma 2: σ_b² = 3(1+αL)²σ²(1 + α²L²) + 3α²G²σ_h² + 3α²σ²σ_h²(1 + α²L²), of mini-batches."""
        aL, noise, rough = self.alpha * self.base.smoothness, self.base.sigma**2, self.hessian_sigma**2
        both = noise * (1 + aL**2)
        return (
            3 * (1 + aL) ** 2 * both + 3 * (self.alpha * self.gradient) ** 2 * rough + 3 * self.alpha**2 * rough * both
        )

    @property
    def diversity(self) -> float:
        """Lemma 3: γ_b² = 12(1+αL)²(1 + α²L²)γ_g² + 12α²G²γ_h²."""
        aL = self.alpha * self.base.smoothness
        return (
            12 * (1 + aL) ** 2 * (1 + aL**2) * self.base.gamma**2
            + 12 * (self.alpha * self.gradient * self.hessian_gamma) ** 2
        )

    @property
    def slope(self) -> float:
        """Lemma 4: G_b = (1 + αL)G."""
        return (1 + self.alpha * self.base.smoothness) * self.gradient


def maml_least_steps(problem: MamlProblem) -> float:
    """Theorem 2: T ≥ 64·L_b."""
    return 64.0 * problem.smoothness


def maml_bound(problem: MamlProblem, server_steps: float) -> Bound:
    """Theorem 2's bound on (1/T) Σ E|∇F(w_t)|²; its last term does not vanish with T."""
    Lb, Q, T = problem.smoothness, problem.base.steps, server_steps
    return Bound(
        {
            "start": 4.0 * math.sqrt(Lb / T) * problem.gap,
            "noise and heterogeneity": 8.0 * math.sqrt(Lb / T) * (problem.variance + problem.diversity),
            "staleness": 20.0 * Q * Lb * (problem.slope**2 + problem.variance) * (problem.base.staleness**2 + 1) / T,
            "bias": 4.0 * Q * problem.bias**2,
        }
    )


def maml_batch(problem: MamlProblem, epsilon: float) -> float:
    """By how much to enlarge b so that the bias takes half of ε (corollary 1: b = O(1/ε))."""
    positive(epsilon=epsilon)
    return max(1.0, 4.0 * problem.base.steps * problem.bias**2 / (epsilon / 2.0))


# Option C: Moreau envelopes


@dataclass(frozen=True)
class MoreauProblem(Checked):
    """The constants that lemmas 5–7 give for the Moreau envelope F_i(w) = min_θ f_i(θ) + λ/2·|θ − w|².

    penalty: λ ≥ 7L.   accuracy: ν, of the inner problem.   gap: F(w_0) − f*, of the envelope.
    kappa: κ of lemma 5; None: λ/L, its smallest L_c.   uniform: remark 2's stronger assumption.
    """

    base: FedAsyncProblem
    penalty: Positive
    accuracy: NotNegative
    gap: Positive
    kappa: float | None = None
    uniform: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 7.0 * self.base.smoothness:
            raise SettingError(
                f"penalty = {self.penalty:g}: theorem 3 asks for at least 7·L = {7.0 * self.base.smoothness:g}"
            )
        if self.kappa is not None and not 1.0 < self.kappa <= self.penalty / self.base.smoothness:
            raise SettingError(f"kappa = {self.kappa:g}: lemma 5 asks for 1 < kappa ≤ penalty/L")

    @property
    def smoothness(self) -> float:
        """Lemma 5: L_c = λ/(κ − 1); λL/(λ − L) for κ = λ/L."""
        kappa = self.penalty / self.base.smoothness if self.kappa is None else self.kappa
        return self.penalty / (kappa - 1.0)

    @property
    def bias(self) -> float:
        """Lemma 6: μ_c = λν/(λ − L)."""
        return self.penalty / (self.penalty - self.base.smoothness) * self.accuracy

    @property
    def variance(self) -> float:
        """Lemma 6: σ_c² = 2λ²/(λ − L)²·(σ_g²/b + ν²)."""
        stretch = self.penalty / (self.penalty - self.base.smoothness)
        return 2.0 * stretch**2 * (self.base.sigma**2 + self.accuracy**2)

    @property
    def diversity(self) -> float:
        """Lemma 7: γ_c² = 16λ²/(λ² − 48L²)·γ_g²; 8 in place of 48 under remark 2."""
        square, away = self.penalty**2, (8.0 if self.uniform else 48.0) * self.base.smoothness**2
        return 16.0 * square / (square - away) * self.base.gamma**2


def moreau_least_steps(problem: MoreauProblem, printed: bool = True) -> float:
    """Theorem 3: T ≥ 288·L_c·(Q + 7)·(τ + 1)².

    The proof's (C61) needs (τ + 1)³, as theorem 1 has it; `printed` of False gives that.
    """
    power = 2 if printed else 3
    return 288.0 * problem.smoothness * (problem.base.steps + 7) * (problem.base.staleness + 1) ** power


def moreau_bound(problem: MoreauProblem, server_steps: float, printed: bool = True) -> Bound:
    """Theorem 3's bound on (1/T) Σ E|∇F(w_t)|²; its last term does not vanish with T.

    printed: γ_g² in the third term as the theorem has it; otherwise γ_c², as (C62) in its proof.
    """
    Lc, Q, T = problem.smoothness, problem.base.steps, server_steps
    third = problem.base.gamma**2 if printed else problem.diversity
    return Bound(
        {
            "start": 4.0 * math.sqrt(Lc / T) * problem.gap,
            "noise and heterogeneity": 8.0 * math.sqrt(Lc / T) * (problem.variance + problem.diversity),
            "staleness": 144.0 * Lc * (1 + Q) * (problem.base.staleness**2 + 1) * (problem.variance + third) / T,
            "bias": 4.0 * Q * problem.bias**2,
        }
    )


def moreau_accuracy(problem: MoreauProblem, epsilon: float) -> float:
    """The ν at which the bias takes half of ε (corollary 3: ν = O(ε^½))."""
    positive(epsilon=epsilon)
    stretch = problem.penalty / (problem.penalty - problem.base.smoothness)
    return math.sqrt(epsilon / 2.0 / (4.0 * problem.base.steps)) / stretch


# Advice

THEOREM_1 = Theorem[FedAsyncProblem](
    "PersA-FL, theorem 1 for FedAsync (smooth): (1/T) Σ E|∇f|² ≤ ε",
    least_steps,
    bound,
    lambda p, T: {"local step η": local_step(p.smoothness, p.steps, T), "server lr β": 1.0},
    ("smoothness", "steps", "sigma", "gamma", "gap"),
)
THEOREM_2 = Theorem[MamlProblem](
    "PersA-FL, theorem 2 for MAML (smooth): (1/T) Σ E|∇F|² ≤ ε",
    maml_least_steps,
    maml_bound,
    lambda p, T: {**_personal_steps(p, T), "smoothness L_b": p.smoothness},
    ("alpha", "gradient", "gap"),
    lambda p, staleness: replace(p, base=replace(p.base, staleness=staleness)),
)
THEOREM_3 = Theorem[MoreauProblem](
    "PersA-FL, theorem 3 for ME (smooth): (1/T) Σ E|∇F|² ≤ ε",
    lambda p: moreau_least_steps(p, printed=False),
    lambda p, T: moreau_bound(p, T, printed=False),
    lambda p, T: {**_personal_steps(p, T), "smoothness L_c": p.smoothness},
    ("penalty", "accuracy", "gap"),
    lambda p, staleness: replace(p, base=replace(p.base, staleness=staleness)),
)


def _personal_steps(problem: MamlProblem | MoreauProblem, server_steps: float) -> dict[str, float]:
    return {"local step η": local_step(problem.smoothness, problem.base.steps, server_steps), "server lr β": 1.0}


def advise(
    problem: FedAsyncProblem | MamlProblem | MoreauProblem,
    arrivals: Arrivals,
    staleness: float | None = None,
    epsilon: float = 0.01,
) -> Advice:
    """What theorem 1, 2 or 3, by the kind of problem, means for a target ε; of theorem 3 what its proof gives.

    staleness: the largest; None: the largest to expect.
    """
    notes = arrivals.warnings()
    if isinstance(problem, FedAsyncProblem):
        return THEOREM_1.advise(problem, arrivals, staleness, epsilon, notes)
    facts = {"bias that stays": 4.0 * problem.base.steps * problem.bias**2}
    if isinstance(problem, MamlProblem):
        facts["batches larger by (corollary 1)"] = maml_batch(problem, epsilon)
        return THEOREM_2.advise(problem, arrivals, staleness, epsilon, notes, facts)
    facts["inner accuracy ν at most (corollary 3)"] = moreau_accuracy(problem, epsilon)
    notes.append("the condition on T has (τ+1)³ and the third term γ_c², as the proof has them")
    return THEOREM_3.advise(problem, arrivals, staleness, epsilon, notes, facts)
