"""Queues, durations, held work and who is there: the rules at the top of `core/events.py`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from worlds import Line, Scenario, Scripted, TwoTasks, play, send

from offbeat.algorithms import AREA, FedAST, Period
from offbeat.algorithms.area import Residual
from offbeat.core.errors import HandlerError
from offbeat.core.events import Alarm, Cancel, Recall
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.timing.base import Durations

LONG = Until(time=100.0)
ONE = Scripted([[1.0]])


# Queues and durations


def test_a_busy_client_works_through_its_queue_in_the_order_of_sending() -> None:
    simulation, _ = play(Scenario({0: [send(0), send(0)], 0.5: [send(0)]}), Scripted([[3.0, 2.0, 1.0]]), LONG)
    assert [(time, job) for time, _, job, _ in simulation.world.server.arrived] == [(3.0, 0), (5.0, 1), (6.0, 2)]


def test_two_clients_do_not_wait_for_each_other() -> None:
    simulation, _ = play(Scenario({0: [send(0), send(1)]}), Scripted([[3.0], [2.0]]), LONG, clients=2)
    assert [(time, client) for time, client, _, _ in simulation.world.server.arrived] == [(2.0, 1), (3.0, 0)]


def test_a_job_takes_its_download_its_compute_and_its_upload() -> None:
    _, history = play(Scenario({1.0: [send(0)]}), Scripted([[Durations(2.0, 3.0, 4.0)]]), LONG)
    row = next(r for r in history.events if r.event == "Arrived")
    assert (row.sent, row.started, row.finished, row.time) == (1.0, 3.0, 6.0, 10.0)


def test_the_next_job_downloads_while_the_client_is_busy_and_starts_while_the_last_one_uploads() -> None:
    clock = Scripted([[Durations(1.0, 3.0, 5.0)]])
    _, history = play(Scenario({0: [send(0), send(0)]}), clock, LONG)
    rows = [r for r in history.events if r.event == "Arrived"]
    assert [(r.started, r.finished, r.time) for r in rows] == [(1.0, 4.0, 9.0), (4.0, 7.0, 12.0)]


def test_alarms_ring_after_their_time_with_their_key() -> None:
    _, history = play(Scenario({2.5: [], 1.0: []}), ONE, LONG)
    assert [(r.time, r.event) for r in history.events] == [(0.0, "Started"), (1.0, "Rang"), (2.5, "Rang")]


def test_a_negative_alarm_is_refused() -> None:
    with pytest.raises(HandlerError, match=r"an alarm after -1.*must not be negative"):
        play(Scenario({0: [Alarm(-1.0, "0")]}), ONE, LONG)


def test_work_for_a_client_that_does_not_exist_is_refused() -> None:
    with pytest.raises(HandlerError, match="client 7, but there are 1"):
        play(Scenario({0: [send(7)]}), ONE, LONG)


def test_at_one_moment_presence_comes_first_then_arrivals_then_alarms_then_measurements() -> None:
    clock = Scripted([[2.0]], flips={1: [2.0]})
    _, history = play(Scenario({0: [send(0)], 2.0: []}), clock, LONG, clients=2, evaluate=2.0)
    assert [r.event for r in history.events if r.time == 2.0] == ["Left", "Arrived", "Rang"]
    at_two = next(m for m in history.measurements if m.time == 2.0)
    assert at_two.updates == 1


def test_arrivals_of_one_moment_come_in_the_order_of_sending() -> None:
    simulation, _ = play(Scenario({0: [send(2), send(0), send(1)]}), ONE, LONG, clients=3)
    assert [client for _, client, _, _ in simulation.world.server.arrived] == [2, 0, 1]


# Cancelled work


@pytest.mark.parametrize("stacked", [False, True])
def test_a_client_whose_job_is_cancelled_is_free_at_once_and_nothing_of_the_job_is_computed(stacked: bool) -> None:
    script = {0: [send(0)], 2.0: [Cancel(0), send(0, 3.0)]}
    simulation, _ = play(Scenario(script), Scripted([[5.0, 1.0]]), LONG, stacked=stacked)
    assert simulation.world.server.arrived == [(3.0, 0, 1, 1.0)]  # half of 3 − 1
    assert simulation.world.tally.computed == 1


def test_a_job_that_was_computed_ahead_with_others_is_not_seen_if_it_is_cancelled() -> None:
    script = {0: [send(0), send(1)], 2.0: [Cancel(0)]}
    simulation, _ = play(Scenario(script), Scripted([[5.0], [1.0]]), LONG, clients=2)
    assert [client for _, client, _, _ in simulation.world.server.arrived] == [1]
    assert simulation.world.tally.computed == 2  # the batched executor takes what is in flight along


def test_jobs_of_other_tasks_that_were_queued_behind_a_cancelled_one_start_earlier() -> None:
    script = {0: [send(0), send(0, task=1), send(0)], 1.0: [Cancel(0)]}
    problems = [Line([1.0]), Line([2.0], name="other")]
    simulation, _ = play(TwoTasks(script), Scripted([[5.0, 2.0, 5.0]]), LONG, problems=problems)
    assert [(time, job) for time, _, job, _ in simulation.world.server.arrived] == [(3.0, 1)]


def test_a_running_job_of_another_task_goes_on_when_what_is_queued_behind_it_is_cancelled() -> None:
    script = {0: [send(0, task=1), send(0)], 1.0: [Cancel(0), send(0)]}
    problems = [Line([1.0]), Line([2.0], name="other")]
    simulation, _ = play(TwoTasks(script), Scripted([[5.0, 2.0, 1.0]]), LONG, problems=problems)
    assert [(time, job) for time, _, job, _ in simulation.world.server.arrived] == [(5.0, 0), (6.0, 2)]


def test_what_has_arrived_is_not_cancelled_and_what_is_being_uploaded_is() -> None:
    script = {0: [send(0)], 4.0: [Cancel(0), send(0)], 7.5: [Cancel(0)]}
    simulation, history = play(Scenario(script), Scripted([[Durations(1.0, 1.0, 2.0)]]), LONG)
    assert [job for _, _, job, _ in simulation.world.server.arrived] == [0]
    row = next(r for r in history.events if r.event == "Cancelled")
    assert (row.job, row.started, row.finished, row.time) == (1, 5.0, 6.0, 7.5)


def test_a_cancelled_job_leaves_its_client_s_memory_as_it_was() -> None:
    script = {0: [send(0)], 2.0: [send(0, 4.0)], 2.5: [Cancel(0), send(0, 2.0)]}
    simulation, _ = play(Scenario(script), ONE, LONG, locals_=[Residual.around(SGD(lr=0.5))])
    # y: 0, then ½; the cancelled job would have left 2½; the last goes from 2 to 1½ and sends that − y
    assert [sent for _, _, _, sent in simulation.world.server.arrived] == [0.5, 1.0]


# Held work


def test_held_work_reports_nothing_by_itself() -> None:
    simulation, history = play(Scenario({0: [send(0, hold=True)]}), ONE, LONG)
    assert [r.event for r in history.events] == ["Started"]
    assert simulation.world.tally.computed == 0


def test_a_recall_takes_the_newest_finished_result() -> None:
    """Jobs 0, 1 and 2 (from 0, 10 and 20) finish at 1, 2 and 3; at 2.5 the newest finished is 1."""
    sends = [send(0, 0.0, hold=True)]
    script = {0: sends, 0.5: [send(0, 10.0, hold=True)], 1.5: [send(0, 20.0, hold=True)], 2.5: [Recall(0)]}
    simulation, _ = play(Scenario(script), Scripted([[Durations(0.0, 1.0, 0.25)]]), LONG)
    assert simulation.world.server.arrived == [(2.75, 0, 1, 0.5 * (10.0 - 1.0))]
    assert simulation.world.tally.computed == 1  # job 0 was overwritten, nobody asked for job 2
    assert list(simulation.world.flights) == [2]


def test_a_recall_waits_for_the_running_job_when_none_is_finished() -> None:
    simulation, _ = play(Scenario({0: [send(0, hold=True)], 0.5: [Recall(0)]}), Scripted([[2.0]]), LONG)
    assert [(time, job) for time, _, job, _ in simulation.world.server.arrived] == [(2.0, 0)]


@pytest.mark.parametrize(("at", "steps"), [(0.5, 0), (1.0, 0), (3.0, 2), (3.9, 2), (10.9, 9), (20.0, 10)])
def test_a_partial_recall_takes_the_whole_steps_done_so_far(at: float, steps: int) -> None:
    """Ten steps from 1 to 11 after a download of 1; a step of lr ½ halves the way from 0 to 1."""
    clock = Scripted([[Durations(1.0, 10.0, 0.5)]])
    script = {0: [send(0, hold=True)], at: [Recall(0, partial=True)]}
    simulation, _ = play(Scenario(script), clock, LONG, locals_=[SGD(lr=0.5, steps=10)])
    assert simulation.world.server.arrived == [(at + 0.5, 0, 0, -(1.0 - 0.5**steps))]


def test_a_client_that_was_interrupted_is_free_at_once() -> None:
    script = {0: [send(0, hold=True)], 3.0: [Recall(0, partial=True), send(0)]}
    simulation, _ = play(Scenario(script), Scripted([[10.0, 1.0]]), LONG)
    assert [(time, job) for time, _, job, _ in simulation.world.server.arrived] == [(3.0, 0), (4.0, 1)]


def test_held_work_that_has_not_begun_is_replaced_by_newer_work() -> None:
    """Job 0 runs until 4; job 1 waits behind it and is replaced by job 2, which then runs from 4 to 8."""
    script = {0: [send(0, hold=True)], 1.0: [send(0, hold=True)], 2.0: [send(0, 5.0, hold=True)], 9.0: [Recall(0)]}
    simulation, history = play(Scenario(script), Scripted([[4.0]]), LONG)
    assert simulation.world.server.arrived == [(9.0, 0, 2, 0.5 * (5.0 - 1.0))]
    assert [(r.started, r.finished) for r in history.events if r.event == "Arrived"] == [(4.0, 8.0)]
    assert simulation.world.tally.computed == 1


@pytest.mark.parametrize("stacked", [True, False], ids=["batched", "serial"])
def test_results_that_are_overwritten_are_never_computed(stacked: bool) -> None:
    script = {t: [send(0, hold=True)] for t in range(10)} | {9.5: [Recall(0)], 20.0: []}
    simulation, _ = play(Scenario(script), ONE, LONG, stacked=stacked)
    assert [job for _, _, job, _ in simulation.world.server.arrived] == [8]
    assert simulation.world.tally.computed == 1


def test_a_client_holds_no_more_than_its_newest_result_and_what_it_works_on() -> None:
    script = {t / 4: [send(0, hold=True)] for t in range(40)}  # four times faster than they can be done
    simulation, _ = play(Scenario(script), ONE, Until(time=9.9))
    running, waiting = list(simulation.world.flights.values())[-2:]
    assert len(simulation.world.flights) == 3  # the one before these is finished
    assert running.start <= 9.9 < running.end == waiting.start


def test_recalling_what_nobody_holds_is_an_error() -> None:
    with pytest.raises(HandlerError, match="client 0, which holds no work of task 0"):
        play(Scenario({0: [Recall(0)]}), ONE, LONG)


def test_held_work_that_gets_lost_on_the_way_back_is_lost_when_it_is_recalled() -> None:
    clock = Scripted([[Durations(0.0, 1.0, 1.0, lost=True)]])
    simulation, _ = play(Scenario({0: [send(0, hold=True)], 3.0: [Recall(0)]}), clock, LONG)
    assert simulation.world.server.heard == ["4: job 0 of client 0 dropped"]
    assert simulation.world.tally.computed == 0


# Who is there


def test_a_dropped_job_is_lost_when_it_should_have_arrived_and_is_never_computed() -> None:
    clock = Scripted([[Durations(1.0, 1.0, 1.0, lost=True)]])
    simulation, _ = play(Scenario({0: [send(0)]}), clock, LONG)
    assert simulation.world.server.heard == ["3: job 0 of client 0 dropped"]
    assert (simulation.world.tally.lost, simulation.world.tally.computed) == (1, 0)


def test_a_client_that_leaves_loses_what_it_had_and_then_is_gone() -> None:
    clock = Scripted([[5.0]], flips={0: [2.0]})
    simulation, history = play(Scenario({0: [send(0), send(0), send(0, hold=True)]}), clock, LONG)
    assert [(r.time, r.event, r.job) for r in history.events[1:]] == [
        (2.0, "Lost", 0), (2.0, "Lost", 1), (2.0, "Lost", 2), (2.0, "Left", -1)
    ]  # fmt: skip
    assert not simulation.world.flights
    assert simulation.world.tally.lost == 3


def test_a_client_that_comes_back_starts_afresh() -> None:
    clock = Scripted([[5.0]], flips={0: [2.0, 3.0]})
    simulation, history = play(Scenario({0: [send(0)], 3.5: [send(0)]}), clock, LONG)
    assert [r.event for r in history.events] == ["Started", "Lost", "Left", "Joined", "Rang", "Arrived"]
    assert [time for time, _, _, _ in simulation.world.server.arrived] == [8.5]


def test_work_sent_to_somebody_who_is_not_there_is_lost_at_once() -> None:
    clock = Scripted([[5.0]], flips={0: [10.0]}, away=frozenset({0}))
    simulation, _ = play(Scenario({1.0: [send(0)], 12.0: [send(0)]}), clock, LONG)
    assert [heard.split(" absent")[0] for heard in simulation.world.server.heard] == ["1: job 0 of client 0"]
    assert [time for time, _, _, _ in simulation.world.server.arrived] == [17.0]


def test_work_lost_with_a_client_that_was_away_does_not_keep_it_busy_when_it_joins() -> None:
    """At 3 client 0 leaves; work sent to client 1, which is away, is lost at once; then client 1 joins."""
    clock = Scripted([[1.0]], flips={0: [3.0], 1: [3.0]}, away=frozenset({1}))

    class Hasty(Scenario):
        def left(self, state, client, view):  # type: ignore[no-untyped-def]
            yield send(1)

        def joined(self, state, client, view):  # type: ignore[no-untyped-def]
            state.heard.append(f"idle: {view.idle(2)}")
            yield from ()

    simulation, _ = play(Hasty({0: []}), clock, LONG, problems=[Line([0.0, 0.0])])
    assert simulation.world.server.heard == ["3: job 0 of client 1 absent", "idle: [1]"]
    assert simulation.world.idle.items == [1]


@pytest.mark.parametrize("every", [0.1, 0.05, 0.3, 0.7, 1 / 3])
def test_alarms_and_evaluations_by_the_clock_do_not_accumulate_rounding(every: float) -> None:
    """The k-th is at k periods: 30 · 0.1 is 3, and not 2.9999999999999996 or 3.0000000000000004."""
    until = Until(time=float(Fraction(str(every)) * 60))
    _, history = play(AREA(size=Period(every)), Scripted([[100.0]]), until, evaluate=every)
    rings = [row.time for row in history.events if row.event == "Rang"]
    assert rings == [float(Fraction(str(every)) * k) for k in range(1, 61)]
    assert [m.time for m in history.measurements] == [0.0, *rings]


def test_evaluations_of_a_task_are_counted_from_its_opening() -> None:
    two, terms = [Line([1.0])] * 2, [(0.0, 99.0), (5.0, 99.0)]
    clock, until = Scripted([[100.0]]), Until(time=8.0)
    _, history = play(FedAST(requests=2), clock, until, problems=two, terms=terms, evaluate=0.1)
    times = [m.time for m in history.measurements if m.task == 1]
    assert times == [pytest.approx(5 + k / 10, abs=1e-14) for k in range(31)]
