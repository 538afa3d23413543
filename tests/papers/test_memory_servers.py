"""Servers that remember every client: MIFA (Gu et al. 2021, AREA's [12]) and CA²FL (Wang et al. 2024, AREA's [34])."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms.ca2fl import CA2FL
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.mifa import MIFA
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2
THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2 at 1, 2, 2.5, 3, 4, 4.5


def course(server: Server, field: str, updates: int = 6) -> list[tuple[float, float]]:
    """(model, this field of the state) after each of the messages of the three clients."""
    steps = prepare(THREE, Algorithm(server, HALF), ORDER, Until(updates=updates)).steps()
    next(steps)  # Started
    states = [(world.server.model.vector.item(), getattr(world.server, field).item()) for world in steps]
    return states[:updates]


def test_mifa_six_messages_by_hand() -> None:
    """w ← w − (1/n) Σ_i (the last delta of client i), n = 3; who has not spoken counts 0."""
    expected = [  # (w, mean of the last deltas)
        (Fraction(1), Fraction(-1)),  # client 0 from 0: −3
        (Fraction(11, 6), Fraction(-5, 6)),  # client 0 from 1: −5/2, in place of −3
        (Fraction(14, 3), Fraction(-17, 6)),  # client 1 from 0: −6; and −5/2 again
        (Fraction(265, 36), Fraction(-97, 36)),  # client 0 from 11/6: −25/12; and −6 again
        (Fraction(1973, 216), Fraction(-383, 216)),  # client 0 from 265/36: 49/72
        (Fraction(535, 54), Fraction(-167, 216)),  # client 2 from 0: 3
    ]
    for found, (w, mean) in zip(course(MIFA(), "mean"), expected, strict=True):
        assert found == pytest.approx((float(w), float(mean)), abs=1e-14)


def test_ca2fl_six_messages_by_hand() -> None:
    """v = h + (1/K) Σ (delta_i − h_i) with K = 2; h_i changes only after the step."""
    expected = [  # (w, h)
        (Fraction(0), Fraction(0)),  # client 0 from 0: −3 − 0
        (Fraction(3), Fraction(-1)),  # client 0 from 0 again: −3 − 0, as h_0 is still 0; v = 0 − 3; h_0 = −3
        (Fraction(3), Fraction(-1)),  # client 1 from 0: −6 − 0
        (Fraction(25, 4), Fraction(-5, 2)),  # client 0 from 3: −3/2 + 3; v = −1 − 9/4; h_0 = −3/2, h_1 = −6
        (Fraction(25, 4), Fraction(-5, 2)),  # client 0 from 25/4: 1/8 + 3/2
        (Fraction(103, 16), Fraction(-23, 24)),  # client 2 from 0: 3 − 0; v = −5/2 + 37/16; h_0 = 1/8, h_2 = 3
    ]
    for found, (w, mean) in zip(course(CA2FL(size=2), "mean"), expected, strict=True):
        assert found == pytest.approx((float(w), float(mean)), abs=1e-14)


@pytest.mark.parametrize("server", [MIFA(), CA2FL(size=1)], ids=["mifa", "ca2fl"])
def test_the_step_size_multiplies_the_first_step(server: Server) -> None:
    """Client 0 from 0: −3, which MIFA divides by n = 3."""
    whole, part = (run(THREE, replace(server, lr=lr), HALF, ORDER, Until(updates=1)).model.item() for lr in (1.0, 0.25))
    assert (whole, part) == ((1.0, 0.25) if isinstance(server, MIFA) else (3.0, 0.75))


def test_the_running_means_are_the_means_of_what_is_remembered() -> None:
    for server, field in ((MIFA(size=3), "last"), (CA2FL(size=3), "cache")):
        result = run(
            Quadratic(5, dim=3, dtype=torch.float64), server, HALF, Times(Exponential(1.0)), Until(updates=300)
        )
        state = result.world.server
        mean = torch.stack(list(getattr(state, field).values())).mean(dim=0)
        torch.testing.assert_close(state.mean, mean, rtol=0, atol=1e-12)


def test_mifa_steps_every_so_many_messages() -> None:
    result = run(THREE, MIFA(size=3), HALF, ORDER, Until(updates=6))
    assert [e.version for e in result.events if e.event == "Arrived"] == [0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("server", [MIFA(size=4), CA2FL(size=4)], ids=["mifa", "ca2fl"])
def test_memory_takes_away_the_bias_towards_fast_clients(server: Server) -> None:
    """Rates 50, 10, 5 and 1: FedBuff settles near the fast client's optimum, these two far nearer to x*."""
    problem = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    timing, local = Times(Exponential((50.0, 10.0, 5.0, 1.0))), SGD(lr=0.02)
    there = [
        torch.linalg.vector_norm(run(problem, s, local, timing, Until(updates=10000)).model - problem.optimum())
        for s in (server, FedBuff(size=4))
    ]
    assert float(there[0]) < 0.2 * float(there[1])


@pytest.mark.parametrize("server", [MIFA(memory=100.0), CA2FL(memory=100.0)], ids=["mifa", "ca2fl"])
def test_a_table_that_does_not_fit_is_refused(server: Server) -> None:
    """The server remembers n·d numbers and refuses to begin where they do not fit; here 5·4·8 bytes."""
    with pytest.raises(SettingError, match="a vector for each of 5 clients"):
        prepare(Quadratic(5, dim=4, dtype=torch.float64), Algorithm(server, HALF), ORDER, Until(updates=1))
