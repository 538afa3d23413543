"""Asynchronous SGD (AREA, §2; DeFedAvg, §4; Lian et al. 2015)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from worlds import Line, Scripted

from offbeat.algorithms.asysg import AsySG
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import SGD, Gradient
from offbeat.simulate.run import prepare

THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2 at 1, 2, 2.5, 3, 4, 4.5


def models(server: AsySG, updates: int = 6) -> list[float]:
    """The server's model after each of the messages of the three clients."""
    steps = prepare(THREE, Algorithm(server, Gradient()), ORDER, Until(updates=updates)).steps()
    next(steps)  # Started
    return [world.server.model.vector.item() for world in steps][:updates]


def test_six_gradients_by_hand_one_a_step() -> None:
    expected = [
        Fraction(3),  # client 0 at 0: gradient −6; 0 + 6/2
        Fraction(9, 2),  # at 3: −3
        Fraction(21, 2),  # client 1 at 0: −12
        Fraction(45, 4),  # client 0 at 9/2: −3/2
        Fraction(69, 8),  # at 45/4: 21/4
        Fraction(45, 8),  # client 2 at 0: 6
    ]
    assert models(AsySG(lr=0.5)) == [float(x) for x in expected]


def test_several_gradients_are_averaged() -> None:
    """Two a step: 0 − (−6 − 6)/4 = 3; client 1's −12 and client 0's −3 (at 3): 3 + 15/4."""
    assert models(AsySG(size=2, lr=0.5), 4) == [0.0, 3.0, 3.0, 6.75]


def test_a_gradient_later_than_the_cap_counts_cap_over_staleness() -> None:
    """A delay-adaptive step: lr·min(1, cap/τ). Client 1 is 2 steps late, client 2 five."""
    plain, capped = models(AsySG(lr=0.5)), models(AsySG(lr=0.5, cap=1.0))
    assert capped[:2] == plain[:2]  # τ = 0
    assert capped[2] == capped[1] + 0.5 * 12.0 * (1 / 2)
    assert capped[5] == pytest.approx(capped[4] - 0.5 * 6.0 * (1 / 5))
    assert models(AsySG(lr=0.5, cap=5.0)) == plain  # nobody is later than that


def test_there_is_no_local_step_size() -> None:
    """Clients send gradients, so there is no local step size."""
    with pytest.raises(SettingError, match="leave out lr and steps"):
        Gradient(lr=0.1)
    with pytest.raises(SettingError, match="leave out lr and steps"):
        Gradient(steps=3)


def test_a_local_trainer_that_steps_is_refused() -> None:
    with pytest.raises(SettingError, match="AsySG reads 'gradient' but SGD sends only 'delta'"):
        Algorithm(AsySG(), SGD(lr=0.1))


@pytest.mark.parametrize("settings", [{"size": 0}, {"lr": 0.0}, {"cap": -1.0}])
def test_settings_that_cannot_work_are_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        AsySG(**settings)
