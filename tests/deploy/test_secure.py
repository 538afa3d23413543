"""Secure aggregation in real runs: the simulated arithmetic, sums opened once, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ideal import Ideal

from offbeat.algorithms import AREA, FedBuff
from offbeat.algorithms.optimisers import FedAdam
from offbeat.core.course import Until
from offbeat.core.server import Algorithm
from offbeat.core.sums import Secure
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History

SECURE, TIMES = Secure(cohort=3), Times(compute=Exponential(1.0))
SERVERS = {
    "fedbuff": FedBuff(size=4),
    "an optimiser": FedBuff(size=3, server=FedAdam(0.1)),
    "area": AREA(size=4),
}


@pytest.mark.parametrize("name", SERVERS)
def test_on_an_ideal_network_the_run_is_the_simulated_one_bit_for_bit(name: str) -> None:
    problem, local, until = Quadratic(dim=5, clients=6, noise=0.1), SGD(lr=0.1, steps=2), Until(updates=80)
    ideal = Ideal(problem, SERVERS[name], local, TIMES, until, seed=3, secure=SECURE)
    real = ideal.run().ledger
    history = History(keep_events=True)
    algorithm = Algorithm(SERVERS[name], local, secure=SECURE)
    run = prepare(problem, algorithm, TIMES, until, seed=3, executor="serial", watchers=[history]).run()
    assert torch.equal(real.server.model.vector, run.server.model.vector)
    assert real.server.model.version == run.server.model.version >= 10
    rows: Any = [
        [(row.time, row.event, row.client, row.version, row.staleness) for row in each.events if row.event != "Joined"]
        for each in (ideal.history, history)
    ]
    assert rows[0] == rows[1]
    assert real.unopened == 0
    assert not real.tally.refused
