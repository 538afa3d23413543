"""FADAS (Wang et al. 2024) under its own name, and m-synchronous SGD under its own."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import FADAS, FedAvg, FedBuff, MSync
from offbeat.algorithms.optimisers import FedAMSGrad
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

HALF = SGD(lr=0.5)  # on the line: −delta = (centre − received) / 2
THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # clients 0, 0, 1, 0, 0, 2; staleness 0, 0, 2, 1, 0, 5
NOISY = Quadratic(6, dim=4, noise=0.5, dtype=torch.float64)
TIMES = Times(Exponential((8.0, 4.0, 2.0, 1.0, 1.0, 0.5)))


def test_fadas_six_messages_by_hand() -> None:
    """With β₂ = 0 the root of v̂ is the largest |Δ| so far, and with ε = 1 everything is a fraction; τ_c = 1."""
    expected = [  # m and the divisor √v̂ + 1
        Fraction(3, 16),  # Δ = 3: m = 3/2, over 4, times ½
        Fraction(237, 512),  # client 0 from 3/16: Δ = 93/32, m = 141/64, over 4
        Fraction(387, 512),  # client 1 from 0: Δ = 6, m = 525/128, over 7; τ = 2 and min(½, ½)
        Fraction(4101, 4096),  # client 0 from 237/512: Δ = 2835/1024, m = 7035/2048
        Fraction(39753, 32768),  # client 0 from 4101/4096: Δ = 20475/8192, m = 48615/16384
        Fraction(695409, 573440),  # client 2 from 0: Δ = −3, m = −537/32768; τ = 5 and min(½, 1/5)
    ]
    server = FADAS(size=1, lr=0.5, beta1=0.5, beta2=0.0, eps=1.0, threshold=1.0)
    steps = prepare(THREE, Algorithm(server, HALF), ORDER, Until(updates=6)).steps()
    next(steps)  # Started
    found = [world.server.model.vector.item() for world in steps][:6]
    assert found == pytest.approx([float(x) for x in expected], abs=1e-14)


@pytest.mark.parametrize("threshold", [None, 2.0])
def test_fadas_is_fedbuff_with_amsgrad_bit_for_bit(threshold: float | None) -> None:
    local, until = SGD(lr=0.05, steps=3), Until(updates=300)
    optimiser = FedAMSGrad(lr=0.4, beta1=0.8, beta2=0.95, eps=1e-6, threshold=threshold)
    named = FADAS(size=3, lr=0.4, beta1=0.8, beta2=0.95, eps=1e-6, threshold=threshold)
    one, other = (run(NOISY, s, local, TIMES, until).model for s in (named, FedBuff(size=3, server=optimiser)))
    assert torch.equal(one, other)
    assert not torch.equal(one, run(NOISY, replace(named, lr=0.3), local, TIMES, until).model)


def test_m_synchronous_sgd_is_fedavg_that_takes_the_first_m_bit_for_bit() -> None:
    one, other = (
        run(NOISY, server, SGD(lr=0.05), TIMES, Until(versions=40)) for server in (MSync(first=4), FedAvg(first=4))
    )
    assert torch.equal(one.model, other.model)
    assert one.world.now == other.world.now


def test_m_synchronous_sgd_has_to_be_told_m() -> None:
    with pytest.raises(TypeError, match="first"):
        MSync()  # type: ignore[call-arg]


def test_m_synchronous_six_messages_by_hand() -> None:
    """m = 2 of three; client 2's answer to the first round comes at 7, in the fourth, and is ignored."""
    clock = Scripted([[1.0], [2.0], [7.0]])
    expected = [
        Fraction(0),  # at 1, client 0 from 0: 3
        Fraction(9, 2),  # at 2, client 1 from 0: 6
        Fraction(9, 2),  # at 3, client 0 from 9/2: +3/4
        Fraction(27, 4),  # at 4, client 1 from 9/2: +15/4; mean 9/4
        Fraction(27, 4),  # at 5, client 0 from 27/4: −3/8
        Fraction(63, 8),  # at 6, client 1 from 27/4: +21/8; mean 9/8
        Fraction(63, 8),  # at 7, client 0 from 63/8 or client 2 from 0, which does not count
    ]
    steps = prepare(THREE, Algorithm(MSync(first=2), HALF), clock, Until(updates=7)).steps()
    next(steps)  # Started
    assert [world.server.model.vector.item() for world in steps][:7] == [float(x) for x in expected]
