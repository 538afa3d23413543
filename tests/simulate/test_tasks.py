"""Several tasks in one run: they open and close, and the jobs of a finished one are gone from every queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from worlds import Diary, Line, Scenario, Scripted, accuracies, play, send

from offbeat.algorithms import AREA, FedAST, OneByOne, SyncST
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.events import Command, Stop
from offbeat.core.server import Commands, Model, View
from offbeat.core.until import Until
from offbeat.core.watcher import EventRow
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, OnOff, Times
from offbeat.timing.base import Durations
from offbeat.watch.history import History

LONG = Until(time=100.0)


@dataclass(frozen=True)
class Tasks(Scenario):
    """A scenario with three tasks, which notes those that come and go."""

    def models(self, state: Diary) -> Sequence[Model]:
        return (state.model,) * 3

    def opened(self, state: Diary, task: int, view: View) -> Commands:
        state.heard.append(f"{view.now:g}: {task} opened, there are {list(view.tasks)}")
        yield from ()

    def closed(self, state: Diary, task: int, view: View) -> Commands:
        state.heard.append(f"{view.now:g}: {task} closed, there are {list(view.tasks)}")
        yield from ()


def watch(script: Mapping[float, Sequence[Command]], clock: Any, **options: Any) -> tuple[Simulation, list[EventRow]]:
    problems = [Line([1.0] * 2, name=f"task{m}") for m in range(3)]
    simulation, history = play(Tasks(script), clock, LONG, problems=problems, **options)
    return simulation, [row for row in history.events if row.event == "Arrived"]


# Dropped jobs


def test_what_was_queued_behind_a_dropped_job_starts_when_that_is_dropped() -> None:
    """Task 0's job runs until 3; stopped at 1, task 1's begins at 1 instead of 3."""
    _, rows = watch({0: [send(0), send(0, task=1)], 1.0: [Stop(0, "enough")]}, Scripted([[3.0, 2.0]]))
    assert [(row.task, row.started, row.finished, row.time) for row in rows] == [(1, 1.0, 3.0, 3.0)]


def test_a_job_that_is_running_goes_on_and_those_behind_it_move_up() -> None:
    jobs = [send(0, task=1), send(0), send(0, task=2), send(0), send(0, task=1)]
    _, rows = watch({0: jobs, 1.0: [Stop(0, "enough")]}, Scripted([[4.0, 10.0, 2.0, 10.0, 1.0]]))
    assert [(row.task, row.started, row.time) for row in rows] == [(1, 0.0, 4.0), (2, 4.0, 6.0), (1, 6.0, 7.0)]


def test_a_job_that_is_still_downloading_is_not_started_before_it_is_there() -> None:
    jobs = [Durations(0.0, 9.0, 0.0), Durations(5.0, 1.0, 2.0)]
    _, rows = watch({0: [send(0), send(0, task=1)], 1.0: [Stop(0, "enough")]}, Scripted([jobs]))
    assert [(row.started, row.finished, row.time) for row in rows] == [(5.0, 6.0, 8.0)]


def test_a_result_that_is_on_its_way_back_is_not_touched() -> None:
    jobs = [Durations(0.0, 1.0, 5.0), Durations(0.0, 9.0, 0.0), Durations(0.0, 1.0, 0.0)]
    script = {0: [send(0, task=1), send(0), send(0, task=2)], 2.0: [Stop(0, "enough")]}
    _, rows = watch(script, Scripted([jobs]))
    assert [(row.task, row.started, row.time) for row in rows] == [(2, 2.0, 3.0), (1, 0.0, 6.0)]


def test_new_work_queues_behind_what_has_moved_up() -> None:
    script = {0: [send(0), send(0, task=1)], 1.0: [Stop(0, "enough"), send(0, task=2)]}
    _, rows = watch(script, Scripted([[50.0, 2.0, 1.0]]))
    assert [(row.task, row.started, row.time) for row in rows] == [(1, 1.0, 3.0), (2, 3.0, 4.0)]


def test_a_client_left_without_work_is_idle_and_free() -> None:
    simulation, rows = watch({0: [send(0)], 1.0: [Stop(0, "x")], 2.0: [send(0, task=1)]}, Scripted([[50.0, 1.0]]))
    assert [(row.task, row.started, row.time) for row in rows] == [(1, 2.0, 3.0)]
    assert sorted(simulation.world.idle.items) == [0, 1]


def test_a_job_that_will_be_lost_keeps_its_place_in_the_queue() -> None:
    jobs = [50.0, Durations(0.0, 2.0, 0.0, lost=True), 1.0]
    script = {0: [send(0), send(0, task=1), send(0, task=2)], 1.0: [Stop(0, "x")]}
    simulation, rows = watch(script, Scripted([jobs]))
    assert simulation.world.server.heard == ["3: job 1 of client 0 dropped"]
    assert [(row.started, row.time) for row in rows] == [(3.0, 4.0)]


# Terms


def test_the_server_hears_of_tasks_that_come_and_go_in_their_order() -> None:
    simulation, _ = watch({}, Scripted([[1.0]]), terms=[(0.0, 7.0), (2.0, 9.0), (5.0, float("inf"))])
    assert simulation.world.server.heard == [
        "2: 1 opened, there are [0, 1]",
        "5: 2 opened, there are [0, 1, 2]",
        "7: 0 closed, there are [1, 2]",
        "9: 1 closed, there are [2]",
    ]
    assert simulation.world.finished == {0: "closed", 1: "closed"}
    assert simulation.world.ends == {0: 7.0, 1: 9.0}


def test_a_task_is_measured_from_its_opening_to_its_end() -> None:
    problems = [Line([1.0], name="a"), Line([1.0], name="b")]
    history = History()
    prepare(
        problems,
        Algorithm(FedAST(requests=2, size=1), SGD(lr=0.5)),
        Times(Exponential(1.0)),
        Until(time=10.0),
        evaluate=2.0,
        watchers=[history],
        terms=[(0.0, 5.0), (3.0, 100.0)],
    ).run()
    assert [m.time for m in history.measurements if m.task == 0] == [0.0, 2.0, 4.0, 5.0]
    assert [m.time for m in history.measurements if m.task == 1] == [3.0, 5.0, 7.0, 9.0, 10.0]


def test_the_run_ends_with_its_last_task() -> None:
    simulation, _ = watch({}, Scripted([[1.0]]), terms=[(0.0, 3.0), (0.0, 8.0), (0.0, 5.0)])
    assert (simulation.world.now, simulation.world.stopped) == (8.0, "closed")


def test_tasks_must_have_the_same_clients() -> None:
    with pytest.raises(SettingError, match="tasks share their clients"):
        play(Tasks({}), Scripted([[1.0]]), LONG, problems=[Line([1.0]), Line([1.0, 2.0])])


# Whole runs


@settings(max_examples=25, deadline=None)
@given(
    server=st.sampled_from(
        [
            FedAST(requests=9, ratio=2.0, lr=0.5, targets=accuracies(0.7, 0.8, None)),
            FedAST(
                requests=9, ratio=2.0, allocation="dynamic", window=2, period=0.1, targets=accuracies(0.7, 0.8, None)
            ),
            FedAST(requests=9, aggregate=AREA(size=2), targets=accuracies(0.7, 0.8, None)),
            OneByOne(requests=9, size=2, targets=accuracies(0.7, 0.8, 0.9)),
            SyncST(sampled=5, first=2, targets=accuracies(0.7, 0.8, None)),
        ]
    ),
    terms=st.lists(st.tuples(st.floats(0.0, 15.0), st.floats(16.0, 60.0)), min_size=3, max_size=3),
    rough=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_whatever_comes_and_goes_clients_work_on_one_job_at_a_time_and_dropped_jobs_never_arrive(
    server: Any, terms: list[tuple[float, float]], rough: bool, seed: int
) -> None:
    problems = [Line([float(c) for c in range(5)], name=f"task{m}") for m in range(3)]
    presence = OnOff(on=8.0, off=2.0) if rough else None
    timing = Times(Exponential((0.3, 1.0, 2.0, 1.0, 1.0)), presence=presence, dropout=0.1 if rough else 0.0)
    history = History(keep_events=True)
    made = prepare(
        problems,
        Algorithm(server, SGD(lr=0.3)),
        timing,
        Until(time=40.0),
        seed=seed,
        evaluate=1.0,
        watchers=[history],
        terms=terms,
    )
    for world in made.steps():
        tasks = {flight.job.task for flight in world.flights.values()}
        assert not tasks & set(world.finished)
        assert not tasks & set(world.unborn)
    arrived = [row for row in history.events if row.event == "Arrived"]
    for row in arrived:
        assert terms[row.task][0] <= row.sent
        assert row.time <= world.ends.get(row.task, 40.0)
    for client in range(5):
        mine = sorted((row for row in arrived if row.client == client), key=lambda row: row.job)
        assert all(later.started >= earlier.finished for earlier, later in pairwise(mine))


def test_a_task_that_the_run_ends_is_closed_for_its_server_too() -> None:
    problems = [Quadratic(4, dim=2, label=name) for name in ("a", "b")]
    timing, until = Times(Exponential(1.0)), Until(time=1e4, versions=5)
    world = prepare(problems, Algorithm(SyncST(sampled=4), SGD(lr=0.1)), timing, until).run()
    assert world.stopped == "versions"
    assert world.now < 1e3
