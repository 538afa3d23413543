"""What a server can take out of updates: the attack of the study works at all, and AREA's residuals hide nothing."""

from __future__ import annotations

from typing import Any

import torch

from offbeat.algorithms import AREA
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from studies.inversion import attack


def test_a_single_update_is_inverted_and_noise_prevents_it() -> None:
    assert attack(1, "psnr", False, 0.0, seed=3) > 40.0
    blind = attack(1, "blind", False, 0.0, seed=3)
    assert blind < 15.0
    assert attack(1, "psnr", False, 0.1, seed=3) < blind


def test_a_server_of_area_adds_residuals_up_to_where_each_client_is() -> None:
    """With the model that it has sent, that is the client's update, as FedBuff would get it."""
    reached: dict[int, torch.Tensor] = {}
    problem = Quadratic(4, dim=5, noise=0.1)

    class Curious(AREA):
        def arrived(self, state: Any, update: Any, view: Any) -> Any:
            client = update.job.client
            reached[client] = reached.get(client, problem.initial()) + materialise(update["residual"])
            return super().arrived(state, update, view)

    run = prepare(problem, Algorithm(Curious(size=2), SGD(lr=0.1, steps=3)), Times(Exponential(1.0)), Until(updates=60))
    world = run.run()
    for client, where in reached.items():
        assert torch.allclose(where, world.memories[client, 0][1]["y"], atol=1e-5)
