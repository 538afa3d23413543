"""Formulas, defaults and messages in which a wrong number went unnoticed."""

from __future__ import annotations

import math

import pytest
import torch

from offbeat.algorithms.buffer import check_memory
from offbeat.core.errors import SettingError
from offbeat.local.schedules import LinearDecay
from offbeat.theory import defedavg, fedast, persafl
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
