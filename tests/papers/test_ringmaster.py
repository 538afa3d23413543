"""Ringmaster ASGD (Maranjyan, Tyurin, Richtárik, ICML 2025) and Ringleader ASGD (Maranjyan, Richtárik, ICLR 2026)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from worlds import Line, Scripted, after_each, run, seen

from offbeat.algorithms import AsySG, FedAST, Rennala, Ringleader, Ringmaster
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import SGD, Gradient
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2 at 1, 2, 2.5, 3, 4, 4.5
NOISY = Quadratic(8, dim=4, noise=0.5)
UNEVEN = Times(Exponential(tuple(0.2 * 2.0**i for i in range(8))))
FOREVER = 10**9


# Ringmaster


def test_six_gradients_by_hand_two_of_which_are_too_late() -> None:
    """Algorithm 4 with R = 2: if δ < R, x ← x − γ g; otherwise the gradient is ignored."""
    expected = [
        Fraction(3),  # client 0 at 0: −6
        Fraction(9, 2),  # at 3: −3
        Fraction(9, 2),  # client 1 at 0 has δ = 2
        Fraction(21, 4),  # client 0 at 9/2: −3/2
        Fraction(45, 8),  # at 21/4: −3/4
        Fraction(45, 8),  # client 2 at 0 has δ = 4
    ]
    assert after_each(THREE, Ringmaster(threshold=2, lr=0.5), ORDER, 6) == [float(x) for x in expected]


def test_six_gradients_by_hand_with_stops() -> None:
    """Algorithm 5 with R = 2: whoever computes a gradient of delay ≥ R starts again at the newest point."""
    clock = Scripted([[1.0], [2.5, 1.5], [4.5, 1.25]])
    expected = [
        Fraction(3),  # at time 1, client 0 at 0: −6
        Fraction(9, 2),  # at 2, at 3: −3; clients 1 and 2 start again at 9/2
        Fraction(21, 4),  # at 3, client 0 at 9/2: −3/2
        Fraction(0),  # at 3¼, client 2 at 9/2: 21/2, δ = 1; client 1 starts again at 0
        Fraction(3, 8),  # at 4, client 0 at 21/4: −3/4, δ = 1
        Fraction(51, 16),  # at 5, at 3/8: −45/8; clients 1 and 2 start again
    ]
    assert after_each(THREE, Ringmaster(threshold=2, lr=0.5, stop=True), clock, 6) == [float(x) for x in expected]


@pytest.mark.parametrize("stop", [False, True])
def test_with_an_infinite_threshold_it_is_asynchronous_sgd(stop: bool) -> None:
    until = Until(updates=500)
    plain = run(NOISY, AsySG(lr=0.02), Gradient(), UNEVEN, until)
    ring = run(NOISY, Ringmaster(threshold=FOREVER, lr=0.02, stop=stop), Gradient(), UNEVEN, until)
    assert torch.equal(ring.model, plain.model)
    assert seen(ring.events) == seen(plain.events)


def test_with_a_threshold_of_one_it_is_rennala_with_batches_of_one() -> None:
    until = Until(updates=500)
    ring, single = Ringmaster(threshold=1, lr=0.02), Rennala(size=1, lr=0.02)
    assert torch.equal(
        run(NOISY, ring, Gradient(), UNEVEN, until).model, run(NOISY, single, Gradient(), UNEVEN, until).model
    )


def test_with_stops_no_gradient_that_arrives_is_late_and_no_work_is_computed_in_vain() -> None:
    ring = Ringmaster(threshold=3, lr=0.02, stop=True)
    done = run(NOISY, ring, Gradient(), UNEVEN, Until(updates=500), executor="serial")
    arrived = [row.staleness for row in done.events if row.event == "Arrived"]
    assert max(arrived) == 2
    assert done.world.server.ignored == 0
    assert done.world.server.model.version == len(arrived) == 500
    assert done.world.tally.cancelled > 100
    assert done.world.tally.computed == 500


def test_without_stops_every_gradient_is_a_step_or_is_counted_as_ignored() -> None:
    state = run(NOISY, Ringmaster(threshold=3, lr=0.02), Gradient(), UNEVEN, Until(updates=500)).world.server
    assert state.ignored > 10
    assert state.model.version + state.ignored == 500


def test_fedast_takes_it_without_stops() -> None:
    FedAST(requests=4, aggregate=Ringmaster())
    with pytest.raises(SettingError, match=r"aggregate\.stop"):
        FedAST(requests=4, aggregate=Ringmaster(stop=True))


# Ringleader


def test_twenty_gradients_of_ringleader_by_hand() -> None:
    """Phase 1: wait for a gradient of everybody. Phase 2: one step for each client, along the mean of means."""
    clock = Scripted([[1.0], [3.25], [4.5]])
    expected = [
        *[Fraction(0)] * 5,  # clients 0, 0, 0, 1, 0: −6, −6, −6, −12, −6
        Fraction(1),  # at 4½, client 2: 6. The step of client 2: 0 − ¼ · (−6 − 12 + 6)/3
        Fraction(2),  # at 5, client 0 at 0: −6. Its step, along −4 again
        Fraction(2),  # at 6, client 0 at 2: −4, for the next round
        Fraction(3),  # at 6½, client 1 at 0: −12. Its step, and the round is over
        *[Fraction(3)] * 4,  # clients 0, 0, 2, 0: −4, −4 at 2, 7 at 1, −4
        Fraction(7, 2),  # at 9¾, client 1 at 3: −9. Its step, along (−4 − 9 + 7)/3
        Fraction(4),  # at 10, client 0 at 2: −4. Its step
        *[Fraction(4)] * 4,  # clients 0, 0, 1, 0, for the next round
        Fraction(9, 2),  # at 13½, client 2 at 1: 7. Its step
    ]
    assert after_each(THREE, Ringleader(lr=0.25), clock, 20) == [float(x) for x in expected]


def test_with_one_client_ringleader_is_sgd() -> None:
    alone, clock = Line([3.0]), Scripted([[1.0]])
    assert after_each(alone, Ringleader(lr=0.25), clock, 6) == after_each(alone, AsySG(lr=0.25), clock, 6)


def test_no_gradient_of_ringleader_is_older_than_2n_minus_2_steps_and_every_step_sees_everybody() -> None:
    made = prepare(NOISY, Algorithm(Ringleader(lr=0.02), Gradient()), UNEVEN, Until(updates=8000))
    largest, before = 0, 0
    for world in made.steps():
        state = world.server
        if state.model.version > before:
            before = state.model.version
            largest = max(largest, *(before - model.version for model in state.given.values()))
            assert not state.due or len(state.table.means) == 8
    assert before > 100
    assert largest <= 2 * 8 - 2


@pytest.mark.parametrize("server", [Ringleader(lr=0.05), Ringleader(lr=0.2)])
def test_ringleader_reaches_the_optimum_of_unlike_data_with_unequal_speeds_and_ringmaster_does_not(server: Any) -> None:
    far, clock, until = Line([0.0, 8.0]), Scripted([[1.0], [3.7]]), 2000
    assert after_each(far, server, clock, until)[-1] == pytest.approx(4.0)
    assert after_each(far, Ringmaster(threshold=5, lr=0.05), clock, until)[-1] < 3.0  # client 0 is faster


def test_a_trainer_that_steps_is_refused() -> None:
    with pytest.raises(SettingError, match="Ringleader reads 'gradient' but SGD sends only 'delta'"):
        Algorithm(Ringleader(), SGD(lr=0.1))
