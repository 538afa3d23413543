"""`offbeat report`, and the report that every run ends with."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from command import DIGITS, QUADRATIC, Outcome, offbeat, run, sets
from report.folders import embedded


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("finished")
    outcome = run(folder, DIGITS, *sets("trials=2"))
    return folder / "out", outcome


def test_a_run_ends_with_a_report(finished: tuple[Path, Outcome]) -> None:
    folder, outcome = finished
    assert f"report: {folder / 'report.html'}\n" in outcome.out
    assert embedded(folder / "report.html")["series"] == ["area", "fedbuff"]


def test_a_report_that_fails_costs_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> Path:
        raise RuntimeError("no ink")

    monkeypatch.setattr("offbeat.report.write", fail)
    outcome = run(tmp_path, QUADRATIC)
    assert outcome.code == 0
    assert "offbeat: the report could not be drawn (RuntimeError: no ink)" in outcome.err
    assert "report:" not in outcome.out
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]) == 2


def test_it_can_be_written_anew_and_elsewhere(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder, _ = finished
    outcome = offbeat("report", folder, "--out", tmp_path / "new" / "page.html")
    assert (outcome.code, outcome.out) == (0, f"report: {tmp_path / 'new' / 'page.html'}\n")
    assert (tmp_path / "new" / "page.html").read_bytes() == (folder / "report.html").read_bytes()


def test_one_run_of_an_experiment_alone(finished: tuple[Path, Outcome]) -> None:
    place = finished[0] / "fedbuff-1"
    assert offbeat("report", place).code == 0
    text = (place / "report.html").read_text()
    assert embedded(place / "report.html")["series"] == ["fedbuff"]
    assert "[problem]" in text  # the experiment around it
    (place / "report.html").unlink()


def test_several_folders_are_compared_on_one_page(
    finished: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other" / "out"
    other.parent.mkdir()
    run(other.parent, DIGITS, *sets("algorithm.area.label=mine", "problem.clients=6"))
    outcome = offbeat("report", finished[0], other, other)
    assert outcome.out == "report: report.html\n"
    assert embedded(tmp_path / "report.html")["series"] == [
        "area",
        f"{finished[0].parent.name}/out: fedbuff",
        "mine",
        "other/out: fedbuff",
    ]


def test_json_says_what_was_written_and_what_is_missing(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    outcome = offbeat("report", finished[0], "--out", tmp_path / "r.html", "--json")
    assert json.loads(outcome.out) == {"report": str(tmp_path / "r.html"), "figures": [], "missing": []}


@pytest.mark.parametrize("form", ["pdf", "png"])
def test_figures_for_a_paper(finished: tuple[Path, Outcome], tmp_path: Path, form: str) -> None:
    arguments = ("--out", tmp_path / "r.html", "--figures", tmp_path / "figures", "--format", form, "--json")
    made = json.loads(offbeat("report", finished[0], *arguments).out)["figures"]
    names = {Path(path).name for path in made}
    metrics = {f"{metric}-by-{axis}.{form}" for metric in ("accuracy", "loss") for axis in ("time", "updates", "bytes")}
    work = {
        f"{name}.{form}" for name in ("staleness", "concurrency", "participation", "timeline-area", "timeline-fedbuff")
    }
    assert names == metrics | work
    start = {"pdf": b"%PDF-", "png": b"\x89PNG"}[form]
    assert all(Path(path).read_bytes().startswith(start) for path in made)


def test_figures_without_matplotlib_name_the_remedy(
    finished: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = offbeat("report", finished[0], "--out", tmp_path / "r.html", "--figures", tmp_path)
    assert outcome.code == 1
    ways = "pip install 'offbeat[plots]', or in a clone pip install -c constraints.txt -e '.[plots]'"
    assert outcome.err == f"offbeat: figures need matplotlib; install the extra plots: {ways}\n"


def test_mistakes_are_one_line(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ((tmp_path / "nowhere",), "is not a folder"),
        ((tmp_path,), "holds no run"),
        ((finished[0], "--format", "gif"), "--format gif: must be one of pdf, png"),
        ((finished[0], "--out", tmp_path / "file" / "r.html"), "name another file with --out"),
    ):
        outcome = offbeat("report", *arguments)
        assert outcome.code == 1
        assert words in outcome.err
        assert outcome.err.count("\n") == 1


def test_an_experiment_that_was_stopped_has_a_report(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished[0], tmp_path / "run"))
    (folder / "area-1" / "result.json").unlink()
    (folder / "summary.json").unlink()
    outcome = offbeat("report", folder)
    assert outcome.code == 0
    assert "area-1: not finished" in outcome.err
    assert embedded(folder / "report.html")["totals"] == [2, 2]


def test_experiments_with_different_data_do_not_share_a_plot(finished: tuple[Path, Outcome], tmp_path: Path) -> None:
    run(tmp_path, QUADRATIC)
    page = tmp_path / "r.html"
    assert offbeat("report", finished[0], tmp_path / "out", "--out", page).code == 0
    found = embedded(page)
    assert found["tasks"] == ["digits", "quadratic"]
    of = {(p["metric"], p["task"]) for p in found["progress"] if p["axis"] == "time"}
    assert of == {("accuracy", 0), ("loss", 0), ("loss", 1), ("gap", 1), ("distance", 1)}
