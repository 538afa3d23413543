"""Stopped by a signal or killed, then resumed: the end is bit for bit that of an unbroken run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from command import QUADRATIC, ended, offbeat, record, run, sets, started, wait_for

LONG = QUADRATIC.replace("updates = 400", "updates = 6000")

# As `offbeat run`, with a checkpoint every 50 ms.
OFTEN = """
import sys
from pathlib import Path
import functools
import offbeat as ob
from offbeat.experiment import runs

runs.drive = functools.partial(runs.drive, save_every=0.05)
ob.load(Path(sys.argv[1])).run(Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the long experiment, run in one go."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert run(folder, LONG).code == 0
    return folder / "out"


def same(folder: Path, unbroken: Path) -> bool:
    return all(record(folder / name) == record(unbroken / name) for name in ("area-0", "fedasync-0"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["sigint", "sigterm"])
def test_a_signal_saves_the_run_and_says_how_to_resume(number: signal.Signals, tmp_path: Path, unbroken: Path) -> None:
    (tmp_path / "e.toml").write_text(LONG)
    folder = tmp_path / "out"
    process = started("run", tmp_path / "e.toml", "--out", folder)
    wait_for(folder / "area-0" / "events", process)
    time.sleep(0.2)
    process.send_signal(number)
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    assert "stopping and saving" in err
    assert f"seed 0: stopped at time {err.rpartition('stopped at time ')[2].split()[0]} and saved" in err
    assert err.endswith(f"; continue with `offbeat resume {folder}`\n")
    assert len(list(folder.glob("*/checkpoint.safetensors"))) == 1
    resumed = offbeat("resume", folder)
    assert resumed.code == 0
    assert same(folder, unbroken)
    assert not list(folder.rglob("*checkpoint*"))


def test_killed_after_a_checkpoint_it_ends_the_same(tmp_path: Path, unbroken: Path) -> None:
    (tmp_path / "e.toml").write_text(LONG)
    folder = tmp_path / "out"
    process = started(tmp_path / "e.toml", folder, code=OFTEN)
    wait_for(folder / "area-0" / "checkpoint.older.safetensors", process)
    process.kill()
    assert ended(process).code == -signal.SIGKILL
    assert offbeat("resume", folder).code == 0
    assert same(folder, unbroken)


def test_killed_before_the_first_checkpoint_it_starts_anew_and_ends_the_same(tmp_path: Path, unbroken: Path) -> None:
    (tmp_path / "e.toml").write_text(LONG)
    process = started("run", tmp_path / "e.toml", "--out", tmp_path / "out")
    wait_for(tmp_path / "out" / "area-0" / "events", process)
    process.kill()
    ended(process)
    assert offbeat("resume", tmp_path / "out").code == 0
    assert same(tmp_path / "out", unbroken)


def test_the_second_signal_stops_at_once(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(LONG)
    process = started("run", tmp_path / "e.toml", "--out", tmp_path / "out", *sets("until.updates=1000000"))
    wait_for(tmp_path / "out" / "area-0" / "events", process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert "Traceback" not in err


def test_a_folder_in_which_somebody_is_at_work_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(LONG)
    folder = tmp_path / "out"
    process = started("run", tmp_path / "e.toml", "--out", folder)
    wait_for(folder / "area-0" / "events", process)
    second = offbeat("resume", folder)
    assert (second.code, second.out) == (1, "")
    assert second.err == f"offbeat: another offbeat is at work in {folder}; let it end, or stop it first\n"
    process.send_signal(signal.SIGKILL)
    ended(process)
    assert offbeat("resume", folder).code == 0
