"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1); PersA-FL compares with its option I in §5."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import SCAFFOLD, FedAvg, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import SGD, Scaffold
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Exponential, Times

THREE = Line([6.0, 12.0, -6.0])
CLOCK = Scripted([[1.0], [2.0], [3.0]])


def controls(simulation: Simulation) -> torch.Tensor:
    """c_i of every client, [n, d]; 0 before a client's first report."""
    world, n = simulation.world, simulation.clients
    zero = simulation.problems[0].initial() * 0.0
    return torch.stack([world.memories[i, 0][1]["control"] if (i, 0) in world.memories else zero for i in range(n)])


BY_HAND = {  # option -> (x, c, c_i) after each of two rounds of three clients; K = 2, lr = 1/2, η_g = 1
    2: [
        # every y_i goes 3/4 of the way to its centre: 9/2, 9, −9/2; c_i = 0 − 0 + (x − y_i)/(2·½)
        (Fraction(3), Fraction(-3), (Fraction(-9, 2), Fraction(-9), Fraction(9, 2))),
        # directions y − 9/2, y − 6, y − 3/2: y_i = 33/8, 21/4, 15/8; c_i = c_i + 3 + (3 − y_i)
        (Fraction(15, 4), Fraction(-3, 4), (Fraction(-21, 8), Fraction(-33, 4), Fraction(69, 8))),
    ],
    1: [
        # c_i = the gradient of all data at x = 0
        (Fraction(3), Fraction(-4), (Fraction(-6), Fraction(-12), Fraction(6))),
        # all directions are y − 4: every y_i = 15/4; c_i = the gradient at 3
        (Fraction(15, 4), Fraction(-1), (Fraction(-3), Fraction(-9), Fraction(9))),
    ],
}


@pytest.mark.parametrize("option", [1, 2])
def test_six_messages_of_three_clients_by_hand(option: int) -> None:
    """Lines 10 and 12: "y_i ← y_i − η_l (g_i(y_i) − c_i + c)" and
    "c_i⁺ ← (i) g_i(x), or (ii) c_i − c + (x − y_i)/(K η_l)"."""
    simulation = prepare(
        THREE, Algorithm(SCAFFOLD(), Scaffold(lr=0.5, steps=2, option=option)), CLOCK, Until(versions=2)
    )
    found = []
    for world in simulation.steps():
        state = world.server
        if state.model.version == len(found) + 1 and not state.buffer.count:
            found.append(
                (state.model.vector.item(), state.control.item(), tuple(controls(simulation).flatten().tolist()))
            )
    for (x, c, each), (want_x, want_c, want_each) in zip(found, BY_HAND[option], strict=True):
        assert (x, c) == pytest.approx((float(want_x), float(want_c)), abs=1e-14)
        assert each == pytest.approx(tuple(map(float, want_each)), abs=1e-14)


def test_the_model_moves_by_the_mean_over_the_round_and_the_control_by_the_mean_over_all() -> None:
    """Line 17: "x ← x + η_g/|S| ΣΔy_i, c ← c + |S|/N · 1/|S| ΣΔc_i". One of three equal clients a round."""
    result = run(Line([6.0] * 3), SCAFFOLD(sampled=1), Scaffold(lr=0.5), CLOCK, Until(versions=1))
    assert result.model.item() == 3.0
    assert result.world.server.control.item() == pytest.approx(-6.0 / 3)


@pytest.mark.parametrize("option", [1, 2])
def test_it_removes_the_drift_that_fedavg_keeps(option: int) -> None:
    """FedAvg with ten local steps rests away from x* (its fixed point is known); SCAFFOLD reaches x*."""
    problem = Quadratic(6, dim=6, heterogeneity=5.0, dtype=torch.float64)
    timing, until = Times(Constant(1.0)), Until(versions=1500)
    fedavg = run(problem, FedAvg(), SGD(lr=0.3, steps=10), timing, until).model
    scaffold = run(problem, SCAFFOLD(), Scaffold(lr=0.05, steps=10, option=option), timing, until).model
    pull = 1.0 - (1.0 - 0.3 * problem.h) ** 10
    torch.testing.assert_close(fedavg, (pull * problem.c).sum(dim=0) / pull.sum(dim=0), rtol=0, atol=1e-9)
    assert float(torch.linalg.vector_norm(fedavg - problem.optimum())) > 0.05
    assert float(torch.linalg.vector_norm(scaffold - problem.optimum())) < 1e-6


@pytest.mark.parametrize("server", [SCAFFOLD(sampled=4), SCAFFOLD(sampled=5, first=3)], ids=["all", "first"])
def test_the_server_s_control_is_the_mean_of_the_clients(server: SCAFFOLD) -> None:
    """c = mean(c_i) after every round. With `first`, late clients have renewed their c_i too."""
    problem = Quadratic(8, dim=2, noise=0.3, dtype=torch.float64)
    timing = Times(Exponential(1.0), dropout=0.2)
    simulation = prepare(problem, Algorithm(server, Scaffold(lr=0.1, steps=2)), timing, Until(versions=40))
    for world in simulation.steps():
        waiting = 0.0 if world.server.changes is None else world.server.changes / 8
        difference = controls(simulation).mean(dim=0) - world.server.control - waiting
        assert float(difference.abs().max()) < 1e-12


def test_its_local_trainer_does_not_belong_to_another_server() -> None:
    """A local trainer that needs c cannot work under FedBuff, and a server that reads c cannot work with SGD."""
    with pytest.raises(SettingError, match="Scaffold needs 'control' but FedBuff sends only 'model'"):
        Algorithm(FedBuff(), Scaffold(lr=0.1))
    with pytest.raises(SettingError, match="SCAFFOLD reads 'control' but SGD sends only 'delta'"):
        Algorithm(SCAFFOLD(), SGD(lr=0.1))


def test_both_directions_carry_the_control_too() -> None:
    assert Algorithm(SCAFFOLD(), Scaffold(lr=0.1)).local.wire(100) == (800, 800)


def test_other_options_are_refused() -> None:
    with pytest.raises(SettingError, match="option = 3"):
        Scaffold(lr=0.1, option=3)
