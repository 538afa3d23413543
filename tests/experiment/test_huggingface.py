"""The page's loop with the HuggingFace Trainer: simulated, for real, killed and resumed. Skipped without it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
OFFBEAT = [sys.executable, "-m", "offbeat"]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """The page's two files in a folder."""
    blocks = re.findall(r"^~~~\w+ (finetune\.\w+)\n(.*?)^~~~$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    assert [name for name, _ in blocks] == ["finetune.py", "finetune.toml"]
    return tmp_path


def offbeat(lab: Path, *words: str) -> str:
    done = subprocess.run([*OFFBEAT, *words], cwd=lab, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def model(lab: Path, out: str) -> bytes:
    return (lab / out / "fedbuff-0" / "model.safetensors").read_bytes()


def killed(process: subprocess.Popen[bytes], file: Path, text: bytes) -> None:
    """As soon as the process has written this text into a file."""
    until = time.monotonic() + 120
    while not (file.exists() and text in file.read_bytes()) and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_it_runs_and_repeats_bit_for_bit(lab: Path) -> None:
    for out in ("one", "two"):
        offbeat(lab, "run", "finetune.toml", "--set", "until.time=2.0", "--out", out)
    assert model(lab, "one") == model(lab, "two")


@pytest.mark.slow
def test_it_learns_and_killed_and_resumed_it_ends_the_same(lab: Path) -> None:
    whole = json.loads(offbeat(lab, "run", "finetune.toml", "--json", "--out", "whole"))
    assert whole["runs"][0]["metrics"]["accuracy"] > 0.9
    process = subprocess.Popen([sys.executable, "-c", OFTEN], cwd=lab, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    killed(process, lab / "out" / "fedbuff-0" / "checkpoint.older.safetensors", b"")
    assert not (lab / "out" / "fedbuff-0" / "result.json").exists()
    offbeat(lab, "resume", "out")
    assert model(lab, "whole") == model(lab, "out")


@pytest.mark.slow
def test_a_real_run_that_is_killed_goes_on_and_its_log_gives_the_same_state(lab: Path) -> None:
    short = ("--set", "until={ updates = 16, time = 300.0 }", "--out", "out")
    words = ("up", "finetune.toml", "--clients", "2", "--processes", "1", "--json", *short)
    process = subprocess.Popen([*OFFBEAT, *words], cwd=lab, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed(process, lab / "out" / "fedbuff-0" / "server.log", b"its first update was applied")
    assert json.loads(offbeat(lab, *words))["runs"][0]["updates"] == 16
    assert "the same state" in offbeat(lab, "replay", "out/fedbuff-0")


# saves at every look at the clock, so that there is something to resume from at once
OFTEN = """
import functools
import offbeat.experiment.runs as runs
import offbeat as ob

runs.drive = functools.partial(runs.drive, save_every=0.0)
ob.load("finetune.toml").run("out", progress=False)
"""
