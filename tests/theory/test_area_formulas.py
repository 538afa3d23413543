"""AREA's formulas against sympy, numerical minimisers and each other."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize_scalar

from offbeat.core.errors import SettingError
from offbeat.theory import area
from offbeat.theory.area import Events, Nonsmooth, Smooth

rates = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12)
smooth = st.builds(
    lambda mu, ratio, steps: Smooth(mu, mu * ratio, steps),
    mu=st.floats(1e-3, 10.0),
    ratio=st.floats(1.0, 1e4),
    steps=st.integers(1, 200),
)


@given(rates, st.floats(0.01, 100.0))
def test_event_probabilities_add_up_to_one(each: list[float], server: float) -> None:
    """Example 3: p_i = λ_i/λ̄, p_s = λ_s/λ̄."""
    events = Events.from_rates(each, server)
    assert sum(events.clients) + events.server == pytest.approx(1.0)
    assert events.clients[0] / events.server == pytest.approx(each[0] / server)
    assert events.mean_inverse == pytest.approx(np.mean([events.total / rate for rate in each]))


def test_events_of_a_run_have_the_predicted_probabilities() -> None:
    """The simulator's own arrivals: a chi-square of 8,000 iterations."""
    from offbeat.algorithms import AREA, Poisson
    from offbeat.core.algorithm import Algorithm
    from offbeat.core.until import Until
    from offbeat.experiment.run import run
    from offbeat.local.sgd import SGD
    from offbeat.problems.quadratic import Quadratic
    from offbeat.timing import Exponential, Times

    each = (1.0, 2.0, 5.0)
    algorithm = Algorithm(AREA(size=Poisson(4.0)), SGD(lr=0.01))
    result = run(Quadratic(3), algorithm, Times(Exponential(each)), Until(updates=3000), keep_events=True)
    events = Events.from_rates(each, 4.0)
    counts = [sum(row.client == i and row.event == "Arrived" for row in result.events) for i in range(3)]
    counts.append(sum(row.event == "Rang" for row in result.events))
    expected = [p * sum(counts) for p in (*events.clients, events.server)]
    assert sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True)) < 16.3  # 0.1 % of chi²(3)


def test_the_four_terms_of_d_as_sympy_evaluates_them() -> None:
    mu, L, M = sp.symbols("mu L M", positive=True)
    g = 2 * mu * L / (mu + L)
    terms = [
        2 / (M * (mu + L)),
        g / (L**2 * (M - 1)),
        sp.sqrt(M * g**2 / (64 * L**4 * (M - 1) ** 3)),
        sp.cbrt(g / (32 * L**4 * (M - 1) ** 3)),
    ]
    for values in ((0.1, 4.0, 5), (1.0, 1.0, 2), (0.01, 20.0, 50)):
        expected = [float(t.subs(dict(zip((mu, L, M), values, strict=True)))) for t in terms]
        assert list(area.largest_steps(Smooth(*values)).values()) == pytest.approx(expected)


@given(smooth)
def test_only_the_first_and_the_third_term_of_d_ever_bind(problem: Smooth) -> None:
    """Found while computing it: M = 1 is the first term's, every M ≥ 2 the third's."""
    wanted = area.TERMS[0] if problem.steps == 1 else area.TERMS[2]
    assert area.largest_step(problem)[1] == wanted


def test_the_limit_of_one_local_step() -> None:
    assert area.largest_step(Smooth(0.5, 1.5, 1))[0] == 1.0
    assert list(area.largest_steps(Smooth(0.5, 1.5, 1)).values())[1:] == [math.inf] * 3


@given(smooth, rates, st.floats(0.01, 100.0), st.integers(0, 10**6))
def test_the_schedule_in_both_forms(problem: Smooth, each: list[float], server: float, k: int) -> None:
    """Theorem 7's α_k = 1/(p_min M γ k/48 + 1/D) is lemma 11's c/(k + d), and never above D."""
    events = Events.from_rates(each, server)
    D = area.largest_step(problem)[0]
    alpha = area.schedule(problem, events)(k)
    assert alpha == pytest.approx(1.0 / (events.least * problem.steps * problem.gamma * k / 48.0 + 1.0 / D))
    assert alpha <= D * (1 + 1e-9)


@given(smooth, rates, st.floats(0.01, 100.0))
def test_lemma_11s_inequalities(problem: Smooth, each: list[float], server: float) -> None:
    """(17) β_k ≥ ½ and (18) (1 − p + pβ^(1/3))(k + d)⁴ ≤ (k + d − 1)⁴."""
    events = Events.from_rates(each, server)
    steps = area.schedule(problem, events)
    for k in (0, 1, 10, 1000):
        assert 1.0 - steps(k) * problem.steps * problem.gamma / 4.0 >= 0.5
        rho = area.contraction(steps(k), problem, events)
        assert rho <= (1.0 - 1.0 / (k + steps.d)) ** 4 + 1e-12


@pytest.mark.parametrize("each", [[1.0, 1.0], [0.1, 3.0, 1.0]])
def test_lemma_10_against_the_matrix_itself(each: list[float]) -> None:
    """w'A ≤ ρw', and the spectral radius of A (9) is at most ρ; the bound is tight where all p are equal."""
    problem, events = Smooth(0.5, 2.0, 3), Events.from_rates(each, 0.7)
    n, p, ps, alpha = len(each), np.array(events.clients), events.server, area.largest_step(Smooth(0.5, 2.0, 3))[0]
    beta = 1.0 - alpha * problem.steps * problem.gamma / 4.0
    A = np.zeros((2 * n + 1, 2 * n + 1))
    A[:n, :n] = A[n : 2 * n, n : 2 * n] = np.diag(1 - p)
    A[:n, -1], A[n : 2 * n, :n] = beta * p, np.diag(p)
    A[-1, n : 2 * n], A[-1, -1] = ps / n, 1 - ps
    w = np.concatenate([1 / (n * p) / beta ** (2 / 3), 1 / (n * p) / beta ** (1 / 3), [1 / ps]])
    rho = area.contraction(alpha, problem, events)
    assert (w @ A <= rho * w + 1e-12).all()
    assert max(abs(np.linalg.eigvals(A))) <= rho + 1e-12


def test_two_phases_of_the_contraction() -> None:
    """§4.1: about 1 − p_min while αMγ is near 4, 1 − p_min·α·M·γ/12 once it is small; 1 for α → 0."""
    problem, events = Smooth(1.0, 1.0, 1), Events.from_rates([1.0, 2.0], 3.0)
    p = events.least
    assert area.contraction(4.0 - 1e-12, problem, events) == pytest.approx(1 - p, abs=1e-3)
    assert 1 - area.contraction(1e-6, problem, events) == pytest.approx(p * 1e-6 / 12, rel=1e-5)
    assert area.contraction(0.0, problem, events) == 1.0
    with pytest.raises(SettingError, match="lemma 10"):
        area.contraction(4.0, problem, events)


def test_the_leading_terms_by_hand_for_one_local_step() -> None:
    """M = 1: no drift, so c_4 = 0, c_σ = 2 and Q = 4c·q̄·L; evaluated with sympy's rationals, p_1 = p_s = ½."""
    one, c, K = sp.Integer(1), sp.Integer(96), sp.Integer(1000 + 96)  # d = c/D = c
    slack, half, q = ((c + 1) / c) ** 4, one / 2, sp.Integer(2)
    psi, hat = 2 + 4 * q, one + one / 4
    c1, c2, c3 = 2 * c, 8 * c**2 * q * slack, 4 * c**2 * slack
    start2 = (2 + 8 * q) * 9 + 8 * 25 * q + 2 * q * 2 * 4
    start1 = (2 + 4 * q) * 3 + 4 * 5 * q + 2 * q * hat * 2
    expected = [
        half * c**4 * start2 / K**4,
        half * (c1 * 5 * c**2 * (sp.sqrt(psi * start2) + sp.sqrt(2 * psi * c1 * 5 * start1)) + c2 * 25) / K**3,
        half * c1 * sp.sqrt(psi * c1 * 4 * c * q / 2) * 25 / (2 * K**2),
        half
        * c1
        * 5
        * (sp.sqrt(psi * slack * c * hat * c1 / 6 * 10) + sp.sqrt(psi * c3 / 3) * 2)
        / (2 * K ** (one * 3 / 2)),
        half * c3 * 4 / (3 * K),
    ]
    bound = area.leading(Smooth(1.0, 1.0, 1, sigma=2.0, zeta=5.0, distance=3.0), Events.from_rates([1.0], 1.0), 1000)
    assert list(bound.terms.values()) == pytest.approx([float(term) for term in expected], rel=1e-12)


def test_the_drift_of_several_local_steps_is_in_the_leading_terms() -> None:
    """M = 3, σ = 0 and a start at the optimum: c_4 and ĉ_ζ by hand, where one local step has none."""
    problem, events = Smooth(0.5, 2.0, 3, sigma=0.0, zeta=5.0, distance=0.0), Events.from_rates([1.0], 1.0)
    steps, gamma = area.schedule(problem, events), 0.8
    c, slack = steps.c, ((steps.d + 1) / steps.d) ** 4
    c4 = 2 * c**3 * 4 * 2**4 * 2**3 * (2 / gamma + 6 / 2.5) * slack
    c1, Q = 2 * c * 2 * 3, 4 * c * 2 * 2 * 3 + 2 * c**2 * 4 * 3 * 2 / 2
    expected = 0.5 * (c1 * math.sqrt(10 * (c1 * Q + c4) / 2) + c4) * 25 / (2 * (1000 + steps.d) ** 2)
    assert area.leading(problem, events, 1000).terms["heterogeneity, 1/K²"] == pytest.approx(expected, rel=1e-12)


@given(smooth.filter(lambda p: p.mu > 0.01), st.floats(0.1, 10.0))
def test_leading_terms_fall_with_their_powers(problem: Smooth, server: float) -> None:
    events = Events.from_rates([1.0, 2.0], server)
    d = area.schedule(problem, events).d
    far, farther = (area.leading(problem, events, x * d) for x in (1e6, 1e7))
    for name, power in zip(far.terms, (4, 3, 2, 1.5, 1), strict=True):
        assert far.terms[name] / farther.terms[name] == pytest.approx(10**power, rel=1e-4)


def test_the_printed_rate_terms() -> None:
    """(3) for M = 1: δ = 0; every term by hand with p_i = p_s = ½."""
    bound = area.rate_terms(Smooth(0.5, 2.0, 1, 3.0, 5.0), Events.from_rates([1.0], 1.0), 100.0)
    assert not bound.exact
    noise = 9.0 / (0.5 * 100)
    mixed = math.sqrt(2) * 2 * 3 * 5 / (0.5 * 1000) + math.sqrt(2) * 2**1.5 * math.sqrt(3 * 125) / (
        math.sqrt(0.5) * 1000
    )
    last = math.sqrt(0.5) * 2 * 16 * 25 / (0.25 * 1e4)
    assert list(bound.terms.values()) == pytest.approx([noise, mixed, last])


small = st.floats(0.0, 10.0)


@settings(max_examples=40, deadline=None)
@given(smooth, small, small, small, st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4), st.floats(0.1, 10.0))
def test_the_recursion_is_below_its_closed_form(
    problem: Smooth, sigma: float, zeta: float, distance: float, each: list[float], server: float
) -> None:
    """`trajectory` runs the lemmas; `leading` is their solution by hand, at every k and for any constants."""
    problem, events = replace(problem, sigma=sigma, zeta=zeta, distance=distance), Events.from_rates(each, server)
    exact = area.trajectory(problem, events, 300)
    for k in (0, 1, 10, 300):
        assert exact[k] <= area.leading(problem, events, k).total * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.1, 1.0, 30.0])
def test_the_recursion_is_below_its_closed_form_after_many_iterations(sigma: float) -> None:
    """Where noise rules: the slips of the printed constants left it below the recursion there."""
    problem, events = Smooth(1.0, 1.0, 1, sigma, 1.0, 1.0), Events.from_rates([10.0], 0.1)
    exact = area.trajectory(problem, events, 200_000)
    assert all(exact[k] <= area.leading(problem, events, k).total for k in (1000, 20_000, 200_000))


@pytest.mark.slow
def test_with_the_printed_constants_the_closed_form_is_below_the_recursion() -> None:
    """c_8 without the sqrt(2c) that lemma 16 drops, and ψ = 1 + q̄: no bound, and it changes when f is rescaled."""

    def printed(problem: Smooth, K: float) -> float:
        """For M = 1, where c_4 and ĉ_ζ are 0."""
        L, ps, q, zeta, sigma, (c, d) = *values(problem), steps(problem)
        c1, c3, psi = 2.0 * c * L, 4.0 * c**2, 1.0 + q
        c5, c6 = math.sqrt(psi) * (d - 1) ** 2, (d - 1) ** 2 * math.sqrt(2.0 * psi * c1)
        c7, c8 = math.sqrt(psi * c1 * 4.0 * c * q * L / 2.0), math.sqrt(psi * 1.25 * c1 / 12.0)
        start2 = (1.0 / ps + 8.0 * q) * problem.distance**2 + 8.0 * (c / d * L * zeta) ** 2 * q
        start1 = (1.0 / ps + 4.0 * q) * problem.distance + 4.0 * c / d * L * zeta * q
        k, from_start = K + d - 1.0, c5 * math.sqrt(start2) + c6 * math.sqrt(zeta * start1)
        noise = c8 * math.sqrt(sigma * zeta) + math.sqrt(psi * c3 / 3.0) * sigma
        late = c1 * zeta * from_start / k**3 + c1 * c7 * zeta**2 / (2.0 * k**2) + c1 * zeta * noise / (2.0 * k**1.5)
        return ps * ((d - 1) ** 4 * start2 / k**4 + late + c3 * sigma**2 / (3.0 * k))

    def values(problem: Smooth) -> tuple[float, float, float, float, float]:
        return problem.smoothness, events.server, events.mean_inverse, problem.zeta, problem.sigma

    def steps(problem: Smooth) -> tuple[float, float]:
        found = area.schedule(problem, events)
        return found.c, found.d

    events, K = Events.from_rates([10.0], 10.0), 100_000
    problem = Smooth(1e-3, 1e-3, 1, sigma=1e-4, zeta=10.0, distance=1e-3)
    larger = Smooth(1.0, 1.0, 1, sigma=0.1, zeta=10.0, distance=1e-3)  # 1000·f
    exact = float(area.trajectory(problem, events, K)[-1])
    assert exact == pytest.approx(1.82e-3, rel=0.01)
    assert printed(problem, K) == pytest.approx(1.14e-3, rel=0.01)  # below what the lemmas give
    assert printed(larger, K) > 1.05 * printed(problem, K)
    assert exact < area.leading(problem, events, K).total < 3 * exact
    assert area.leading(larger, events, K).total == pytest.approx(area.leading(problem, events, K).total, rel=1e-9)


@given(smooth, st.floats(1e-3, 1e3))
def test_bounds_do_not_change_when_f_is_rescaled(problem: Smooth, scale: float) -> None:
    """s·f has sμ, sL and sσ, and the same minimisers; α becomes α/s, and the iterates stay what they were."""
    events = Events.from_rates([1.0, 2.0], 0.7)
    larger = replace(problem, mu=scale * problem.mu, smoothness=scale * problem.smoothness, sigma=scale * problem.sigma)
    one, other = area.leading(problem, events, 1e5), area.leading(larger, events, 1e5)
    assert list(one.terms.values()) == pytest.approx(list(other.terms.values()), rel=1e-6)
    assert area.trajectory(problem, events, 20)[-1] == pytest.approx(area.trajectory(larger, events, 20)[-1], rel=1e-9)


def test_the_noise_of_the_first_job_is_part_of_the_recursion() -> None:
    """One client, M = 1, |x_0 − x*| = 0: lemmas 13 and 18 to 20 by hand for two iterations."""
    problem, events = Smooth(1.0, 2.0, 1, 50.0, 1.0, 0.0), Events.from_rates([3.0], 1.0)
    steps, (p,), ps = area.schedule(problem, events), events.clients, events.server
    alpha, grade = steps(0), 2.0 * 1.0  # L·M·ζ
    gap, away, noise = (alpha - steps(1)) * grade, alpha * grade, alpha * 50.0
    assert noise > away  # so a client's distance after its first job is that of the noise
    begun = (1 - p) * (away**2 + 2 * gap * away) + p * (2 * noise**2 + 2 * gap * noise) + gap**2
    found = area.trajectory(problem, events, 2)
    assert found.tolist() == pytest.approx([0.0, ps * away**2, (1 - ps) * ps * away**2 + ps * begun], rel=1e-12)


def test_without_noise_and_heterogeneity_the_recursion_only_contracts() -> None:
    """σ = ζ = 0: nothing is added, so the bound falls from the start, at most by lemma 10's factor."""
    problem, events = Smooth(1.0, 2.0, 1, 0.0, 0.0, 1.0), Events.from_rates([1.0], 1.0)
    found = area.trajectory(problem, events, 200)
    assert all(a >= b for a, b in pairwise(found))
    assert found[-1] < found[0]


def test_theorem_8s_step_minimises_its_own_bound() -> None:
    """For any constant step α it is (1/p_s + 2q̄)·|x_0 − x*|²/(2αMK) + α·(σ² + (M+1)B²/2)/2."""
    problem, events, K = Nonsmooth(2.0, 3, 0.7, 1.5), Events.from_rates([1.0, 4.0, 0.3], 2.0), 5000
    start = area.delay(events) * problem.distance**2 / (2.0 * problem.steps * K)
    best = minimize_scalar(
        lambda log: start / math.exp(log) + math.exp(log) * problem.spread(printed=True) / 2.0,
        bounds=(-20, 5),
        method="bounded",
    )
    assert math.exp(best.x) == pytest.approx(area.nonsmooth_step(problem, events, K), rel=1e-3)
    assert best.fun == pytest.approx(area.nonsmooth_bound(problem, events, K).total)


def test_theorem_8_as_printed_and_as_proved_agree_for_one_step_only() -> None:
    assert Nonsmooth(2.0, 1, 1.0).spread(True) == Nonsmooth(2.0, 1, 1.0).spread(False) == 5.0
    assert Nonsmooth(2.0, 4, 1.0).spread(True) == 11.0
    assert Nonsmooth(2.0, 4, 1.0).spread(False) == 17.0


@given(rates)
def test_the_optimal_server_rate_minimises_theorem_8s_bound(each: list[float]) -> None:
    """§4.2, against a numerical minimiser over λ_s."""
    problem = Nonsmooth(1.0, 2, 1.0, 1.0)

    def bound(log: float) -> float:
        return area.nonsmooth_bound(problem, Events.from_rates(each, math.exp(log)), 100).total

    found = minimize_scalar(bound, bounds=(-12, 12), method="bounded", options={"xatol": 1e-8})
    assert math.exp(found.x) == pytest.approx(area.optimal_rate(each), rel=1e-2)
    assert found.fun == pytest.approx(bound(math.log(area.optimal_rate(each))), rel=1e-9)


@given(rates, st.floats(0.01, 1.0))
def test_faster_servers_are_better_for_the_time_and_lambda_star_only_for_iterations(
    each: list[float], excess: float
) -> None:
    """K = λ̄·t iterations in a time t; from `rate_within` on, the bound's square is within the excess of its limit."""

    def squared(server: float) -> float:
        events = Events.from_rates(each, server)
        return area.nonsmooth_bound(Nonsmooth(1.0), events, 1000.0 * events.total).total ** 2

    best, least = area.optimal_rate(each), squared(1e9 * max(each))
    assert squared(10 * best) < squared(best)
    assert squared(area.rate_within(each, excess)) == pytest.approx((1 + excess) * least, rel=1e-6)


def test_an_infinitely_fast_server_does_not_help() -> None:
    """λ_s → ∞: p_i → 0, so iterations are wasted on empty aggregations and 1/p_s + 2q̄ → ∞."""
    assert area.delay(Events.from_rates([1.0], 1e12)) > 1e12
    assert area.delay(Events.from_rates([1.0], 1e-12)) > 1e11


@pytest.mark.parametrize(
    "wrong", [{"mu": 0.0}, {"mu": -1.0}, {"mu": 2.0}, {"smoothness": math.inf}, {"steps": 0}, {"sigma": -1.0}]
)
def test_bad_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Smooth(**{"mu": 0.5, "smoothness": 1.0, **wrong})  # type: ignore[arg-type]


def test_rates_must_be_there_and_positive() -> None:
    for each, server in (([], 1.0), ([0.0], 1.0), ([1.0], -1.0), ([1.0, math.nan], 1.0)):
        with pytest.raises(SettingError):
            Events.from_rates(each, server)
