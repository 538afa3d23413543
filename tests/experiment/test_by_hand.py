"""Objects made by hand: in memory, in a folder, stopped and continued."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat import timing
from offbeat.experiment import folder as folders
from offbeat.simulate.workers import Workers
from offbeat.watch.files import locked

CLOCK = timing.Times(timing.Exponential(rate=10.0))
PROBLEM = ob.Quadratic(clients=6, noise=0.5)
AREA = ob.Algorithm(ob.AREA(size=4), ob.SGD(lr=0.1))


def test_a_run_in_a_folder_is_the_run_in_memory_and_can_be_opened(tmp_path: Path) -> None:
    there = ob.run(PROBLEM, AREA, CLOCK, ob.Until(updates=200), evaluate=2.0, out=tmp_path / "hand")
    here = ob.run(PROBLEM, AREA, CLOCK, ob.Until(updates=200), evaluate=2.0)
    assert torch.equal(there.model, here.model)
    assert there.history == here.history
    (found,) = ob.open(tmp_path / "hand")
    assert found.metrics == here.metrics
    assert torch.equal(found.model, here.model)
    assert "Incomplete" not in (tmp_path / "hand" / "report.html").read_text()
    assert ob.resume(tmp_path / "hand")[0].updates == 200  # there is nothing left to do


def test_its_worker_processes_end_with_it(tmp_path: Path) -> None:
    done = ob.run(PROBLEM, AREA, CLOCK, ob.Until(updates=8), executor="processes", out=tmp_path / "out")
    assert isinstance(done.simulation.executor, Workers)
    assert done.simulation.executor.started == []


STOPPED = """
import os, signal, sys
import offbeat as ob
from offbeat import timing

class Stop:
    seen = 0
    def event(self, row):
        self.seen += 1
        if self.seen == 150:
            os.kill(os.getpid(), signal.SIGINT)
    def measured(self, measurement):
        pass

area = ob.Algorithm(ob.AREA(size=4), ob.SGD(lr=0.1))
clock = timing.Times(timing.Exponential(rate=10.0))
problem = ob.Quadratic(clients=6, noise=0.5)
ob.run(problem, area, clock, ob.Until(updates=400), seed=3, evaluate=2.0, watchers=[Stop()], out=sys.argv[1])
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a run that Ctrl-C stopped in the middle."""
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 1
    assert f"continue with offbeat.resume('{tmp_path / 'out'}', problem, algorithm, timing)" in done.stderr
    return tmp_path / "out"


def test_a_run_that_was_stopped_ends_as_an_unbroken_one(stopped: Path) -> None:
    assert len(ob.open(stopped)) == 0
    (found,) = ob.resume(stopped, PROBLEM, AREA, CLOCK)
    whole = ob.run(PROBLEM, AREA, CLOCK, ob.Until(updates=400), seed=3, evaluate=2.0)
    assert torch.equal(found.model, whole.model)
    assert [m[:5] for m in found.history] == [m[:5] for m in whole.history]


class StopAt150:
    """Asks to stop, as Ctrl-C does."""

    seen = 0

    def event(self, row: object) -> None:
        self.seen += 1
        if self.seen == 150:
            os.kill(os.getpid(), signal.SIGINT)

    def measured(self, measurement: object) -> None:
        pass


def test_the_mean_of_areas_models_is_that_of_an_unbroken_run(tmp_path: Path) -> None:
    averaging = ob.Algorithm(ob.AREA(size=4, average=True), ob.SGD(lr=0.1))
    given = (PROBLEM, averaging, CLOCK)
    with pytest.raises(ob.OffbeatError, match="stopped at time"):
        ob.run(*given, ob.Until(updates=400), seed=3, watchers=[StopAt150()], out=tmp_path / "broken")
    assert not list((tmp_path / "broken").rglob("outputs.safetensors"))
    (found,) = ob.resume(tmp_path / "broken", *given)
    whole = ob.run(*given, ob.Until(updates=400), seed=3)
    assert torch.equal(found.output("average"), whole.outputs["average"])
    assert not torch.equal(found.output("average"), whole.model)


def test_it_goes_on_with_the_same_objects_only(stopped: Path) -> None:
    with pytest.raises(ob.OffbeatError, match="made from Python objects; pass them: resume"):
        ob.resume(stopped)
    other = ob.Algorithm(ob.AREA(size=5), ob.SGD(lr=0.1))
    with pytest.raises(ob.OffbeatError, match=r"was made with algorithm = .*size=4.*, not .*size=5"):
        ob.resume(stopped, PROBLEM, other, CLOCK)
    for problem in (ob.Quadratic(clients=7, noise=0.5), ob.Quadratic(clients=6, noise=5.0, seed=9)):
        with pytest.raises(ob.OffbeatError, match="was made with problems"):
            ob.resume(stopped, problem, AREA, CLOCK)
    with pytest.raises(ob.OffbeatError, match="was made with timing"):
        ob.resume(stopped, PROBLEM, AREA, timing.Times(timing.Exponential(rate=11.0)))


def test_one_process_at_a_time_works_in_its_folder(stopped: Path) -> None:
    with locked(stopped), pytest.raises(ob.OffbeatError, match="another offbeat is at work"):
        ob.resume(stopped, PROBLEM, AREA, CLOCK)


def test_other_versions_are_named(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("offbeat", "torch", "numpy", "scikit-learn"):
        saved = json.loads((stopped / "experiment.json").read_text())
        saved["versions"][name] = "0"
        (stopped / "experiment.json").write_text(json.dumps(saved))
    ob.resume(stopped, PROBLEM, AREA, CLOCK)
    said = capsys.readouterr().err
    assert all(f"offbeat: {name} 0 then, " in said for name in ("offbeat", "torch", "numpy", "scikit-learn"))


def test_tasks_that_stay_open_are_remembered(tmp_path: Path) -> None:
    both = [ob.Quadratic(clients=6, label="a"), ob.Quadratic(clients=6, label="b", seed=1)]
    fedast = ob.Algorithm(ob.algorithms.FedAST(requests=6), ob.SGD(lr=0.1))
    terms = [(0.0, math.inf), (1.0, math.inf)]
    whole = ob.run(both, fedast, CLOCK, ob.Until(updates=60), terms=terms, out=tmp_path / "out")
    (tmp_path / "out" / "fedast-0" / "result.json").unlink()
    ob.resume(tmp_path / "out", both, fedast, CLOCK)
    assert torch.equal(ob.open(tmp_path / "out")[0].model, whole.model)


def test_two_that_begin_in_one_folder_do_not_write_over_each_other(tmp_path: Path) -> None:
    settings = [{"name": str(number)} for number in range(2)]
    tmp_path.joinpath("out").mkdir()
    with locked(tmp_path / "out"), pytest.raises(ob.OffbeatError, match="another offbeat is at work"):
        folders.create_by_hand(tmp_path / "out", settings[0])
    folders.create_by_hand(tmp_path / "out", settings[0])
    with pytest.raises(ob.OffbeatError, match="already holds a run"):
        folders.create_by_hand(tmp_path / "out", settings[1])


def test_parts_in_the_wrong_place_are_refused_by_name() -> None:
    sgd, data = ob.SGD(lr=0.1), (torch.zeros(9, 2), torch.arange(9) % 3)
    for said, mistake in {
        "SGD(lr=0.1": lambda: ob.Algorithm(sgd, ob.FedBuff(size=4)),  # type: ignore[arg-type]
        "the class FedBuff is no Server": lambda: ob.Algorithm(ob.FedBuff, sgd),  # type: ignore[arg-type]
        "split = 'dirichlet': expected one from": lambda: ob.Supervised.split(data, 3, "dirichlet"),  # type: ignore[arg-type]
        "clients = '3': must be a whole number": lambda: ob.Supervised.split(data, "3"),  # type: ignore[arg-type]
        "'experiment.toml' is not a table": lambda: ob.Experiment.parse("experiment.toml"),  # type: ignore[arg-type]
        "problem.cliens: unknown": lambda: ob.load(None, "problem.cliens=3"),
    }.items():
        with pytest.raises(ob.OffbeatError, match=re.escape(said)):
            mistake()


def test_a_server_without_its_local_trainer_is_refused_by_name() -> None:
    with pytest.raises(ob.OffbeatError, match="pair it with a local trainer"):
        ob.run(PROBLEM, ob.FedAsync(), CLOCK, ob.Until(time=1.0))  # type: ignore[arg-type]


def test_a_timing_model_by_name_is_refused() -> None:
    algorithm = ob.Algorithm(ob.FedAsync(), ob.SGD(lr=0.1))
    with pytest.raises(ob.OffbeatError, match=r"timing = 'exponential': .*as in Times"):
        ob.run(PROBLEM, algorithm, "exponential", ob.Until(time=1.0))  # type: ignore[arg-type]


def test_nothing_global_is_changed_by_importing_making_or_running() -> None:
    code = """
import os
import sklearn.datasets, torch  # they have settings of their own
before = dict(os.environ)
threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
import offbeat as ob
from offbeat import data, timing
problem = ob.Supervised.split(data.load("digits"), clients=4)
area = ob.Algorithm(ob.AREA(size=2), ob.SGD(lr=0.1, batch=8))
ob.run(problem, area, timing.Times(timing.Exponential(rate=1.0)), ob.Until(updates=5), threads=1)
ob.load(None, {"until.time": 0.1, "trials": 1})
assert dict(os.environ) == before, set(os.environ) ^ set(before)
assert (torch.get_num_threads(), torch.backends.cudnn.allow_tf32) == (threads, tf32)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
