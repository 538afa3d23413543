"""Training loops of the user's own, named in a file: simulated, resumed, refused by name, and run for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from worlds import through_text

import offbeat as ob
from offbeat.core.state import exchange
from offbeat.core.vectors import materialise
from offbeat.experiment.real import DeployOptions, PartyMaker, charter_of, plan_of
from offbeat.experiment.session import Session
from offbeat.simulate.run import prepare

TRAINING = '''
import torch
from torch.nn import functional
from torch.utils.data import DataLoader


def train(model, data, job):
    """AdamW over shuffled mini-batches, whose second moments stay with the client."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=job.lr, weight_decay=job.decay)
    done = 0
    while done < job.steps:
        for x, y in DataLoader(data, job.batch, shuffle=True, generator=job.generator):
            optimiser.zero_grad()
            functional.cross_entropy(functional.dropout(model(x), 0.1), y).backward()
            optimiser.step()
            done += 1
            if done == job.steps:
                break
    if "jobs" in job.memory:
        job.memory["jobs"] += 1


def stops(model, data, job):
    """Can be interrupted; the first job of client 1 fails."""
    if job.client == 1 and job.number == 0:
        raise RuntimeError("no disk left")
    optimiser = torch.optim.SGD(model.parameters(), lr=job.lr)
    for x, y in job.batches():
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()


def make(lr, steps=1):
    import offbeat as ob

    return ob.SGD(lr=lr, steps=steps)


LR = 0.1
'''

FILE = """
until = {{ time = {time} }}
evaluate = {{ every = 1.0 }}
executor = "serial"

[problem]
data = "digits"
clients = 4

[timing]
exponential = {{ rate = 2.0 }}

[algorithm.area]
size = 2
local = {{ "mytraining:train" = {{ lr = 0.05, steps = 3, batch = 16, decay = 0.01, memory = {{ jobs = 1 }} }} }}

[algorithm.favano]
sampled = 2
period = 0.5
local = {{ "mytraining:stops" = {{ lr = 0.1, steps = 3, batch = 16, stops = true }} }}
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment and the module that it names, which is forgotten afterwards."""
    (tmp_path / "mytraining.py").write_text(TRAINING)
    (tmp_path / "e.toml").write_text(FILE.format(time=3.0))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mytraining", raising=False)
    return tmp_path


def offbeat(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "offbeat", *words]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=300)


def test_settings_are_read_and_all_others_are_the_functions_own(lab: Path) -> None:
    local = ob.load(lab / "e.toml").algorithms["area"].local
    said = "mytraining:train, lr=0.05, steps=3, batch=16, shuffle=False, epochs=None, accumulate=1, compress=None"
    assert f"Loop({said}, stops=False, memory={{'jobs': 1}}, decay=0.01)" in repr(local)
    alone = ob.load(lab / "e.toml", {"algorithm.area.local": "mytraining:train"}).algorithms["area"].local
    assert "Loop(mytraining:train, lr=0.01, steps=1, batch=None" in repr(alone)
    made = ob.load(lab / "e.toml", ['algorithm.area.local={ "mytraining:make" = { lr = 0.3 } }']).algorithms["area"]
    assert "SGD(lr=0.3" in repr(made.local)


def test_a_file_runs_and_its_report_names_the_function(lab: Path) -> None:
    results = ob.load(lab / "e.toml", {"algorithm": {"area": ob.load(lab / "e.toml").table["algorithm"]["area"]}}).run(
        lab / "out", progress=False
    )
    assert results[0].metrics["accuracy"] > 0.6
    assert "mytraining:train" in (lab / "out" / "report.html").read_text()


def test_a_failure_is_one_line_with_the_functions_own_place(lab: Path) -> None:
    with pytest.raises(ob.OffbeatError) as raised:
        ob.load(lab / "e.toml").run(lab / "out", progress=False)
    said = "mytraining:stops, client 1, job 1: RuntimeError: no disk left (mytraining.py, line 26)"
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_saved_in_the_middle_and_resumed_it_ends_the_same(lab: Path, executor: str) -> None:
    experiment = ob.load(lab / "e.toml", {"until.time": 5.0})
    session, spec = Session(experiment), experiment.runs[0]
    given = (session.problems(spec), experiment.algorithms["area"], experiment.timing, experiment.until)
    whole = prepare(*given, executor=executor).run()
    running = prepare(*given, executor=executor)
    for at, _ in enumerate(running.steps()):
        if at == 17:
            break
    exchange(running.world, materialise)
    resumed = prepare(*given, executor=executor, world=through_text(running.world)).run()
    assert torch.equal(resumed.server.model.vector, whole.server.model.vector)
    assert {k: float(m[1]["kept.jobs"]) for k, m in resumed.memories.items()} == {
        k: float(m[1]["kept.jobs"]) for k, m in whole.memories.items()
    }


WRONG = {
    'algorithm.area.local={ "mytraining:train" = { lr = "a" } }': 'lr = "a": expected a number',
    'algorithm.area.local={ "mytraining:train" = { steps = 0 } }': "steps = 0: must be at least 1",
    'algorithm.area.local={ "mytraining:train" = { memory = { m = "all" } } }': 'memory.m = "all": expected a whole',
    'algorithm.area.local={ "mytraining:train" = { generator = 1 } }': "generator: the job has that already",
    "algorithm.area.local=mytraining:trai": "the module 'mytraining' has no 'trai'; did you mean 'train'?",
    "algorithm.area.local=mytraining:LR": "mytraining:LR is a float, not a class or function",
    'algorithm.favano.local={ "mytraining:stops" = { steps = 3 } }': "and mytraining:stops cannot be stopped",
    'algorithm.quafl={ local = "mytraining:train" }': "QuAFL recalls work that is under way, and mytraining:train",
    'algorithm.asysg={ lr = 0.1, local = "mytraining:train" }': "AsySG reads 'gradient' but mytraining:train",
    'algorithm.scaffold={ local = "mytraining:train" }': "scaffold needs { scaffold = { … } }",
}


@pytest.mark.parametrize("override", WRONG)
def test_what_cannot_work_is_refused_in_one_line(lab: Path, override: str) -> None:
    with pytest.raises(ob.OffbeatError) as raised:
        ob.load(lab / "e.toml", [override])
    assert WRONG[override] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_real_client_imports_no_loop_that_it_was_not_told_to_allow(lab: Path) -> None:
    experiment = ob.load(lab / "e.toml")
    spec, roster = experiment.runs[0], ["a", "b", "c", "d"]
    plan = plan_of(Session(experiment), spec, "run", roster, DeployOptions())
    charter = json.loads(json.dumps(charter_of(experiment, spec, plan, DeployOptions(), True)))
    with pytest.raises(
        ob.OffbeatError, match=r"asks for 'mytraining:train', .* allow it with --allow mytraining:train"
    ):
        PartyMaker(models=["mytraining:stops"]).party(charter, "b")
    party = PartyMaker(models=["mytraining:train", "mytraining:stops"]).party(charter, "b")
    assert "Loop(mytraining:train" in repr(party.locals[0])


def test_it_runs_for_real_and_a_job_that_fails_is_lost(lab: Path) -> None:
    short = ("--set", "until={ updates = 8, time = 60.0 }")
    done = offbeat(lab, "up", "e.toml", "--clients", "2", "--processes", "1", *short, "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(run["algorithm"], run["updates"]) for run in runs] == [("area", 8), ("favano", 8)]
    lost = [json.loads((lab / "out" / f"{run}-0" / "result.json").read_text())["lost"] for run in ("area", "favano")]
    assert lost == [0, 1]
    log = (lab / "out" / "favano-0" / "server.log").read_text()
    assert "no disk left (mytraining.py, line 26)" in log + done.stderr


@pytest.mark.slow
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(lab: Path) -> None:
    (lab / "long.toml").write_text(FILE.format(time=15.0).partition("[algorithm.favano]")[0])
    whole = offbeat(lab, "run", "long.toml", "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    killed = subprocess.Popen([sys.executable, "-c", KILLED], cwd=lab, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    until = time.monotonic() + 300
    while not list((lab / "out").glob("*/checkpoint.safetensors")) and time.monotonic() < until:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (lab / "out" / "area-0" / "result.json").exists()
    done = offbeat(Path("/"), "resume", str(lab / "out"))
    assert done.returncode == 0, done.stderr
    one, two = ((lab / place / "area-0" / "model.safetensors").read_bytes() for place in ("whole", "out"))
    assert one == two


# saves at every look at the clock, so that there is something to resume from at once
KILLED = """
import functools
import offbeat.experiment.runs as runs
import offbeat as ob

runs.drive = functools.partial(runs.drive, save_every=0.0)
ob.load("long.toml").run("out", progress=False)
"""
