"""Anarchic federated learning (Yang et al. 2022): AFA-CD and AFA-CS."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AFACD, AFACS, MIFA, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.events import Job, Update
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2
TWO = SGD(lr=0.5, steps=2)  # on the line: delta = ¾ (received − centre), and η_L·K = 1
F = Fraction


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        # −9/2 and −9/2; −9 and client 0 from 9/4: −45/16; client 0 from 333/64: −153/256, and 9/2
        (AFACD(size=2, lr=0.5), [F(0), F(9, 4), F(9, 4), F(333, 64), F(333, 64), F(4329, 1024)]),
        # means −3/2, −21/16, −69/16, −531/128, −3165/1024, −1629/1024
        (AFACS(lr=0.5), [F(3, 4), F(45, 32), F(57, 16), F(1443, 256), F(14709, 2048), F(8169, 1024)]),
    ],
    ids=["afa-cd", "afa-cs"],
)
def test_six_messages_by_hand(server: Server, expected: list[Fraction]) -> None:
    steps = prepare(THREE, Algorithm(server, TWO), ORDER, Until(updates=6)).steps()
    next(steps)  # Started
    found = [world.server.model.vector.item() for world in steps][:6]
    assert found == pytest.approx([float(x) for x in expected], abs=1e-13)


def test_what_counts_is_the_mean_gradient_however_many_steps_a_client_makes() -> None:
    """Two clients with the same gradient 8 everywhere, of which one makes 4 steps of ½ and one a single one."""
    server = AFACD(size=1, lr=0.25)
    view = type("Nobody", (), {"present": lambda self, client: False, "clients": 2})()
    for steps in (1, 4):
        state = server.begin([torch.zeros(1, dtype=torch.float64)], view)
        update = Update(Job(0, 0, 0, 0, steps, 0.5, 0), {"delta": torch.tensor([0.5 * 8.0 * steps])})
        list(server.arrived(state, update, view))
        assert state.model.vector.item() == -2.0


@pytest.mark.parametrize(
    ("anarchic", "known"),
    [(AFACD(size=4, lr=0.02), FedBuff(size=4)), (AFACS(size=4, lr=0.02), MIFA(size=4))],
    ids=["afa-cd", "afa-cs"],
)
def test_with_one_local_step_they_are_fedbuff_and_mifa(anarchic: Server, known: Server) -> None:
    problem = Quadratic(6, dim=4, noise=0.5, dtype=torch.float64)
    timing = Times(Exponential((8.0, 4.0, 2.0, 1.0, 1.0, 0.5)))
    one, other = (run(problem, s, SGD(lr=0.02), timing, Until(updates=300)).model for s in (anarchic, known))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_memory_takes_away_the_bias_towards_fast_clients() -> None:
    problem = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    timing = Times(Exponential((50.0, 10.0, 5.0, 1.0)))
    across, silos = (
        float(
            torch.linalg.vector_norm(
                run(problem, s, SGD(lr=0.02), timing, Until(updates=8000)).model - problem.optimum()
            )
        )
        for s in (AFACD(size=4, lr=0.02), AFACS(size=4, lr=0.02))
    )
    assert silos < 0.2 * across
