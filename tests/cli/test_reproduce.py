"""`offbeat reproduce`: what it lists, runs, prints, writes and goes on with."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command import ended, offbeat, started, wait_for

from offbeat.papers import load, names

SMALL = """
title = "digits"
paper = "nobody's"
where = "table 0"
notes = ["a note"]

lines = [
  { algorithm = "area", lr = 1.0, accuracy = "90 (80 - 99)", time = "1.5" },
  { algorithm = "area", lr = 10.0, accuracy = "1 (1 - 2)", time = "> 2" },
  { algorithm = "area", largest = "10" },
]

[axis.lr]
key = "algorithm.area.local.sgd.lr"

[quantity]
accuracy = { of = "final", scale = 100.0 }
time = { of = "time to", target = 0.5, curve = "mean" }
largest = { of = "largest", axis = "lr" }

[[claim]]
text = "ten is more than one"
less = [["area/1:accuracy", 100.0]]

[[claim]]
text = "one is more than ten"
less = [["area/1:accuracy", 1.0]]

[experiment.main]
trials = 2
until = { time = 20.0 }
evaluate = { every = 1.0 }
problem = { data = "digits", clients = 8, weighted = true }
timing = { exponential = { rate = 10.0 } }
algorithm = [{ name = "area", size = 4, local = { sgd = { lr = 1.0, batch = 16 } } }]

[experiment.main.sweep]
"algorithm.area.local.sgd.lr" = [0.1, 1.0, 10.0]

[quick]
says = "short"
comparable = true

[quick.main.set]
"until.time" = 2.0
"""

needs_data = pytest.mark.skipif(
    not os.environ.get("OFFBEAT_DATA"), reason="reads MNIST and others: set OFFBEAT_DATA to the folder that holds them"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_without_a_name_all_are_listed() -> None:
    lines = offbeat("reproduce").out.splitlines()
    assert len(lines) == len(names())
    assert lines[0].split()[0] == names()[0]
    listed = json.loads(offbeat("reproduce", "--json").out)["reproductions"]
    assert [entry["name"] for entry in listed] == names()


def test_ours_is_printed_beside_the_papers_with_what_held(file: Path, tmp_path: Path) -> None:
    done = offbeat("reproduce", file, "--out", tmp_path / "out", "--workers", "1")
    assert done.code == 0, done.err
    for part in ("quick: short", "a note", "90 (80 - 99)", "outside the paper's range", "1.5", "> 2"):
        assert part in done.out
    assert "undecided  ten is more than one (means: held)" in done.out  # two seeds say little
    assert " not held  one is more than ten" in done.out
    for name in ("report.html", "reproduction.md", "outcome.json", "runs.jsonl", "summary.json"):
        assert (tmp_path / "out" / name).is_file()
    outcome = json.loads((tmp_path / "out" / "outcome.json").read_text())
    assert [(c["state"], c["means"]) for c in outcome["claims"]] == [("undecided", "held"), ("not held", "not held")]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<h1>small, quick</h1>" in page
    assert '<li data-state="undecided"><b>undecided</b> ten is more than one (means: held)</li>' in page
    assert '<li data-state="not held"><b>not held</b> one is more than ten</li>' in page
    assert "paper 90 (80 - 99)</small>" in page
    assert outcome["seeds"] == {"main": [0, 1]}
    assert outcome["cells"][0]["ours"]["seeds"] == 2


def test_only_what_the_paper_prints(file: Path, tmp_path: Path) -> None:
    done = offbeat("reproduce", file, "--out", tmp_path / "out", "--workers", "1", "--printed", "--json")
    cells = {cell["cell"]: cell for cell in json.loads(done.out)["cells"]}
    assert len((tmp_path / "out" / "runs.jsonl").read_text().splitlines()) == 4  # two step sizes, two seeds
    assert cells["area:largest"]["note"] == "grid not run"


def test_settings_can_be_changed_and_it_is_said(file: Path, tmp_path: Path) -> None:
    where = tmp_path / "out"
    words = ["--only", "main/area", "--set", "trials=1", "--set", "algorithm.*.size=2", "--workers", "1"]
    done = offbeat("reproduce", file, "--out", where, *words)
    assert done.code == 0, done.err
    assert "not the whole protocol: trials=1, algorithm.*.size=2" in done.out
    outcome = json.loads((where / "outcome.json").read_text())
    assert outcome["seeds"] == {"main": [0]}
    assert "--only main/area --set trials=1" in outcome["command"]
    assert len((where / "runs.jsonl").read_text().splitlines()) == 3


def test_a_setting_of_one_experiment_is_not_asked_of_the_others(file: Path, tmp_path: Path) -> None:
    two = SMALL.replace('{ algorithm = "area"', '{ experiment = "main", algorithm = "area"')
    two = two.replace("lines = [", 'lines = [\n  { experiment = "other", algorithm = "fedavg", time = "9" },')
    two = two.replace('"area/1:', '"main/area/1:') + '\n[experiment.other]\nlike = "main"\nsweep = {}\n'
    two += '\n[experiment.other.set]\nalgorithm = [{ name = "fedavg", local = { sgd = { lr = 1.0 } } }]\n'
    file.write_text(two, encoding="utf-8")
    words = ["--only", "main", "--set", "algorithm.area.size=2", "--set", "trials=1", "--workers", "1"]
    done = offbeat("reproduce", file, "--out", tmp_path / "out", *words)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out" / "outcome.json").read_text())["seeds"] == {"main": [0]}
    done = offbeat("reproduce", file, "--out", tmp_path / "both", *words[2:])
    assert done.code == 1
    assert "experiment other: algorithm.area.size = 2: 'area' matches none of fedavg" in done.err
    assert "--only runs some of the experiments" in done.err
    assert not (tmp_path / "both").exists()


def test_a_claim_about_no_cell_is_found_before_anything_runs(file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL.replace('less = [["area/1:accuracy", 1.0]]', 'less = [["area/1:time", "area/2:time"]]'))
    done = offbeat("reproduce", file, "--out", tmp_path / "out")
    assert done.code == 1
    assert "unknown cell in a claim: 'area/2:time'; did you mean 'area/1:time'?" in done.err
    assert not (tmp_path / "out").exists()


def test_what_was_not_asked_for_is_counted_and_not_shown(file: Path, tmp_path: Path) -> None:
    two = SMALL.replace(
        '{ algorithm = "area", largest', '{ algorithm = "fedbuff", time = "9" },\n  { algorithm = "area", largest'
    )
    two = two.replace(
        "algorithm = [{", 'algorithm = [{ name = "fedbuff", size = 2, local = { sgd = { lr = 1.0 } } }, {'
    )
    file.write_text(two + '\n[[claim]]\ntext = "a third"\nless = [["fedbuff:time", 1.0]]\n', encoding="utf-8")
    done = offbeat("reproduce", file, "--out", tmp_path / "out", "--workers", "1", "--only", "main/area")
    assert done.code == 0, done.err
    assert "area/1:accuracy" in done.out
    assert "fedbuff" not in done.out
    assert "a third" not in done.out
    assert "shown: 5 of 6 cells and 2 of 3 claims; the others were not run" in done.out
    page = (tmp_path / "out" / "reproduction.md").read_text()
    assert "| fedbuff:time | not run | 9 |" in page
    assert "| a third | **not checked** |" in page


def test_a_reproduction_that_was_stopped_goes_on_and_says_the_same(file: Path, tmp_path: Path) -> None:
    process = started("reproduce", file, "--full", "--out", tmp_path / "stopped", "--workers", "1")
    wait_for(tmp_path / "stopped" / "runs.jsonl", process)
    process.send_signal(signal.SIGINT)
    stopped = ended(process)
    if stopped.code != 0:  # it may have been faster than the signal
        assert f"continue with `offbeat resume {tmp_path / 'stopped'}`" in stopped.err
        assert "so far: " in stopped.out
        assert "under way" in json.loads((tmp_path / "stopped" / "outcome.json").read_text())["stopped"]
    resumed = offbeat("resume", tmp_path / "stopped", "--json")
    unbroken = offbeat("reproduce", file, "--full", "--out", tmp_path / "unbroken", "--workers", "1", "--json")
    assert json.loads(resumed.out)["cells"] == json.loads(unbroken.out)["cells"]
    assert "stopped" not in json.loads((tmp_path / "stopped" / "outcome.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["area-table33"], "did you mean 'area-table3'?"),
        (["area-table3", "--quick", "--full"], "choose one of them"),
        (["nowhere.toml"], "cannot read nowhere.toml: No such file"),
        (["fedast-fig7", "--only", "synch"], "did you mean 'sync'?"),
        (["defedavg-fig6", "--only", "fashion-iid/n-6"], "did you mean"),
        (["defedavg-fig6", "--set", "trials"], "expected key.path=value"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(arguments: list[str], said: str) -> None:
    done = offbeat("reproduce", *arguments)
    assert done.code == 1
    assert said in done.err
    assert done.err.count("\n") == 1


def test_missing_data_are_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "nothing"))
    done = offbeat("reproduce", "area-table5", "--out", tmp_path / "out")
    assert (done.code, (tmp_path / "out").exists()) == (1, False)
    assert "offbeat data --get mnist" in done.err


def test_a_folder_is_not_used_twice(file: Path, tmp_path: Path) -> None:
    offbeat("reproduce", file, "--out", tmp_path / "out", "--workers", "1")
    again = offbeat("reproduce", file, "--out", tmp_path / "out")
    assert again.code == 1
    assert "already holds a run" in again.err


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", names())
def test_the_quick_version_finds_what_its_file_says(name: str, tmp_path: Path) -> None:
    """Each claim is computed; `quick` in the file says which were found not to hold at this scale."""
    process = started("reproduce", name, "--quick", "--out", tmp_path / "out", "--json")
    out, err = process.communicate(timeout=3600)
    assert process.returncode == 0, err
    outcome, entry = json.loads(out), load(name, "quick")
    assert [cell["cell"] for cell in outcome["cells"]] == list(entry.cells)
    found, expected = {c["claim"]: c["means"] for c in outcome["claims"]}, {c.text: c.quick for c in entry.claim}
    close = [text for text, state in expected.items() if state == "close"]
    assert all(found[text] in ("held", "not held", "undecided") for text in close)
    assert found == {text: found[text] if text in close else state for text, state in expected.items()}
    assert (tmp_path / "out" / "reproduction.md").is_file()
