"""Forked processes of the tests behave like fresh ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import forking
import pytest

CODE = "# offbeat\n"


def python(code: str, *words: str, **given: object) -> subprocess.Popen[str]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", CODE + code, *words], text=True, **{**pipes, **given})  # type: ignore[call-overload, no-any-return]


def test_folder_environment_arguments_and_pipes_are_the_caller_s(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text("there = 'there'")
    code = "import near, os, sys; print(os.getcwd(), os.getenv('A'), sys.argv[1:], input(), near.there)"
    process = python(code, "x", cwd=tmp_path, env={**os.environ, "A": "b", "PYTHONPATH": str(tmp_path)})
    assert process.communicate("said\n", timeout=60) == (f"{tmp_path} b ['x'] said there\n", "")
    assert isinstance(process, forking.Forked)
    assert process.connection is not None


@pytest.mark.parametrize(
    ("code", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("raise SystemExit('no')", 1), ("1 / 0", 1), ("import os; os.abort()", -6)],
)
def test_it_ends_with_the_status_of_a_fresh_one(code: str, status: int) -> None:
    process = python(code)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert ("ZeroDivisionError" in said) == (code == "1 / 0")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_signals_reach_it(number: signal.Signals) -> None:
    process = python("import time; print('up', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number


def test_a_descriptor_that_is_passed_on_has_its_number() -> None:
    ours, theirs = os.pipe()
    process = python(f"import os; os.write({theirs}, b'here')", pass_fds=[theirs])
    process.communicate(timeout=60)
    os.close(theirs)
    with os.fdopen(ours, "rb") as end:
        assert end.read() == b"here"


def test_imports_and_fresh_interpreters_are_left_alone() -> None:
    assert not forking.forkable([sys.executable, "-c", "import offbeat, sys; print(sys.modules)"], None)
    assert not forking.forkable([sys.executable, "-s", "-m", "offbeat"], None)
    assert not forking.forkable([sys.executable, "-m", "offbeat", "--help"], None)
    assert not forking.forkable(["git", "-c", "offbeat"], None)
