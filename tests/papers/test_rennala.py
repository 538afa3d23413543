"""Rennala SGD and Malenia SGD (Tyurin, Richtárik, NeurIPS 2023)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from worlds import Line, Scripted, after_each, run

from offbeat.algorithms import FedAvg, Malenia, Rennala
from offbeat.core.until import Until
from offbeat.local import SGD, Gradient
from offbeat.problems.quadratic import Quadratic
from offbeat.timing import Exponential, Times

THREE = Line([6.0, 12.0, -6.0])
NOISY = Quadratic(8, dim=4, noise=0.5)
UNEVEN = Times(Exponential(tuple(0.2 * 2.0**i for i in range(8))))
STOPPED = Scripted([[1.0], [2.5, 1.5], [4.5, 1.25]])
STEADY = Scripted([[1.0], [2.5], [4.5]])


def test_six_gradients_of_rennala_by_hand() -> None:
    """S = 2 gradients at the newest point a step; older ones are ignored."""
    expected = [
        Fraction(0),  # client 0 at 0: −6
        Fraction(3),  # again: −6; 0 + 6/2
        Fraction(3),  # client 1 at 0: too late
        Fraction(3),  # client 0 at 3: −3
        Fraction(9, 2),  # again
        Fraction(9, 2),  # client 2 at 0: too late
    ]
    assert after_each(THREE, Rennala(size=2, lr=0.5), STEADY, 6) == [float(x) for x in expected]


def test_eight_gradients_of_rennala_with_stops_by_hand() -> None:
    expected = [
        Fraction(0),  # at 1, client 0 at 0: −6
        Fraction(3),  # at 2, again; clients 1 and 2 start again at 3
        Fraction(3),  # at 3, client 0 at 3: −3
        Fraction(3, 2),  # at 3¼, client 2 at 3: 9; clients 0 and 1 start again at 3/2
        Fraction(3, 2),  # at 4¼, client 0 at 3/2: −9/2
        Fraction(15, 4),  # at 5¼, again; clients 1 and 2 start again at 15/4
        Fraction(15, 4),  # at 6¼, client 0 at 15/4: −9/4
        Fraction(15, 8),  # at 6½, client 2 at 15/4: 39/4
    ]
    assert after_each(THREE, Rennala(size=2, lr=0.5, stop=True), STOPPED, 8) == [float(x) for x in expected]


def test_thirteen_gradients_of_malenia_by_hand() -> None:
    """S = n: the mean of the clients' means as soon as everybody has given a gradient at the newest point."""
    expected = [
        *[Fraction(0)] * 5,  # clients 0, 0, 1, 0, 0: −6 each time, −12 of client 1
        Fraction(2),  # at 4½, client 2: 6; 0 − ½ · (−6 − 12 + 6)/3, although client 0 has given four
        *[Fraction(2)] * 6,  # at 5, clients 1 and 0 are late; then client 0 at 2: −4, −4; client 1: −10; client 0: −4
        Fraction(3),  # at 9, client 2: 8; 2 − ½ · (−4 − 10 + 8)/3
    ]
    assert after_each(THREE, Malenia(size=3, lr=0.5), STEADY, 13) == [float(x) for x in expected]


def test_malenia_waits_until_the_harmonic_mean_of_the_clients_counts_is_large_enough() -> None:
    """S = 6: (1/n) Σ 1/B_i ≤ n/S = ½ first holds at 7½, when the B_i are 7, 3 and 1."""
    found = after_each(THREE, Malenia(size=6, lr=0.5), STEADY, 11)
    assert found == [*[0.0] * 10, 2.0]


@pytest.mark.parametrize("server", [Rennala(size=4, lr=0.25, stop=True), Malenia(lr=0.25, stop=True)])
def test_with_as_many_gradients_as_clients_and_equal_speeds_it_is_minibatch_sgd(server: Any) -> None:
    """With stops: without, the first three of a batch begin another gradient at the old point, which is ignored."""
    four, clock = Line([6.0, 12.0, -6.0, 4.0]), Scripted([[1.0]])
    minibatch = run(four, FedAvg(), SGD(lr=0.25), clock, Until(updates=20)).model
    assert after_each(four, server, clock, 20)[-1] == float(minibatch)


def test_every_gradient_of_rennala_counts_in_one_batch_or_is_ignored() -> None:
    state = run(NOISY, Rennala(size=5, lr=0.1), Gradient(), UNEVEN, Until(updates=501)).world.server
    assert 5 * state.model.version + state.batch.count + state.ignored == 501
    assert state.ignored > 10


def test_with_stops_no_gradient_is_ignored() -> None:
    done = run(NOISY, Rennala(size=5, lr=0.1, stop=True), Gradient(), UNEVEN, Until(updates=500))
    assert done.world.server.ignored == 0
    assert done.world.server.model.version == 100
    assert {row.staleness for row in done.events if row.event == "Arrived"} == {0}


def test_malenia_reaches_the_optimum_of_unlike_data_with_unequal_speeds_and_rennala_does_not() -> None:
    far, clock = Line([0.0, 8.0]), Scripted([[1.0], [3.7]])
    for size in (1, 6):
        assert after_each(far, Malenia(size=size, lr=0.3), clock, 2000)[-1] == pytest.approx(4.0)
    assert after_each(far, Rennala(size=10, lr=0.3), clock, 2000)[-1] < 3.0
