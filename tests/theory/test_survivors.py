"""Formulas, defaults and messages in which a wrong number went unnoticed."""

from __future__ import annotations

import math

import pytest
import torch

from offbeat.algorithms.buffer import check_memory
from offbeat.core.errors import SettingError
from offbeat.local.schedules import LinearDecay
from offbeat.theory import area, defedavg, fedast, persafl
from offbeat.theory.advice import Arrivals


def test_the_largest_client_step_of_fedast_without_delay_is_the_first_of_theorem_1s_two() -> None:
    task = fedast.FedASTTask(smoothness=2.0, steps=4, size=9, requests=9, staleness=0.0)
    assert fedast.largest_client_step(task) == pytest.approx(1.0 / (6 * 2 * 4 * math.sqrt(4 * 9)))


def test_fedasts_objective_takes_one_weight_for_each_task() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        fedast.objective([1.0, 2.0], [1.0])


def test_a_table_that_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(SettingError, match=r"each of 3 clients, 120 bytes"):
        check_memory("mifa", torch.zeros(10), clients=3, most=100.0)


def test_defaults_of_formulas_and_schedules() -> None:
    assert defedavg.DeFedAvgProblem(smoothness=1.0).delay == 1.0
    assert LinearDecay(over="version", length=4).factor(8) == 0.0


def test_the_condition_binds_only_where_no_more_steps_than_it_asks_for_are_needed() -> None:
    problem = persafl.MamlProblem(persafl.FedAsyncProblem(1.0), alpha=0.0, gradient=1.0, gap=1.0)  # T ≥ 64
    for steps, binds in ((64, True), (65, False)):
        epsilon = persafl.maml_bound(problem, steps).total
        advice = persafl.advise(problem, Arrivals([1.0, 1.0]), staleness=0.0, epsilon=epsilon)
        assert advice.facts["server steps T for ε"] == steps
        assert (advice.facts["what binds"] == "the condition T ≥ 64") == binds


def test_the_start_of_theorem_7_with_three_local_steps_by_hand() -> None:
    """Λ_0 and λ_0 with all constants of lemmas 13 to 20: L = 2, μ = 1/2, γ = 4/5, p_1 = p_s = 1/2, so q̄ = 2."""
    problem, events = area.Smooth(0.5, 2.0, 3, sigma=1.5, zeta=5.0, distance=3.0), area.Events.from_rates([1.0], 1.0)
    steps = area.schedule(problem, events)
    c, d, alpha, slack, K = steps.c, steps.d, steps(0), ((steps.d + 1) / steps.d) ** 4, 1000 + steps.d
    c_sigma = 6 * (1 + 4 * (2 / 3) / 0.5 + 16 * (2 / 3) / (3 * 2.5**2))
    c_zeta = 4 * 16 * 8 * (2 / 0.8 + 6 / 2.5)
    square = (2 + 16) * 9 + 16 * (alpha * 30) ** 2 + 4 * (alpha**2 * c_sigma * 2.25 + alpha**3 * c_zeta * 25)
    plain = (2 + 8) * 3 + 8 * alpha * 30 + 4 * (alpha**2 * 12 * 5 + alpha * 3.3 * 1.5)
    c1, psi = 12 * c, 2 + 8
    begun = d**2 * (math.sqrt(psi * square) + math.sqrt(2 * psi * c1 * 5 * plain))
    found = area.leading(problem, events, 1000).terms
    assert found["start, 1/K⁴"] == pytest.approx(d**4 * square / K**4 / 2, rel=1e-12)
    late = (c1 * 5 * begun + 8 * (6 * c) ** 2 * 2 * slack * 25) / K**3 / 2
    assert found["start × heterogeneity, 1/K³"] == pytest.approx(late, rel=1e-12)


def test_the_conditions_of_defedavgs_theorem_1_by_hand() -> None:
    """(11) for L = 2, K = 3, n = 4, λ = 5, σ² = 9, G² = 49 and a gap of 1/2, after 100 rounds: S = 72 + 588."""
    problem = defedavg.DeFedAvgProblem(2.0, 3, 4, 5.0, sigma=3.0, gradient=7.0, gap=0.5)
    local = 1 / (math.sqrt(660 * 100) * 3)
    both = math.sqrt(24) * local
    found = [number for c in defedavg.conditions(problem, 100) for number in (c.value, c.limit)]
    third = (18 + 147) / (8 * 9 * 2 * 3 * 5 + 4 * 2 * 49 * 9 * 25)
    assert found == pytest.approx([local, 1 / 48, both, 1 / 120, both, third])


def test_a_task_without_heterogeneity_may_have_no_weight() -> None:
    assert fedast.allocation(9, [0.0, 1.0, 2.0]) == [0.0, 3.0, 6.0]
