"""ACE and ACED (Chang et al. 2025): every arrival steps along the mean of what all clients sent last."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import ACE, ACED, MIFA, FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

HALF = SGD(lr=0.5)  # on the line: delta = (received − centre) / 2
THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5], [4.2]])  # clients 0, 1, 2 at 1, 2.5, 4.2; then 0, 0, 1, 0, 0, 2 from 5.2 to 8.4
UNEVEN = Times(Exponential((50.0, 10.0, 5.0, 1.0)))


def models(server: ACE) -> list[float]:
    steps = prepare(THREE, Algorithm(server, HALF), ORDER, Until(updates=9)).steps()
    next(steps)  # Started
    return [world.server.model.vector.item() for world in steps][:9]


def test_ace_nine_messages_by_hand() -> None:
    expected = [
        Fraction(0),  # client 0 from 0: −3; it waits
        Fraction(0),  # client 1 from 0: −6
        Fraction(2),  # client 2 from 0: 3; now all have spoken: mean −2
        Fraction(11, 3),  # client 0 from 2: −2 in place of −3; (−2 − 6 + 3)/3
        Fraction(91, 18),  # client 0 from 11/3: −7/6
        Fraction(55, 9),  # client 1 from 2: −5 in place of −6
        Fraction(749, 108),  # client 0 from 91/18: −17/36
        Fraction(4825, 648),  # client 0 from 749/108: 101/216
        Fraction(1235, 162),  # client 2 from 2: 4 in place of 3
    ]
    assert models(ACE()) == pytest.approx([float(x) for x in expected], abs=1e-13)


def test_aced_nine_messages_by_hand() -> None:
    """With a bound of 2, client 2 is left out from the fourth step on, and client 1 in the seventh."""
    expected = [
        Fraction(0),
        Fraction(0),
        Fraction(2),
        Fraction(11, 3),  # clients 1 and 2 went on one step ago
        Fraction(91, 18),  # two steps ago
        Fraction(293, 36),  # client 1's −5 and client 0's −7/6; client 2 has been silent for three steps
        Fraction(87, 8),  # −17/36 and −5
        Fraction(389, 32),  # 39/16 and −5, which is two steps old
        Fraction(143, 16),  # client 2 from 2: 4, and 39/16; client 1 is left out
    ]
    assert models(ACED(bound=2)) == pytest.approx([float(x) for x in expected], abs=1e-13)


def test_aced_with_a_bound_that_nobody_exceeds_is_ace() -> None:
    problem = Quadratic(4, dim=3, noise=0.3, dtype=torch.float64)
    found = [run(problem, server, HALF, UNEVEN, Until(updates=300)).model for server in (ACE(), ACED(bound=300))]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_ace_is_mifa_from_the_moment_at_which_all_have_spoken() -> None:
    """With everybody equally fast, MIFA that steps every n messages makes the first step that ACE makes."""
    together = Scripted([[1.0]])
    first, again = (run(THREE, server, HALF, together, Until(versions=1)).model for server in (ACE(), MIFA(size=3)))
    assert torch.equal(first, again)
    state = run(THREE, ACE(), HALF, ORDER, Until(updates=20)).world.server
    mean = sum(vector.item() for vector in state.last.values()) / 3
    assert state.mean.item() == pytest.approx(mean, abs=1e-13)  # which is the direction of MIFA's every step


def test_with_one_client_ace_is_fedasync_bit_for_bit() -> None:
    one, other = (
        run(Line([8.0]), server, HALF, Scripted([[1.0]]), Until(updates=6)).model for server in (ACE(), FedAsync())
    )
    assert torch.equal(one, other)


def test_slow_clients_count_as_much_as_fast_ones() -> None:
    """Rates 50, 10, 5 and 1: FedAsync settles near the fast client's optimum, ACE at x*."""
    problem = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    ace, fedasync = (
        float(
            torch.linalg.vector_norm(
                run(problem, s, SGD(lr=0.02), UNEVEN, Until(updates=6000)).model - problem.optimum()
            )
        )
        for s in (ACE(lr=0.2), FedAsync(lr=0.2))
    )
    assert ace < 0.1 * fedasync


def test_a_client_that_leaves_before_it_has_spoken_is_not_waited_for() -> None:
    away = Scripted([[1.0], [2.0], [50.0]], flips={2: [3.0]})
    result = run(THREE, ACE(), HALF, away, Until(updates=6))
    assert [(e.time, e.version) for e in result.events if e.event == "Lost"] == [(3.0, 1)]
    assert result.world.now < 10.0


def test_a_client_that_is_lost_in_the_first_round_is_asked_again_and_one_that_joins_is_waited_for() -> None:
    late = Scripted([[1.0], [2.0], [4.0]], flips={2: [1.5]}, away=frozenset({2}))
    result = run(THREE, ACE(), HALF, late, Until(updates=3))
    assert [(e.time, e.client, e.version) for e in result.events if e.event == "Arrived"] == [
        (1.0, 0, 0),
        (2.0, 1, 0),
        (5.5, 2, 1),
    ]
    lossy = Times(Exponential(1.0), dropout=0.4)
    assert run(THREE, ACE(), HALF, lossy, Until(updates=200)).world.tally.lost > 50


def test_a_table_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SettingError, match="ACED keeps a vector for each of 3 clients"):
        prepare(THREE, Algorithm(ACED(memory=10.0), HALF), ORDER, Until(updates=1))
