"""Whole sessions, on made data and with few updates: processes, turns, output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import offbeat

from benchmarks.by_hand import __main__ as by_hand
from benchmarks.by_hand.workloads import LEAN, WORKLOADS
from offbeat.bench import session
from offbeat.bench.workloads import OFFBEAT, SERIAL, Check

TINY = replace(WORKLOADS["W5"], contenders=(OFFBEAT, LEAN), updates=500, quick=200, check=Check("distance", 100.0))
OURS = replace(TINY, contenders=(OFFBEAT, SERIAL))


def use(monkeypatch: pytest.MonkeyPatch, ours: Check, beside: Check) -> None:
    """Only the quadratic, which needs no data, and few updates of it."""
    monkeypatch.setattr(session, "WORKLOADS", {"W5": replace(OURS, check=ours)})
    monkeypatch.setattr(by_hand, "WORKLOADS", {"W5": replace(TINY, check=beside)})


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, OURS.check, TINY.check)


@pytest.mark.usefixtures("tiny")
def test_the_command_prints_one_json_object() -> None:
    code, out, err = offbeat("bench", "W5", "--quick", "--turns", "2", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["machine"]["cores"] > 0
    (row,) = found["rows"]
    assert (row["workload"], row["updates"], row["turns"], row["disagreement"]) == ("W5", 200, 2, "")
    ours, serial = row["scores"]
    assert (ours["contender"], ours["ratio"]) == ("offbeat", None)
    assert serial["ratio"]["low"] <= serial["ratio"]["median"] <= serial["ratio"]["high"]
    assert set(serial["metrics"]) == {"loss", "gap", "distance"}
    assert [line.split(":")[0] for line in err.splitlines()] == [f"W5, turn {n} of 2" for n in (1, 1, 2, 2)]


@pytest.mark.usefixtures("tiny")
def test_beside_a_loop_written_by_hand_it_prints_the_same_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    assert by_hand.main(["W5", "--quick", "--turns", "2", "--json", "--out", str(page)]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["rows"]
    ours, lean = row["scores"]
    assert (ours["contender"], ours["ratio"], lean["contender"]) == ("offbeat", None, "lean loop")
    assert lean["ratio"]["low"] <= lean["ratio"]["median"] <= lean["ratio"]["high"]
    assert set(lean["metrics"]) == {"loss", "gap", "distance"}
    assert "| lean loop |" in page.read_text()
    assert [line.split(":")[0] for line in err.splitlines()] == [f"W5, turn {n} of 2" for n in (1, 1, 2, 2)]


def test_contenders_that_differ_end_the_commands_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Check("distance", -1.0), Check("distance", 0.0))
    code, out, err = offbeat("bench", "--quick", "--turns", "1")
    assert code == 1
    assert "these figures mean nothing" in out
    assert err.splitlines()[-1].startswith("offbeat: W5: the contenders did not do the same work")
    assert by_hand.main(["--quick", "--turns", "1"]) == 1
    out, err = capsys.readouterr()
    assert "these figures mean nothing" in out
    assert err.splitlines()[-1].startswith("W5: the contenders did not do the same work")


def test_an_unknown_workload_is_refused() -> None:
    assert offbeat("bench", "X9") == (1, "", "offbeat: unknown workload 'X9'; did you mean 'W9'?\n")


def test_a_device_that_is_not_there_is_refused() -> None:
    err = offbeat("bench", "W5", "--device", "abacus").err
    assert err == "offbeat: device = 'abacus': is not available; use 'cpu'\n"
