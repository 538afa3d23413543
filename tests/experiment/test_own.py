"""Classes of the user's own, in a folder outside the package: run from a file, swept, resumed, reported by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import offbeat as ob

SMOOTH = '''
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import offbeat as ob


@dataclass
class Memory(ob.State):
    model: ob.Model
    average: ob.Vector


@dataclass(frozen=True)
class Smooth(ob.Server[Memory]):
    """Step along a running average of the deltas.

    lr: server step size.
    keep: weight of the past.
    """

    lr: float = 1.0
    keep: float = 0.9

    def begin(self, models, view):
        return Memory(ob.Model(models[0]), average=models[0] * 0.0)

    def started(self, state, view):
        for client in view.everyone():
            yield self.work(state, client)

    def arrived(self, state, update, view):
        state.average = self.keep * state.average + (1 - self.keep) * update["delta"]
        state.model.step(-self.lr, state.average)
        yield self.work(state, update.job.client)

    def lost(self, state, job, reason, view):
        if view.present(job.client):
            yield self.work(state, job.client)

    def work(self, state, client):
        return ob.Send(client, {"model": state.model.vector}, state.model.version)


@dataclass(frozen=True)
class Normalised(ob.Local):
    """Steps of a fixed length."""

    def step(self, carry, work):
        g = work.gradient(carry["w"])
        return {"w": carry["w"] - work.lr * g / (ob.lengths(g) + 1e-12)}


@dataclass(frozen=True)
class Blocks:
    """Neighbouring samples go to one client."""

    reverse: bool = False

    def __call__(self, labels, clients, rng, owner=None):
        parts = np.array_split(np.arange(len(labels)), clients)
        return parts[::-1] if self.reverse else parts


class Fixed:
    def __init__(self, times, factors):
        self.times, self.factors = times, factors

    def draw(self, job, amount, stream):
        return self.times[job.client % len(self.times)] * self.factors[job.client]

    def mean(self, client, amount=1, task=0):
        return self.times[client % len(self.times)] * self.factors[client]

    def cdf(self, t, client, amount=1, task=0):
        return float(t >= self.mean(client))


@dataclass(frozen=True)
class Shifts:
    """Clients take turns in being slow."""

    times: tuple[float, ...] = (0.1, 0.2)
    per = "job"

    def bind(self, clients, seed, tasks, factors):
        return Fixed(self.times, factors)
'''

FILE = """
until = {{ time = {time} }}
evaluate = {{ every = 0.5 }}

[problem]
data = "digits"
clients = 8
split = {{ "mylab.smooth:Blocks" = {{ reverse = true }} }}

[timing]
"mylab.smooth:Shifts" = {{ times = [0.1, 0.4] }}

[algorithm.mine]
name = "mylab.smooth:Smooth"
keep = 0.5
local = {{ "mylab.smooth:Normalised" = {{ lr = 0.05, batch = 16 }} }}

[algorithm.fedbuff]
size = 2
local = {{ sgd = {{ lr = 0.5, batch = 16 }} }}
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder with an experiment and the package that it names."""
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab" / "__init__.py").touch()
    (tmp_path / "mylab" / "smooth.py").write_text(SMOOTH)
    (tmp_path / "e.toml").write_text(FILE.format(time=2.0))
    return tmp_path


def offbeat(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which knows nothing of the test's path."""
    command = [sys.executable, "-m", "offbeat", *words]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=300)


def test_a_file_beside_its_modules_runs_from_any_folder_and_its_names_are_in_the_report(lab: Path) -> None:
    done = offbeat(Path("/"), "run", str(lab / "e.toml"), "--out", str(lab / "out"))
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout
    page = (lab / "out" / "report.html").read_text()
    assert "mine" in page
    assert "mylab.smooth:Smooth" in page
    resolved = json.loads((lab / "out" / "experiment.json").read_text())["resolved"]
    assert "Smooth(lr=1.0, keep=0.5)" in str(resolved["algorithm"])
    assert "Shifts(times=(0.1, 0.4))" in str(resolved["timing"])


def test_modules_are_found_in_the_working_folder_too(lab: Path) -> None:
    (lab / "elsewhere").mkdir()
    (lab / "e.toml").rename(lab / "elsewhere" / "e.toml")
    done = offbeat(lab, "run", "elsewhere/e.toml", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert [run["algorithm"] for run in json.loads(done.stdout)["runs"]] == ["mine", "fedbuff"]


def test_they_are_swept(lab: Path) -> None:
    words = ("sweep", "e.toml", "--over", "algorithm.mine.keep=[0.1,0.9]", "--out", "grid", "--workers", "2")
    done = offbeat(lab, *words)
    assert done.returncode == 0, done.stderr
    table = pq.read_table(lab / "grid" / "runs.parquet")
    assert table["algorithm.mine.keep"].to_pylist() == [0.1, 0.9, None]
    assert "keep = 0.9" in done.stdout


def test_they_resume_after_being_killed_and_end_as_if_nothing_had_happened(lab: Path) -> None:
    (lab / "long.toml").write_text(FILE.format(time=15.0))
    whole = offbeat(lab, "run", "long.toml", "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    killed = subprocess.Popen([sys.executable, "-c", KILLED], cwd=lab, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    until = time.monotonic() + 300
    while not list((lab / "out").glob("*/checkpoint.safetensors")) and time.monotonic() < until:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (lab / "out" / "mine-0" / "result.json").exists()
    (lab / "e.toml").unlink()
    done = offbeat(Path("/"), "resume", str(lab / "out"))
    assert done.returncode == 0, done.stderr
    for run in ("mine-0", "fedbuff-0"):
        assert (lab / "out" / run / "model.safetensors").read_bytes() == (
            lab / "whole" / run / "model.safetensors"
        ).read_bytes()


# saves at every look at the clock, so that there is something to resume from at once
KILLED = """
import functools
import offbeat.experiment.runs as runs
import offbeat as ob

runs.drive = functools.partial(runs.drive, save_every=0.0)
ob.load("long.toml").run("out", progress=False)
"""


WRONG = {
    'algorithm.mine.keep="x"': 'algorithm.mine.keep = "x": expected a number',
    "algorithm.mine.kep=1": "algorithm.mine.kep: unknown; did you mean 'keep'?",
    "algorithm.mine.name=mylab.smooth:Normalised": "mylab.smooth:Normalised is not a class derived from offbeat.Server",
    "algorithm.mine.name=mylab.smoth:Smooth": "no module 'mylab.smoth'",
    "problem.data=blobs.py:load": 'problem.data: write "blobs:load", without .py',
    "algorithm.mine.name=mylab.smooth:Smoth": "has no 'Smoth'; did you mean 'Smooth'?",
    'problem.split={ "mylab.smooth:Blocks" = { reverse = 3 } }': "expected true or false",
    'timing={ "mylab.smooth:Shifts" = { times = ["a"] } }': 'times[0] = "a": expected a number',
    'algorithm.mine.local={ "mylab.smooth:Normalised" = { lr = "a" } }': 'lr = "a": expected a number',
}


@pytest.fixture
def importable(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's package can be imported in this process, and is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(lab)])
    monkeypatch.chdir(lab)
    for name in [name for name in sys.modules if name.split(".")[0] == "mylab"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("override", WRONG)
def test_a_wrong_setting_of_theirs_is_refused_with_one_line(lab: Path, override: str) -> None:
    with pytest.raises(ob.OffbeatError) as raised:
        ob.load(lab / "e.toml", [override])
    assert WRONG[override] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_they_run_for_real(lab: Path) -> None:
    short = ("--set", "until={ updates = 6, time = 60.0 }")
    done = offbeat(lab, "up", "e.toml", "--clients", "2", "--processes", "2", *short, "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(run["algorithm"], run["updates"]) for run in runs] == [("mine", 6), ("fedbuff", 6)]


def test_a_module_of_the_same_name_in_another_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "alike.py").write_text(SMOOTH)
        (tmp_path / name / "e.toml").write_text(FILE.format(time=1.0).replace("mylab.smooth", "alike"))
    code = "import offbeat as ob; ob.load('one/e.toml'); ob.load('two/e.toml')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "the module 'alike' is " in done.stderr
    assert "alike.py has the same name; rename one" in done.stderr


def test_a_key_with_dots_is_quoted_in_a_path_and_numpy_values_are_numbers(lab: Path) -> None:
    code = """
import numpy as np, offbeat as ob
path = 'algorithm.mine.local."mylab.smooth:Normalised".lr'
e = ob.load("e.toml", {path: np.float64(0.25), "seed": np.int64(3), "algorithm.mine.label": "renamed"})
assert e.algorithms["renamed"].local.lr == 0.25 and e.seed == 3
grid = e.sweep({'algorithm.renamed.local."mylab.smooth:Normalised".lr': np.array([0.1, 0.2])}, "grid", workers=1)
assert sorted(r.settings.popitem()[1] for r in grid if r.settings) == [0.1, 0.2], grid
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=lab, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


WRONG_KINDS = {
    'problem.split="mylab.smooth:Memory"': "cannot be used here: it has no method __call__",
    'algorithm.mine.local={ "mylab.smooth:Smooth" = {} }': "is not a class derived from offbeat.Local",
    "algorithm.fedbuf={}": "there is no algorithm 'fedbuf'; did you mean 'fedbuff'?",
    "algorithm.mine.label=fedbuff": "two algorithms have the label 'fedbuff'",
    "algorithm.mine.label=..": "it names a folder",
}


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("override", WRONG_KINDS)
def test_a_class_of_another_kind_and_a_label_that_is_none_are_refused(lab: Path, override: str) -> None:
    with pytest.raises(ob.OffbeatError) as raised:
        ob.load(lab / "e.toml", [override])
    assert WRONG_KINDS[override] in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("wrong", ["-0.1", "nan"])
def test_a_clock_that_runs_backwards_is_refused(lab: Path, wrong: str) -> None:
    text = SMOOTH.replace("return self.times[job", f"return float('{wrong}') * self.times[job")
    (lab / "mylab" / "smooth.py").write_text(text)
    with pytest.raises(ob.OffbeatError, match="the timing model gave client 0 times of"):
        ob.load(lab / "e.toml").run(lab / "out", progress=False)


@pytest.mark.usefixtures("importable")
def test_a_module_that_ends_the_program_is_named(lab: Path) -> None:
    (lab / "mylab" / "quits.py").write_text("import sys; sys.exit(0)")
    with pytest.raises(ob.OffbeatError, match=r"the module 'mylab.quits' cannot be imported \(SystemExit: 0\)"):
        ob.load(lab / "e.toml", {"algorithm.mine.name": "mylab.quits:Thing"})
