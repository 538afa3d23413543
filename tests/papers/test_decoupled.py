"""Decoupled DiLoCo (Douillard et al. 2026), without fragments."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from parted import problem
from worlds import Line, Scripted, run

from offbeat.algorithms import AsyncDiLoCo, DecoupledDiLoCo, FedAvg
from offbeat.algorithms.optimisers import FedNesterov
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.events import Job, Update
from offbeat.core.until import Until
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

HALF = SGD(lr=0.5)  # on the line: delta = (received − centre) / 2
THREE = Line([6.0, 12.0, -6.0])
CLOCK = Scripted([[1.0], [2.5, 100.0], [4.5]])
NOISY = Quadratic(6, dim=4, noise=0.5, dtype=torch.float64)
UNEVEN = Times(Exponential((8.0, 4.0, 2.0, 1.0, 1.0, 0.5)))
LOCAL = SGD(lr=0.05, steps=2)
F = Fraction


def test_six_messages_and_three_outer_steps_by_hand() -> None:
    """K = 2, a grace period of ½, Nesterov with β = ½: m ← m/2 + Δ, w + Δ + m/2."""
    expected = [
        (1.0, F(0)),  # client 0 from 0: −3
        (2.5, F(0)),  # client 1 from 0: −6; the quorum is there
        (3.0, F(27, 4)),  # Δ = 9/2, m = 9/2
        (4.0, F(27, 4)),  # client 0 from 27/4: 3/8
        (4.5, F(27, 4)),  # client 2 from 0: 3
        (5.0, F(171, 32)),  # Δ = −27/16, m = 9/16
        (6.0, F(171, 32)),  # client 0 from 171/32: −21/64
        (9.5, F(171, 32)),  # client 2 from 171/32: 363/64
        (10.0, F(189, 128)),  # Δ = −171/64, m = −153/64
    ]
    server = DecoupledDiLoCo(quorum=2, grace=0.5, server=FedNesterov(0.5))
    steps = prepare(THREE, Algorithm(server, HALF), CLOCK, Until(time=10.5)).steps()
    next(steps)  # Started
    found = [(world.now, world.server.model.vector.item()) for world in steps][:9]
    assert found == [(at, float(x)) for at, x in expected]


@pytest.mark.parametrize(("grace", "at", "model"), [(1.9, 4.4, F(9, 2)), (2.1, 4.5, F(2))], ids=["late", "in time"])
def test_who_comes_in_the_grace_period_is_part_of_the_step_which_then_need_not_wait(
    grace: float, at: float, model: Fraction
) -> None:
    """Client 2's update, 3, comes two after the quorum: −(−3 − 6)/2, or −(−3 − 6 + 3)/3 as soon as it is there."""
    server = DecoupledDiLoCo(quorum=2, grace=grace)
    for world in prepare(THREE, Algorithm(server, HALF), CLOCK, Until(versions=1)).steps():
        if world.server.model.version == 1:
            break
    assert world.now == pytest.approx(at)
    assert world.server.model.vector.item() == float(model)


def test_an_update_weighs_as_much_as_its_local_steps() -> None:
    """w = c_tokens · c_tokens/c_steps: with mini-batches of b tokens b²·steps, so (1·8 + 3·4)/(1 + 3) = 5."""

    class TwoAtWork:
        clients, flying, now = 2, 1, 0.0

        def present(self, client: int) -> bool:
            return False

    view, server = TwoAtWork(), DecoupledDiLoCo(quorum=2)
    state = server.begin([torch.zeros(1, dtype=torch.float64)], view)  # type: ignore[arg-type]
    for client, steps, delta in ((0, 1, 8.0), (1, 3, 4.0)):
        update = Update(Job(client, 0, 0, 0, steps, 0.5, 0), {"delta": torch.tensor([delta], dtype=torch.float64)})
        list(server.arrived(state, update, view))  # type: ignore[arg-type]
    list(server.rang(state, "merge 0", view))  # type: ignore[arg-type]
    assert state.model.vector.item() == -5.0


def test_with_a_quorum_of_one_it_is_asynchronous_diloco_bit_for_bit() -> None:
    one, other = (
        run(NOISY, server, LOCAL, UNEVEN, Until(versions=150)).model
        for server in (
            DecoupledDiLoCo(quorum=1, server=FedNesterov(0.5, 0.1)),
            AsyncDiLoCo(server=FedNesterov(0.5, 0.1)),
        )
    )
    assert torch.equal(one, other)


def test_with_everybody_in_the_quorum_it_is_diloco() -> None:
    one, other = (
        run(NOISY, server(server=FedNesterov(0.5)), LOCAL, UNEVEN, Until(updates=120))
        for server in (DecoupledDiLoCo, FedAvg)
    )
    torch.testing.assert_close(one.model, other.model, rtol=0, atol=1e-12)
    assert one.world.now == other.world.now


def averaged(deltas: list[list[float]], steps: list[int], blocks: tuple[int, ...]) -> list[float]:
    """What one outer step with lr 1 subtracts from a model, by radial-directional averaging."""

    class All:
        clients, flying, now = len(deltas), 1, 0.0

        def present(self, client: int) -> bool:
            return False

    view, server = All(), DecoupledDiLoCo(radial=True, blocks=blocks)
    state = server.begin([torch.zeros(len(deltas[0]), dtype=torch.float64)], view)  # type: ignore[arg-type]
    for client, (delta, count) in enumerate(zip(deltas, steps, strict=True)):
        view.flying = len(deltas) - 1 - client
        update = Update(Job(client, 0, 0, 0, count, 0.5, 0), {"delta": torch.tensor(delta, dtype=torch.float64)})
        list(server.arrived(state, update, view))  # type: ignore[arg-type]
    found: list[float] = (-state.model.vector).tolist()
    return found


def test_radial_directional_averaging_keeps_the_length_of_orthogonal_deltas() -> None:
    """RDA(v, w) = (Σ w‖v‖/Σw)·φ(Σ wφ(v)), φ(v) = v/‖v‖ (appendix D.2), tensor by tensor.

    Two tensors; weights 1 and 3. The first: lengths 4 and 2, mean 5/2, direction of (1, 3). The second: 1 and −1 with
    lengths 8 and 4, mean 5, direction −1.
    """
    found = averaged([[4.0, 0.0, 8.0], [0.0, 2.0, -4.0]], steps=[1, 3], blocks=(2, 1))
    assert found == pytest.approx([2.5 / 10**0.5, 7.5 / 10**0.5, -5.0])
    whole = averaged([[4.0, 0.0], [0.0, 4.0]], steps=[1, 1], blocks=())
    assert whole == pytest.approx([8**0.5, 8**0.5])  # as long as each of them, where their mean has 4/√2


def test_radial_directional_averaging_of_nothing_is_nothing() -> None:
    """φ(0) = 0; a delta of 0 makes the mean shorter and does not turn it."""
    assert averaged([[0.0, 0.0], [0.0, 0.0]], steps=[1, 1], blocks=(2,)) == [0.0, 0.0]
    assert averaged([[0.0, 0.0], [3.0, 4.0]], steps=[1, 1], blocks=(2,)) == pytest.approx([1.5, 2.0])
    assert averaged([[1.0, 0.0], [-1.0, 0.0]], steps=[1, 1], blocks=(2,)) == [0.0, 0.0]


def test_radial_directional_averaging_of_one_update_is_that_update() -> None:
    plain, radial = (
        run(
            NOISY,
            DecoupledDiLoCo(quorum=1, server=FedNesterov(0.5, 0.1), radial=given),
            LOCAL,
            UNEVEN,
            Until(updates=150),
        )
        for given in (False, True)
    )
    torch.testing.assert_close(plain.model, radial.model, rtol=1e-10, atol=1e-12)


def session(model: dict[str, Any]) -> Any:
    """The server of an experiment, made for its problem."""
    table = {
        "problem": {"data": "digits", "clients": 2, "model": model},
        "timing": {"constant": 1.0},
        "algorithm": {"decoupled-diloco": {"radial": True, "local": {"sgd": {"lr": 0.1}}}},
    }
    made = Session(Experiment.parse(table))
    return made.experiment.algorithms["decoupled-diloco"].server_for(made.problems(made.experiment.runs[0]))


def test_the_tensors_are_those_of_the_model() -> None:
    assert session({"name": "mlp", "hidden": [4]}).blocks == (256, 4, 40, 10)


def test_running_statistics_are_not_averaged_radially() -> None:
    with pytest.raises(SettingError, match=r"radial = true: .* has running statistics"):
        DecoupledDiLoCo(radial=True).for_problems([problem()])
