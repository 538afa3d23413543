"""Any loss in a real run: each client has its own samples alone, and the run is the simulated one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ideal import Ideal
from objectives import CASES, SHARDS
from worlds import run as simulate

from offbeat.algorithms import AREA, FedBuff
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.deploy.client_data import ClientProblem
from offbeat.local import SGD
from offbeat.timing import Exponential, Times


@pytest.mark.parametrize("server", [FedBuff(size=2, lr=0.5), AREA(size=2)], ids=["fedbuff", "area"])
@pytest.mark.parametrize("name", CASES)
def test_on_an_ideal_network_the_model_is_the_simulated_one_bit_for_bit(name: str, server: Server) -> None:
    case = CASES[name]
    problem, local = case.problem(l2=0.01), SGD(lr=0.05, steps=3, batch=4)
    own = [
        ClientProblem(
            f"site {client}",
            case.model(),
            len(SHARDS),
            replace(problem.data, train=problem.data.train.part(shard)),
            l2=0.01,
            loss=case.loss,
            weight=case.weight,
            metrics=case.metrics,
        )
        for client, shard in enumerate(SHARDS)
    ]
    timing, until = Times(Exponential(1.0)), Until(updates=24)
    expected = simulate(problem, server, local, timing, until, seed=3, executor="serial")
    found = Ideal(problem, server, local, timing, until, seed=3, own=own).run()
    assert found.ledger.tally.updates == 24
    assert torch.equal(found.reducer.model(0), expected.model)
