"""FedFa (Xu et al. 2024): the model is the mean of a sliding window of clients' models."""

from __future__ import annotations

from fractions import Fraction

import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import FedAsyncMixing, FedAvg, FedFa
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2
THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2


def test_six_models_by_hand() -> None:
    expected = [
        Fraction(0),  # client 0 from 0: 3; the window of two is not full
        Fraction(3),  # client 0 from 0: 3
        Fraction(9, 2),  # client 1 from 0: 6; (3 + 6)/2
        Fraction(21, 4),  # client 0 from 3: 9/2; (6 + 9/2)/2
        Fraction(81, 16),  # client 0 from 21/4: 45/8; (9/2 + 45/8)/2
        Fraction(21, 16),  # client 2 from 0: −3; (45/8 − 3)/2
    ]
    steps = prepare(THREE, Algorithm(FedFa(size=2), HALF), ORDER, Until(updates=6)).steps()
    next(steps)  # Started
    assert [world.server.model.vector.item() for world in steps][:6] == [float(x) for x in expected]


def test_a_window_of_one_is_fedasync_that_takes_over_each_model() -> None:
    problem = Quadratic(4, dim=3, noise=0.5, dtype=torch.float64)
    timing = Times(Exponential((8.0, 4.0, 2.0, 1.0)))
    one, other = (
        run(problem, server, HALF, timing, Until(updates=300)).model for server in (FedFa(size=1), FedAsyncMixing(1.0))
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_when_everybody_reports_at_once_the_first_full_window_is_a_round_of_fedavg() -> None:
    together = Scripted([[1.0]])
    window, rounds = (run(THREE, s, HALF, together, Until(versions=1)).model for s in (FedFa(size=3), FedAvg()))
    torch.testing.assert_close(window, rounds)


def test_the_model_is_the_mean_of_the_window_after_every_event() -> None:
    problem = Quadratic(5, dim=3, noise=0.5, dtype=torch.float64)
    algorithm, timing = Algorithm(FedFa(size=4), HALF), Times(Exponential(1.0), dropout=0.2)
    simulation = prepare(problem, algorithm, timing, Until(updates=100), executor="serial")
    for world in simulation.steps():
        state = world.server
        assert len(state.window) <= 4
        if len(state.window) == 4:
            torch.testing.assert_close(state.model.vector, torch.stack(state.window).mean(dim=0), rtol=0, atol=1e-12)
