"""Clients' own models in real runs: the simulator's figures, and what a client can claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command import offbeat
from ideal import Ideal
from logs import Log, plan
from worlds import ACCURACY, run as simulate

from offbeat.algorithms import AREA, FedAsync, FedBuff, LocalOnly
from offbeat.core.metric import all_metrics
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.data.readers import digits
from offbeat.data.splits import Classes
from offbeat.deploy.client_data import ClientProblem, dataset
from offbeat.experiment.real import HoldoutJudge
from offbeat.local import MAML, SGD, Moreau
from offbeat.models.build import build
from offbeat.problems.supervised import Supervised
from offbeat.simulate.personal import Personal
from offbeat.simulate.run import Evaluate
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History

SGD_ = SGD(lr=0.3, steps=2, batch=16)
RUNS: dict[str, tuple[Server[Any], Any]] = {
    "persafl, maml": (FedAsync(lr=0.3), MAML(lr=0.3, steps=2, batch=16, alpha=0.1)),
    "persafl, moreau": (FedAsync(lr=0.3), Moreau(lr=0.03, steps=2, batch=16)),
    "fedbuff": (FedBuff(size=3), SGD_),
    "area, with a memory": (AREA(size=3), SGD_),
    "local only, whose own models are memories": (LocalOnly(), SGD_),
}


@pytest.mark.parametrize("name", RUNS)
def test_on_an_ideal_network_own_models_measure_as_simulated(name: str) -> None:
    problem = Supervised.split(digits(), 6, Classes(3), "softmax")
    timing, until = Times(Exponential(tuple(0.3 * 1.5**i for i in range(6)))), Until(updates=60)
    personal = Personal(steps=3, clients=5)
    expected = simulate(
        problem, *RUNS[name], timing, until, seed=3, executor="serial", evaluate=Evaluate(2.0, personal=personal)
    )
    ideal = Ideal(problem, *RUNS[name], timing, until, seed=3, personal=personal)
    for time in range(2, 1000, 2):
        ideal.ask(float(time))
    ideal.run()

    assert len(ideal.history.measurements) > 5
    for found, same in zip(ideal.history.measurements, expected.history, strict=True):
        assert (round(found.time, 6), found.updates, found.version) == (round(same.time, 6), same.updates, same.version)
        assert found.each == same.each
        assert len(found.each) == 5
        loss, metrics = same.metrics["loss"], {**same.metrics}
        metrics["loss"] = pytest.approx(loss)  # of several models at once
        assert dict(found.metrics) == metrics


def begun(**personal: Any) -> tuple[Log, History]:
    history = History()
    log = Log(plan(FedAsync(lr=0.1), personal=Personal(**personal)), history).begin()
    return log, history


def test_what_clients_say_of_their_own_models_is_shown_with_the_server_s_score() -> None:
    log, history = begun()
    log.add("", "asked", task=0, scored=True)
    time = log.reducer.ledger.judging[0].time
    log.add("a", "judged", epoch=1, number=1, total=10, personal={"accuracy": 0.9})
    log.add("b", "judged", epoch=1, number=1, total=40, personal={"accuracy": 0.5})
    assert not history.measurements
    scored = {"time": time, "updates": 0, "version": 0, "metrics": {"accuracy": 0.25, "loss": 2.0}}
    log.add("", "scored", task=0, **scored)
    (found,) = history.measurements
    assert found.metrics == pytest.approx({"accuracy": 0.25, "loss": 2.0, "personal": 0.7, "personal_worst": 0.5})
    assert found.each == [0.9, 0.5]
    log.add("", "scored", task=0, **scored)
    assert len(history.measurements) == 1


def test_own_models_are_shown_beside_what_clients_measure_of_the_server_s() -> None:
    log, history = begun()
    log.add("", "asked", task=0)
    log.add(
        "a", "judged", epoch=1, number=1, total=10, loss=10.0, sums={"accuracy": [2, 10]}, personal={"accuracy": 0.9}
    )
    log.add(
        "b", "judged", epoch=1, number=1, total=10, loss=30.0, sums={"accuracy": [4, 10]}, personal={"accuracy": 0.5}
    )
    (found,) = history.measurements
    assert found.metrics == pytest.approx({"accuracy": 0.3, "loss": 2.0, "personal": 0.7, "personal_worst": 0.5})


def test_where_clients_keep_a_part_of_the_model_theirs_lead_and_are_judged_by_the_task_s_own_metric() -> None:
    metrics = [all_metrics([ACCURACY], personal=True, leads=True)]
    history = History()
    log = Log(replace(plan(FedAsync(lr=0.1), personal=Personal()), metrics=metrics), history).begin()
    log.add("", "asked", task=0)
    for name in "ab":
        said = {"sums": {"accuracy": [2, 10]}, "personal": {"accuracy": 0.9}}
        log.add(name, "judged", epoch=1, number=1, total=10, loss=10.0, **said)
    (found,) = history.measurements
    assert list(found.metrics) == ["personal", "personal_worst", "accuracy", "loss"]
    assert found.metrics["personal"] == 0.9


def test_more_right_answers_than_samples_are_refused() -> None:
    log, _ = begun()
    log.add("", "asked", task=0, scored=True)
    assert log.add("a", "judged", epoch=1, number=1, total=10, personal={"accuracy": 1.1}) == "malformed"
    assert log.reducer.ledger.judging[0].personal == {}


def test_clients_without_an_answer_and_those_that_were_not_asked_are_left_out() -> None:
    log, history = begun(clients=1)
    log.add("", "asked", task=0, scored=True)
    time = log.reducer.ledger.judging[0].time
    log.add("b", "judged", epoch=1, number=1, total=10, personal={"accuracy": 1.0})
    log.add("", "scored", task=0, time=time, updates=0, version=0, metrics={"accuracy": 0.5})
    assert not history.measurements
    log.add("", "counted", task=0)
    (found,) = history.measurements
    assert (found.metrics, found.each) == ({"accuracy": 0.5}, [])


def test_the_last_model_of_a_run_is_judged_after_its_end_with_the_answers_that_come() -> None:
    log, history = begun()
    log.add("", "asked", task=0, scored=True)
    log.add("", "halted", reason="enough")
    judging = log.reducer.ledger.judging[0]
    assert judging.number == 2
    log.add("b", "judged", epoch=1, number=2, total=10, personal={"accuracy": 1.0})
    log.add("", "scored", task=0, time=judging.time, updates=0, version=0, metrics={"accuracy": 0.5})
    log.add("", "counted", task=0)
    (found,) = history.measurements
    assert found.each == [None, 1.0]


def test_a_client_with_its_own_data_trains_on_its_share_and_is_judged_on_what_it_held_out() -> None:
    data = digits()
    module = build("softmax", (64,), 10, 0)
    kept = dataset((data.train["x"][:200].flatten(1) * 16.0, data.train["y"][:200]), module, holdout=0.25)
    problem = ClientProblem("own", module, 4, kept)
    judge = HoldoutJudge([problem], [SGD(lr=0.5, batch=16)], 2, 7, Personal(steps=20, clients=3))
    answer = judge(0, problem.initial(), {})
    assert (answer.total, answer.loss, answer.sums) == problem.claim(problem.initial())
    right, total = answer.sums["accuracy"]
    assert answer.total == total == 50
    assert answer.personal["accuracy"] > 0.5 > right / total
    later = HoldoutJudge([problem], [SGD(lr=0.5, batch=16)], 3, 7, Personal(steps=20, clients=3))
    assert later(0, problem.initial(), {}).personal == {}


FILE = """
until = { updates = 80 }
evaluate = { every = 0.4, personal = { steps = 2, clients = 3 } }

[problem]
data = "digits"
clients = 4
split = { classes = 3 }

[[algorithm]]
name = "persafl-maml"
lr = 0.3
local = { maml = { lr = 0.3, steps = 2, batch = 16, alpha = 0.1 } }

[[algorithm]]
name = "local-only"
local = { sgd = { lr = 0.3, steps = 2, batch = 16 } }
"""


def test_a_real_run_records_own_models_as_a_simulated_one_and_can_be_replayed(tmp_path: Path) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(FILE)
    result = offbeat("up", file, "--processes", "1", "--out", out, "--json")
    assert result.code == 0, result.err
    timed = tmp_path / "timed.toml"
    timed.write_text(FILE + "\n[timing]\nexponential = { rate = 1.0 }\n")
    simulated = offbeat("run", timed, "--out", tmp_path / "virtual", "--json")
    assert simulated.code == 0, simulated.err
    for run, same in zip(result.runs, simulated.runs, strict=True):
        assert run["metrics"].keys() == same["metrics"].keys() == {"accuracy", "loss", "personal", "personal_worst"}
        folder, virtual = (base / f"{run['algorithm']}-0" for base in (out, tmp_path / "virtual"))
        for table in ("metrics.parquet", "personal.parquet"):
            real, other = (pq.read_table(each / table) for each in (folder, virtual))
            assert set(real.column_names) == set(other.column_names)
        own = pq.read_table(folder / "personal.parquet").to_pylist()
        last = [row["value"] for row in own if row["time"] == own[-1]["time"]]
        assert len(last) == 3
        assert sum(last) / 3 == pytest.approx(run["metrics"]["personal"])
        again = offbeat("replay", folder)
        assert again.code == 0, again.err
    assert "Personalised models" in (out / "report.html").read_text()
