"""The loop: when a run ends, who hears of measurements, several tasks, what errors say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from worlds import Line, Scenario, Scripted, play, run, seen, send

from offbeat.algorithms import Decay
from offbeat.algorithms.area import AREA
from offbeat.algorithms.fedasync import FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError, HandlerError, SettingError, TrainingError
from offbeat.core.events import Send, Stop
from offbeat.core.server import Model, Server
from offbeat.core.state import State
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.simulate.run import prepare

ONE = Scripted([[1.0]])
HALF = SGD(lr=0.5)


# The end


def test_a_run_ends_at_its_horizon_and_handles_what_happens_then() -> None:
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=3.0))
    assert [e.time for e in result.events] == [0.0, 1.0, 2.0, 3.0]
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=3.5))
    assert (result.events[-1].time, result.world.now, result.world.stopped) == (3.0, 3.5, "time")


def test_a_run_ends_after_so_many_updates_or_server_steps() -> None:
    assert run(Line([1.0]), FedAsync(), HALF, ONE, Until(updates=4)).world.tally.updates == 4
    result = run(Line([1.0]), AREA(size=3), HALF, ONE, Until(versions=2))
    assert (result.world.tally.updates, result.world.server.model.version, result.world.stopped) == (6, 2, "versions")


def test_whatever_comes_first_ends_the_run() -> None:
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=2.5, updates=9, versions=9))
    assert (result.world.tally.updates, result.world.stopped) == (2, "time")


def test_a_run_ends_when_a_measurement_shows_the_accuracy() -> None:
    """From 0 to 1 by halves: 1/(1 + distance) is 1/2, 2/3, 4/5, 8/9, so 0.85 shows first at 3."""
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=99.0, accuracy=0.85), evaluate=1.0)
    assert (result.world.now, result.world.stopped) == (3.0, "accuracy")
    assert [m.metrics["accuracy"] for m in result.history] == pytest.approx([1 / 2, 2 / 3, 4 / 5, 8 / 9])
    assert [result.time_to("accuracy", target) for target in (0.8, 0.85, 0.9)] == [2.0, 3.0, None]


def test_a_run_may_end_at_a_value_of_any_metric() -> None:
    """The loss |w − 1| is 1, 1/2, 1/4, 1/8: less is better, so 0.3 shows first at 2."""
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=99.0, loss=0.3), evaluate=1.0)
    assert (result.world.now, result.world.stopped) == (2.0, "loss")


def test_a_metric_that_the_task_does_not_measure_is_refused_before_the_first_job() -> None:
    with pytest.raises(
        SettingError,
        match=r"^until\.rmse: unknown; the task measures accuracy, loss; otherwise time, updates, ",
    ):
        run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=99.0, rmse=0.3), evaluate=1.0)
    with pytest.raises(SettingError, match=r"^until\.tme: unknown; did you mean 'time'\?$"):
        run(Line([1.0]), FedAsync(), HALF, ONE, Until(updates=9, tme=0.3), evaluate=1.0)


def test_a_share_beyond_1_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^until\.accuracy = 2\.0: must be a share in \(0, 1\]$"):
        run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=99.0, accuracy=2.0), evaluate=1.0)


def test_with_a_metric_alone_a_run_still_ends() -> None:
    assert Until(accuracy=0.5) == Until(updates=1_000_000, accuracy=0.5)
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(accuracy=0.85), evaluate=1.0)
    assert (result.world.now, result.world.stopped) == (3.0, "accuracy")


def test_more_evaluations_than_anybody_wants_are_refused() -> None:
    with pytest.raises(SettingError, match=r"^evaluate\.every = 1e-09: there would be 2,000,000,000 evaluations until"):
        run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=2.0), evaluate=1e-9)
    run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=2.0), evaluate=1e-3)


def test_accuracy_without_evaluations_is_refused() -> None:
    with pytest.raises(SettingError, match=r"until\.accuracy needs evaluations"):
        run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=1.0, accuracy=0.5))


@pytest.mark.parametrize(
    "settings", [{}, {"accuracy": None}, {"time": -1.0}, {"updates": 0}, {"time": 1.0, "accuracy": float("nan")}]
)
def test_an_end_that_might_never_come_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Until(**settings)


def test_a_run_with_nothing_left_to_do_says_so() -> None:
    simulation, _ = play(Scenario({0: [send(0)]}), ONE, Until(updates=9))
    assert simulation.world.stopped == "nothing left to do"


def test_the_algorithm_may_stop_the_run() -> None:
    simulation, history = play(
        Scenario({0: [send(0)], 3.0: [Stop(reason="enough")]}), Scripted([[9.0]]), Until(time=50.0)
    )
    assert (simulation.world.now, simulation.world.stopped, history.events[-1].event) == (3.0, "enough", "Rang")


def test_one_step_of_the_iterator_is_one_event() -> None:
    simulation = prepare(Line([1.0]), Algorithm(FedAsync(), HALF), ONE, Until(updates=3))
    assert [world.events for world in simulation.steps()] == [1, 2, 3, 4]


# Measuring


def test_measurements_come_on_the_beat_and_at_the_end() -> None:
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=5.0), evaluate=2.0)
    assert [(m.time, m.updates, m.version) for m in result.history] == [
        (0.0, 0, 0),
        (2.0, 2, 2),
        (4.0, 4, 4),
        (5.0, 5, 5),
    ]
    assert [m.metrics["loss"] for m in result.history] == [1.0, 2.0**-2, 2.0**-4, 2.0**-5]


@dataclass(frozen=True)
class Listening(FedAsync):
    """Stops as soon as it hears of a small loss."""

    def measured(self, state: Any, task: int, metrics: Any, view: Any) -> Any:
        if metrics["loss"] < 0.2:
            yield Stop(reason=f"good enough at {view.now:g}")


def test_a_server_that_listens_hears_of_measurements_at_once() -> None:
    result = run(Line([1.0]), Listening(), HALF, ONE, Until(time=50.0), evaluate=1.0)
    assert [(e.time, e.event) for e in result.events if e.event == "Measured"] == [
        (0.0, "Measured"), (1.0, "Measured"), (2.0, "Measured"), (3.0, "Measured")
    ]  # fmt: skip
    assert (result.world.now, result.world.stopped) == (3.0, "good enough at 3")


def test_a_server_that_does_not_listen_hears_nothing() -> None:
    result = run(Line([1.0]), FedAsync(), HALF, ONE, Until(time=9.0), evaluate=1.0)
    assert {e.event for e in result.events} == {"Started", "Arrived"}


def test_measuring_changes_nothing() -> None:
    results = [run(Line([1.0]), AREA(), HALF, ONE, Until(time=9.0), evaluate=e) for e in (None, 0.7)]
    assert seen(results[0].events) == seen(results[1].events)
    assert torch.equal(results[0].model, results[1].model)


# Several tasks


@dataclass
class Models(State):
    models: list[Model]


@dataclass(frozen=True)
class TakingTurns(Server[Models]):
    """Asynchronous SGD for several tasks: a client that reports gets the next task."""

    def begin(self, models: Sequence[Any], view: Any) -> Models:
        return Models([Model(m) for m in models])

    def models(self, state: Models) -> Sequence[Model]:
        return state.models

    def started(self, state: Models, view: Any) -> Any:
        for client in view.everyone():
            yield self._work(state, client, client % len(state.models))

    def arrived(self, state: Models, update: Any, view: Any) -> Any:
        job = update.job
        state.models[job.task].step(-1.0, update["delta"])
        yield self._work(state, job.client, (job.task + 1) % len(state.models))

    def _work(self, state: Models, client: int, task: int) -> Send:
        model = state.models[task]
        return Send(client, {"model": model.vector}, model.version, task=task)


TASKS = [Line([4.0, 4.0], name="a"), Line([-8.0, -8.0], name="b")]


@pytest.mark.parametrize("stacked", [True, False], ids=["batched", "serial"])
def test_two_tasks_in_one_run_each_reach_their_own_optimum(stacked: bool) -> None:
    local = [SGD(lr=0.5), SGD(lr=0.25)]
    simulation, history = play(
        TakingTurns(), Scripted([[1.0], [1.5]]), Until(updates=200), problems=TASKS, locals_=local, stacked=stacked
    )
    a, b = simulation.world.server.models
    assert (a.vector.item(), b.vector.item()) == pytest.approx((4.0, -8.0), abs=1e-6)
    assert a.version + b.version == 200
    assert [r.task for r in history.events if r.event == "Arrived" and r.client == 0][:4] == [0, 1, 0, 1]


def test_versions_end_each_task_and_the_run_ends_with_the_last() -> None:
    simulation, history = play(
        TakingTurns(), Scripted([[1.0], [1.0]]), Until(versions=3), problems=TASKS, evaluate=50.0
    )
    assert simulation.world.finished == {0: "versions", 1: "versions"}
    assert sorted((m.task, m.version) for m in history.measurements) == [(0, 0), (0, 3), (1, 0), (1, 3)]


# Errors


class Broken(FedAsync):
    def arrived(self, state: Any, update: Any, view: Any) -> Any:
        raise KeyError("momentum")
        yield


def test_a_failing_handler_is_reported_with_its_event_and_client() -> None:
    with pytest.raises(HandlerError) as caught:
        run(Line([1.0, 1.0]), Broken(), HALF, Scripted([[5.0], [2.0]]), Until(time=9.0))
    assert str(caught.value) == (
        "Broken failed on event 2 at time 2, an update of client 1 (job 1, version 0): KeyError: 'momentum' "
        f"(test_loop.py:{Broken.arrived.__code__.co_firstlineno + 1}, in arrived)"
    )
    assert isinstance(caught.value.__cause__, KeyError)


class Forgetful(SGD):
    def step(self, carry: Any, work: Any) -> Any:
        return {"w": carry["momentum"]}


@pytest.mark.parametrize(("executor", "where"), [("serial", "client 1, job 1"), ("batched", "in 2 jobs at once")])
def test_a_failing_local_trainer_is_reported_with_its_line(executor: str, where: str) -> None:
    with pytest.raises(TrainingError) as caught:
        run(
            Line([1.0, 1.0]),
            FedAsync(),
            Forgetful(lr=0.5),
            Scripted([[5.0], [2.0]]),
            Until(time=9.0),
            executor=executor,
        )
    line = Forgetful.step.__code__.co_firstlineno + 1
    assert str(caught.value) == f"Forgetful, {where}: KeyError: 'momentum' (test_loop.py:{line}, in step)"
    assert isinstance(caught.value.__cause__, KeyError)


class Controlled(FedAsync):
    """Sends a second vector to every client."""

    def arrived(self, state: Any, update: Any, view: Any) -> Any:
        for command in super().arrived(state, update, view):
            assert isinstance(command, Send)
            yield command._replace(payload={**command.payload, "control": command.payload["model"]})


class Secretive(SGD):
    def final(self, carry: Any, work: Any) -> Any:
        upload, memory = super().final(carry, work)
        return {**upload, "change": upload["delta"]}, memory


class Curious(SGD):
    def step(self, carry: Any, work: Any) -> Any:
        return {"w": carry["w"] if work.jobs[0].number == 0 else work.payload["control"]}


class Declared(Secretive, Curious):
    sends = ("delta", "change")
    needs = ("model", "control")


@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_a_message_that_is_timed_by_what_a_class_declares_holds_nothing_else(executor: str) -> None:
    rest = Scripted([[5.0, 1.0], [2.0, 1.0]]), Until(time=7.0)
    with pytest.raises(TrainingError, match=r"Secretive sends 'delta', 'change', and its class says 'delta'; .* sends"):
        run(Line([1.0, 1.0]), FedAsync(), Secretive(lr=0.5), *rest, executor=executor)
    with pytest.raises(TrainingError, match=r"KeyError: 'control' .*; the server sends it: .* needs = \('model', 'con"):
        run(Line([1.0, 1.0]), Controlled(), Curious(lr=0.5), *rest, executor=executor)
    assert Declared(lr=0.5).wire(10) == (80, 80)


@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_a_result_that_is_not_finite_names_the_client_the_job_and_the_step_size(executor: str) -> None:
    problem = Line([1.0, float("nan"), 1.0])
    with pytest.raises(
        DivergedError, match=r"client 1, job 1 of line: its delta is not finite .* lr = 0.5 .*smaller step"
    ):
        run(problem, FedAsync(), HALF, Scripted([[3.0], [1.0], [2.0]]), Until(updates=9), executor=executor)


def test_a_divergence_names_the_step_size_that_the_server_handed_out() -> None:
    with pytest.raises(DivergedError, match=r"residual is not finite after 1 local steps with lr = 7"):
        run(Line([float("inf")]), AREA(schedule=Decay(c=7.0)), HALF, ONE, Until(updates=9))


def test_large_but_finite_results_are_no_divergence() -> None:
    """Their sum overflows; they do not."""
    result = run(Line([1e308] * 4), FedAsync(lr=1e-300), SGD(lr=1.0), ONE, Until(updates=4), executor="batched")
    assert torch.isfinite(result.model).all()


def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(SettingError, match="must be one of auto, serial, batched, processes, ray"):
        run(Line([1.0]), FedAsync(), HALF, ONE, Until(updates=1), executor="gpu")


def test_a_run_in_which_nobody_works_any_more_ends_although_it_is_measured() -> None:
    silent = Scenario({})  # sends nothing to anybody
    simulation, _ = play(silent, ONE, Until(updates=5), evaluate=1.0)
    assert simulation.world.stopped == "nothing left to do"
