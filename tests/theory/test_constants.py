"""Constants of the theorems, conditions and advice that nothing else would notice."""

from __future__ import annotations

import math

import pytest

from offbeat.theory import area, defedavg, fedast, times
from offbeat.theory.advice import Arrivals
from offbeat.theory.area import Events, Nonsmooth, Smooth


def test_the_conditions_of_fedasts_theorem_2_by_hand() -> None:
    """η_s ≤ ρ^(−3/2)·sqrt(τb); η_c ≤ ρ^(−3/2)·min(1/(24Lτ·sqrt(τb)), 1/(16Lτ·sqrt(τRγ)))."""
    L, tau, b, R, late, rho = 2.0, 3, 4, 20, 5.0, 4.0
    server, client = fedast.dynamic_conditions(fedast.FedASTTask(L, tau, b, R, late), rho, 1.0, 1.0)
    assert server.limit == pytest.approx(math.sqrt(12) / 8)
    assert client.limit == pytest.approx(1 / (8 * 16 * L * tau * math.sqrt(tau * R * late)))
    _, fresh = fedast.dynamic_conditions(fedast.FedASTTask(L, tau, b, R, 0.0), rho, 1.0, 1.0)
    assert fresh.limit == pytest.approx(1 / (8 * 24 * L * tau * math.sqrt(12)))


def test_areas_recursion_is_that_of_its_lemmas_one_number_at_a_time() -> None:
    """Lemmas 13–15 and 18–20 for one client and one local step, where drift is none, in plain floats."""
    problem, events = Smooth(0.5, 2.0, 1, sigma=0.3, zeta=7.0, distance=2.0), Events.from_rates([1.0], 0.5)
    steps, gamma, (p,), ps = area.schedule(problem, events), problem.gamma, events.clients, events.server
    a = steps(0)
    s1, s2, y1 = 2.0, 4.0, 2.0 + a * 14.0
    y2 = y1 * y1
    x1, x2 = max(y1, (1 - a * gamma / 4) * s1 + a * 0.3), max(y2, (1 - a * gamma / 4) * s2 + 2 * (a * 0.3) ** 2)
    found = area.trajectory(problem, events, 50)
    for k in range(50):
        assert found[k] == pytest.approx(s2, rel=1e-12)
        a, b = steps(k), steps(k + 1)
        gap = (a - b) * 14.0  # L·M·ζ
        reached2 = (1 - b * gamma / 4) * s2 + 2 * gap * (1 - b * gamma / 2) * s1 + 2 * (a * 0.3) ** 2
        reached1 = (1 - b * gamma / 4) * s1 + a * 0.3
        x2, y2, s2, x1, y1, s1 = (
            (1 - p) * (x2 + 2 * gap * x1) + p * reached2 + 2 * gap**2,
            (1 - p) * (y2 + 2 * gap * y1) + p * (x2 + 2 * gap * x1) + gap**2,
            (1 - ps) * s2 + ps * y2,
            (1 - p) * x1 + p * reached1 + gap,
            (1 - p) * y1 + p * x1 + gap,
            (1 - ps) * s1 + ps * y1,
        )


@pytest.mark.parametrize("steps", [1, 3])
def test_advice_about_theorem_8_uses_what_the_proof_supports(steps: int) -> None:
    """(M+1)B²/2 as printed is M·B² for M = 1; for M > 1 the proof has M·B²."""
    problem, rates = Nonsmooth(2.0, steps, 0.5, 3.0), [1.0, 2.0, 0.5]
    found, events = area.advise(problem, rates, 1.5, epsilon=0.1), Events.from_rates(rates, 1.5)
    K = float(found.facts["iterations K for ε"])
    exact = (3.0**2 / (0.1**2 * steps)) * area.delay(events) * (0.25 + steps * 4.0)
    assert math.ceil(exact) == K
    assert found.facts["step size α"] == pytest.approx(area.nonsmooth_step(problem, events, K, printed=steps == 1))
    assert found.facts["time"] == pytest.approx(K / events.total)
    assert found.facts["server rate for a time within 5 % of the least"] == pytest.approx(area.rate_within(rates))


def test_the_best_server_rate_for_theorem_7_is_no_worse_than_its_neighbours() -> None:
    problem, rates = Smooth(0.5, 2.0, 2), [1.0, 2.0, 0.5]
    best = float(area.advise(problem, rates, epsilon=0.1).facts["best for this bound"])

    def time(rate: float) -> float:
        return float(area.advise(problem, rates, rate, epsilon=0.1).facts["time"])

    assert time(best) <= min(time(0.8 * best), time(1.25 * best))
    assert 0.05 < best < 50


def test_what_halves_the_time_of_theorem_8_halves_it() -> None:
    """The time is K/λ̄, with the iterations that there are in a unit of time."""
    problem, rates = Nonsmooth(2.0, 1, 0.5, 3.0), [1.0, 2.0, 0.5]
    found = area.advise(problem, rates, 0.1, epsilon=0.01)
    (rate,) = [change.to for change in found.changes if change.name == "server rate"]
    assert rate == pytest.approx(1 / (0.5 * (10 + 7 / 3) - 7 / 3), rel=1e-3)  # 1/λ_s + (2/n) Σ 1/λ_i is halved
    faster = area.advise(problem, rates, rate, epsilon=0.01)
    assert faster.facts["time"] == pytest.approx(float(found.facts["time"]) / 2, rel=1e-3)


def test_times_and_delays_at_their_ends() -> None:
    assert times.synchronous_time(2.0, 4, first=1) == pytest.approx(1 / 8)  # the first of four: rate 8
    assert defedavg.delay_bound(2, 40, 1, 0.5) == 1.0  # nearly everybody is drawn in every round
    arrivals = Arrivals([1.0, 2.0, 0.5], 2)
    assert arrivals.worst_staleness(50) == math.ceil(times.worst_staleness([1.0, 2.0, 0.5], 2, 100, 0.01))
    assert arrivals.worst_staleness(50) > math.ceil(times.worst_staleness([1.0, 2.0, 0.5], 2, 100, 0.02))


def test_advice_for_defedavg_says_what_no_delay_would_ask_for() -> None:
    problem = defedavg.DeFedAvgProblem(1.0, 2, 3, 4.0)
    found = defedavg.advise(problem, 10, delay=4.0)
    alone = defedavg.DeFedAvgProblem(1.0, 2, 3, 1.0)
    assert found.facts["of that for λ = 1"] == defedavg.least_rounds(alone)[0]
    assert found.facts["of that for λ = 1"] < found.facts["at least, by (11)"]
