"""`offbeat.theory.advise`: a run's settings next to those of a theorem."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import offbeat as ob
from offbeat.algorithms.optimisers import FedAvgM
from offbeat.core.errors import SettingError
from offbeat.theory import advise, estimate, fedbuff
from offbeat.theory.advice import Arrivals

CLOCK = ob.timing.Times(ob.timing.Exponential(10.0))
LOCAL = ob.SGD(lr=0.1, steps=5)
PROBLEM = ob.Quadratic(4)


def test_the_step_size_of_fedbuffs_theorem_is_that_of_the_formula() -> None:
    found = advise(PROBLEM, ob.Algorithm(ob.FedBuff(size=2, lr=0.5), LOCAL), CLOCK, ob.Until(updates=400))
    problem = fedbuff.FedBuffProblem(estimate.constants(PROBLEM).smoothness.value, steps=5)
    assert found.theorem == "FedBuff, theorem 1"
    assert [(c.name, c.chosen) for c in found.choices] == [("local step η", "0.1"), ("server lr", "0.5")]
    assert found.choices[0].wanted == f"{fedbuff.local_step(problem, 200):.4g}"
    assert "T = 200 server steps" in found.notes[0]


def test_constants_that_are_known_are_not_estimated_again() -> None:
    known = replace(estimate.constants(PROBLEM), convexity=estimate.Estimate(-1.0))
    found = advise(PROBLEM, ob.Algorithm(ob.AREA(), LOCAL), CLOCK, ob.Until(time=10.0), constants=known)
    assert found.theorem.startswith("AREA: μ ≤ 0")


def test_unequal_clients_are_named_where_a_theorem_assumes_equal_ones() -> None:
    uneven = ob.timing.Times(ob.timing.Exponential((1.0, 1.0, 1.0, 5.0)))
    found = advise(PROBLEM, ob.Algorithm(ob.FedAsync(), LOCAL), uneven, ob.Until(updates=400))
    assert "here the most frequent one reports 2.50 times its share" in found.notes[-1]
    assert Arrivals((1.0, 1.0, 1.0, 5.0)).imbalance == pytest.approx(2.5)


def test_what_no_theorem_is_about_is_refused() -> None:
    with pytest.raises(SettingError, match="none of the five papers has a theorem about it"):
        advise(PROBLEM, ob.Algorithm(ob.FedAvg(sampled=2), LOCAL), CLOCK, ob.Until(time=1.0))


@pytest.mark.parametrize(
    ("server", "local", "said"),
    [
        (ob.FedAsync(server=FedAvgM()), ob.SGD(lr=0.1), "not about those of an optimiser"),
        (ob.FedAsync(), ob.SGD(lr=0.1, momentum=0.9), "without optimiser and schedule"),
        (ob.FedAsync(), ob.SGD(lr=0.1, batch=(4, 8, 4, 8)), "one batch size for all clients"),
    ],
    ids=["server", "local", "batch"],
)
def test_steps_that_no_theorem_is_about_are_refused(server: Any, local: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        advise(PROBLEM, ob.Algorithm(server, local), CLOCK, ob.Until(updates=100))
