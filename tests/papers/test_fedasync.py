"""FedAsync: PersA-FL, algorithm 1, and the mixing form of Xie, Koyejo and Gupta (2019); AS-FedAvg in AREA, §5."""

from __future__ import annotations

import pytest
from worlds import Line, Scripted, run

from offbeat.algorithms import Hinge, Period, Polynomial
from offbeat.algorithms.asfedavg import AsFedAvg
from offbeat.algorithms.fedasync import FedAsync, FedAsyncMixing
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.simulate.run import prepare

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2
HOME = SGD(lr=1.0)  # on the line: reached = centre, whatever was received


def models(problem: Line, server: Server, local: SGD, clock: Scripted, updates: int) -> list[float]:
    """The server's model after each message."""
    steps = prepare(problem, Algorithm(server, local), clock, Until(updates=updates)).steps()
    next(steps)  # Started
    return [world.server.model.vector.item() for world in steps][:updates]


def test_every_arrival_is_a_server_step() -> None:
    """PersA-FL, algorithm 1, line 4: "w^{t+1} ← w^t − βΔ". Client 1 (centre 8) started from 0 and is one step late."""
    found = models(Line([4.0, 8.0]), FedAsync(lr=0.5), HALF, Scripted([[1.0], [1.5, 9.0]]), 3)
    # client 0 from 0: delta −2; client 1 from 0: delta −4; client 0 from 1: reaches 5/2, delta −3/2
    assert found == [1.0, 3.0, 3.75]


def test_the_staleness_weight_multiplies_the_step() -> None:
    server = FedAsync(lr=0.5, weight=Polynomial(1.0))
    found = models(Line([4.0, 8.0]), server, HALF, Scripted([[1.0], [1.5, 9.0]]), 3)
    assert found == pytest.approx([1.0, 1.0 + 0.5 * 4 / 2, 2.0 + 0.5 * 1.5 / 2])


def test_the_mixing_weight_does_not_shrink_from_update_to_update() -> None:
    """α is a value per update and does not shrink from one to the next. One client always at 1: w_t = 1 − (1 − α)^t."""
    found = models(Line([1.0]), FedAsyncMixing(mixing=0.5), HOME, Scripted([[1.0]]), 5)
    assert found == [1 / 2, 3 / 4, 7 / 8, 15 / 16, 31 / 32]


def test_mixing_moves_towards_the_client_s_model_and_not_by_its_delta() -> None:
    """Xie: w ← (1 − a)·w + a·w_i. Client 1's model is 8 though the server has moved on to 2 meanwhile."""
    found = models(Line([4.0, 8.0]), FedAsyncMixing(mixing=0.5), HOME, Scripted([[1.0], [1.5, 9.0]]), 2)
    assert found == [2.0, 5.0]


def test_the_staleness_weight_multiplies_the_mixing() -> None:
    """a = α·s(τ): for client 1, τ = 1 and a = ½ · 1/(2·(1 − 0) + 1) = 1/6."""
    server = FedAsyncMixing(mixing=0.5, weight=Hinge(slope=2.0, after=0.0))
    found = models(Line([4.0, 8.0]), server, HOME, Scripted([[1.0], [1.5, 9.0]]), 2)
    assert found == pytest.approx([2.0, 2.0 + (8.0 - 2.0) / 6])


def test_the_default_mixing_weight() -> None:
    """α = 0.6; from 0 towards a client that is always at 1."""
    assert models(Line([1.0]), FedAsyncMixing(), HOME, Scripted([[1.0]]), 1) == [0.6]


def test_mixing_one_takes_the_client_s_model() -> None:
    assert models(Line([4.0]), FedAsyncMixing(mixing=1.0), HOME, Scripted([[1.0]]), 1) == [4.0]


@pytest.mark.parametrize("mixing", [0.0, -0.1, 1.1])
def test_a_mixing_weight_outside_0_to_1_is_refused(mixing: float) -> None:
    with pytest.raises(SettingError, match=r"mixing = .*must be a share in \(0, 1\]"):
        FedAsyncMixing(mixing=mixing)


def test_as_fedavg_replaces_the_model_by_the_mean_of_the_models_it_got() -> None:
    """AREA, §5: after Δ models have arrived, x is their mean; clients 0, 0, 1 and 0 report 3, 3, 9 and 3."""
    problem, clock = Line([3.0, 9.0], start=100.0), Scripted([[1.0], [2.5, 9.0]])
    assert models(problem, AsFedAvg(size=2), HOME, clock, 4) == [100.0, 3.0, 3.0, 6.0]


def test_as_fedavg_by_the_clock_leaves_the_model_alone_when_nothing_came() -> None:
    clock = Scripted([[1.5]])
    result = run(Line([3.0], start=100.0), AsFedAvg(size=Period(1.0)), HOME, clock, Until(time=2.0), executor="serial")
    assert [e.version for e in result.events if e.event == "Rang"] == [0, 1]
    assert result.model.item() == 3.0
