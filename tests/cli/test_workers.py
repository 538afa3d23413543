"""`offbeat run` with several processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command import DIGITS, QUADRATIC, ended, events, offbeat, record, run, sets, started, wait_for
from safetensors.torch import load_file
from torch.testing import assert_close


def result(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / name / "result.json").read_text())
    return found


def test_the_record_says_which_executor_it_was_and_why(tmp_path: Path) -> None:
    for name in ("auto", "serial"):
        (tmp_path / name).mkdir()
        assert run(tmp_path / name, DIGITS, *sets(f"executor={name}")).code == 0
    auto, serial = (result(tmp_path / name, "area-0") for name in ("auto", "serial"))
    assert auto["executor_reason"].startswith(f"{auto['executor']}: ")
    assert "an update stacked by 2" in auto["executor_reason"]
    assert (serial["executor"], serial["executor_reason"], serial["workers"]) == ("serial", "asked for", 1)


def test_workers_do_the_runs_of_a_file_with_the_same_end(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert run(one, DIGITS, *sets("executor=serial")).code == 0
    outcome = run(two, DIGITS, "--workers", "2")
    assert outcome.code == 0
    assert "2 processes" in outcome.err
    for name in ("area-0", "fedbuff-0"):
        assert repr(events(one / "out" / name)) == repr(events(two / "out" / name))
        model, other = (load_file(folder / "out" / name / "model.safetensors")["digits"] for folder in (one, two))
        assert_close(model, other)
        found = result(two, name)
        assert (found["executor"], found["workers"], found["executor_reason"]) == ("processes", 2, "asked for")


def test_a_run_that_is_stopped_goes_on_with_its_workers_to_the_same_end(tmp_path: Path) -> None:
    whole = run(tmp_path, QUADRATIC, "--workers", "1")
    assert whole.code == 0, whole.err
    broken = tmp_path / "broken"
    process = started("run", tmp_path / "experiment.toml", "--out", broken, "--workers", "1")
    wait_for(broken / "area-0", process)  # its worker takes a second to start
    process.send_signal(signal.SIGINT)
    assert ended(process).code == 130
    assert offbeat("resume", broken).code == 0
    for name in ("area-0", "fedasync-0"):
        assert record(tmp_path / "out" / name) == record(broken / name)
        assert json.loads((broken / name / "result.json").read_text())["executor"] == "processes"


REFUSED = {
    ("--workers", "0"): "workers = 0: must be at least 1",
    ("--workers", "two"): "Invalid value for '--workers'",
    ("--set", "workers=2", "--set", "executor=batched"): "workers = 2 with executor = 'batched'",
    ("--set", "ray=auto"): 'ray = "auto" is the address of a cluster: write executor = "ray", too',
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_nonsense_is_refused_before_anything_is_written(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    outcome = run(tmp_path, DIGITS, *arguments)
    assert outcome.code != 0
    assert REFUSED[arguments] in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_sweep_has_processes_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(DIGITS + "\n[sweep]\nseed = [0, 1]\n")
    outcome = offbeat("sweep", file, "--workers", "1", "--out", tmp_path / "out", "--set", "executor=processes")
    assert outcome.code == 1
    assert "a sweep has its own processes" in outcome.err
