"""When results are computed, and that stacked rows are what single clients would have computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pytest
import torch
from worlds import Line, Scenario, Scripted, play, run, send

from offbeat.algorithms import Decay
from offbeat.algorithms.area import AREA
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.events import Job, Send, Stop
from offbeat.core.random import SAMPLE, key
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.arena import Arena, Arenas
from offbeat.simulate.execute import Executor, Ready
from offbeat.simulate.loop import Simulation
from offbeat.timing import Exponential, Times
from offbeat.timing.base import Durations


class Counted(Executor):
    """An executor that keeps the sizes of its batches."""

    def __init__(self, stacked: bool) -> None:
        super().__init__(stacked)
        self.batches: list[int] = []

    def compute(self, problem: Any, local: Any, arena: Any, group: Any) -> Any:
        self.batches.append(len(group))
        return super().compute(problem, local, arena, group)


class Watched(Line):
    """A line that keeps how many rows each gradient was of."""

    @cached_property
    def rows(self) -> list[int]:
        return []

    def oracle(self, *given: Any) -> Any:
        points = super().oracle(*given)
        gradient = points.gradient

        def counted(w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
            self.rows.append(len(w))
            slopes: torch.Tensor = gradient(w, step, sample)
            return slopes

        points.gradient = counted
        return points


def batches(problem: Any, clock: Any, until: Until, stacked: bool = True) -> list[int]:
    executor = Counted(stacked)
    Simulation([problem], FedBuff(size=10), [SGD(lr=0.1)], clock, executor, until).run()
    return executor.batches


def test_nothing_is_computed_before_somebody_needs_it() -> None:
    simulation, _ = play(Scenario({0: [send(c) for c in range(5)]}), Scripted([[5.0]]), Until(time=4.0), clients=5)
    assert simulation.world.tally.computed == 0


def test_the_first_arrival_computes_everything_that_is_on_its_way() -> None:
    """Four clients at work; client 0 reports at 1 and 2, so at 2 only its second job is new, at 3 two are."""
    clock = Scripted([[1.0], [2.5], [10.0], [10.0]])
    assert batches(Line([0.0] * 4), clock, Until(time=12.0))[:3] == [4, 1, 2]
    assert batches(Line([0.0] * 4), Scripted([[1.0], [2.5], [10.0], [10.0]]), Until(time=3.5), stacked=False) == [1] * 4


def test_what_will_not_arrive_before_the_end_is_never_computed() -> None:
    """The same clients until 3.5, or for two updates: those who would report at 10 have worked in vain."""
    clock = Scripted([[1.0], [2.5], [10.0], [10.0]])
    assert batches(Line([0.0] * 4), clock, Until(time=3.5)) == [2, 1, 1]
    assert batches(Line([0.0] * 4), clock, Until(updates=2)) == [2, 1]


def test_with_memoryless_clients_a_batch_has_about_the_square_root_of_half_pi_n_jobs() -> None:
    """With n clients alike, about sqrt(πn/2) jobs are known before one depends on another: 14 for n = 128."""
    clock = Times(Exponential(1.0)).bind(128, seed=0)
    sizes = batches(Quadratic(128, dim=1), clock, Until(updates=8000))[1:]  # the first batch is all of them
    assert sum(sizes) / len(sizes) == pytest.approx(math.sqrt(math.pi * 128 / 2), rel=0.1)


def test_a_dropped_job_is_never_computed() -> None:
    clock = Scripted([[Durations(0.0, 1.0, 0.0, lost=True)], [1.0]])
    assert batches(Line([0.0] * 2), clock, Until(time=5.5)) == [1] * 5


JOBS = [send(c, float(c), steps=1 + c % 3, lr=0.1 * (1 + c)) for c in range(5)]
CLOCK = Scripted([[1.0 + c] for c in range(5)])


def arrivals(stacked: bool, jobs: Sequence[Send], problem: Any, **options: Any) -> list[float]:
    simulation, _ = play(Scenario({0: jobs}), CLOCK, Until(time=50.0), problems=[problem], stacked=stacked, **options)
    return [delta for _, _, _, delta in simulation.world.server.arrived]


def test_jobs_with_different_steps_and_step_sizes_in_one_batch() -> None:
    """By hand: from x, the distance to 1 shrinks by 1 − lr a step."""
    expected = [x - (1 + (x - 1) * (1 - 0.1 * (1 + x)) ** (1 + x % 3)) for x in map(float, range(5))]
    for stacked in (True, False):
        assert arrivals(stacked, JOBS, Line([1.0] * 5)) == pytest.approx(expected, abs=1e-15)


def test_the_steps_that_others_still_do_are_not_done_twice_or_drawn_differently() -> None:
    noisy = Quadratic(5, dim=1, noise=1.0, dtype=torch.float64)
    assert arrivals(True, JOBS, noisy) == pytest.approx(arrivals(False, JOBS, noisy), abs=1e-13)


def computed(
    problem: Line, lr: float, memory: float = 1e9, steps: Sequence[int] | None = None
) -> tuple[list[Any], Arena]:
    arenas = Arenas()
    model = arenas.adopt(problem.initial())
    group = [
        (None, Ready(Job(c, c, 0, 0, count, lr, 0), {"model": model}, {}, key=c, client=c))
        for c, count in enumerate(steps or [1] * problem.clients)
    ]
    arena = arenas.like(problem.initial())
    results, errors = Executor(True, memory).compute(problem, SGD(lr=1.0), arena, group)
    assert not errors
    return [upload["delta"] for upload, _ in results], arena


def test_large_groups_are_cut_into_chunks_that_fit_the_memory() -> None:
    problem = Line([float(c) for c in range(10)])
    whole, cut = (computed(problem, 1.0, memory)[0] for memory in (1e9, 4 * 1 * 8 * 3))
    assert [d.item() for d in whole] == [d.item() for d in cut] == [-float(c) for c in range(10)]


@pytest.mark.parametrize("memory", [1e9, 4 * 1 * 8 * 7])
def test_jobs_that_are_done_are_soon_left_out_and_every_result_is_its_own(memory: float) -> None:
    """c · (1 − ½ˢ) is where s steps of ½ lead to from 0; at most a quarter of the rows are of jobs that are done."""
    steps = [3, 0, 9, 1, 9, 2, 0, 5, 7, 7, 1, 4, 30, 6, 2, 2, 8, 1, 3, 12]
    problem = Watched([float(c) for c in range(20)])
    deltas, _ = computed(problem, 0.5, memory, steps)
    assert [-d.item() for d in deltas] == [c * (1 - 0.5**s) for c, s in enumerate(steps)]
    assert sum(steps) <= sum(problem.rows) < sum(steps) / 0.75


def test_one_client_s_result_does_not_keep_its_batch_alive() -> None:
    """Rows come back one by one, however many were computed together."""
    deltas, arena = computed(Line([1.0] * 100), 0.5)
    arena.materialise()
    before = len(arena.free)
    del deltas[50:]
    arena.materialise()
    assert len(arena.free) == before + 50


def test_step_sizes_that_decay_differ_within_a_batch_and_agree_with_serial() -> None:
    problem = Quadratic(6, dim=3, noise=0.5, dtype=torch.float64)
    server, timing = AREA(size=3, schedule=Decay(c=5.0, d=10.0)), Times(Exponential(1.0))
    a, b = (
        run(problem, server, SGD(lr=1.0, steps=2), timing, Until(updates=200), executor=e)
        for e in ("serial", "batched")
    )
    torch.testing.assert_close(a.model, b.model, rtol=0, atol=1e-12)


def test_draws_belong_to_the_client_and_its_job_and_to_nothing_else() -> None:
    """The same client's k-th job draws the same noise whatever else is in the batch and whichever task it is not."""
    problem = Quadratic(3, dim=2, noise=1.0)
    w = torch.zeros(3, 2)
    keys = [key(0, SAMPLE, c, 4, 0) >> 1 for c in range(3)]
    together = problem.oracle([0, 1, 2], keys, 1, None, False).gradient(w, step=2)
    alone = problem.oracle([1], keys[1:2], 1, None, False).gradient(w[:1], step=2)
    assert torch.equal(together[1], alone[0])


def test_a_client_s_kth_job_draws_the_same_whatever_was_sent_to_others() -> None:
    noisy = Quadratic(5, dim=1, noise=1.0, dtype=torch.float64)
    few, many = [send(3), send(3)], [send(0), send(3), send(1), send(3), send(2)]
    ours = [arrivals(True, few, noisy), arrivals(True, many, noisy)[3:]]  # client 3 is the slowest: it arrives last
    assert ours[0] == ours[1]
    assert ours[0][0] != ours[0][1]


def test_another_seed_draws_other_mini_batches_and_other_times() -> None:
    problem, timing = Quadratic(3, dim=2, noise=1.0), Times(Exponential(1.0))
    a, b = (run(problem, FedAsync(), SGD(lr=0.1), timing, Until(updates=5), seed=seed) for seed in (0, 1))
    assert [e.time for e in a.events][1:] != [e.time for e in b.events][1:]
    assert not torch.equal(a.model, b.model)


def test_of_results_that_are_due_at_the_same_moment_the_one_that_is_handled_first_is_there() -> None:
    """Job 1 waits behind one that is dropped at 3, and is then due at 8 like job 2, but behind it."""

    class Two(Scenario):
        def models(self, state: Any) -> Any:
            return (state.model, state.model)

    script = {0: [send(0, task=1), send(0, 2.0), send(1, 3.0)], 3.0: [Stop(task=1)]}
    for stacked in (True, False):
        simulation, _ = play(
            *(Two(script), Scripted([[5.0], [8.0]]), Until(updates=1)), stacked=stacked, problems=[Line([0.0] * 2)] * 2
        )
        assert [job for _, _, job, _ in simulation.world.server.arrived] == [2]
