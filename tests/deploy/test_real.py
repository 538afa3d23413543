"""Real processes from the command line: up, serve and join, and what their folders are good for afterwards."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from command import TASKS, ended, offbeat, started
from federation import LOADER, OWN, Federation
from safetensors.torch import load_file

from offbeat.cli.deploy import needs_deploy
from offbeat.core.errors import SettingError
from offbeat.deploy.broker import free_port
from offbeat.experiment.federation import experiment_for
from offbeat.experiment.folder import create, open_real
from offbeat.experiment.real import DeployOptions, plan_of
from offbeat.experiment.session import Session

SMALL = """
until = { updates = 60, time = 60.0 }
evaluate = { every = 0.5 }

[problem]
data = "digits"
clients = 3
split = { dirichlet = 0.5 }

[timing]
exponential = { rate = 20.0 }

[[algorithm]]
name = "area"
size = 3
local = { sgd = { lr = 1.0, batch = 16 } }

[[algorithm]]
name = "favano"
sampled = 2
period = 0.1
local = { sgd = { lr = 0.5, steps = 4, batch = 16 } }
"""


def test_up_runs_the_file_for_real_and_its_folder_serves_every_other_command(tmp_path: Path) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(SMALL)
    outcome = offbeat("up", file, "--processes", "1", "--pace", "1", "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    runs = outcome.runs
    assert [run["algorithm"] for run in runs] == ["area", "favano"]
    assert open_real(out) == "offbeat up FILE"
    for run in runs:
        assert run["updates"] == 60
        assert run["metrics"]["accuracy"] > 0.5
    for name in ("area-0", "favano-0"):
        assert stat.S_IMODE((out / name).stat().st_mode) == 0o700
        said = offbeat("replay", out / name)
        assert said.code == 0, said.err
        assert "the same state" in said.out
    assert offbeat("export", out / "area-0", tmp_path / "m.safetensors").code == 0
    assert sum(t.numel() for t in load_file(tmp_path / "m.safetensors").values()) == 640
    assert offbeat("report", out).code == 0
    assert offbeat("trace", out / "area-0", "--out", tmp_path / "trace.csv").code == 0
    traced = SMALL.replace("exponential = { rate = 20.0 }", f'trace = {{ file = "{tmp_path / "trace.csv"}" }}')
    file.write_text(traced)
    simulated = offbeat("run", file, "--out", tmp_path / "virtual", "--json")
    assert simulated.code == 0, simulated.err
    ratio = simulated.runs[0]["time"] / runs[0]["time"]
    assert 0.5 < ratio < 2.0  # the traced federation takes about as long
    secrets = [json.loads(path.read_text())["seed"] for path in (out / "keys").glob("*.creds")]
    logs = "".join(path.read_text() for path in out.rglob("*.log"))
    assert "serving" in logs
    assert not any(secret in logs for secret in secrets)


def test_only_what_needs_the_rates_of_a_timing_table_asks_for_one(tmp_path: Path) -> None:
    text = SMALL.replace("[timing]\nexponential = { rate = 20.0 }\n", "")
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(text)
    experiment = experiment_for(file)
    roster = [f"c{number}" for number in range(3)]
    for spec in experiment.runs:
        assert plan_of(Session(experiment), spec, "run", roster, DeployOptions()).roster == roster
    paced = offbeat("up", file, "--pace", "1", "--out", out)
    assert (paced.code, "--pace: the experiment has no [timing] table" in paced.err) == (1, True)
    simulated = offbeat("run", file, "--out", out)
    assert (simulated.code, "timing missing; timing: " in simulated.err) == (1, True)
    file.write_text(text.replace("size = 3", 'size = { poisson = "optimal" }'))
    optimal = offbeat("up", file, "--out", out)
    assert (optimal.code, "needs the clients' rates" in optimal.err) == (1, True)
    assert not out.exists()


def wait_for(path: Path, federation: Federation) -> None:
    """Until the server has said that it serves."""
    for _ in range(15_000):
        if path.exists() and "serving" in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(federation.said("server"))


def test_sites_train_on_data_of_their_own_that_the_server_never_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mysite.py").write_text(LOADER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Federation(tmp_path / "fed", OWN, clients=2) as federation:
        federation.serve("--trim")
        wait_for(federation.out / "fedbuff-0" / "server.log", federation)
        said = offbeat("status", "--keys", federation.keys / "site0.creds", "--nats", federation.url, "--json")
        assert json.loads(said.out)["state"] == "waiting for clients", said.err
        words = ("--keys", federation.keys / "server.creds", "--nats", federation.url, "--out", federation.out)
        second = offbeat("serve", federation.file, *words, "--trim")
        assert (second.code, "another process" in second.err) == (1, True)
        for name in federation.names:
            federation.join(name, "--data", "mysite:load")
        result = federation.wait()
        assert result["updates"] == 30
        assert result["metrics"]["accuracy"] > 0.5  # counted by the clients, on what they held out
        assert [process.wait(300) for process in federation.clients.values()] == [0, 0]


def test_up_takes_data_of_ones_own_and_says_at_once_why_no_client_can_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = "\ndef huge(client):\n    x, y = load()\n    x[: 160 + len(client) - 2] = 3e38\n    return x, y\n"
    (tmp_path / "mysite.py").write_text(LOADER + huge)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    words = ("up", file, "--processes", "1", "--json")
    said = offbeat(*words, "--out", tmp_path / "none")
    assert (said.code, "with --data" in said.err) == (1, True)
    done = offbeat(*words, "--data", "mysite:load", "--out", tmp_path / "good")
    assert done.code == 0, done.err
    assert done.runs[0]["updates"] == 30
    began = time.monotonic()
    more = ("--set", "algorithm.fedbuff.local.sgd.steps=3")  # the second step overflows
    failed = offbeat(*words, *more, "--data", "mysite:huge", "--out", tmp_path / "bad")
    assert failed.code == 1
    assert "jobs so far have failed; the last one: delta is not finite after 3 steps" in failed.err
    assert time.monotonic() - began < 120  # the seconds that the run would have taken


def test_a_run_with_its_own_broker_is_replayed_without_starting_that_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mysite.py").write_text(LOADER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    file, keys, port, out = tmp_path / "own.toml", tmp_path / "fed", free_port(), tmp_path / "out"
    file.write_text(OWN.replace("updates = 30", "updates = 10"))
    url = f"tls://127.0.0.1:{port}"
    assert offbeat("keys", "init", keys, "--clients", "a", "--port", str(port)).code == 0
    words = ("serve", file, "--keys", keys / "server.creds", "--nats", url, "--embedded", "--json", "--out")
    server = started(*words, out)
    processes = [server]
    try:
        wait_until_served(out / "fedbuff-0" / "server.log", server)
        second = offbeat(*words, tmp_path / "other")
        assert (second.code, "a broker that runs already" in second.err) == (1, True)
        processes.append(started("join", "--keys", keys / "a.creds", "--nats", url, "--data", "mysite:load", "--once"))
        assert [ended(process).code for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    said = offbeat("replay", out / "fedbuff-0", "--keys", keys / "server.creds", "--nats", url)
    assert (said.code, "the same state" in said.out) == (0, True), said.err
    assert "with --keys and --nats" in offbeat("replay", out / "fedbuff-0").err


def wait_until_served(path: Path, server: subprocess.Popen[str]) -> None:
    for _ in range(15_000):
        if path.exists() and "serving" in path.read_text():
            return
        assert server.poll() is None, server.communicate()
        time.sleep(0.02)
    raise AssertionError(path)


def test_how_many_clients_is_said_where_the_file_says_it(tmp_path: Path) -> None:
    one, several = tmp_path / "one.toml", tmp_path / "several.toml"
    one.write_text(SMALL + "# not [[task]]\n")
    several.write_text(TASKS)
    assert experiment_for(one, clients=5).tasks[0].problem.clients == 5
    assert experiment_for(several, clients=5).tasks[0].problem.clients == 5


def test_without_the_extra_packages_the_message_says_what_to_install() -> None:
    with pytest.raises(SettingError, match=r"offbeat\[deploy\]"), needs_deploy():
        raise ModuleNotFoundError("No module named 'nats'", name="nats")


LARGE = """
until = { updates = 9, time = 300.0 }
evaluate = { every = 5.0 }

[problem]
data = "digits"
clients = 2
model = { name = "mlp", hidden = [1500, 1500] }

[timing]
exponential = { rate = 1.0 }

[[algorithm]]
name = "area"
size = 2
local = { sgd = { lr = 0.2, steps = 4, batch = 32 } }

[[algorithm]]
name = "fedbuff"
size = 2
local = { sgd = { lr = 0.1, steps = 4, batch = 32 } }
"""


@pytest.mark.slow
def test_a_model_of_nine_megabytes_travels_in_pieces(tmp_path: Path) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(LARGE)
    process = started("up", file, "--processes", "2", "--out", out, "--json")
    said, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    for run in json.loads(said)["runs"]:
        folder = out / f"{run['algorithm']}-0"
        result = json.loads((folder / "result.json").read_text())
        assert (result["updates"], result["lost"]) == (9, 0)
        assert not set(result["refused"]) - {"over"}  # what came when the run was over
        assert result["metrics"]["accuracy"] > 0.3
        folded = offbeat("replay", folder)
        assert folded.code == 0, folded.err
    assert not (out / "area-0" / "server.log").read_text().count("oversized")


def test_a_model_that_is_too_large_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(LARGE)
    outcome = offbeat("up", file, "--max-size", "8", "--out", tmp_path / "out")
    assert outcome.code == 1
    assert "9 MB" in outcome.err
    assert "--max-size" in outcome.err
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_deployed_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(SMALL.replace('name = "area"\nsize = 3', 'name = "centralised"'))
    outcome = offbeat("up", file, "--out", tmp_path / "out")
    assert outcome.code == 1
    assert "cannot be deployed" in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_real_run_is_not_resumed_by_a_simulation_but_by_its_own_command(tmp_path: Path) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(SMALL)
    create(out, experiment_for(file), real="offbeat up FILE")  # and nothing else: it was stopped before a run began
    outcome = offbeat("resume", out)
    said = f"holds a real run; repeat its command, `offbeat up FILE --out {out}`, to continue it"
    assert (outcome.code, outcome.err) == (1, f"offbeat: {out} {said}\n")
    settings = ("--set", "until.time=5.0", "--set", "algorithm.area.local.sgd.lr=2.0", "--set", "seed=1")
    other = offbeat("up", file, "--out", out, *settings)
    assert other.code == 1
    assert "which differs in until.time, algorithm.0.local.sgd.lr, seed; to continue" in other.err
