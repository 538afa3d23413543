"""AREA: "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under Arbitrary Delays"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from scipy.optimize import minimize_scalar
from worlds import Line, Scripted, run, through_text

from offbeat.algorithms import Criterion, Decay, FedAST, FedBuff, Period, Poisson, optimal_rate
from offbeat.algorithms.area import AREA, Residual
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.random import Stream
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Exponential, Times
from offbeat.timing.base import Durations

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2
THREE = Line([6.0, 12.0, -6.0])
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2 at 1, 2, 2.5, 3, 4, 4.5


def invariant(simulation: Simulation) -> float:
    """|mean(y_i) − (x + u)|, where a client that has not reported still has the initial model."""
    world, n = simulation.world, simulation.clients
    y = [
        world.memories[i, 0][1]["y"] if (i, 0) in world.memories else simulation.problems[0].initial() for i in range(n)
    ]
    state = world.server
    return float((torch.stack(y).mean(dim=0) - (state.model.vector + state.u)).abs().max())


job = st.builds(
    Durations,
    download=st.floats(0, 2),
    compute=st.floats(0.1, 5),
    upload=st.floats(0, 2),
    lost=st.sampled_from([False, False, False, True]),
)
criteria = st.one_of(st.integers(1, 9), st.floats(0.3, 5).map(Period), st.floats(0.2, 3).map(Poisson))


@given(
    jobs=st.lists(st.lists(job, min_size=1, max_size=6), min_size=2, max_size=5),
    size=criteria,
    concurrency=st.sampled_from([None, 1, 2]),
    executor=st.sampled_from(["serial", "batched"]),
    flips=st.lists(st.floats(0.5, 20), max_size=4, unique=True).map(sorted),
)
def test_mean_of_y_is_x_plus_u_after_every_event(
    jobs: Any, size: int | Criterion, concurrency: int | None, executor: str, flips: Any
) -> None:
    """mean(y_i) = x + u: what clients remember adds up to the model and what waits for aggregation."""
    jobs[0][0] = Durations(0.1, 1.0, 0.1)  # somebody's result arrives
    problem = Quadratic(len(jobs), dim=2, noise=0.3, dtype=torch.float64)
    algorithm = Algorithm(AREA(size=size, concurrency=concurrency), SGD(lr=0.2, steps=2))
    until = Until(updates=60, time=200.0)
    simulation = prepare(problem, algorithm, Scripted(jobs, flips={1: flips}), until, executor=executor)
    for _ in simulation.steps():
        assert invariant(simulation) < 1e-12


def test_a_lost_message_would_break_the_invariant_if_the_client_remembered_it() -> None:
    """One lost or doubled residual would bias the limit for good; a lost job leaves y as it was."""
    clock = Scripted([[Durations(0.0, 1.0, 0.0, lost=True), 1.0]])
    result = run(Line([6.0]), AREA(), HALF, clock, Until(updates=1))
    assert [e.event for e in result.events] == ["Started", "Lost", "Arrived"]
    assert result.model.item() == 3.0  # both jobs started from 0; the second one's residual is 3 − 0, not 3 − 3


def test_six_messages_of_three_clients_by_hand() -> None:
    """Algorithms 1 and 2 with n = 3, Δ = 2 and one local step; every model checked as a fraction."""
    expected = [  # (client, x, u, reply) after each message
        (0, Fraction(0), Fraction(1), Fraction(0)),  # reaches 3, m = 3 − 0
        (0, Fraction(1), Fraction(0), Fraction(0)),  # from 0 again: m = 3 − 3; the reply is x of before the aggregation
        (1, Fraction(1), Fraction(2), Fraction(1)),  # from 0: reaches 6, m = 6
        (0, Fraction(3), Fraction(0), Fraction(1)),  # still from 0: m = 0; u = 2 goes into x
        (0, Fraction(3), Fraction(1, 6), Fraction(3)),  # from 1: reaches 7/2, m = 1/2
        (2, Fraction(13, 6), Fraction(0), Fraction(3)),  # from 0: reaches −3, m = −3; u = 1/6 − 1
    ]
    simulation = prepare(THREE, Algorithm(AREA(size=2), HALF), ORDER, Until(updates=6))
    steps = simulation.steps()
    next(steps)  # Started
    for client, x, u, reply in expected:
        world = next(steps)
        newest = world.flights[world.jobs - 1]
        found = newest.job.client, world.server.model.vector.item(), world.server.u.item()
        assert found == pytest.approx((client, float(x), float(u)), abs=1e-15)
        assert newest.payload is not None
        assert newest.payload["model"].item() == float(reply)


def test_a_reply_carries_the_model_of_before_the_aggregation_its_message_triggers() -> None:
    """Algorithm 1: "send x_{s,k−1} and α_k to client i", and only then "the aggregation criterion is satisfied"."""
    simulation = prepare(Line([8.0, 8.0]), Algorithm(AREA(size=1), HALF), Scripted([[1.0], [9.0]]), Until(updates=9))
    steps = simulation.steps()
    next(steps), next(steps)
    reply = simulation.world.flights[2]
    assert simulation.world.server.model.vector.item() == 2.0  # 4 / n
    assert reply.payload is not None
    assert (reply.payload["model"].item(), reply.job.version) == (0.0, 0)


def test_k_counts_messages_and_server_steps() -> None:
    """k counts client messages and server steps. With Δ = 2 every third k is a server step."""
    schedule = Decay(c=60.0, d=1.0)
    simulation = prepare(
        Line([0.0, 0.0]), Algorithm(AREA(size=2, schedule=schedule), HALF), Scripted([[1.0], [1.5]]), Until(updates=7)
    )
    handed: dict[int, float | None] = {}
    for world in simulation.steps():
        handed.update({number: flight.job.lr for number, flight in world.flights.items()})
    # two at k = 0; then messages are k = 1, 2, (step 3), 4, 5, (step 6), 7, 8, (step 9), 10
    assert [handed[i] for i in sorted(handed)] == [60.0 / (k + 1.0) for k in (0, 0, 1, 2, 4, 5, 7, 8, 10)]


@pytest.mark.parametrize("size", [2, Poisson(0.8), Period(1.7)], ids=["count", "poisson", "period"])
def test_a_run_of_k_iterations_ends_at_k(size: Any) -> None:
    """Algorithm 1's k counts messages and server steps; `until.iterations` is about that number."""
    timing = Times(Exponential((1.0, 0.4, 0.2)))
    for wanted in (7, 8, 9):
        result = run(THREE, AREA(size=size), HALF, timing, Until(iterations=wanted))
        assert result.world.stopped == "iterations"
        assert result.world.tally.updates + result.world.server.model.version == result.world.server.k
        past = result.world.server.k - wanted
        assert past == 0 or (past == 1 and size == 2)  # a message that makes the server step is two iterations


def test_iterations_of_other_servers_are_updates_and_server_steps() -> None:
    result = run(THREE, FedBuff(size=3), HALF, Times(Exponential(1.0)), Until(iterations=20))
    assert (result.world.tally.updates, result.world.server.model.version) == (15, 5)


def test_the_mean_of_the_models_over_the_iterations_by_hand() -> None:
    """Theorem 8: x̄_K = (1/K) Σ x_k for k = 0 … K − 1, in the six messages of `test_six_messages_of_three_clients`."""
    # x after k = 0, 1, 2, 3 (a step), 4, 5, 6 (a step), 7, 8, 9 (a step): 0 0 0 1 1 1 3 3 3 13/6
    means = [0.0, 0.0, 0.0, 1 / 4, 2 / 5, 3 / 6, 6 / 7, 9 / 8, 12 / 9]
    simulation = prepare(THREE, Algorithm(AREA(size=2, average=True), HALF), ORDER, Until(updates=6))
    for world in simulation.steps():
        (mean,) = simulation.server.outputs(world.server).values()
        expected = means[world.server.k - 1] if world.server.k else 0.0
        assert mean.item() == pytest.approx(expected, abs=1e-15)
    assert world.server.k == 9
    assert not simulation.server.outputs(AREA().begin([THREE.initial()], simulation.view))


@pytest.mark.parametrize("size", [3, Poisson(1.0)], ids=["count", "poisson"])
def test_the_mean_of_the_models_is_that_of_the_path(size: Any) -> None:
    """… however the server steps are timed, with a noisy problem, and stopped and resumed at every event."""
    problem = Quadratic(4, dim=3, noise=0.5, dtype=torch.float64)
    timing = Times(Exponential((1.0, 2.0, 0.5, 0.1)))
    simulation = prepare(problem, Algorithm(AREA(size=size, average=True), HALF), timing, Until(iterations=200))
    path: list[torch.Tensor] = []
    for world in simulation.steps():
        state = through_text(world).server
        path += [path[-1] if path else problem.initial()] * (state.k - len(path))  # x_k for k before this event
        if state.k > len(path) - 1 and state.model.version:
            path[len(path) - 1 :] = [path[-1]]
        if state.k:
            expected = torch.stack(path[: state.k]).mean(dim=0)
            torch.testing.assert_close(simulation.server.outputs(state)["average"], expected, rtol=1e-12, atol=1e-12)
        path = [*path[: state.k], state.model.vector]


def test_fedast_does_not_forget_a_mean_in_silence() -> None:
    with pytest.raises(SettingError, match="average: FedAST only returns the models of its tasks"):
        FedAST(requests=4, aggregate=AREA(average=True))


def test_the_step_size_that_came_with_the_model_is_the_one_that_is_used() -> None:
    """Algorithm 2: "x_i^m ← x_i^{m−1} − α g_i" with the α received from the server."""
    result = run(Line([8.0]), AREA(schedule=lambda k: 0.25), SGD(lr=1.0), Scripted([[1.0]]), Until(updates=1))
    assert result.model.item() == 2.0


def test_a_message_is_divided_by_the_number_of_all_clients() -> None:
    """Algorithm 1: "u_{s,k} ← u_{s,k−1} + (1/n) m_i". n counts all clients, not those in the buffer."""
    result = run(
        Line([6.0] * 4), AREA(size=2, concurrency=1), HALF, Scripted([[1.0]]), Until(updates=1), executor="serial"
    )
    assert result.world.server.u.item() == 3.0 / 4


def test_the_first_residual_is_taken_against_the_initial_model() -> None:
    """Algorithm 2: "Initialization: set y_i = x_{s,0}"."""
    result = run(Line([6.0], start=4.0), AREA(size=5), HALF, Scripted([[1.0]]), Until(updates=1))
    assert result.world.server.u.item() == 1.0  # (4 + 6)/2 − 4


def test_wrapping_twice_is_wrapping_once() -> None:
    assert Residual.around(Residual.around(HALF)) == Residual.around(HALF)


@pytest.mark.parametrize("rates", [[10.0] * 128, [1.0, 2.0, 30.0], [0.1, 5.0]])
def test_the_optimal_rate_minimises_the_bound_of_theorem_8(rates: list[float]) -> None:
    """§4.2: "the aggregation frequency λ_s* that minimizes the convergence rate bound", 1/p_s + 2·mean(1/p_i)."""

    def bound(rate: float) -> float:
        total = rate + sum(rates)
        return total / rate + 2.0 * sum(total / r for r in rates) / len(rates)

    best = minimize_scalar(bound, bounds=(1e-3, 1e3), method="bounded", options={"xatol": 1e-9}).x
    assert optimal_rate(rates) == pytest.approx(best, rel=1e-5)


def test_the_optimal_rate_is_taken_from_the_clients_of_the_run() -> None:
    times, until = Times(Exponential((1.0, 2.0))), Until(updates=3)
    open_, best = Poisson("optimal"), Poisson(optimal_rate([1.0, 2.0]))
    assert prepare(Line([0.0, 0.0]), Algorithm(AREA(size=open_), HALF), times, until).server == AREA(size=best)
    clock = times.bind(2, 0)
    assert FedAST(aggregate=FedBuff(size=open_)).fit(clock) == FedAST(aggregate=FedBuff(size=best))
    assert AREA(size=3).fit(clock) == AREA(size=3)


@pytest.mark.parametrize("times", [Scripted([[1.0]]), Times(Constant(1.0))], ids=["no rates", "not exponential"])
def test_without_rates_there_is_no_optimal_rate(times: Any) -> None:
    with pytest.raises(SettingError, match="exponential"):
        prepare(Line([0.0]), Algorithm(AREA(size=Poisson("optimal")), HALF), times, Until(updates=1))
    with pytest.raises(SettingError, match="not fitted to a clock"):
        Poisson("optimal").wait(Stream(0))


@dataclass(frozen=True)
class Doubling:
    """A criterion of one's own: after 2 messages, and by the clock after twice the fastest client's mean time."""

    time: float = math.inf

    def due(self, messages: int, /) -> bool:
        return messages >= 2

    def wait(self, rng: Stream, /) -> float | None:
        return self.time

    def fit(self, clock: Any) -> Doubling:
        return Doubling(2.0 / max(clock.rates))


def test_a_criterion_and_a_schedule_of_one_s_own_are_settings_like_any_other() -> None:
    server = AREA(size=Doubling(), schedule=lambda k: 0.5)
    result = run(Line([0.0, 4.0]), server, HALF, Times(Exponential((1.0, 4.0))), Until(updates=40))
    assert result.simulation.server.size == Doubling(0.5)
    assert result.world.server.model.version > 20


def test_poisson_aggregates_at_its_rate_and_at_random() -> None:
    """Example 3: "the interarrival time between global updates be t_s ~ Exp(λ_s)"."""
    result = run(Line([0.0]), AREA(size=Poisson(2.0)), HALF, Scripted([[50.0]]), Until(time=2000.0))
    times = torch.tensor([e.time for e in result.events if e.event == "Rang"])
    gaps = times.diff()
    assert len(times) == pytest.approx(4000, abs=4 * 4000**0.5)
    assert gaps.mean().item() == pytest.approx(0.5, rel=0.06)
    assert gaps.std().item() == pytest.approx(0.5, rel=0.06)  # an exponential's deviation is its mean


def test_a_period_aggregates_on_the_beat() -> None:
    """Remark 2: "periodically after fixed time intervals"."""
    result = run(Line([0.0]), AREA(size=Period(0.5)), HALF, Scripted([[0.3]]), Until(time=3.2))
    assert [e.time for e in result.events if e.event == "Rang"] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


@pytest.mark.parametrize(
    ("schedule", "updates", "within"),
    [(None, 8000, 1e-6), (Decay(c=4000.0, d=10000.0), 15000, 1e-3)],
    ids=["constant", "decaying"],
)
def test_area_reaches_the_optimum_under_very_uneven_rates(schedule: Any, updates: int, within: float) -> None:
    """§1: exact convergence however unevenly clients report. The rates differ by a factor of 50."""
    problem = Quadratic(4, dim=4, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    timing = Times(Exponential((50.0, 10.0, 5.0, 1.0)))
    result = run(problem, AREA(size=4, schedule=schedule), SGD(lr=0.3), timing, Until(updates=updates))
    error = torch.linalg.vector_norm(result.model - problem.optimum()) / problem.distance
    assert float(error) < within


def test_with_local_steps_a_decaying_step_size_removes_the_bias() -> None:
    """Theorem 7: with α_k ~ 1/k AREA converges to x* for any M; a constant step rests where FedAvg does.

    M steps move a client by a share 1 − (1 − α·h_i)^M of its way to c_i, whatever the rates at which clients report.
    """
    problem = Quadratic(4, dim=6, convexity=0.3, heterogeneity=5.0, dtype=torch.float64)
    timing, until = Times(Exponential((50.0, 10.0, 5.0, 1.0))), Until(updates=10000)
    decaying, constant = (
        run(problem, AREA(size=4, schedule=schedule), SGD(lr=0.5, steps=5), timing, until).model
        for schedule in (Decay(c=500.0, d=1000.0), None)
    )
    pull = 1.0 - (1.0 - 0.5 * problem.h) ** 5
    rest, best = (pull * problem.c).sum(dim=0) / pull.sum(dim=0), problem.optimum()
    torch.testing.assert_close(constant, rest, rtol=0, atol=1e-6)
    assert torch.linalg.vector_norm(decaying - best) < 0.25 * torch.linalg.vector_norm(rest - best)


def test_a_message_that_is_only_seen_in_a_sum_counts_once() -> None:
    """Under secure aggregation, too, k counts messages and server steps, and `messages` those since the last step."""
    algorithm = Algorithm(AREA(size=4), SGD(lr=0.1), secure=Secure(cohort=3))
    since, steps = 0, 0
    for world in prepare(Quadratic(6, dim=2), algorithm, Times(Exponential(1.0)), Until(updates=60)).steps():
        if world.server.model.version > steps:
            since, steps = world.tally.updates, world.server.model.version
        assert world.server.k == world.tally.updates + steps
        assert world.server.messages == world.tally.updates - since
    assert steps > 5
