"""Ctrl-C stops a real run cleanly, and the same command goes on with it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from command import ended, offbeat, started

TEXT = """
until = { updates = 400, time = 600.0 }
evaluate = { every = 1.0 }

[problem]
data = "digits"
clients = 2

[timing]
exponential = { rate = 50.0 }

[[algorithm]]
name = "area"
size = 2
local = { sgd = { lr = 1.0, batch = 16 } }
"""


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_running_and_the_same_command_goes_on(tmp_path: Path) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(TEXT)
    words = ("up", file, "--processes", "1", "--pace", "1", "--out", out, "--json")
    first = started(*words)
    log = out / "broker" / "jetstream"
    for _ in range(3000):  # until results are on their way
        if list(out.glob("clients/up/*/*.state")) and list(log.rglob("*.blk")):
            break
        assert first.poll() is None
        time.sleep(0.02)
    time.sleep(1.0)
    first.send_signal(signal.SIGINT)
    stopped = ended(first)
    assert stopped.code == 130, stopped.err
    assert "stopped at time" in stopped.err
    assert f"and saved; continue by repeating the command with --out {out}\n" in stopped.err
    unresumed = offbeat("resume", out)
    assert (unresumed.code, "holds a real run; repeat its command" in unresumed.err) == (1, True)
    assert running(out) == []
    second = ended(started(*words))
    assert second.code == 0, second.err
    (run,) = second.runs
    assert run["updates"] == 400
    assert json.loads((out / "area-0" / "result.json").read_text())["updates"] == 400
    assert running(out) == []


def running(folder: Path) -> list[str]:
    """Processes that have this folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if int(path.parent.name) != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found
