"""Differential privacy for several tasks: each has a ledger, and a client's total is told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from logs import PROBLEM, Log, plan
from worlds import through_text

from offbeat.algorithms import AREA, FedAST
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.experiment.experiment import Experiment
from offbeat.local import SGD
from offbeat.privacy.differential import Noise, Privacy
from offbeat.privacy.protect import guarded
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, OnOff, Times
from offbeat.watch.history import History

PRIVACY = Privacy(clip=1.0, noise=Noise(participations=4, multiplier=1.0))
UNEVEN = Times(Exponential(tuple(0.2 * 2.0**i for i in range(8))))
ROUGH = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.2)
TASKS: dict[str, Any] = {
    "fedbuff": FedAST(requests=10, size=3),
    "area": FedAST(requests=6, size=2, aggregate=AREA(size=2)),
    "ratio": FedAST(requests=8, ratio=4.0, versions=6, lr=0.5),
}


def simulated(
    server: Any, timing: Times, watchers: Any = (), world: Any = None, updates: int = 10**6, secure: Any = None
) -> Any:
    problems = [Quadratic(8, dim=2, seed=seed) for seed in range(2)]
    until = Until(time=3000.0, updates=updates)
    algorithm = Algorithm(guarded(server, None, PRIVACY, 8), SGD(lr=0.05), secure=secure)
    return prepare(problems, algorithm, timing, until, watchers=watchers, world=world, executor="serial")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("timing", [UNEVEN, ROUGH], ids=["uneven", "rough"])
def test_each_task_has_a_ledger_that_its_events_confirm(name: str, timing: Times) -> None:
    history = History(keep_events=True)
    run = simulated(TASKS[name], timing, [history])
    world = run.run()
    for task, model in enumerate(run.server.models(world.server)):
        rows = [row for row in history.events if row.event == "Arrived" and row.task == task]
        assert model.contributions.count == Counter(row.client for row in rows)
        assert max(model.contributions.count.values()) <= 4
        if name == "fedbuff":  # every three of them are a sum
            assert all(
                len({row.client for row in rows[at : at + 3]}) == len(rows[at : at + 3])
                for at in range(0, len(rows), 3)
            )
    assert world.stopped or timing is ROUGH
    if name != "ratio" and timing is UNEVEN:
        assert set(world.finished.values()) == {"privacy budget"}


@pytest.mark.parametrize("mode", ["helper", "cohort"])
@pytest.mark.parametrize("name", ["fedbuff", "area"])
def test_each_task_has_a_ledger_under_secure_sums(name: str, mode: Any) -> None:
    history, secure = History(keep_events=True), Secure(cohort=3, mode=mode, bits=12)
    server = FedAST(requests=10, size=3) if name == "fedbuff" else FedAST(requests=10, size=3, aggregate=AREA(size=3))
    run = simulated(server, UNEVEN, [history], secure=secure)
    world = run.run()
    assert set(world.finished.values()) == {"privacy budget"}
    for task, model in enumerate(run.server.models(world.server)):
        rows = [row.client for row in history.events if row.event == "Arrived" and row.task == task]
        past = model.contributions
        assert (past.count, past.sealed, past.closed) == (Counter(rows), True, 0)
        assert max(past.count.values()) == 4
        assert past.releases == len(rows) // 3 == model.version > 5
        assert all(len({*rows[at : at + 3]}) == len(rows[at : at + 3]) for at in range(0, len(rows), 3))
    kept = run.server.report(world.server)["privacy"]
    assert PRIVACY.spent(4) < kept["spent"] <= kept["limit"] == pytest.approx(PRIVACY.spent(8))


def test_the_total_over_tasks_composes_and_is_no_less_than_any_task_s() -> None:
    run = simulated(TASKS["fedbuff"], UNEVEN)
    kept = run.server.report(run.run().server)["privacy"]
    for client, total in kept["contributions"].items():
        assert total == sum(task["contributions"].get(client, 0) for task in kept["tasks"])
    assert kept["spent"] == pytest.approx(PRIVACY.spent(max(kept["contributions"].values())))
    assert kept["spent"] > max(task["spent"] for task in kept["tasks"])
    assert kept["limit"] == pytest.approx(PRIVACY.spent(8))


def test_a_run_of_several_tasks_goes_on_where_it_was_saved() -> None:
    whole, part = simulated(TASKS["fedbuff"], UNEVEN, updates=40).run(), simulated(TASKS["fedbuff"], UNEVEN, updates=40)
    part.advance(23)
    again = simulated(TASKS["fedbuff"], UNEVEN, world=through_text(part.world), updates=40).run()
    models = [[task.inner.model.vector.tolist() for task in world.server.tasks] for world in (whole, again)]
    assert models[0] == models[1]


def test_equal_sums_of_two_tasks_have_noise_of_their_own() -> None:
    """Otherwise two equal releases would say for certain that the sums are equal, whatever epsilon is."""
    server = FedAST(requests=4, size=1, lr=1.0, guard=PRIVACY)
    log = Log(plan(server, (SGD(lr=0.5),) * 2, initial=[PROBLEM.initial()] * 2))
    for name in "ab":
        log.add(name, "hello", epoch=1, nonce="n")
    log.add("", "begun", secret="aa" * 32)
    for seq, job in enumerate(list(log.reducer.ledger.clients[0].queue), 1):
        assert log.result("a", seq, job) == "applied"
    assert float(log.reducer.model(0)) != float(log.reducer.model(1))


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (FedAST(size=3, allocation="dynamic"), "variance of updates without noise"),
        (FedAST(size=9), "need 9 clients"),
        (FedAST(requests=400, ratio=37.0), "need 11 clients"),
    ],
)
def test_what_would_tell_more_or_could_never_be_filled_is_refused(server: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        guarded(server, None, PRIVACY, 8)


FILE: dict[str, Any] = {
    "clients": {"count": 6},
    "task": {name: {"data": "digits", "local": {"sgd": {"lr": 0.1, "batch": 16}}} for name in ("one", "two")},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedast": {"requests": 6, "size": 3}},
    "privacy": {"clip": 1.0, "noise": {"epsilon": 4.0, "participations": 2}},
    "until": {"updates": 40},
}


def test_a_file_with_several_tasks_is_taken_with_secure_sums_or_without_and_other_servers_are_not() -> None:
    assert Experiment.parse(FILE).algorithms
    assert Experiment.parse({**FILE, "secure": {"cohort": 3}}).algorithms
    with pytest.raises(SettingError, match="use fedast"):
        Experiment.parse({**FILE, "algorithm": {"sync-st": {}}}).algorithms  # noqa: B018
