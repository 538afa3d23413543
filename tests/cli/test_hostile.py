"""What a machine or a newcomer does to a run: a full disk, countless evaluations, settings that do not fit."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import DIGITS, ended, offbeat, record, run, started, wait_for

import offbeat as ob
from offbeat import report, timing


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing more fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [2600, 4000])
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(size: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole", DIGITS)
    (tmp_path / "full").mkdir()
    with files_of_at_most(size):
        code, out, err = run(tmp_path / "full", DIGITS)
    folder = tmp_path / "full" / "out"
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("offbeat: ")
    if size > 2600:  # else there was not even room for the experiment
        assert f"no space left in {folder}; free space and continue with `offbeat resume`" in err
        assert offbeat("resume", folder).code == 0
        assert record(folder / "area-0") == record(tmp_path / "whole" / "out" / "area-0")


def test_a_run_that_does_nothing_but_evaluate_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(DIGITS)
    process = started("run", file, "--out", tmp_path / "out", "--set", "evaluate.every=2e-7")
    wait_for(tmp_path / "out" / "area-0", process)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    outcome = ended(process)
    assert time.monotonic() - asked < 30
    assert outcome.code == 130
    assert "stopped at time" in outcome.err


@pytest.mark.parametrize("setting", ["algorithm.fedbuff.concurrency=6", "algorithm.area.concurrency=6"])
def test_more_clients_at_work_than_there_are_are_refused(setting: str, tmp_path: Path) -> None:
    code, _, err = run(tmp_path, DIGITS, "--set", setting)
    if "unknown" not in err:  # AREA has no such setting
        assert (code, err) == (1, "offbeat: concurrency = 6: there are 5 clients; use at most that many\n")


@pytest.mark.parametrize(
    ("name", "setting"),
    [("fedavg", "sampled"), ("diloco", "sampled"), ("m-sync", "first"), ("decoupled-diloco", "quorum")],
)
def test_a_round_of_more_clients_than_there_are_is_refused(name: str, setting: str, tmp_path: Path) -> None:
    local = "{ adamw = { lr = 0.01, steps = 2, batch = 16 } }"
    table = f"algorithm={{ {name} = {{ {setting} = 9, local = {local} }} }}"
    (tmp_path / "experiment.toml").write_text(DIGITS)
    said = f"offbeat: {setting} = 9: there are 5 clients; use at most that many\n"
    assert run(tmp_path, DIGITS, "--set", table)[::2] == (1, said)
    assert offbeat("check", tmp_path / "experiment.toml", "--set", table) == (1, "", said)


def test_a_round_that_is_drawn_with_replacement_may_have_more(tmp_path: Path) -> None:
    table = "algorithm={ fedavg = { sampled = 9, replacement = true, local = { sgd = { lr = 0.1 } } } }"
    assert run(tmp_path, DIGITS, "--set", table).code == 0


def test_a_server_without_a_local_trainer_is_one_line() -> None:
    with pytest.raises(ob.OffbeatError, match="pair it with a local trainer"):
        ob.run(ob.Quadratic(3), ob.FedAsync(), timing.Times(timing.Constant(1.0)), ob.Until(updates=3))  # type: ignore[arg-type]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_bytes(b"\xef\xbb\xbf" + DIGITS.encode())
    assert offbeat("run", file, "--out", tmp_path / "out", "--json").code == 0


def test_a_report_takes_folders_as_text(tmp_path: Path) -> None:
    assert run(tmp_path, DIGITS, "--json").code == 0
    assert report.write(str(tmp_path / "out")) == tmp_path / "out" / "report.html"
    assert report.write([str(tmp_path / "out")], str(tmp_path / "page.html")) == tmp_path / "page.html"


@pytest.mark.parametrize("wrong", [{"size": "4"}, {"size": 2.5}, {"concurrency": "2"}])
def test_a_server_checks_its_settings_in_python_too(wrong: dict[str, object]) -> None:
    with pytest.raises(ob.OffbeatError, match=next(iter(wrong))):
        ob.FedBuff(**wrong)  # type: ignore[arg-type]


def test_a_trainer_checks_its_settings_in_python_too() -> None:
    with pytest.raises(ob.OffbeatError, match=r"steps = 2\.5: must be a whole number"):
        ob.SGD(lr=0.1, steps=2.5)  # type: ignore[arg-type]
