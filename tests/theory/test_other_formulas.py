"""FedBuff, PersA-FL, FedAST, DeFedAvg: formulas against sympy, against the proof they come from, and in limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, strategies as st
from scipy.optimize import minimize

from offbeat.core.errors import SettingError
from offbeat.theory import defedavg, fedast, fedbuff, persafl
from offbeat.theory.bound import Halving, halve, horizon

L, T, Q, tau, n, s, g, gap = sp.symbols("L T Q tau n s g gap", positive=True)
VALUES = {L: 0.3, T: 5000, Q: 4, tau: 3, n: 7, s: 1.1, g: 0.6, gap: 2.5}


def value(expression: sp.Expr) -> float:
    return float(expression.subs(VALUES))


def test_buff_theorem_1() -> None:
    problem = fedbuff.FedBuffProblem(0.3, 4, 3, 7, 1.1, 0.6, 2.5)
    right = (
        8 * sp.sqrt(L) * gap / sp.sqrt(T)
        + 16 * sp.sqrt(L) * (s**2 + g**2) / sp.sqrt(T)
        + 320 * L * (Q + 1) * (tau**2 + 1) * (s**2 + n * g**2) / T
    )
    assert fedbuff.bound(problem, 5000).total == pytest.approx(value(right))
    assert fedbuff.local_step(problem, 5000) == pytest.approx(value(1 / (Q * sp.sqrt(L * T))))
    assert fedbuff.least_steps(problem) == pytest.approx(value(160 * L * (Q + 7) * (tau + 1) ** 3))


@given(st.floats(0.01, 10.0), st.integers(1, 50), st.integers(0, 40))
def test_buffs_condition_on_t_does_what_its_proof_needs(smoothness: float, steps: int, late: int) -> None:
    """(37): three terms at most ¼ each, and (23): η ≤ 1/(4L(Q+1)); the proof then divides by what is left."""
    problem = fedbuff.FedBuffProblem(smoothness, steps, late)
    horizon_ = fedbuff.least_steps(problem)
    eta = fedbuff.local_step(problem, horizon_)
    phi = 8 * eta**2 * steps**2 * (1 + 2 * steps) * 2
    stretch = 1 + 4 * eta * smoothness
    assert 4 * eta * smoothness * steps <= 0.25 + 1e-9
    assert smoothness**2 * (late**2 + 1) * stretch * phi <= 0.25 + 1e-9
    assert smoothness**2 * late * (late + 1) ** 2 * stretch * phi <= 0.25 + 1e-9
    assert eta <= 1 / (4 * smoothness * (steps + 1)) + 1e-12


def test_remark_2_drops_the_number_of_clients() -> None:
    plain = fedbuff.FedBuffProblem(1.0, 1, 2, 10, 1.0, 1.0, 1.0)
    even = fedbuff.FedBuffProblem(1.0, 1, 2, 10, 1.0, 1.0, 1.0, uniform=True)
    assert fedbuff.bound(plain, 100).terms["staleness"] / fedbuff.bound(even, 100).terms["staleness"] == 11 / 2


def test_pers_theorem_1() -> None:
    problem = persafl.FedAsyncProblem(0.3, 4, 3, 1.1, 0.6, 2.5)
    both = s**2 + g**2
    right = 4 * sp.sqrt(L / T) * gap + 8 * sp.sqrt(L / T) * both + 80 * L * (1 + Q) * (tau**2 + 1) * both / T
    assert persafl.bound(problem, 5000).total == pytest.approx(value(right))
    assert persafl.least_steps(problem) == pytest.approx(value(160 * L * (Q + 7) * (tau + 1) ** 3))


def maml(alpha: float, **options: Any) -> persafl.MamlProblem:
    return persafl.MamlProblem(persafl.FedAsyncProblem(0.3, 4, 3, 1.1, 0.6, 2.5), alpha, 2.0, 2.5, **options)


def test_lemmas_1_to_4_and_theorem_2() -> None:
    a, G, sh, gh, rho = sp.symbols("a G sh gh rho", positive=True)
    VALUES.update({a: 0.2, G: 2.0, sh: 0.5, gh: 0.4, rho: 0.7})
    problem = maml(0.2, hessian_sigma=0.5, hessian_gamma=0.4, hessian_lipschitz=0.7)
    Lb = L * (1 + a * L) ** 2 + a * rho * G
    mub = a * L * (1 + a * L) * s
    sb = 3 * (1 + a * L) ** 2 * s**2 * (1 + a**2 * L**2) + 3 * a**2 * G**2 * sh**2
    sb += 3 * a**2 * s**2 * sh**2 * (1 + a**2 * L**2)
    gb = 12 * (1 + a * L) ** 2 * (1 + a**2 * L**2) * g**2 + 12 * a**2 * G**2 * gh**2
    Gb = (1 + a * L) * G
    assert problem.smoothness == pytest.approx(value(Lb))
    assert problem.bias == pytest.approx(value(mub))
    assert problem.variance == pytest.approx(value(sb))
    assert problem.diversity == pytest.approx(value(gb))
    assert problem.slope == pytest.approx(value(Gb))
    right = 4 * sp.sqrt(Lb / T) * gap + 8 * sp.sqrt(Lb / T) * (sb + gb)
    right += 20 * Q * Lb * (Gb**2 + sb) * (tau**2 + 1) / T + 4 * Q * (a * L * (1 + a * L) * s) ** 2
    assert persafl.maml_bound(problem, 5000).total == pytest.approx(value(right))


def test_no_personalisation_takes_mamls_constants_to_the_plain_ones() -> None:
    """α → 0: L_b = L, μ_b = 0, G_b = G, and σ_b², γ_b² are lemma 2 and 3's 3σ², 12γ²."""
    problem = maml(0.0, hessian_sigma=5.0, hessian_gamma=5.0, hessian_lipschitz=5.0)
    assert (problem.smoothness, problem.bias, problem.slope) == (0.3, 0.0, 2.0)
    assert problem.variance == pytest.approx(3 * 1.1**2)
    assert problem.diversity == pytest.approx(12 * 0.6**2)


def test_the_maml_lemmas_hold_on_a_quadratic() -> None:
    """F's gradient is h(1 − αh)²(w − c): smoother than L_b; noise of a stochastic one within σ_b² (10,000 draws)."""
    rng = np.random.default_rng(0)
    h, alpha, sigma = 0.3, 0.2, 1.1
    noise = sigma * rng.standard_normal((2, 10_000))
    w = 2.0
    full = h * (1 - alpha * h) ** 2 * w
    drawn = (1 - alpha * h) * (h * (w - alpha * (h * w + noise[0])) + noise[1])
    problem = maml(0.2)
    assert h * (1 - alpha * h) ** 2 <= problem.smoothness
    assert ((drawn - full) ** 2).mean() <= problem.variance
    assert abs(drawn.mean() - full) <= problem.bias


def moreau(penalty: float, accuracy: float = 0.1, **options: Any) -> persafl.MoreauProblem:
    return persafl.MoreauProblem(persafl.FedAsyncProblem(0.3, 4, 3, 1.1, 0.6, 2.5), penalty, accuracy, 2.5, **options)


def test_lemmas_5_to_7_and_theorem_3() -> None:
    lam, nu = sp.symbols("lam nu", positive=True)
    VALUES.update({lam: 3.0, nu: 0.1})
    problem = moreau(3.0)
    Lc, muc = lam * L / (lam - L), lam * nu / (lam - L)
    sc = 2 * lam**2 / (lam - L) ** 2 * (s**2 + nu**2)
    gc = 16 * lam**2 / (lam**2 - 48 * L**2) * g**2
    assert problem.smoothness == pytest.approx(value(Lc))
    assert problem.bias == pytest.approx(value(muc))
    assert problem.variance == pytest.approx(value(sc))
    assert problem.diversity == pytest.approx(value(gc))
    right = 4 * sp.sqrt(Lc / T) * gap + 8 * sp.sqrt(Lc / T) * (sc + gc)
    last = 4 * Q * lam**2 * nu**2 / (lam - L) ** 2
    third = 144 * Lc * (1 + Q) * (tau**2 + 1) / T
    assert persafl.moreau_bound(problem, 5000).total == pytest.approx(value(right + last + third * (sc + g**2)))
    assert persafl.moreau_bound(problem, 5000, False).total == pytest.approx(value(right + last + third * (sc + gc)))
    assert persafl.moreau_least_steps(problem) == pytest.approx(value(288 * Lc * (Q + 7) * (tau + 1) ** 2))


def test_infinite_penalty_takes_me_to_the_plain_problem() -> None:
    """λ → ∞: L_c → L, the bias is ν and σ_c² → 2(σ² + ν²), γ_c² → 16γ_g²."""
    problem = moreau(1e9, 0.0)
    assert problem.smoothness == pytest.approx(0.3)
    assert problem.bias == 0.0
    assert problem.variance == pytest.approx(2 * 1.1**2)
    assert problem.diversity == pytest.approx(16 * 0.6**2)
    assert moreau(3.0, kappa=4.0).smoothness == 1.0


def test_theorem_3s_printed_condition_is_too_weak_for_its_proof() -> None:
    """(C61) must leave ½: with (τ+1)² it does not for a large τ, with (τ+1)³ it does."""

    def left(printed: bool, late: float) -> float:
        problem = persafl.MoreauProblem(persafl.FedAsyncProblem(0.3, 4, late), 3.0, 0.1, 1.0)
        eta = persafl.local_step(problem.smoothness, 4, persafl.moreau_least_steps(problem, printed))
        step = eta * problem.smoothness
        return 1 - 4 * 4 * step - 16 * 16 * step**2 * 9 * late * (late + 1) ** 2 * 2 * (1 + 2 * step)

    assert left(True, 30.0) < 0 < 0.5 <= left(False, 30.0)
    assert all(left(False, late) >= 0.5 for late in (0.0, 1.0, 5.0, 100.0))


def test_corollaries_1_and_3_leave_half_of_epsilon_to_the_bias() -> None:
    problem = maml(0.5)
    larger = persafl.maml_batch(problem, 0.01)
    assert 4 * 4 * problem.bias**2 / larger == pytest.approx(0.005)
    nu = persafl.moreau_accuracy(moreau(3.0), 0.01)
    assert 4 * 4 * moreau(3.0, nu).bias ** 2 == pytest.approx(0.005)


@pytest.mark.parametrize("penalty", [1.0, 2.0])
def test_me_asks_for_a_penalty_of_seven_times_l(penalty: float) -> None:
    with pytest.raises(SettingError, match="7·L"):
        moreau(penalty)


# FedAST


def test_fast_corollary_is_theorem_1_under_its_step_sizes() -> None:
    task = fedast.FedASTTask(0.3, 4, 3, 12, 5, 1.1, 0.6, 2.5)
    plain = fedast.rate_terms(task, fedast.server_step(task), fedast.client_step(task, 5000), 5000)
    assert plain.terms == pytest.approx(fedast.corollary_terms(task, 5000).terms)
    assert not plain.exact


@given(st.integers(1, 20), st.integers(1, 30), st.integers(1, 60), st.integers(0, 30))
def test_fasts_constants_stay_within_theirs_o(steps: int, size: int, requests: int, late: int) -> None:
    """Under theorem 1's conditions (13) leaves 1/11, and the proof's terms are at most 33 times those it prints."""
    task = fedast.FedASTTask(0.3, steps, size, requests, late)
    rounds = max(1.0, fedast.least_steps(task))
    server, client = fedast.server_step(task), fedast.client_step(task, rounds)
    assert all(c.holds for c in fedast.conditions(task, server, client))
    D = (0.3 * client) ** 2 * steps * (steps - 1)
    step = 0.3 * steps * server * client
    left = 0.5 - 1.5 * step - D / (2 * (1 - D)) - 1.5 * step * D / (1 - D)
    left -= 1.5 * step**2 * requests * late / size * (1 + D) / (1 - D)
    assert left >= 1 / 11
    exact, order = fedast.bound(task, server, client, rounds), fedast.rate_terms(task, server, client, rounds)
    assert exact.total <= 33 * order.total


def test_fasts_bound_is_the_last_line_of_its_proof() -> None:
    """Appendix E.3.1, "Using (13)", evaluated by sympy; the terms with R are the asynchrony's."""
    b, R, es, ec, sl, sg = sp.symbols("b R es ec sl sg", positive=True)
    at = {L: 0.3, T: 5000, Q: 4, b: 3, R: 12, es: 1.7, ec: 0.04, sl: 1.1, sg: 0.6, gap: 2.5}
    D, tilde = L**2 * ec**2 * Q * (Q - 1), Q * es
    noise = L * tilde * ec / (2 * Q * b) + (3 * L**3 * ec**3 * tilde * Q + L**2 * ec**2 * Q) / (4 * (1 - D))
    unlike = 3 * L * tilde * ec / (2 * b) + (3 * L * tilde * ec * D + D) / (2 * (1 - D))
    late = (1 + 3 * R * (L * ec * Q) ** 2 / (2 * (1 - D))) * (L * tilde * ec) ** 2 * R / (2 * b**2 * Q) * sl**2
    late += (1 + D) / (1 - D) * 3 * (L * tilde * ec * R / b) ** 2 / 2 * sg**2
    right = [11 * term for term in (gap / (T * tilde * ec), noise * sl**2, unlike * sg**2, late)]
    found = fedast.bound(fedast.FedASTTask(0.3, 4, 3, 12, 5, 1.1, 0.6, 2.5), 1.7, 0.04, 5000)
    assert list(found.terms.values()) == pytest.approx([float(term.subs(at)) for term in right], rel=1e-12)


def test_fasts_theorem_2_is_the_last_line_of_its_proof() -> None:
    """Appendix F, "Using (19)", evaluated by sympy."""
    b, R, es, ec, sl, sg, rho = sp.symbols("b R es ec sl sg rho", positive=True)
    at = {L: 0.3, T: 5000, Q: 4, b: 3, R: 12, es: 1.7, ec: 0.04, sl: 1.1, sg: 0.6, gap: 2.5, rho: 1.5}
    D, tilde = L**2 * ec**2 * Q * (Q - 1), Q * es
    noise = 2 * rho**3 * L * tilde * ec / (Q * b) + 3 * rho**3 * L**3 * ec**3 * tilde * Q / (1 - D)
    noise += rho**2 * L**2 * ec**2 * Q / (2 * (1 - D))
    unlike = 6 * rho**3 * L * tilde * ec / b + 6 * rho**3 * L * tilde * ec * D / (1 - D) + rho**2 * D / (1 - D)
    late = (1 + 3 * R * (L * ec * Q) ** 2 / (2 * (1 - D))) * (L * tilde * ec * rho) ** 2 * R / (b**2 * Q) * sl**2
    late += (1 + D) / (1 - D) * 3 * (L * tilde * ec * R * rho / b) ** 2 * sg**2
    right = [11 * term for term in (gap * rho / (T * tilde * ec), noise * sl**2, unlike * sg**2, late)]
    found = fedast.dynamic_bound(fedast.FedASTTask(0.3, 4, 3, 12, 5, 1.1, 0.6, 2.5), 1.5, 1.7, 0.04, 5000)
    assert list(found.terms.values()) == pytest.approx([float(term.subs(at)) for term in right], rel=1e-12)


@given(st.integers(1, 20), st.integers(1, 30), st.integers(1, 60), st.integers(0, 30), st.floats(1.0, 20.0))
def test_theorem_2s_step_sizes_do_what_its_proof_needs(
    steps: int, size: int, requests: int, late: int, skew: float
) -> None:
    """(19) leaves 1/11 at the largest step sizes that are allowed, and twice the clients' are not."""
    task = fedast.FedASTTask(0.3, steps, size, requests, late)
    server, client = (c.limit for c in fedast.dynamic_conditions(task, skew, 1.0, 1.0))
    assert all(c.holds for c in fedast.dynamic_conditions(task, skew, server, client))
    assert not all(c.holds for c in fedast.dynamic_conditions(task, skew, server, 2 * client))
    D, step = (0.3 * client) ** 2 * steps * (steps - 1), 0.3 * steps * server * client
    left = 0.5 - 6 * skew**3 * step / (1 - D) - skew**2 * D / (1 - D)
    left -= 6 * step**2 * requests * skew**3 * late / size * (1 + D) / (1 - D)
    assert left >= 1 / 11
    with pytest.raises(SettingError, match="skew"):
        fedast.dynamic_bound(task, 0.5, server, client, 100)


def test_the_fewest_server_steps_of_fast_and_of_maml() -> None:
    """Corollary 1.1: T ≥ max(36bτ, 16τRγ); PersA-FL, theorem 2: T ≥ 64 L_b."""
    assert fedast.least_steps(fedast.FedASTTask(0.3, 4, 3, 12, 5)) == 16 * 4 * 12 * 5
    assert fedast.least_steps(fedast.FedASTTask(0.3, 4, 3, 12, 0)) == 36 * 3 * 4
    assert persafl.maml_least_steps(maml(0.2)) == pytest.approx(64 * 0.3 * (1 + 0.2 * 0.3) ** 2)


def test_the_optimum_of_6_against_a_numerical_minimiser() -> None:
    weights = [0.5, 1.0, 3.0]
    found = minimize(
        lambda r: fedast.objective(list(r), weights),
        [10.0, 10.0, 10.0],
        constraints={"type": "eq", "fun": lambda r: sum(r) - 30},
        bounds=[(0.1, 30)] * 3,
    )
    assert fedast.allocation(30, weights) == pytest.approx(list(found.x), rel=1e-3)
    whole = fedast.whole_allocation(30, weights)
    assert sum(whole) == 30
    assert fedast.objective(whole, weights) < 1.05 * found.fun


# DeFedAvg


def decoupled(**options: Any) -> defedavg.DeFedAvgProblem:
    return defedavg.DeFedAvgProblem(
        **{
            "smoothness": 0.3,
            "steps": 4,
            "sampled": 5,
            "delay": 3,
            "sigma": 1.1,
            "nu": 0.6,
            "gradient": 2.0,
            "gap": 2.5,
        }
        | options
    )


def test_defa_theorem_1_and_the_line_of_its_proof() -> None:
    """(12), and 4Δ/(KTηη̄) + (16σ²L + 8LG²K)ηη̄/n + (σ² + 8Kν²)8L²Kη̄²: 10·sqrt(·), where it prints 32·sqrt(·)."""
    problem, T_ = decoupled(), 20_000.0
    eta, local = defedavg.global_step(problem), defedavg.local_step(problem, T_)
    S = 4 * 1.1**2 * 0.3 + 2 * 0.3 * 4 * 4.0
    assert eta == pytest.approx(math.sqrt(4 * 5 * 4 * 2.5))
    assert local == pytest.approx(1 / (math.sqrt(S * T_) * 4))
    both = eta * local
    line = 4 * 2.5 / (4 * T_ * both) + (16 * 1.1**2 * 0.3 + 8 * 0.3 * 4.0 * 4) * both / 5
    line += (1.1**2 + 8 * 4 * 0.36) * 8 * 0.09 * 4 * local**2
    assert defedavg.bound(problem, T_, tight=True).total == pytest.approx(line)
    printed = math.sqrt(256 * 2.5 * (16 * 1.21 * 0.3 + 8 * 0.3 * 4 * 4) / (5 * 4 * T_))
    printed += (1.21 + 32 * 0.36) * 8 * 0.09 / (S * 4 * T_)
    assert defedavg.bound(problem, T_).total == pytest.approx(printed)


def test_defa_theorem_2_and_the_line_of_its_proof() -> None:
    """4Δ/(KTηη̄) + 8Lηη̄σ²/n + 8L²Kη̄²σ² with its step sizes: σ²L belongs under the root, where it prints L or 1."""
    problem, T_ = decoupled(), 20_000.0
    both = defedavg.iid_global_step(problem) * (local := defedavg.iid_local_step(problem, T_))
    line = 4 * 2.5 / (4 * T_ * both) + 8 * 0.3 * both * 1.21 / 5 + 8 * 0.09 * 4 * local**2 * 1.21
    assert defedavg.iid_bound(problem, T_).total == pytest.approx(line)
    assert defedavg.iid_bound(problem, T_, printed=True).terms["start and noise"] == pytest.approx(
        math.sqrt(128 * 0.3 * 2.5 / (5 * 4 * T_))
    )
    noisier = decoupled(sigma=2.2)
    assert defedavg.iid_bound(noisier, T_).terms["start and noise"] == pytest.approx(
        2 * defedavg.iid_bound(problem, T_).terms["start and noise"]
    )


@given(st.integers(1, 20), st.integers(1, 50), st.floats(1.0, 200.0), st.floats(0.1, 5.0), st.floats(0.1, 5.0))
def test_the_fewest_rounds_meet_the_conditions_exactly(
    steps: int, sampled: int, delay: float, sigma: float, gradient: float
) -> None:
    problem = decoupled(steps=steps, sampled=sampled, delay=delay, sigma=sigma, gradient=gradient)
    for least, conditions in (
        (defedavg.least_rounds(problem)[0], defedavg.conditions),
        (defedavg.iid_least_rounds(problem)[0], defedavg.iid_conditions),
    ):
        assert all(c.holds for c in conditions(problem, least * (1 + 1e-9)))
        assert least == 1.0 or not all(c.holds for c in conditions(problem, least * 0.99))


def test_the_fewest_rounds_grow_as_the_fourth_power_of_the_delay() -> None:
    """§3.1: "we need T ≥ Ω(nKλ⁴)"; for theorem 2 Ω(nKλ²)."""
    slow, slower = (defedavg.least_rounds(decoupled(delay=d, sigma=0.01))[0] for d in (1e3, 1e4))
    assert slower / slow == pytest.approx(1e4, rel=1e-2)
    slow, slower = (defedavg.iid_least_rounds(decoupled(delay=d))[0] for d in (1e3, 1e4))
    assert slower / slow == pytest.approx(1e2, rel=1e-2)


def test_the_delay_bound_against_simulated_draws() -> None:
    """200 trials of N = 20, n = 4, T = 200: at most δ = 5 % of them see a client undrawn for λ rounds."""
    rng = np.random.default_rng(0)
    N, n_, T_, delta = 20, 4, 200, 0.05
    late = defedavg.delay_bound(N, n_, T_, delta)
    worse = 0
    for _ in range(200):
        since, longest = np.zeros(N), 0.0
        for _ in range(T_):
            since += 1
            longest = max(longest, since.max() - 1)
            since[np.unique(rng.integers(0, N, n_))] = 0
        worse += longest >= late
    assert worse / 200 <= delta
    order = (1.0 + math.log(N * T_ / delta)) / defedavg.drawn(N, n_)  # up to the constant in the paper's O(·)
    assert late <= order
    assert defedavg.drawn(N, n_) == pytest.approx(1 - 0.95**4)


def test_one_client_is_never_late() -> None:
    assert defedavg.drawn(1, 3) == 1.0
    assert defedavg.delay_bound(1, 1, 1000, 0.01) == 1.0


# Searching


def test_the_horizon_of_a_bound_with_a_floor_is_infinite() -> None:
    assert horizon(lambda T_: 1.0 + 1.0 / T_, 0.5) == math.inf
    assert horizon(lambda T_: 10.0 / math.sqrt(T_), 0.1) == 10_000
    assert horizon(lambda T_: 0.0, 0.1, least=7.2) == 8


def test_halving_finds_the_nearest_value_or_none() -> None:
    def time(p: Any) -> float:
        return float(p["a"] ** 2 / p["b"] + 0.0 * p["c"])

    now = {"a": 4.0, "b": 3.0, "c": 1.0}
    found = halve(time, now, whole=["b"])
    assert found[0].to == pytest.approx(4.0 / math.sqrt(2.0))
    assert found[1:] == [Halving("b", 3.0, 6.0), Halving("c", 1.0, None)]
    limited = halve(lambda p: time(p) if p["b"] <= 5.0 else math.inf, now)
    assert limited[1] == Halving("b", 3.0, None)
