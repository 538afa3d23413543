"""Asynchronous DiLoCo: delayed Nesterov and dynamic local updates, momentum look-ahead, HeLoCo; and DiLoCo itself."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from typing import Any

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AsyncDiLoCo, FedAsync, FedAvg, Polynomial
from offbeat.algorithms.optimisers import DelayedNesterov, FedAvgM, FedNesterov, HeLoCo, LookAhead
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.until import Until
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.local import SGD, AdamW
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Exponential, Factors, Times

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2, so Δ = −delta = (centre − received) / 2
THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2 at 1, 2, 2.5, 3, 4, 4.5
NOISY = Quadratic(6, dim=4, noise=0.5, dtype=torch.float64)
UNEVEN = Times(Exponential(tuple(0.3 * 1.5**i for i in range(6))))


def models(optimiser: ServerOptimiser, **settings: Any) -> list[float]:
    """The server's model after each of six messages."""
    server = AsyncDiLoCo(server=optimiser, **settings)
    steps = prepare(THREE, Algorithm(server, HALF), ORDER, Until(updates=6)).steps()
    next(steps)  # Started
    return [world.server.model.vector.item() for world in steps][:6]


def ended(server: Any) -> torch.Tensor:
    """The model after 150 noisy updates of clients of unlike speeds."""
    return run(NOISY, server, SGD(lr=0.05, steps=2), UNEVEN, Until(updates=150)).model


def test_six_messages_under_delayed_nesterov_by_hand() -> None:
    """Liu et al., algorithm 3 with N = 2, ε = 1, β = 1/2 and c = 1/4.

    Odd steps: w + m/8 + Δ/2. Even ones: m ← m/2 + (both Δ)/2, w + (1 − 1/4)·m/2 + Δ/2.
    """
    expected = [
        Fraction(3, 2),  # client 0 from 0, Δ = 3; m = 0
        Fraction(231, 64),  # client 0 from 3/2, Δ = 9/4; m = 21/8: 3/2 + 63/64 + 9/8
        Fraction(111, 16),  # client 1 from 0, Δ = 6: 231/64 + 21/64 + 3
        Fraction(19203, 2048),  # client 0 from 231/64, Δ = 153/128; m = 21/16 + 921/256 = 1257/256
        Fraction(74925, 8192),  # client 0 from 19203/2048, Δ = −6915/4096: 19203/2048 + 1257/2048 − 6915/8192
        Fraction(503823, 65536),  # client 2 from 0, Δ = −3; m = 1257/512 − 19203/8192 = 909/8192
    ]
    assert models(DelayedNesterov(0.5, size=2, activation=0.25)) == [float(x) for x in expected]


def test_without_activation_only_every_nth_step_takes_the_momentum() -> None:
    """c = 0: Δ/2 alone, then Δ/2 + m/2."""
    assert models(DelayedNesterov(0.5, size=2))[:3] == [1.5, 1.5 + 9 / 8 + 21 / 16, 1.5 + 9 / 8 + 21 / 16 + 3.0]


def test_delayed_nesterov_with_n_of_one_is_nesterov_bit_for_bit() -> None:
    """m ← β·m + Δ, w + ε·(β·m + Δ)."""
    delayed, plain = (FedAsync(server=each) for each in (DelayedNesterov(0.8, 0.1, size=1), FedNesterov(0.8, 0.1)))
    assert torch.equal(ended(delayed), ended(plain))


def test_n_steps_of_one_direction_move_as_far_as_one_of_nesterov_s() -> None:
    """ε·(β·m + Δ) altogether, whatever c is: (N − 1)·c·β·m_old is given back only where m stays the same."""
    delta, far = torch.tensor([2.0], dtype=torch.float64), []
    for activation in (0.0, 0.1, 0.25):
        optimiser, x = DelayedNesterov(0.5, 0.5, size=4, activation=activation), torch.zeros(1, dtype=torch.float64)
        moments = {**optimiser.begin(x), "m": torch.tensor([4.0], dtype=torch.float64)}  # where m ← m/2 + 2 stays
        for t in range(1, 5):
            step, moments = optimiser.step(delta, moments, t, 0)
            x = x + step
        far.append(x.item())
    assert far == pytest.approx([0.5 * (0.5 * 4.0 + 2.0)] * 3, abs=1e-15)


def test_more_momentum_than_there_is_is_refused() -> None:
    """c ∈ [0, 1/N]."""
    with pytest.raises(SettingError, match=r"activation = 0\.3: must be at most 1/size = 0\.25"):
        DelayedNesterov(size=4, activation=0.3)


def test_without_settings_it_is_fedasync() -> None:
    assert torch.equal(ended(AsyncDiLoCo(lr=0.3)), ended(FedAsync(lr=0.3)))
    weighted = (kind(lr=0.5, weight=Polynomial(0.5), server=FedAvgM(0.5)) for kind in (AsyncDiLoCo, FedAsync))
    assert torch.equal(*(ended(server) for server in weighted))


def jobs(problem: Line, clock: Any, steps: int) -> list[list[int]]:
    """The local steps of each client's jobs, under dynamic local updates."""
    algorithm = Algorithm(AsyncDiLoCo(lr=0.1, dynamic=True), SGD(lr=0.1, steps=steps))
    worlds = prepare(problem, algorithm, clock, Until(updates=12)).steps()
    sent = {flight.job.id: flight.job for world in worlds for flight in world.flights.values()}
    return [[job.steps for job in sent.values() if job.client == client] for client in range(problem.clients)]


def test_clients_make_steps_in_proportion_to_their_speed() -> None:
    """DyLU with H = 8 and steps that take 1, 2 and 3: ⌊8·v/max v⌋ = 8, 4 and 2, once the speeds are known."""
    clock = Times(Constant(1.0, per="step"), speeds=Factors((1.0, 2.0, 3.0)))
    first, second, third = jobs(THREE, clock, steps=8)
    assert first == [8] * len(first)
    assert second == [8, *[4] * (len(second) - 1)]
    assert third == [8, *[2] * (len(third) - 1)]
    assert min(len(each) for each in (first, second, third)) > 2


def test_the_speed_is_all_steps_over_all_time() -> None:
    """H = 4, and client 0 makes 4 in 1. Client 1: 4 in 2, half as fast; 6 in 4, ⌊3/2⌋; 7 in 6, ⌊7/6⌋."""
    assert jobs(Line([1.0, 2.0]), Scripted([[1.0], [2.0]]), steps=4)[1][:4] == [4, 2, 1, 1]


def together(grace: float | None, **settings: Any) -> torch.Tensor:
    """The model after five updates of each client, all equally fast; delayed Nesterov with N = 3, all of them."""
    server = AsyncDiLoCo(server=DelayedNesterov(0.9, lr=0.7, size=3), grace=grace, **settings)
    return run(THREE, server, HALF, Scripted([[1.0]]), Until(updates=15)).model


def test_equal_clients_with_a_grace_period_and_delayed_nesterov_are_diloco() -> None:
    """Footnote 5: without heterogeneity, the two methods reduce to the same."""
    diloco = run(THREE, FedAvg(server=FedNesterov(0.9, lr=0.7)), HALF, Scripted([[1.0]]), Until(updates=15)).model
    for found in (together(0.0), together(0.5), together(0.0, dynamic=True)):
        torch.testing.assert_close(found, diloco, rtol=1e-12, atol=1e-12)
    assert abs(together(None) - diloco) > 0.1


def sent(grace: float | None, clock: Scripted = ORDER) -> list[tuple[float, list[int], float]]:
    """(when, to whom, which model) after the start, with plain steps."""
    found: list[tuple[float, list[int], float]] = []
    flights: set[int] = set()
    for world in prepare(THREE, Algorithm(AsyncDiLoCo(grace=grace), HALF), clock, Until(time=9.0)).steps():
        new = sorted(set(world.flights) - flights)
        flights |= set(new)
        if new:
            found.append((world.now, [world.flights[n].job.client for n in new], world.server.model.vector.item()))
    return found[1:]


def test_clients_that_report_within_the_grace_period_receive_the_same_model() -> None:
    """Algorithm 2: each makes its own step, from which all of them go on."""
    assert sent(0.75)[:3] == [
        (1.75, [0], 3.0),  # client 0 at 1, Δ = 3, and nobody else
        (3.25, [1, 0], 10.5),  # client 1 at 2.5, Δ = 6; client 0 at 2.75 from 3, Δ = 3/2
        (5.0, [0, 2], 5.25),  # client 0 at 4.25 from 10.5, Δ = −9/4; client 2 at 4.5 from 0, Δ = −3
    ]
    assert sent(0.0, Scripted([[1.0], [1.0], [5.0]]))[0] == (1.0, [0, 1], 9.0)  # 3 + 6, of one instant


def test_six_messages_under_momentum_look_ahead_by_hand() -> None:
    """m ← m/2 + Δ/2, w ← w + (Δ + m/2)/2."""
    expected = [
        Fraction(15, 8),  # client 0 from 0, Δ = 3, m = 3/2
        Fraction(429, 128),  # client 0 from 15/8, Δ = 33/16, m = 57/32
        Fraction(1875, 256),  # client 1 from 0, Δ = 6, m = 249/64
        Fraction(17691, 2048),  # client 0 from 429/128, Δ = 339/256, m = 1335/512
        Fraction(266721, 32768),  # client 0 from 17691/2048, Δ = −5403/4096, m = 5277/8192
        Fraction(415839, 65536),  # client 2 from 0, Δ = −3, m = −19299/16384
    ]
    assert models(LookAhead(0.5, lr=0.5)) == [float(x) for x in expected]


def test_momentum_look_ahead_without_momentum_is_a_plain_step() -> None:
    assert torch.equal(ended(AsyncDiLoCo(server=LookAhead(0.0, lr=0.5))), ended(FedAsync(lr=0.5)))


def test_six_messages_under_heloco_by_hand() -> None:
    """c_ok = 1/5, k_s = 1, β_max = 3/4, κ = 1; sent is w + m/4. On a line, c is 1 or −1.

    The last two conflict with m: Δ̂ = Δ·(1 − conf), conf = |Δ|/(|Δ| + |m|), which is less than 3/4.
    """
    expected = [
        Fraction(15, 8),  # client 0 from 0, Δ = 3, m = 3/2
        Fraction(207, 64),  # client 0 from 15/8 + 3/8, Δ = 15/8, m = 27/16
        Fraction(921, 128),  # client 1 from 0, Δ = 6, m = 123/32
        Fraction(4305, 512),  # client 0 from 207/64 + 27/64, Δ = 75/64, m = 321/128
        Fraction(953317, 117248),  # client 0 from 4305/512 + 321/512, Δ = −777/512, conf = 259/687
        Fraction(454903, 58624),  # client 2 from 0, Δ = −3, conf > 3/4, so β_max: Δ̂ = −3/4
    ]
    found = models(HeLoCo(0.5, lr=0.5, shrink=1.0, most=0.75, doubt=1.0), ahead=True)
    assert found == pytest.approx([float(x) for x in expected], abs=1e-14)


def test_heloco_turns_an_unclear_direction_towards_the_momentum_and_keeps_its_length() -> None:
    """Δ = (0, 2), m = (1, 0): c = 0, conf = 2/(2 + 3·1), λ = 2/5."""
    found = HeLoCo().corrected(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0]))
    scale = 2 / sqrt(0.4**2 + 0.6**2)
    torch.testing.assert_close(found, torch.tensor([0.4 * scale, 0.6 * scale]))


def test_heloco_leaves_alone_what_is_aligned_and_what_is_across_in_a_conflict() -> None:
    m = torch.tensor([1.0, 0.0], dtype=torch.float64)
    aligned = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.equal(HeLoCo().corrected(aligned, m), aligned)
    against = HeLoCo().corrected(torch.tensor([-3.0, 4.0], dtype=torch.float64), m)
    part = 0.5 * 0.6 * 5 / (5 + 3)  # k_s·(−c)·conf
    assert against.tolist() == pytest.approx([-3 * (1 - part), 4.0])


def test_heloco_corrects_each_tensor_by_itself() -> None:
    """The sizes come from the model: 64 × 4 and 4 × 10 weights, and biases."""
    table = {
        "problem": {"data": "digits", "clients": 2, "model": {"name": "mlp", "hidden": [4]}},
        "timing": {"constant": 1.0},
        "algorithm": {"heloco": {"local": {"sgd": {"lr": 0.1}}}},
    }
    session = Session(Experiment.parse(table))
    made = session.experiment.algorithms["heloco"].server_for(session.problems(session.experiment.runs[0]))
    optimiser = made.server  # type: ignore[attr-defined]
    assert optimiser == HeLoCo(0.9, lr=0.1, blocks=(256, 4, 40, 10))
    direction, m = torch.randn(2, 310, generator=torch.Generator().manual_seed(0))
    parts = [
        HeLoCo().corrected(direction[part], m[part])
        for part in (slice(256), slice(256, 260), slice(260, 300), slice(300, 310))
    ]
    torch.testing.assert_close(optimiser.corrected(direction, m), torch.cat(parts), rtol=1e-6, atol=1e-6)


def test_heloco_that_corrects_nothing_is_momentum_look_ahead() -> None:
    still = HeLoCo(0.8, lr=0.1, shrink=0.0, turn=0.0)
    torch.testing.assert_close(
        ended(AsyncDiLoCo(server=still)), ended(AsyncDiLoCo(server=LookAhead(0.8, lr=0.1))), rtol=1e-12, atol=1e-12
    )


def test_looking_ahead_needs_a_momentum() -> None:
    with pytest.raises(SettingError, match="ahead = true: there is no momentum"):
        AsyncDiLoCo(ahead=True)


def test_diloco_is_fedavg_with_local_adamw_and_nesterov_s_outer_steps() -> None:
    """Douillard et al., algorithm 1: outer learning rate 0.7 and momentum 0.9, as torch.optim.SGD(nesterov=True)."""
    table = {
        "problem": {"data": "quadratic", "clients": 4},
        "timing": {"constant": 1.0},
        "algorithm": {"diloco": {"local": {"adamw": {"lr": 0.05, "steps": 3, "keep": True}}}},
    }
    made = Experiment.parse(table).algorithms["diloco"]
    assert made.server == FedAvg(server=FedNesterov(0.9, lr=0.7))
    assert made.local == AdamW(lr=0.05, steps=3, keep=True)
    table["algorithm"] = {"diloco": {"local": {"sgd": {"lr": 0.05}}}}
    with pytest.raises(SettingError, match=r"diloco needs \{ adamw"):
        Experiment.parse(table)


def test_diloco_s_rounds_against_torch() -> None:
    """Clients that take one SGD step on the line, whose mean delta is the outer gradient of torch's optimiser."""
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    outer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        parameter.grad = sum((parameter.detach() - c) / 2 for c in THREE.centres) / 3
        outer.step()
    found = run(THREE, FedAvg(server=FedNesterov(0.9, lr=0.7)), HALF, Scripted([[1.0]]), Until(updates=15)).model
    torch.testing.assert_close(found, parameter.detach(), rtol=1e-12, atol=1e-12)
