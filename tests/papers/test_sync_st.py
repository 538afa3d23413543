"""Sync-ST, Sync-UCB-ST and Sync-Bayes-ST: the synchronous baselines of FedAST (§2, §5.2, appendix D.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import binom, chisquare
from worlds import Line, Scripted, accuracies, run

from offbeat.algorithms import FedAST, SyncBayesST, SyncST, SyncUCBST
from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.syncst import BayesState, RoundTask, TaskRounds, UCBState, _predicted
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.server import Model
from offbeat.core.until import Until
from offbeat.experiment.run import Run
from offbeat.local.sgd import SGD
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Exponential, Factors, OnOff, Times

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2
KINDS = pytest.mark.parametrize("kind", [SyncST, SyncUCBST, SyncBayesST])


def lines(tasks: int, clients: int) -> list[Line]:
    return [Line([float(m + c % 3) for c in range(clients)], name=f"task{m}") for m in range(tasks)]


def mean_round(result: Run) -> float:
    state = result.world.server
    return float(state.began / (state.rounds - 1))


# The round


def test_the_first_k_results_make_a_round_by_hand() -> None:
    """D.1: "only aggregates the first k client updates for each task and discards the rest"."""
    line, clock = Line([6.0, 12.0, -6.0]), Scripted([[1.0], [2.0], [3.5]])
    for first, at, model in ((None, 3.5, 2.0), (2, 2.0, 4.5), (1, 1.0, 3.0)):  # reached: 3, 6 and −3
        server = SyncST(sampled=3, first=first)
        world = prepare(line, Algorithm(server, HALF), clock, Until(versions=1)).run()
        assert (world.now, world.server.tasks[0].model.vector.item()) == (at, model)


def test_the_step_size_multiplies_the_mean_of_a_round() -> None:
    line, clock = Line([6.0, 12.0, -6.0]), Scripted([[1.0]])
    world = prepare(line, Algorithm(SyncST(sampled=3, lr=0.25), HALF), clock, Until(versions=1)).run()
    assert world.server.tasks[0].model.vector.item() == 0.5  # a quarter of the mean of 3, 6 and −3


def test_without_a_local_trainer_clients_make_27_steps_of_32_samples() -> None:
    """C.5: as for most of its data sets."""
    assert SyncST.default_local == FedAST.default_local == SGD(lr=0.1, steps=27, batch=32)


def test_all_tasks_wait_for_the_slowest_of_them() -> None:
    """§2: "the server waits for the slowest update across all the tasks before commencing the next round"."""
    result = run(lines(3, 12), SyncST(sampled=9), HALF, Times(Exponential(1.0)), Until(updates=900))
    arrived = [row for row in result.events if row.event == "Arrived"]
    for at in range(0, 900, 9):
        assert sorted(row.task for row in arrived[at : at + 9]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert len({row.sent for row in arrived[at : at + 9]}) == 1
        assert arrived[at].sent == (arrived[at - 1].time if at else 0.0)
    assert {task.model.version for task in result.world.server.tasks} == {100}


def test_a_late_result_counts_for_nothing() -> None:
    """One of two comes 1000 times later than the other: the model is made by the other alone."""
    line = Line([8.0, -1e6])
    made = prepare(line, Algorithm(SyncST(sampled=2, first=1), HALF), Scripted([[1.0], [1000.0]]), Until(time=2000.5))
    world = made.run()
    assert world.server.tasks[0].model.vector.item() == pytest.approx(8.0)
    assert world.tally.updates == 2000 + 2


def test_each_round_is_a_new_random_partition() -> None:
    result = run(lines(2, 10), SyncST(sampled=10), HALF, Times(Constant(1.0)), Until(updates=6000))
    mine = [row.client for row in result.events if row.event == "Arrived" and row.task == 0]
    assert len(mine) == 3000
    assert chisquare([mine.count(client) for client in range(10)]).pvalue > 0.01
    rounds = {tuple(sorted(mine[at : at + 5])) for at in range(0, 3000, 5)}
    assert len(rounds) > 200  # of the 252 there are


def test_shares_divide_the_clients() -> None:
    result = run(lines(2, 10), SyncST(sampled=10, shares=(1.0, 4.0)), HALF, Times(Constant(1.0)), Until(updates=100))
    tasks = [row.task for row in result.events if row.event == "Arrived"]
    assert (tasks.count(0), tasks.count(1)) == (20, 80)


# §4: how long a round takes


def test_a_round_takes_the_harmonic_sum() -> None:
    """ "(1/λ) Σ_{k=1}^{R_1+…+R_M} 1/k": the slowest of all, over all tasks."""
    result = run(lines(2, 10), SyncST(sampled=10), HALF, Times(Exponential(2.0)), Until(updates=40_000))
    assert mean_round(result) == pytest.approx(sum(1 / k for k in range(1, 11)) / 2.0, rel=0.02)


@pytest.mark.parametrize(("clients", "stop"), [(400, False), (10, True)])
def test_with_first_k_a_round_takes_the_last_k_terms_of_the_sum(clients: int, stop: bool) -> None:
    """The k-th of n: (1/λ) Σ_{i=n−k+1}^{n} 1/i; with ten clients only if those who are late are free again."""
    server = SyncST(sampled=10, first=4, stop=stop)
    result = run(
        lines(1, clients), server, HALF, Times(Exponential(2.0)), Until(updates=40_000 if clients > 10 else 8000)
    )
    assert mean_round(result) == pytest.approx(sum(1 / i for i in range(7, 11)) / 2.0, rel=0.02)


def test_with_first_k_two_tasks_wait_for_the_later_of_their_k_th() -> None:
    def late(t: float) -> float:  # P(one of the two has fewer than 2 of its 5 at time t)
        return float(1.0 - binom.sf(1, 5, 1.0 - math.exp(-t)) ** 2)

    expected, _ = quad(late, 0.0, 50.0)
    server = SyncST(sampled=10, first=2)
    result = run(lines(2, 400), server, HALF, Times(Exponential(1.0)), Until(updates=40_000))
    assert mean_round(result) == pytest.approx(expected, rel=0.02)


# What may go wrong


@KINDS
@pytest.mark.parametrize("first", [None, 2])
def test_it_goes_on_when_jobs_get_lost_and_clients_come_and_go(kind: Any, first: int | None) -> None:
    rough = Times(Exponential(1.0), presence=OnOff(on=5.0, off=5.0), dropout=0.3)
    result = run(lines(3, 5), kind(sampled=5, first=first), HALF, rough, Until(updates=300, time=1e5))
    assert result.world.stopped == "updates"
    assert min(task.model.version for task in result.world.server.tasks) > 15


def test_the_next_round_begins_when_a_late_one_is_free_though_nobody_was_when_it_should_have_begun() -> None:
    """Client 0 reports and leaves, client 1 leaves, client 2 is still busy with the round that this ends."""
    clock = Scripted([[1.0], [100.0], [5.0]], flips={0: [2.0], 1: [3.0]})
    for seed in range(50):
        made = prepare(lines(2, 3), Algorithm(SyncST(first=1), HALF), clock, Until(time=20.0), seed=seed)
        world = next(made.steps())
        if {f.job.client: f.job.task for f in world.flights.values()} == {0: 0, 1: 1, 2: 0}:
            made.run()
            assert world.tally.updates > 3
            return
    raise AssertionError("no seed divides the clients like this")


def test_with_fewer_clients_than_tasks_all_tasks_have_their_turn() -> None:
    result = run(lines(3, 1), SyncST(), HALF, Times(Constant(1.0)), Until(updates=90))
    tasks = [row.task for row in result.events if row.event == "Arrived"]
    assert min(tasks.count(m) for m in range(3)) > 15


@KINDS
@pytest.mark.parametrize("first", [None, 2])
def test_finished_and_new_tasks_change_the_next_round(kind: Any, first: int | None) -> None:
    made = prepare(
        lines(3, 12),
        Algorithm(kind(sampled=12, first=first, targets=accuracies(0.6, None, None)), HALF),
        Times(Exponential(1.0)),
        Until(time=60.0),
        evaluate=1.0,
        terms=[(0.0, math.inf), (10.0, math.inf), (0.0, 30.0)],
    )
    last: dict[int, float] = {}
    for world in made.steps():
        for flight in world.flights.values():
            last.setdefault(flight.job.task, flight.sent)
            if world.now > 40.0:
                assert flight.job.task == 1
    assert last[1] >= 10.0
    assert world.finished == {0: "target", 2: "closed"}
    assert world.server.tasks[1].model.version > 10


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sampled": 0}, "sampled = 0"),
        ({"first": 0}, "first = 0"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"shares": (1.0, 0.0)}, r"shares\[1\] = 0.0: must be a positive number"),
        ({"sampled": 2}, "sampled = 2 for 3 tasks"),
        ({"shares": (1.0, 2.0)}, "shares has 2 values for 3 tasks"),
        ({"targets": (0.5,)}, "targets has 1 values for 3 tasks"),
    ],
)
@KINDS
def test_settings_that_make_no_sense_are_refused(kind: Any, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        run(lines(3, 4), kind(**settings), HALF, Times(Constant(1.0)), Until(updates=1))


# Sync-UCB-ST


def bandit(seen: dict[tuple[int, int], list[float]], rounds: int = 20) -> UCBState:
    return UCBState(_tasks(2), rounds=rounds, seen=seen)


def _tasks(count: int) -> list[RoundTask]:
    return [RoundTask(Model(torch.zeros(1)), Buffer(), active=True) for _ in range(count)]


def assigned(server: TaskRounds[Any], state: Any, clients: Sequence[int], places: dict[int, int]) -> Any:
    return {m: sorted(mine) for m, mine in server.assign(state, clients, places, None).items()}  # type: ignore[arg-type]


def test_clients_go_where_their_loss_is_large() -> None:
    losses = {(0, 0): 5.0, (0, 1): 1.0, (1, 0): 1.0, (1, 1): 5.0, (2, 0): 4.0, (2, 1): 1.0, (3, 0): 1.0, (3, 1): 4.0}
    state = bandit({pair: [10.0, 10.0 * loss] for pair, loss in losses.items()})
    assert assigned(SyncUCBST(), state, [3, 1, 2, 0], {0: 2, 1: 2}) == {0: [0, 2], 1: [1, 3]}


def test_pairs_never_tried_come_first() -> None:
    state = bandit({(c, m): [10.0, 1000.0] for c in range(4) for m in range(2) if (c, m) != (2, 1)})
    assert assigned(SyncUCBST(), state, [0, 1, 2, 3], {0: 3, 1: 1})[1] == [2]


def test_the_less_a_pair_was_tried_the_more_it_is_worth_by_hand() -> None:
    """Mean 2 over a task's mean loss, plus sqrt(2 ln(rounds)/times)."""
    state = bandit({(0, 0): [2.0, 4.0], (1, 0): [8.0, 16.0]}, rounds=20)
    server = SyncUCBST(explore=0.5)
    scores = [server._score(state, client, 0, 2.0) for client in (0, 1)]
    assert scores == pytest.approx([1.0 + 0.5 * math.sqrt(math.log(20.0)), 1.0 + 0.25 * math.sqrt(math.log(20.0))])
    early = [server._score(bandit(state.seen, rounds=r), 0, 0, 2.0) for r in (1, 2)]
    assert early == pytest.approx([1.0 + 0.5 * math.sqrt(math.log(2.0))] * 2)  # ln 1 = 0 would end all exploring


def test_the_loss_is_of_the_model_that_was_sent() -> None:
    """½ (0 − c)² for client c's centre, reported with its first result."""
    made = prepare(Line([2.0, 4.0]), Algorithm(SyncUCBST(sampled=2), HALF), Times(Constant(1.0)), Until(updates=2))
    assert made.run().server.seen == {(0, 0): [1.0, 2.0], (1, 0): [1.0, 8.0]}


@pytest.mark.parametrize("first", [None, 2])
def test_every_pair_is_tried_and_large_losses_are_asked_for_more_often(first: int | None) -> None:
    """Task 0 is hard for clients 0 to 3 alone, task 1 for 4 to 7; small steps, so that it stays so."""
    problems = [Line([9.0] * 4 + [1.0] * 4, name="a"), Line([1.0] * 4 + [9.0] * 4, name="b")]
    server = SyncUCBST(sampled=8, first=first, explore=0.1)
    result = run(problems, server, SGD(lr=1e-5), Times(Exponential(1.0)), Until(updates=2000))
    seen = {pair: times for pair, (times, _) in result.world.server.seen.items()}
    assert len(seen) == 16
    wanted = sum(times for (client, task), times in seen.items() if (client < 4) == (task == 0))
    assert wanted / sum(seen.values()) > 0.8


# Sync-Bayes-ST

BIG_AND_SMALL = [Line([1.0] * 12, name="big"), Line([1.0] * 12, name="small")]
SLOW = Factors((5.0, 5.0, *[1.0] * 10))
TWO_SLOW = Times(Constant({"big": 10.0, "small": 1.0}), speeds=SLOW)


def test_it_learns_to_keep_slow_clients_from_the_big_task() -> None:
    """A random partition puts one of the two slow ones on the big task 77 % of the time: 50 instead of 10."""
    random, learnt = (
        run(BIG_AND_SMALL, server, HALF, TWO_SLOW, Until(updates=12 * 100)).world.server
        for server in (SyncST(sampled=12), SyncBayesST(sampled=12, fairness=0.0))
    )
    assert random.began / 99 > 35.0
    assert sum(learnt.costs[-40:]) / 40 < 20.0


@pytest.mark.parametrize("first", [None, 5])
def test_the_time_of_a_client_is_counted_from_its_own_job(first: int | None) -> None:
    """A late one has been at work for longer than the round in which it reports."""
    times = Times(Constant(1.0), speeds=Factors((7.0, *[1.0] * 11)))
    result = run(lines(2, 12), SyncBayesST(sampled=12, first=first), HALF, times, Until(updates=400))
    known = {client: total / count for client, (count, total) in result.world.server.durations.items()}
    assert known == pytest.approx({0: 7.0} | dict.fromkeys(range(1, 12), 1.0))
    assert result.world.server.counts == {c: n for c, (n, _) in result.world.server.durations.items()}


def test_what_a_round_will_cost_is_predicted_by_a_gaussian_process() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    rng = np.random.default_rng(0)
    for rounds, columns in ((4, 2), (30, 4), (64, 6)):
        x, y, at = rng.random((rounds, columns)), rng.random(rounds), rng.random((32, columns))
        kernel = RBF(length_scale=math.sqrt(columns)) + WhiteKernel(0.1)
        theirs = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(x, y)
        for ours, expected in zip(_predicted(x, y, at), theirs.predict(at, return_std=True), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_a_round_costs_its_length_and_the_unevenness_of_participation() -> None:
    server = SyncBayesST(fairness=2.0)
    state = BayesState(_tasks(2), began=3.0, counts={0: 1, 1: 3}, current=[0.0] * 4)

    class Late:
        now = 10.0

    server.concluded(state, Late())  # type: ignore[arg-type]
    assert state.costs == [7.0 + 2.0 * 0.5]  # deviation 1 over mean 2


def test_with_fairness_clients_take_part_more_evenly() -> None:
    """Only half of the clients fit into a round, and some are slow: still nobody is left out."""
    result = run(lines(2, 12), SyncBayesST(sampled=6), HALF, Times(Constant(1.0), speeds=SLOW), Until(updates=600))
    counts = result.world.server.counts
    assert len(counts) == 12
    assert min(counts.values()) > 25
