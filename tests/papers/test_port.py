"""PORT (Su and Li 2022), as in the authors' code."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import FedAsync, FedAvg, Port
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, OnOff, Times

HALF = SGD(lr=0.5)  # on the line: delta = (received − centre) / 2
NOISY = Quadratic(6, dim=4, noise=0.5, dtype=torch.float64)
UNEVEN = Times(Exponential((8.0, 4.0, 2.0, 1.0, 1.0, 0.5)))
F = Fraction


def test_nine_messages_by_hand() -> None:
    """K = 2, β = 1, λ = μ = 1: a fresh update counts 1 + 1 = 2."""
    expected = [
        F(0),  # at 1, client 0 from 0: −3
        F(9, 2),  # at 2.5, client 1 from 0: −6; mean −9/2
        F(9, 2),  # at 3.5, client 0 from 9/2: −3/4
        F(51, 14),  # at 4.5, client 2 from 0: 3, one step late: 1 + 1/2; (−3/2 + 9/2) / (7/2) = 6/7
        F(51, 14),  # at 5.5, client 0: −33/28
        F(51, 28),  # at 9, client 2: 135/28; client 1 is one step behind, which β allows
        F(51, 28),  # at 10, client 0: −117/56
        F(51, 28),  # at 13.5, client 2: 219/56; now client 1 is two steps behind: the step waits
        F(33, 26),  # at 102.5, client 1 from 9/2: −15/4, against the last step, so 0 + 1/3; (67/28) / (13/3)
    ]
    clock = Scripted([[1.0], [2.5, 100.0], [4.5]])
    server = Port(size=2, bound=1)
    steps = prepare(Line([6.0, 12.0, -6.0]), Algorithm(server, HALF), clock, Until(updates=9)).steps()
    next(steps)  # Started
    found = [world.server.model.vector.item() for world in steps][:9]
    assert found == pytest.approx([float(x) for x in expected], abs=1e-14)


def test_the_weight_is_that_of_the_authors_code() -> None:
    """port_server.py: (similarity + 1) / 2 · similarity_weight + staleness_bound / (staleness + staleness_bound) ·
    staleness_weight, where similarity is 1 unless staleness > 1."""
    server = Port(bound=10, similarity=1.0, staleness=3.0)  # as in port_cifar10.toml
    last = torch.tensor([0.0, 2.0], dtype=torch.float64)
    for staleness in range(30):
        for delta, cosine in ((-3.0 * last, 1.0), (last, -1.0), (torch.tensor([-5.0, 0.0], dtype=torch.float64), 0.0)):
            similarity = cosine if staleness > 1 else 1.0
            expected = (similarity + 1) / 2 + 10 / (staleness + 10) * 3
            assert server.counts(delta, staleness, last) == pytest.approx(expected, abs=1e-15)
    assert server.counts(last, 20, None) == pytest.approx(1 + 1.0)  # before the first step
    assert server.counts(last * 0.0, 20, last) == pytest.approx(1 + 1.0)  # nothing has no direction


def test_with_all_clients_in_a_step_it_is_fedavg_bit_for_bit() -> None:
    one, other = (
        run(NOISY, server, SGD(lr=0.05, steps=2), UNEVEN, Until(updates=120))
        for server in (Port(size=6, similarity=0.0), FedAvg())
    )
    assert torch.equal(one.model, other.model)
    assert one.world.now == other.world.now


def test_with_a_step_for_every_update_it_is_fedasync() -> None:
    one, other = (
        run(NOISY, server, SGD(lr=0.02), UNEVEN, Until(updates=200)).model
        for server in (Port(size=1, bound=1000), FedAsync())
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_no_update_is_staler_than_the_bound_and_one_step() -> None:
    result = run(NOISY, Port(size=2, bound=3), SGD(lr=0.02), UNEVEN, Until(updates=800))
    assert max(event.staleness for event in result.events if event.event == "Arrived") == 4


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("size", "bound"), [(1, 1), (2, 3), (4, 2)])
def test_nor_if_results_are_lost_and_clients_come_and_go(size: int, bound: int, seed: int) -> None:
    rough = Times(Exponential((8.0, 4.0, 2.0, 1.0, 1.0, 0.05)), presence=OnOff(3.0, 1.0), dropout=0.1)
    result = run(NOISY, Port(size=size, bound=bound), SGD(lr=0.02), rough, Until(updates=200), seed=seed)
    stale = [event.staleness for event in result.events if event.event == "Arrived"]
    assert bound <= max(stale) <= bound + 1
