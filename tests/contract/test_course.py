"""The course of events is one: what the rules of `core/course.py` say holds in virtual time and over a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from logs import Log, plan
from worlds import Diary, Line, Scenario, Scripted, play, send

from offbeat.core.errors import DivergedError, HandlerError
from offbeat.core.events import Cancel, Command, Job, Recall, Stop
from offbeat.core.run_state import RunState
from offbeat.core.server import Commands, Server, View
from offbeat.core.until import Until
from offbeat.deploy.server_core import ServerCore
from offbeat.watch.history import History

LONG = Until(time=100.0)


@dataclass
class Seen:
    """A run as it ended."""

    state: RunState
    history: History

    @property
    def events(self) -> list[tuple[str, int, int]]:
        """(event, client, job) of every row."""
        return [(row.event, row.client, row.job) for row in self.history.events]


class Listening(Scenario):
    """A scenario that notes evaluations."""

    def measured(self, state: Diary, task: int, metrics: Mapping[str, float], view: View) -> Commands:
        state.heard.append(f"{view.now:g}: measured")
        yield from ()


def simulated(server: Server[Any], until: Until = LONG, there: Sequence[int] = (0, 1), leaves: float = 0.0) -> Seen:
    """Two clients whose jobs take 10; those not in `there` are away; client 0 leaves at this time, if any is given."""
    flips = {0: [leaves]} if leaves else {}
    clock = Scripted([[10.0]], flips=flips, away=frozenset({0, 1}.difference(there)))
    simulation, history = play(server, clock, until, clients=2, evaluate=4.0)
    return Seen(simulation.world, history)


def deployed(server: Server[Any], until: Until = LONG, there: Sequence[int] = (0, 1), leaves: float = 0.0) -> Seen:
    """The same over a log: clients greet, the run begins, alarms ring, client 0 leaves; the last model is evaluated."""
    history = History(keep_events=True)
    log = Log(plan(server, until=until), history).begin(*("ab"[client] for client in there))
    ledger = log.reducer.ledger
    while not ledger.stopped and (ledger.alarms or leaves):
        number, (when, _) = min(ledger.alarms.items(), key=lambda item: item[1], default=(0, (float("inf"), "")))
        if leaves and leaves <= when:
            log.add("a", "bye", wait=leaves - ledger.now, epoch=1)
            leaves = 0.0
        else:
            log.add("", "rung", wait=when - ledger.now, alarm=number)
    log.add("", "scored", task=0, time=ledger.now, updates=0, version=0, metrics={"loss": 1.0})
    return Seen(ledger, history)


@dataclass(frozen=True)
class Nowhere(Line):
    """A problem whose loss cannot be computed from any model."""

    def measure(self, models: torch.Tensor) -> list[Mapping[str, float]]:
        return [{"loss": float("nan")} for _ in models]


IN_BOTH = pytest.mark.parametrize("course", [simulated, deployed])


@IN_BOTH
@pytest.mark.parametrize("stop", [Stop(), Stop(task=0)], ids=["the run", "its only task"])
def test_what_a_handler_says_after_a_stop_is_dropped(course: Any, stop: Command) -> None:
    seen = course(Scenario({0: [send(0), stop, send(1), send(0)]}))
    assert seen.state.jobs == 1
    assert seen.state.stopped == "stopped by the algorithm"


@IN_BOTH
def test_after_the_end_nothing_is_an_event_but_the_last_evaluation_is_known(course: Any) -> None:
    seen = course(Listening({0: [send(0)], 5.0: [Stop()]}))
    assert seen.events[-1] == ("Rang", -1, -1)
    assert "5: measured" not in seen.state.server.heard
    assert seen.history.measurements[-1].time == 5.0


def test_a_client_that_leaves_after_the_end_loses_nothing_that_counts() -> None:
    log = Log(plan(Scenario({0: [send(0), Stop()]}))).begin()
    log.add("a", "bye", epoch=1)
    assert not log.reducer.ledger.clients[0].present
    assert log.reducer.ledger.tally.lost == 0


class Relentless(Scenario):
    """Answers every lost job with another one for the same client."""

    def lost(self, state: Diary, job: Job, reason: str, view: View) -> Commands:
        yield send(job.client)


class Once(Scenario):
    """Answers a lost job of client 1 with one for client 0."""

    def lost(self, state: Diary, job: Job, reason: str, view: View) -> Commands:
        if job.client == 1:
            yield send(0)


@IN_BOTH
def test_work_for_clients_that_are_not_there_is_lost_after_the_handler_in_the_order_of_sending(course: Any) -> None:
    seen = course(Once({0: [send(1), send(0), send(1)], 1.0: []}), there=[0])
    lost = [("Lost", 1, 0), ("Lost", 1, 2)]
    assert seen.events == [("Started", -1, -1), *lost, ("Rang", -1, -1), *seen.events[4:]]
    assert seen.state.tally.lost == 2
    assert seen.state.jobs == 5


@IN_BOTH
def test_a_server_that_answers_every_such_loss_with_more_work_is_stopped_by_an_error(course: Any) -> None:
    with pytest.raises(HandlerError, match="Relentless keeps sending work to clients that are offline"):
        course(Relentless({0: [send(1)]}), there=[0])


@IN_BOTH
def test_a_departure_is_one_loss_for_each_plain_job_and_one_for_the_newest_held_one_then_the_client_has_left(
    course: Any,
) -> None:
    script = {0: [send(0, hold=True), send(1)], 1.0: [send(0, hold=True)], 2.0: [send(0, hold=True)]}
    seen = course(Scenario(script), leaves=3.0)
    at = seen.events.index(("Left", 0, -1))
    assert seen.events[at - 1 : at + 1] == [("Lost", 0, 3), ("Left", 0, -1)]
    assert [job for event, _, job in seen.events if event == "Lost"] == [3]
    assert seen.state.tally.lost == 1
    assert not any(flight.job.client == 0 for flight in seen.state.flights.values())


class Counting(Scenario):
    """Notes how much is in flight whenever an alarm rings."""

    def rang(self, state: Diary, key: str, view: View) -> Commands:
        state.heard.append(f"{key}: {view.flying}")
        yield from super().rang(state, key, view)


@IN_BOTH
def test_held_work_of_a_client_is_in_flight_once_for_each_task(course: Any) -> None:
    held, more = [send(0, hold=True), send(1), send(1)], [send(0, hold=True), send(1, hold=True)]
    seen = course(Counting({0: held, 1.0: more, 2.0: [Recall(0)], 3.0: [send(0, hold=True)], 4.0: []}), leaves=3.5)
    assert [line for line in seen.state.server.heard if "job" not in line] == ["1.0: 3", "2.0: 4", "3.0: 4", "4.0: 3"]


@IN_BOTH
def test_a_cancelled_job_is_no_event_to_its_server_and_one_row_of_the_record(course: Any) -> None:
    seen = course(Counting({0: [send(0), send(1)], 4.0: [Cancel(0)], 5.0: []}))
    rang = seen.events.index(("Rang", -1, -1))
    assert seen.events[rang : rang + 3] == [("Rang", -1, -1), ("Cancelled", 0, 0), ("Rang", -1, -1)]
    assert [line for line in seen.state.server.heard if "job" not in line] == ["4.0: 2", "5.0: 1"]
    assert (seen.state.tally.cancelled, seen.state.tally.lost) == (1, 0)
    row = next(row for row in seen.history.events if row.event == "Cancelled")
    assert (row.time, row.sent, row.reason) == (4.0, 0.0, "cancelled")
    assert row.started <= row.finished <= 4.0


@IN_BOTH
def test_a_cancellation_ends_all_of_a_client_s_jobs_of_the_task_and_what_is_sent_after_it_counts(course: Any) -> None:
    seen = course(Counting({0: [send(0), send(0), send(1)], 4.0: [Cancel(0), send(0), send(0)], 5.0: []}))
    assert [event for event in seen.events if event[0] == "Cancelled"] == [("Cancelled", 0, 0), ("Cancelled", 0, 1)]
    assert seen.state.server.heard[:2] == ["4.0: 3", "5.0: 3"]
    assert seen.state.jobs == 5


@IN_BOTH
def test_a_cancellation_that_finds_nothing_in_flight_does_nothing(course: Any) -> None:
    seen = course(Scenario({0: [Cancel(0), send(1), Cancel(1)], 4.0: [Cancel(0), Cancel(1)]}), there=[0])
    assert seen.state.tally.cancelled == 0
    assert [event for event in seen.events if event[0] == "Lost"] == [("Lost", 1, 0)]  # it was away


@IN_BOTH
def test_held_work_that_is_cancelled_is_one_cancellation_of_its_newest_job_and_cannot_be_recalled(course: Any) -> None:
    script = {0: [send(0, hold=True)], 1.0: [send(0, hold=True)], 2.0: [Recall(0)], 3.0: [Cancel(0)], 4.0: []}
    seen = course(Counting(script))
    assert [event for event in seen.events if event[0] == "Cancelled"] == [("Cancelled", 0, 1)]
    assert seen.state.server.heard[3] == "4.0: 0"
    with pytest.raises(HandlerError, match="holds no work of task 0"):
        course(Scenario({**script, 4.0: [Recall(0)]}))


@IN_BOTH
@pytest.mark.parametrize(("cancel", "error"), [(Cancel(7), "client 7"), (Cancel(0, 3), "task 3")])
def test_a_cancellation_of_a_client_or_a_task_that_is_not_there_is_an_error(
    course: Any, cancel: Cancel, error: str
) -> None:
    with pytest.raises(HandlerError, match=f"work of {error} cancelled, but there are"):
        course(Scenario({0: [cancel]}))


@IN_BOTH
def test_a_cancellation_after_a_stop_is_dropped(course: Any) -> None:
    assert course(Scenario({0: [send(0), Stop(), Cancel(0)]})).state.tally.cancelled == 0


def test_a_loss_that_is_nan_is_divergence_in_the_simulator() -> None:
    with pytest.raises(DivergedError, match="the loss of line is nan at time 0, version 0"):
        play(Scenario({}), Scripted([[1.0]]), LONG, problems=[Nowhere([1.0])], evaluate=4.0)


def test_a_loss_that_is_nan_is_divergence_over_a_log() -> None:
    log = Log(plan(Scenario({0: [send(0)]}))).begin()
    ledger = log.reducer.ledger
    server_core = ServerCore(log.reducer.plan, ledger)
    log.raw("", server_core.score(0, 1.0, 0, 0, {"loss": float("nan"), "accuracy": 0.5}).data)
    assert ledger.stopped == "diverged"
    assert ledger.diverged == "the loss of task 0 is nan at time 1, version 0; use smaller steps"
    assert log.result("a", 1, 0) == "over"


@pytest.mark.parametrize(("losses", "stopped"), [([None, 2.0], ""), ([None, None], "diverged")])
def test_where_clients_evaluate_the_run_has_diverged_if_all_of_them_say_so(losses: Any, stopped: str) -> None:
    history = History()
    log = Log(plan(Scenario({})), history).begin()
    log.add("", "asked", task=0)
    for name, loss in zip("ab", losses, strict=True):
        said = {"diverged": True} if loss is None else {"loss": loss}
        log.add(name, "judged", epoch=1, number=1, total=4, sums={"accuracy": [1, 4]}, **said)
    assert log.reducer.ledger.stopped == stopped
    assert [m.metrics for m in history.measurements] == ([] if stopped else [{"accuracy": 0.25, "loss": 0.5}])


@IN_BOTH
def test_work_for_an_absent_client_is_lost_every_time(course: Any) -> None:
    seen = course(Scenario({0: [send(1)], 1.0: [send(1)], 2.0: []}), there=[0])
    assert seen.state.tally.lost == 2
