"""FedBuff: "Unbounded Gradients in Federated Learning with Buffered Asynchronous Aggregation"."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import Equal, Hinge, Period, Polynomial
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2
THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2 at 1, 2, 2.5, 3, 4, 4.5


def models(server: Server, updates: int = 6) -> list[float]:
    """The server's model after each of the messages of the three clients."""
    steps = prepare(THREE, Algorithm(server, HALF), ORDER, Until(updates=updates)).steps()
    next(steps)  # Started
    return [world.server.model.vector.item() for world in steps][:updates]


def test_six_messages_of_three_clients_by_hand() -> None:
    """Algorithms 1 and 2 with K = 2 and β = 1/K; delta = received − reached."""
    expected = [
        Fraction(0),  # client 0 from 0: reaches 3, delta −3
        Fraction(3),  # the same again: 0 − mean(−3, −3)
        Fraction(3),  # client 1 from 0: reaches 6, delta −6
        Fraction(27, 4),  # client 0 from 3: reaches 9/2, delta −3/2; 3 − mean(−6, −3/2)
        Fraction(27, 4),  # client 0 from 27/4: reaches 51/8, delta 3/8
        Fraction(81, 16),  # client 2 from 0: reaches −3, delta 3; 27/4 − mean(3/8, 3)
    ]
    assert models(FedBuff(size=2)) == [float(x) for x in expected]


def test_the_delta_is_against_the_model_the_job_started_from() -> None:
    """Algorithm 1, line 9: "Δ_i ← w_{i,0} − w_{i,Q}". A delta against the current model is a common mistake."""
    steps = prepare(THREE, Algorithm(FedBuff(size=9), HALF), ORDER, Until(updates=9)).steps()
    world = [next(steps) for _ in range(4)][-1]  # Started and the first three messages
    assert world.server.buffer.sum.item() == -3.0 - 3.0 - 6.0


def test_the_sum_is_divided_by_k_and_not_by_the_number_of_clients() -> None:
    """The sum is divided by K, not by the number of clients; three clients, K = 2, deltas −3 and −3."""
    assert models(FedBuff(size=2), updates=2)[-1] == 3.0


def test_lr_k_takes_the_sum() -> None:
    """Algorithm 2, line 9: "w^{t+1} ← w^t − β·sum"; β = 1 is lr = K."""
    assert models(FedBuff(size=2, lr=2.0), updates=2)[-1] == 6.0


def test_the_step_size_multiplies_the_mean_of_a_sum_whose_updates_nobody_sees() -> None:
    """Under secure aggregation the server is given the sum of two deltas, −3 and −6."""
    server, view = FedBuff(size=2, lr=0.5), SimpleNamespace(clients=3, flying=0, waiting=list)
    state = server.begin([torch.tensor([1.0])], view)  # type: ignore[arg-type]
    assert not [*server.summed(state, 0, torch.tensor([-9.0]), 2, view)]  # type: ignore[arg-type]
    assert state.model.vector.item() == 1.0 + 0.5 * 4.5


def test_a_server_step_takes_exactly_k_updates_and_empties_the_buffer() -> None:
    """Algorithm 2, lines 8–12: "if k = K … k ← 0 … Δ ← 0"."""
    result = run(THREE, FedBuff(size=3), HALF, ORDER, Until(updates=7))
    arrived = [e.version for e in result.events if e.event == "Arrived"]
    assert arrived == [0, 0, 1, 1, 1, 2, 2]
    assert result.world.server.buffer.count == 1


@pytest.mark.parametrize("weight", [Equal(), Polynomial(0.5), Polynomial(2.0), Hinge(1.0, 0.0)])
def test_a_fresh_update_weighs_one(weight: Callable[[int], float]) -> None:
    """A weight of ½ for a fresh update is a common mistake."""
    assert weight(0) == 1.0


def test_the_weight_of_a_stale_update_is_one_over_the_square_root() -> None:
    """1/sqrt(1 + τ); `x**1/2`, which is x/2, is a common mistake."""
    assert [Polynomial(0.5)(t) for t in (0, 3, 8, 15)] == [1.0, 1 / 2, 1 / 3, 1 / 4]


def test_a_hinge_is_flat_and_then_falls() -> None:
    """Xie et al.: 1 up to b, then 1/(a(τ − b) + 1)."""
    assert [Hinge(slope=10.0, after=4.0)(t) for t in (0, 4, 5, 6)] == [1.0, 1.0, 1 / 11, 1 / 21]


def test_each_delta_gets_its_own_weight_and_the_mean_still_divides_by_k() -> None:
    """Client 1 of the run by hand is one version behind, client 2 two."""
    found = models(FedBuff(size=2, weight=Polynomial(0.5)))
    x4 = 3.0 + (6.0 / 2**0.5 + 1.5) / 2
    delta5, delta6 = x4 - (x4 + 6.0) / 2, 3.0  # fresh, and two versions old
    assert found[3] == pytest.approx(x4)
    assert found[5] == pytest.approx(x4 - (delta5 + delta6 / 3**0.5) / 2)


def test_with_a_period_the_mean_is_over_what_came_in_between() -> None:
    result = run(THREE, FedBuff(size=Period(2.75)), HALF, ORDER, Until(time=2.8))
    assert result.model.item() == 4.0  # deltas −3, −3 and −6 over three


def test_with_a_period_the_step_size_multiplies_the_mean() -> None:
    result = run(THREE, FedBuff(size=Period(2.75), lr=0.25), HALF, ORDER, Until(time=2.8))
    assert result.model.item() == 1.0


def test_a_buffer_of_one_is_fedasync() -> None:
    """§II: "for K = 1, the presented algorithm reduces to vanilla asynchronous federated learning"."""
    assert models(FedBuff(size=1, lr=0.5)) == models(FedAsync(lr=0.5))


RATES = (50.0, 10.0, 5.0, 1.0)
SHARES = [rate / sum(RATES) for rate in RATES]
UNEVEN = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)


def tail_mean(server: Server, lr: float, updates: int) -> torch.Tensor:
    """The mean of the server's model over the last half of a run with uneven rates: what it jitters around."""
    simulation = prepare(UNEVEN, Algorithm(server, SGD(lr=lr)), Times(Exponential(RATES)), Until(updates=updates))
    total, count = torch.zeros(4, dtype=torch.float64), 0
    for world in simulation.steps():
        if world.tally.updates > updates // 2:
            total, count = total + world.server.model.vector, count + 1
    return total / count


@pytest.mark.parametrize(
    ("server", "lr", "updates"),
    [(FedBuff(size=4), 0.02, 20000), (FedAsync(), 0.01, 20000)],
    ids=["fedbuff", "asyncsgd"],
)
def test_client_driven_methods_settle_where_fast_clients_pull_them(server: Server, lr: float, updates: int) -> None:
    """AREA, §2: such methods solve Σ p_i ∇f_i = 0 for arrival shares p_i, which is not ∇f = 0.

    One small local step, so that the shift by the step size (a client's own last result is in the model it gets
    back) is small against the 2.2 between the two points.
    """
    biased, optimum = UNEVEN.optimum(SHARES), UNEVEN.optimum()
    found = tail_mean(server, lr, updates)
    apart = float(torch.linalg.vector_norm(biased - optimum))
    assert apart > 2.0
    assert float(torch.linalg.vector_norm(found - biased)) < 0.04 * apart
    assert float(torch.linalg.vector_norm(found - optimum)) > 0.9 * apart


@pytest.mark.parametrize(("n", "size", "concurrency"), [(20, 5, None), (12, 1, None), (60, 5, 20)])
def test_staleness_is_the_others_reports_over_k(n: int, size: int, concurrency: int | None) -> None:
    """With c clients at work at equal rates, c − 1 others report while one works, by symmetry and on average.

    A job is sent with b updates in the buffer and sees floor((b + others) / K) server steps; b is uniform on
    0..K−1, so the mean is (c − 1)/K. Only the first c jobs, which all start from an empty buffer, and the last c,
    which are never seen, differ: a share of 2c/20000 of them.
    """
    result = run(
        Quadratic(n, dim=1),
        FedBuff(size=size, concurrency=concurrency),
        HALF,
        Times(Exponential(3.0)),
        Until(updates=20000),
    )
    tally = result.world.tally
    assert tally.staleness_sum / tally.updates == pytest.approx(((concurrency or n) - 1) / size, rel=0.02)
