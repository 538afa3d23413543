"""`offbeat run` from the file to the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from command import DIGITS, QUADRATIC, Outcome, ended, events, offbeat, run, sets, started
from safetensors import safe_open

from offbeat.experiment.experiment import load
from offbeat.experiment.session import Session

NUMBER = (int, float)
DOCUMENTED = {
    "algorithm": str,
    "seed": int,
    "time": NUMBER,
    "updates": int,
    "versions": int,
    "metrics": {"accuracy": NUMBER, "loss": NUMBER},
    "time_to": {"0.8": (*NUMBER, type(None))},
    "staleness": {"mean": NUMBER, "max": int},
    "wall_s": NUMBER,
    "updates_per_s": NUMBER,
    "notes": dict,
    "measures": dict,
}


def has_structure(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return list(value) == list(wanted) and all(has_structure(value[key], wanted[key]) for key in wanted)
    return isinstance(value, wanted)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A folder with a finished experiment of two algorithms and two seeds, and what --json printed about it."""
    folder = tmp_path_factory.mktemp("finished")
    outcome = run(folder, DIGITS, "--json", *sets("trials=2"))
    return folder / "out", outcome


def test_json_is_one_object_with_the_documented_structure(finished: tuple[Path, Outcome]) -> None:
    _, outcome = finished
    assert outcome.code == 0
    assert outcome.out.count("\n") == 1
    assert list(json.loads(outcome.out)) == ["runs"]
    assert [(r["algorithm"], r["seed"]) for r in outcome.runs] == [
        ("area", 0),
        ("fedbuff", 0),
        ("area", 1),
        ("fedbuff", 1),
    ]
    for result in outcome.runs:
        assert has_structure(result, DOCUMENTED), result


def test_the_numbers_fit_together(finished: tuple[Path, Outcome]) -> None:
    for result in finished[1].runs:
        assert result["time"] == 1.0
        assert 30 < result["updates"] < 75  # 5 clients at a rate of 10: 50 are expected
        assert result["versions"] == result["updates"] // {"area": 4, "fedbuff": 2}[result["algorithm"]]
        assert 0 <= result["staleness"]["mean"] <= result["staleness"]["max"]
        assert 0 < result["metrics"]["accuracy"] < 1
        assert result["updates_per_s"] == pytest.approx(result["updates"] / result["wall_s"])


def test_json_as_a_process_leaves_nothing_else_on_stdout_and_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(QUADRATIC)
    outcome = ended(started("run", tmp_path / "e.toml", "--out", tmp_path / "out", "--json"))
    assert outcome.code == 0
    assert [r["algorithm"] for r in outcome.runs] == ["area", "fedasync"]
    assert outcome.err.count("\n") == 2  # a line a run
    assert not any(ord(c) < 32 and c != "\n" for c in outcome.out + outcome.err)


def test_a_problem_without_accuracy_reports_the_metrics_it_has(tmp_path: Path) -> None:
    result = run(tmp_path, QUADRATIC, "--json").runs[0]
    assert list(result["metrics"]) == ["loss", "gap", "distance"]
    assert result["time_to"] == {}  # the loss has no usual target
    assert result["updates"] == 400


def test_the_folder_holds_what_was_asked_for_and_what_came_out(finished: tuple[Path, Outcome]) -> None:
    folder, _ = finished
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    each = (
        *("clients.parquet", "metrics.parquet", "underway.parquet", "events/part-00000.parquet"),
        *("model.safetensors", "result.json"),
    )
    runs = ("area-0", "area-1", "fedbuff-0", "fedbuff-1")
    top = ("experiment.json", "report.html", "report.md", "summary.json")
    assert made == {*top, *(f"{run}/{file}" for run in runs for file in each)}


def test_the_folder_names_the_versions_and_every_setting_with_its_default(finished: tuple[Path, Outcome]) -> None:
    saved = json.loads((finished[0] / "experiment.json").read_text())
    assert set(saved["versions"]) >= {"offbeat", "python", "platform", "torch", "numpy", "pyarrow"}
    assert saved["versions"]["torch"] == torch.__version__
    assert saved["experiment"]["trials"] == 2  # overrides included
    assert saved["resolved"]["experiment"]["executor"] == "'auto'"
    assert "weighted=False" in saved["resolved"]["tasks"][0]
    assert "clip=None" in saved["resolved"]["algorithm"]["area"]


def test_the_records_of_a_run_agree_with_each_other(finished: tuple[Path, Outcome]) -> None:
    folder, outcome = finished
    summary = json.loads((folder / "summary.json").read_text())["runs"]
    for printed, kept in zip(outcome.runs, summary, strict=True):
        place = folder / f"{printed['algorithm']}-{printed['seed']}"
        rows, metrics = events(place), pq.read_table(place / "metrics.parquet").to_pylist()
        assert kept == json.loads((place / "result.json").read_text())
        assert printed.items() <= kept.items()
        assert sum(row["event"] == "Arrived" for row in rows) == printed["updates"]
        assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
        assert max(row["staleness"] for row in rows) == printed["staleness"]["max"]
        assert rows[-1]["version"] == metrics[-1]["version"] == printed["versions"]
        assert [m["time"] for m in metrics] == [0.0, 0.5, 1.0]
        assert {name: metrics[-1][name] for name in ("accuracy", "loss")} == printed["metrics"]


def test_the_model_in_the_folder_has_the_reported_metrics(finished: tuple[Path, Outcome]) -> None:
    folder, outcome = finished
    experiment = load(folder.parent / "experiment.toml")
    problem = Session(experiment).problems(experiment.runs[0])[0]
    with safe_open(folder / "area-0" / "model.safetensors", framework="pt") as file:
        model, version = file.get_tensor("digits"), file.metadata()["version"]
    assert int(version) == outcome.runs[0]["versions"]
    assert problem.measure(model.unsqueeze(0))[0] == pytest.approx(outcome.runs[0]["metrics"])


def test_the_report_has_the_table_the_experiment_and_the_versions(finished: tuple[Path, Outcome]) -> None:
    text = (finished[0] / "report.md").read_text()
    assert "| algorithm | accuracy | loss | time to 80 % | updates | server steps | staleness |" in text
    assert '"clients": 5' in text
    assert f"- torch {torch.__version__}" in text


def test_without_json_it_prints_a_table_and_the_folder(tmp_path: Path) -> None:
    outcome = run(tmp_path, DIGITS)
    for word in ("algorithm", "accuracy", "loss", "to 80 %", "updates", "steps", "staleness", "area", "fedbuff"):
        assert word in outcome.out
    assert outcome.out.endswith(f"run folder: {tmp_path / 'out'}\n")
    assert "area, seed 0: accuracy 0." in outcome.err


def test_without_a_name_the_folder_carries_the_time_and_no_run_overwrites_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(QUADRATIC)
    for _ in range(2):
        assert offbeat("run", "e.toml", *sets("until.updates=5")).code == 0
    first, second = sorted(Path("runs").iterdir())
    assert first.name[:2] == second.name[:2] == "20"
    assert (second / "summary.json").exists()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    results = []
    for seed in (3, 3, 4):
        place = tmp_path / str(len(results))
        place.mkdir()
        (result, *_) = run(place, QUADRATIC, "--json", *sets(f"seed={seed}")).runs
        results.append((result["time"], result["metrics"]))
    assert results[0] == results[1] != results[2]


def test_two_entries_of_one_algorithm_get_labels_of_their_own(tmp_path: Path) -> None:
    text = QUADRATIC.replace('"fedasync"', '"area"') + '[[algorithm]]\nname = "area"\nlabel = "slow"\n'
    outcome = run(tmp_path, text + "size = 6\nlocal = { sgd = { lr = 0.01 } }\n", "--json")
    assert [r["algorithm"] for r in outcome.runs] == ["area", "area-2", "slow"]
    assert (tmp_path / "out" / "area-2-0" / "result.json").exists()
