"""The systemd units of docs/deploy: systemd takes them, and their command lines do what they are there for."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import offbeat
from federation import LOADER, OWN

from offbeat.deploy.broker import free_port

UNITS = Path(__file__).parents[2] / "docs" / "deploy"
NAMES = ("offbeat-serve.service", "offbeat-join.service")

EXPERIMENT = OWN.replace("clients = 2", "clients = 1")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path, name: str) -> None:
    text = (UNITS / name).read_text().replace("/opt/offbeat/bin/offbeat", sys.executable)  # verify wants it to exist
    (tmp_path / name).write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def started(name: str, folder: Path, port: int) -> subprocess.Popen[str]:
    """The unit's command line as its own process, with the machine's folders below this one."""
    text = (UNITS / name).read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    program, *words = shlex.split(line.removeprefix("ExecStart="))
    assert program == "/opt/offbeat/bin/offbeat"
    for before, after in {
        "/etc/offbeat": str(folder / "etc"),
        "/var/lib/offbeat": str(folder / "var"),
        "broker.example.org:4222": f"127.0.0.1:{port}",
    }.items():
        words = [word.replace(before, after) for word in words]
    return subprocess.Popen(
        [sys.executable, "-c", "from offbeat.cli import main; main()", *words],
        cwd=folder / "var",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_the_command_lines_of_both_units_make_a_run(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "etc").mkdir()
    (tmp_path / "var" / "mysite").mkdir(parents=True)
    (tmp_path / "etc" / "experiment.toml").write_text(EXPERIMENT)
    (tmp_path / "var" / "mysite" / "data.py").write_text(LOADER)
    keys = tmp_path / "var" / "fed"
    assert offbeat("keys", "init", keys, "--clients", "site", "--port", str(port)).code == 0
    shutil.copy(keys / "site.creds", tmp_path / "etc" / "site.creds")
    server, client = (started(name, tmp_path, port) for name in NAMES)
    try:
        _, said = server.communicate(timeout=120)
        assert server.returncode == 0, said
        result = json.loads((tmp_path / "var" / "runs" / "first" / "fedbuff-0" / "result.json").read_text())
        assert result["updates"] == 30
        assert result["metrics"]["accuracy"] > 0.5
        client.send_signal(signal.SIGTERM)  # as `systemctl stop` does
        _, said = client.communicate(timeout=30)
        assert client.returncode == 0, said
    finally:
        for process in (server, client):
            if process.poll() is None:
                process.kill()
