"""The report of a sweep: settings become labels, seeds become bands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import DIGITS, TASKS, offbeat
from report.folders import embedded

from offbeat.report import write


@pytest.fixture(scope="module", params=[(), ("--events",)], ids=["without events", "with events"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sweep")
    file = place / "sweep.toml"
    file.write_text("trials = 2\n" + DIGITS + '\n[sweep]\n"algorithm.*.local.sgd.lr" = [0.5, 1.0]\n')
    outcome = offbeat("sweep", file, "--out", place / "out", "--workers", "1", *request.param)
    assert outcome.code == 0, outcome.err
    return place / "out"


def test_settings_are_part_of_the_labels_and_seeds_are_bands(folder: Path) -> None:
    page = write(folder)
    found = embedded(page)
    assert found["series"] == ["area, lr = 0.5", "area, lr = 1", "fedbuff, lr = 0.5", "fedbuff, lr = 1"]
    assert found["totals"] == [2, 2, 2, 2]
    assert "<h2>Incomplete</h2>" not in page.read_text()
    kept = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    mine = [
        r["curve"] for r in kept if r["algorithm"] == "fedbuff" and r["settings"]["algorithm.*.local.sgd.lr"] == 1.0
    ]
    band = next(p for p in found["progress"] if (p["series"], p["metric"], p["axis"]) == (3, "accuracy", "time"))
    values = np.array([[point[4]["accuracy"] for point in curve] for curve in mine])
    assert band["mean"] == pytest.approx(values.mean(axis=0), rel=1e-6)
    with_events = (folder / "runs").is_dir()
    text = page.read_text()
    assert "4 settings" in text
    assert ("unequal" in text, "keeps its events" in text) == (with_events, not with_events)
    assert len(found["timelines"]) == (4 if with_events else 0)


def test_requests_are_drawn_to_the_end_of_the_run_whether_all_tasks_got_there_or_not(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(TASKS.replace("0.8", "1.0") + '[sweep]\n"algorithm.fedast.lr" = [1.0]\n')
    outcome = offbeat("sweep", file, "--out", tmp_path / "out", "--set", "trials=2", "--workers", "1")
    assert outcome.code == 0, outcome.err
    (shown,) = embedded(tmp_path / "out" / "report.html")["allocation"]
    assert shown["ends"].keys() == {"a"}
    assert shown["end"] == 100.0


def test_a_damaged_line_costs_one_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text((folder / "experiment.json").read_text())
    first, *others = (folder / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join([first[:100], '{"run": 3}', *others]))
    page = write(tmp_path)
    text = page.read_text()
    assert "line 1 of runs.jsonl is damaged and left out" in text
    assert "line 2 of runs.jsonl is damaged and left out (no algorithm, no seed, no settings, no curve)" in text
    assert sorted(embedded(page)["totals"]) == [1, 2, 2, 2]


def test_runs_that_were_under_way_are_shown_as_far_as_they_came(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text((folder / "experiment.json").read_text())
    first, *others = (folder / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join(others) + "\n")
    run = json.loads(first)
    kept = {name: run[name] for name in ("run", "algorithm", "seed", "settings", "updates")}
    stopped = {**kept, "curve": run["curve"][:3], "unfinished": True}
    (tmp_path / "unfinished.jsonl").write_text("\n".join([json.dumps(stopped), others[0], first[:50]]))
    (tmp_path / "runs" / "00000").mkdir(parents=True)  # its checkpoint is there
    page = write(tmp_path)
    text, found = page.read_text(), embedded(page)
    assert "not finished, shown as far as they had come: area, lr = 0.5, seed 0<" in text
    assert "line 3 of unfinished.jsonl is damaged and left out" in text
    assert "events/ is missing" not in text.replace("runs/00001", "")
    assert found["totals"] == [2, 2, 2, 2]  # the second line is of a run that has ended since


def test_a_reproduction_of_several_experiments_is_one_page(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "reproduction.json").write_text("{}")
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        for file in ("experiment.json", "runs.jsonl"):
            (tmp_path / name / file).write_text((folder / file).read_text())
    page = write(tmp_path)
    assert page == tmp_path / "report.html"
    assert embedded(page)["series"][0] == "a: area, lr = 0.5"
    assert len(embedded(page)["series"]) == 8
