"""MindFlayer SGD (Maranjyan, Omar, Richtárik, UAI 2025)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from worlds import Line, Scripted, run

from offbeat.algorithms import FedAvg, MindFlayer
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import SGD, Gradient
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Pareto, Times

THREE = Line([6.0, 12.0, -6.0])
# limit 2: of client 0 the second gradient takes too long, of clients 1 and 2 every other one
CLOCK = Scripted([[1.0, 3.0, 1.0, 1.0], [2.5, 1.5], [4.5, 1.25]])


def at_arrivals(server: MindFlayer, updates: int) -> list[tuple[float, float]]:
    """(time, model) after each of the gradients."""
    found: list[tuple[float, float]] = []
    for world in prepare(THREE, Algorithm(server, Gradient()), CLOCK, Until(updates=updates)).steps():
        if world.tally.updates > len(found):
            found.append((world.now, float(world.server.model.vector)))
    return found


def test_seven_gradients_by_hand() -> None:
    expected = [
        (Fraction(1), Fraction(0)),  # client 0 at 0: −6; its second trial is stopped at 3
        (Fraction(13, 4), Fraction(0)),  # client 2, stopped at 2, in its second trial: 6
        (Fraction(7, 2), Fraction(3, 2)),  # client 1, stopped at 2: −12, the last; 0 − ½ · (−6 + 6 − 12)/4
        (Fraction(9, 2), Fraction(3, 2)),  # client 0 at 3/2: −9/2
        (Fraction(11, 2), Fraction(3, 2)),  # again, just in time: −9/2; the other two are stopped at 5½
        (Fraction(27, 4), Fraction(3, 2)),  # client 2: 15/2
        (Fraction(7), Fraction(3)),  # client 1: −21/2; 3/2 − ½ · (−12)/4
    ]
    server = MindFlayer(limit=2.0, trials=2, lr=0.5, expected=4.0)
    assert at_arrivals(server, 7) == [(float(time), float(model)) for time, model in expected]


def test_by_default_it_steps_along_the_mean_of_what_has_come() -> None:
    found = at_arrivals(MindFlayer(limit=2.0, trials=2, lr=0.5), 3)
    assert [model for _, model in found] == [0.0, 0.0, 2.0]  # 0 + ½ · 12/3


@pytest.mark.parametrize("expected", [None, 4.0])
def test_with_one_trial_and_no_limit_it_is_minibatch_sgd(expected: float | None) -> None:
    four, clock, until = Line([6.0, 12.0, -6.0, 4.0]), Scripted([[1.0], [2.0], [0.5], [3.0]]), Until(updates=20)
    server = MindFlayer(limit=1e9, lr=0.25, expected=expected)
    minibatch = run(four, FedAvg(), SGD(lr=0.25), clock, until)
    assert run(four, server, Gradient(), clock, until).model == minibatch.model


def test_with_heavy_tails_it_is_faster_than_waiting_for_the_same_batch() -> None:
    """The paper's case: the time of a gradient has a heavy tail, so that starting again beats waiting."""
    problem, heavy = Quadratic(8, dim=4, noise=0.5), Times(Pareto(scale=1.0, shape=0.5))
    flayed = run(problem, MindFlayer(limit=2.0, trials=2, lr=0.1), Gradient(), heavy, Until(versions=50))
    waited = run(problem, FedAvg(), SGD(lr=0.1), heavy, Until(versions=50))
    assert flayed.world.now <= 50 * 2 * 2.0 < waited.world.now / 100


def test_no_step_takes_longer_than_its_trials_and_only_gradients_at_the_newest_model_arrive() -> None:
    server, heavy = MindFlayer(limit=0.5, trials=3, lr=0.1), Times(Pareto(0.4, 1.1))
    done = run(Quadratic(8, dim=4), server, Gradient(), heavy, Until(updates=300))
    times = [row.time for row in done.events if row.event == "Arrived"]
    assert {row.staleness for row in done.events if row.event == "Arrived"} == {0}
    assert done.world.tally.cancelled > 100
    assert times[-1] <= (done.world.server.model.version + 1) * 3 * 0.5 + 1e-9
