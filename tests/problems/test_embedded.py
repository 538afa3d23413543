"""Sets that need no download, trained on their natural clients: near the linear model of the pooled data."""

from __future__ import annotations

import pytest

from offbeat.data import Owners, load
from offbeat.problems.supervised import Supervised
from studies.embedded import CASES, federated, pooled

# updates after which it is near, and how near
ENOUGH = {
    "diabetes": (300, 0.05),
    "breast-cancer": (200, 0.01),
    "randhie": (2000, 0.03),
    "grunfeld": (300, 0.06),
    "employment": (300, 0.06),
}


@pytest.mark.parametrize("algorithm", ["area", "fedbuff"])
@pytest.mark.parametrize("name", CASES)
def test_natural_clients_reach_about_what_the_pooled_data_allow(name: str, algorithm: str) -> None:
    updates, near = ENOUGH[name]
    assert federated(name, algorithm, updates=updates) > pooled(load(name)) - near


def test_a_client_is_judged_on_the_test_samples_of_its_own_owner() -> None:
    data = load("randhie")
    problem = Supervised.split(data, 70, Owners(), "linear", metrics=["auroc"])
    assert data.test_owner is not None
    assert all(set(data.test_owner[share].tolist()) == {at} for at, share in enumerate(problem.test_shares))
    assert sum(map(len, problem.test_shares)) == len(data.test)
