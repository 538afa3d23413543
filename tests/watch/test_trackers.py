"""TensorBoard and Weights & Biases: what they are given is what the run folder holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from command import DIGITS, events, offbeat, run, sets
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from offbeat.core.watcher import Measurement
from offbeat.watch.trackers import EVERY, TensorBoard, WandB


def scalars(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def test_tensorboard_reads_back_every_measurement_and_the_staleness(tmp_path: Path) -> None:
    outcome = run(tmp_path, DIGITS, "--tensorboard", tmp_path / "board", *sets("until.time=8.0", "trials=2"))
    assert outcome.code == 0, outcome.err
    for name in ("area-0", "area-1", "fedbuff-0", "fedbuff-1"):
        board = scalars(tmp_path / "board" / "out" / name)
        kept = pq.read_table(tmp_path / "out" / name / "metrics.parquet").to_pylist()
        for metric in ("accuracy", "loss"):
            seen = [(e.wall_time, e.step, e.value) for e in board.Scalars(metric)]
            assert seen == [(row["time"], row["updates"], pytest.approx(row[metric])) for row in kept]
        stale = [e["staleness"] for e in events(tmp_path / "out" / name) if e["event"] == "Arrived"]
        means = [e.value for e in board.Scalars("staleness/mean")]
        assert means == [
            pytest.approx(sum(stale[at : at + EVERY]) / EVERY) for at in range(0, EVERY * len(means), EVERY)
        ]
        assert [e.step for e in board.Scalars("staleness/max")] == [EVERY * (at + 1) for at in range(len(means))]
        assert len(means) == len(stale) // EVERY > 0


def test_the_file_can_name_it_too_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    text = f'trackers = {{ tensorboard = "{tmp_path / "board"}" }}\n' + DIGITS
    assert run(tmp_path, text).code == 0
    (tmp_path / "out" / "area-0" / "result.json").unlink()
    assert offbeat("resume", tmp_path / "out").code == 0
    assert (tmp_path / "board" / "out" / "fedbuff-0").is_dir()
    assert len(list((tmp_path / "board" / "out" / "area-0").iterdir())) == 2


def test_several_tasks_have_their_names_in_front(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, ["small", "large"])
    board.measured(Measurement(1, 0.5, 3, 1, {"accuracy": 0.25}))
    board.close()
    assert scalars(tmp_path).Tags()["scalars"] == ["large/accuracy"]


@pytest.mark.parametrize(
    ("option", "module", "words"),
    [
        ("--tensorboard", "tensorboard.summary.writer.event_file_writer", "TensorBoard is not installed"),
        ("--wandb", "wandb", "Weights & Biases is not installed"),
        ("--mlflow", "mlflow", "MLflow is not installed"),
    ],
)
def test_without_the_package_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, module: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    outcome = run(tmp_path, DIGITS, option, "there")
    assert outcome.code == 1
    assert f"{words}; install the extra {option[2:]}: pip install 'offbeat[{option[2:]}]', or in a clone" in outcome.err
    assert not (tmp_path / "out").exists()


class Project:
    """Weights & Biases as its manual describes it; any other call fails."""

    def __init__(self) -> None:
        self.opened: dict[str, Any] = {}
        self.points: list[dict[str, float]] = []
        self.axes: dict[str, str] = {}
        self.best: dict[str, str] = {}
        self.done = False

    def init(self, *, project: str, name: str, group: str | None, config: dict[str, Any], dir: str | None) -> Project:
        self.opened = {"project": project, "name": name, "group": group, "config": json.loads(json.dumps(config))}
        return self

    def define_metric(self, name: str, *, step_metric: str, summary: str = "last") -> None:
        self.axes[name] = step_metric
        self.best[name] = summary

    def log(self, numbers: dict[str, float]) -> None:
        assert not self.done
        self.points.append(dict(numbers))

    def finish(self) -> None:
        assert not self.done
        self.done = True


def test_weights_and_biases_gets_every_measurement_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Project] = []

    def init(**settings: Any) -> Project:
        made.append(Project().init(**settings))
        return made[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    assert run(tmp_path, DIGITS, "--wandb", "mine", *sets("until.time=8.0")).code == 0
    assert [project.opened["name"] for project in made] == ["area, seed 0", "fedbuff, seed 0"]
    assert made[0].opened["project"] == "mine"
    assert made[0].opened["config"]["problem"]["clients"] == 5
    assert all(project.done and set(project.axes.values()) == {"time"} for project in made)
    assert all(project.best == {"*": "last", "accuracy": "max", "loss": "min"} for project in made)
    kept = pq.read_table(tmp_path / "out" / "area-0" / "metrics.parquet").select(
        ["time", "updates", "accuracy", "loss"]
    )
    assert [p for p in made[0].points if "accuracy" in p] == kept.to_pylist()
    assert next(p["updates"] for p in made[0].points if "staleness/mean" in p) == EVERY


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed", exc_type=ImportError)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    board = WandB("mine", "area, seed 0", folder=tmp_path)
    board.measured(Measurement(0, 0.5, 3, 1, {"accuracy": 0.25}))
    board.close()
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert kept.stat().st_size > 0


def test_mlflow_reads_back_every_measurement_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    outcome = run(tmp_path, DIGITS, "--mlflow", "mine")
    assert outcome.code == 0, outcome.err
    client = mlflow.MlflowClient((tmp_path / "store").as_uri())
    found = {r.info.run_name: r for r in client.search_runs([client.get_experiment_by_name("mine").experiment_id])}
    assert sorted(found) == ["area, seed 0", "fedbuff, seed 0"]
    kept = pq.read_table(tmp_path / "out" / "area-0" / "metrics.parquet").to_pylist()
    area = found["area, seed 0"]
    seen = [(m.step, m.value) for m in client.get_metric_history(area.info.run_id, "accuracy")]
    assert seen == [(row["updates"], pytest.approx(row["accuracy"])) for row in kept]
    assert (area.info.status, area.data.params["problem.data"]) == ("FINISHED", "digits")
    assert area.data.tags["offbeat.group"] == "out"


def test_where_mlflow_cannot_log_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    outcome = run(tmp_path, DIGITS, "--mlflow", "mine")
    assert outcome.code == 1
    assert "MLflow cannot log to MLFLOW_TRACKING_URI" in outcome.err
    assert "Traceback" not in outcome.err
