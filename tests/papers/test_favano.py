"""FAVANO, also FAVAS (Leconte, Nguyen, Moulines 2023), a baseline of DeFedAvg: rounds by the clock."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms.favano import Favano
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Times
from offbeat.timing.base import Durations

HALF = SGD(lr=0.5, steps=2)  # on the line every step halves the way to the centre; K = 2
THREE = Line([6.0, 12.0, -6.0])
CLOCK = Scripted([[2.0], [4.0], [8.0]])  # a step takes client 0 one unit of time, client 1 two, client 2 four
SEED = 16  # draws clients {0, 1}, {1, 2} and {0, 2} in the first three rounds
BOTH = pytest.mark.parametrize("normalise", ["expected", "stochastic"])


@BOTH
def test_six_answers_in_three_rounds_by_hand(normalise: str) -> None:
    """w ← (w + Σ unbiased models)/(s + 1) with s = 2 and Δt = 2; a client is seen to do as many steps every time."""
    expected = [  # (time, client, w)
        (2.0, 0, Fraction(0)),  # q = 2 from 0: reaches 9/2, gives 0 + (9/2)/2 = 9/4
        (2.0, 1, Fraction(11, 4)),  # q = 1 from 0: reaches 6, gives 6; (0 + 9/4 + 6)/3
        (4.0, 1, Fraction(11, 4)),  # q = 1 from 11/4: reaches and gives 59/8
        (4.0, 2, Fraction(19, 8)),  # q = 1 of 2 from 0, not interrupted at 2: gives −3; (11/4 + 59/8 − 3)/3
        (6.0, 0, Fraction(19, 8)),  # q = 2 from 11/4, done at 4: reaches 83/16, gives 11/4 + (39/16)/2 = 127/32
        (6.0, 2, Fraction(93, 32)),  # q = 0 from 19/8: gives its start; (19/8 + 127/32 + 19/8)/3
    ]
    server = Favano(sampled=2, period=2.0, normalise=normalise)
    result = run(THREE, server, HALF, CLOCK, Until(versions=3), seed=SEED)
    answers = [e for e in result.events if e.event == "Arrived"]
    assert sorted((e.time, e.client) for e in answers) == [(time, client) for time, client, _ in expected]
    steps = prepare(THREE, Algorithm(server, HALF), CLOCK, Until(versions=3), seed=SEED).steps()
    models = {world.server.model.version: world.server.model.vector.item() for world in steps}
    after = [float(w) for _, _, w in expected[1::2]]  # the second answer of a round makes the step
    assert models == pytest.approx(dict(enumerate([0.0, *after])), abs=1e-15)


@pytest.mark.parametrize(("normalise", "last"), [("expected", Fraction(51, 16)), ("stochastic", Fraction(117, 32))])
def test_the_two_normalisations_by_hand(normalise: str, last: Fraction) -> None:
    """One client that does q = 0, 2 and 1 steps in three rounds: E[q] is 0, 1, 1 and P(q > 0) is 0, 1/2, 2/3.

    Round 3 goes from 9/4 to 33/8 in one step: over E[q] = 1 that is 33/8, over P·q = 2/3 it is 9/4 + (15/8)·(3/2).
    """
    server = Favano(sampled=1, period=2.0, normalise=normalise)
    clock = Scripted([[8.0, 2.0, 4.0]])
    steps = prepare(Line([6.0]), Algorithm(server, HALF), clock, Until(versions=3)).steps()
    models = {world.server.model.version: world.server.model.vector.item() for world in steps}
    assert models == pytest.approx({0: 0.0, 1: 0.0, 2: 9 / 4, 3: float(last)}, abs=1e-15)


@BOTH
def test_a_client_that_has_done_nothing_gives_its_start(normalise: str) -> None:
    """q = 0: no progress over E[q] and no division by P·q = 0. The client started from 4, and so did the server."""
    server = Favano(sampled=1, period=1.0, normalise=normalise)
    result = run(Line([6.0], start=4.0), server, HALF, Scripted([[100.0]]), Until(versions=5))
    assert result.model.item() == pytest.approx(4.0, abs=1e-15)


def test_what_it_gives_is_its_start_and_not_the_server_s_model() -> None:
    """Client 0 brings w to (0 + 6)/2 = 3; then client 1, which started from 0 and has done nothing: (3 + 0)/2."""
    server = Favano(sampled=1, period=1.0)
    result = run(Line([6.0, 6.0]), server, SGD(lr=1.0), Scripted([[1.0], [100.0]]), Until(versions=2), seed=1)
    assert [e.client for e in result.events if e.event == "Arrived"] == [0, 1]
    assert result.model.item() == 1.5


def test_the_server_s_own_model_counts_as_one_of_s_plus_one() -> None:
    """One step from 0 to the centre 6 by each of two clients: (0 + 6 + 6)/3, not 6."""
    server = Favano(sampled=2, period=1.0)
    result = run(Line([6.0, 6.0]), server, SGD(lr=1.0), Scripted([[1.0]]), Until(versions=1))
    assert result.model.item() == pytest.approx(4.0)


def test_only_the_drawn_clients_start_anew() -> None:
    """ "only the sampled ones restart from w, the others go on"."""
    steps = prepare(THREE, Algorithm(Favano(sampled=2, period=2.0), HALF), CLOCK, Until(versions=3), seed=SEED).steps()
    world = next(w for w in steps if w.server.model.version == 1)
    assert {f.job.client: (f.job.version, f.sent) for f in world.flights.values()} == {
        0: (1, 2.0),
        1: (1, 2.0),
        2: (0, 0.0),
    }


@pytest.mark.parametrize(("normalise", "model"), [("expected", 1.5), ("stochastic", 1.5), ("none", 3.0)])
def test_a_client_does_at_most_k_steps_and_then_rests(normalise: str, model: float) -> None:
    """q ≤ K: from 0 towards 8 with K = 2 and a long period, it reaches 6 and no more; gives 6/q = 3, or 6."""
    server = Favano(sampled=1, period=50.0, normalise=normalise)
    result = run(Line([8.0]), server, HALF, Scripted([[1.0]]), Until(versions=1))
    assert result.model.item() == pytest.approx(model)


def test_the_next_round_begins_a_period_after_the_last_answer() -> None:
    """An upload of 3 delays the round's end to 5, so that the second round is at 5 + 2."""
    clock = Scripted([[Durations(0.0, 1.0, 3.0)]])
    result = run(Line([6.0]), Favano(sampled=1, period=2.0), HALF, clock, Until(versions=2))
    assert [(e.time, e.event) for e in result.events[1:]] == [(2, "Rang"), (5, "Arrived"), (7, "Rang"), (10, "Arrived")]


@pytest.mark.parametrize("period", [0.1, 0.05, 0.3, 1 / 3])
def test_a_client_with_time_for_one_step_in_a_period_makes_one_in_each(period: float) -> None:
    """Rounds are at whole multiples of the period, and a step that ends with one is done."""
    until = Until(time=float(Fraction(str(period)) * 60))
    server, local = Favano(sampled=1, period=period), SGD(lr=0.5, steps=5)
    result = run(Line([8.0]), server, local, Scripted([[5 * period]]), until)
    assert result.world.server.taken == {0: [60, 60, 60]}  # answers, with a step, steps


@BOTH
def test_with_equal_speeds_and_everybody_it_is_its_synchronous_limit(normalise: str) -> None:
    """All do K steps in every period, so a = K: w ← (w + Σ (w − delta_i/K))/(n + 1), as a plain loop."""
    problem = Quadratic(4, dim=3, dtype=torch.float64)
    server = Favano(sampled=4, period=1.0, normalise=normalise)
    found = run(problem, server, SGD(lr=0.2, steps=3), Times(Constant(1.0)), Until(versions=20)).model
    w = problem.initial()
    for _ in range(20):
        reached = w + torch.zeros(4, 1, dtype=torch.float64)
        for _ in range(3):
            reached = reached - 0.2 * problem.h * (reached - problem.c)
        w = (w + (w + (reached - w) / 3).sum(dim=0)) / 5
    torch.testing.assert_close(found, w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", [{"sampled": 0}, {"period": 0.0}, {"normalise": "sometimes"}])
def test_settings_that_cannot_work_are_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        Favano(**settings)
