"""Experiment files: every form that one can be written in, the embedded one, the one with known results."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from command import DIGITS, offbeat, run, sets

from offbeat.experiment.experiment import Experiment, load
from offbeat.experiment.session import Session

# The experiment whose results an independent implementation gives too: AREA 90.1 % and 0.41, FedBuff 90.5 % and 0.38.
MNIST = """
seed = 0
trials = 1
until = { time = 15.0 }                 # also: updates, versions, accuracy (whichever comes first)
evaluate = { every = 0.5 }              # virtual time

[problem]
data = "mnist"                          # digits | mnist | fashion-mnist | cifar10 | shakespeare | quadratic
model = "softmax"
clients = 128
split = { dirichlet = 0.1 }
l2 = 1e-3
weighted = true                         # client i's loss counts s_i/S, as in AREA eq. (4) and the sum below it

[timing]
exponential = { rate = 10.0 }           # or { rate = { normal = [10, 5], min = 0.5 } }

[[algorithm]]
name = "area"
size = 4
local = { sgd = { lr = 100.0, steps = 1, batch = 32 } }

[[algorithm]]
name = "fedbuff"
size = 4
lr = 4.0                                # 4 × mean = the sum; client-driven by default, `concurrency = 30` samples
local = { sgd = { lr = 1.0, steps = 1, batch = 32 } }
"""

needs_data = pytest.mark.skipif(
    not os.environ.get("OFFBEAT_DATA"), reason="reads MNIST and others: set OFFBEAT_DATA to the folder that holds them"
)

FORMS = [
    "until={updates=20}",
    "until={versions=3}",
    "until={time=0.5, updates=1000, versions=1000, accuracy=0.99}",
    "evaluate={every=0.25}",
    "evaluate={every=0.25, targets=[0.5, 0.8, 0.9], samples=50}",
    "executor=serial",
    "executor=batched",
    "seed=12345",
    "problem.model=mlp",
    "problem.model={ name = 'mlp', hidden = [16] }",
    "problem.split=iid",
    "problem.split={ iid = true }",
    "problem.split=nearly-iid",
    "problem.split={ classes = 2 }",
    "problem.split={ dirichlet = 0.1, per_client = 30 }",
    "problem.weighted=true",
    "problem={ data = 'quadratic', clients = 4 }",
    "timing={ exponential = { rate = { normal = [10, 5], min = 0.5 } } }",
    "timing={ exponential = { rate = [1.0, 2.0, 3.0, 4.0, 5.0] } }",
    "timing={ constant = { time = 0.1 }, dropout = 0.1, available = 0.9 }",
    "timing={ exponential = { rate = 10.0 }, bandwidth = { down = 400, up = 400 } }",
    "timing={ exponential = { rate = 10.0 }, on_off = { on = 1.0, off = 0.2 } }",
    "algorithm.area.size={ messages = 3 }",
    "algorithm.area.size={ period = 0.2 }",
    "algorithm.area.size={ poisson = 5.0 }",
    "algorithm.area.size={ poisson = 'optimal' }",
    "algorithm.area.schedule={ decay = { c = 10.0, d = 10.0 } }",
    "algorithm.fedbuff.concurrency=3",
    "algorithm.fedbuff.weight={ polynomial = { power = 0.5 } }",
    "algorithm.*.local.sgd.clip=1.0",
    "algorithm.*.local.sgd.decay=0.01",
    "algorithm.*.local.sgd.shuffle=true",
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_setting_runs(form: str, tmp_path: Path) -> None:
    outcome = run(tmp_path, DIGITS, "--json", *sets("until={ time = 0.4 }", form))
    assert outcome.code == 0, outcome.err
    assert all(result["updates"] > 0 for result in outcome.runs)


def test_a_run_ends_at_the_first_of_its_limits(tmp_path: Path) -> None:
    words = sets("until={ time = 100.0, updates = 7, versions = 50 }", "evaluate.targets=[0.01, 0.999]")
    area, fedbuff = run(tmp_path, DIGITS, "--json", *words).runs
    assert area["updates"] == fedbuff["updates"] == 7
    assert area["time"] < 100
    assert area["time_to"] == {"0.01": 0.0, "0.999": None}


def test_a_run_ends_when_it_is_accurate_enough(tmp_path: Path) -> None:
    outcome = run(
        tmp_path, DIGITS, "--json", *sets("until={ time = 50.0, accuracy = 0.6 }", "algorithm.*.local.sgd.lr=2")
    )
    for result in outcome.runs:
        assert result["metrics"]["accuracy"] >= 0.6
        assert result["time"] < 50


def test_the_embedded_experiment_is_the_promised_one() -> None:
    experiment = load()
    assert experiment.labels == ["area", "fedbuff", "fedasync", "fedavg"]
    assert len(experiment.runs) == 12
    assert experiment.table["problem"] | {"clients": 64, "split": {"dirichlet": 0.1}} == experiment.table["problem"]
    assert experiment.table["timing"] == {"exponential": {"rate": {"normal": [10, 5], "min": 0.5}}}
    assert Session(experiment).problems(experiment.runs[0])[0].clients == 64


def test_an_experiment_survives_being_written_as_json() -> None:
    experiment = load()
    assert Experiment.parse(experiment.table).resolved == experiment.resolved


@needs_data
@pytest.mark.parametrize("data", ["mnist", "fashion-mnist", "cifar10", "shakespeare"])
def test_every_real_data_set_runs(data: str, tmp_path: Path) -> None:
    words = [f"problem.data={data}", "problem.clients=4", "until={ updates = 6 }", "evaluate.samples=100"]
    words += ["algorithm.*.local.sgd.lr=0.01"]
    if data == "shakespeare":
        words += ["problem.model={ name = 'lstm', hidden = 8, embedding = 4 }", "problem.split=owners"]
    outcome = run(tmp_path, MNIST, "--json", *sets(*words))
    assert outcome.code == 0, outcome.err
    assert [r["updates"] for r in outcome.runs] == [6, 6]


@pytest.mark.slow
def test_the_embedded_experiment_takes_less_than_a_minute_and_the_asynchronous_ones_learn(tmp_path: Path) -> None:
    began = time.perf_counter()
    outcome = offbeat("run", "--out", tmp_path / "out", "--json")
    assert time.perf_counter() - began < 60
    accuracy = {(r["algorithm"], r["seed"]): r["metrics"]["accuracy"] for r in outcome.runs}
    assert len(accuracy) == 12
    assert all(a > 0.9 for (name, _), a in accuracy.items() if name != "fedavg")


@pytest.mark.slow
@needs_data
def test_mnist_gives_the_numbers_of_an_independent_implementation(tmp_path: Path) -> None:
    area, fedbuff = run(tmp_path, MNIST, "--json").runs
    assert area["time"] == fedbuff["time"] == 15.0
    assert 0.895 <= area["metrics"]["accuracy"] <= 0.907
    assert 0.39 <= area["metrics"]["loss"] <= 0.43
    assert 0.895 <= fedbuff["metrics"]["accuracy"] <= 0.913
    assert 0.36 <= fedbuff["metrics"]["loss"] <= 0.41
