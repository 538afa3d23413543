"""Typed results: their JSON is that of the files, damage is named, and Python users get at history and model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from worlds import ACCURACY, MEASURED

from offbeat.core.errors import FolderError, SettingError
from offbeat.core.metric import LOSS, Metric
from offbeat.core.watcher import Measurement
from offbeat.watch.files import json_text, write_table
from offbeat.watch.record import metrics_table
from offbeat.watch.results import Result, TaskResult, finish, first_reached

EXAMPLES = Path(__file__).parent / "results"  # of real runs
RUN = json.loads((EXAMPLES / "run.json").read_text())


@pytest.mark.parametrize("name", ["run", "tasks", "failed", "real"])
def test_a_result_is_written_as_it_was_read(name: str) -> None:
    text = (EXAMPLES / f"{name}.json").read_text()
    assert json_text(Result.from_json(json.loads(text)).to_json(), indent=1) + "\n" == text


def test_the_runs_of_a_sweep_are_written_as_they_were_read() -> None:
    for line in (EXAMPLES / "runs.jsonl").read_text().splitlines():
        assert json_text(Result.from_json(json.loads(line)).to_json()) == line


def test_a_run_with_one_problem_has_one_task() -> None:
    result = Result.from_json(RUN)
    (task,) = result.tasks
    assert (task.metrics, task.updates, task.versions) == (result.metrics, result.updates, result.versions)
    assert "tasks" not in result.to_json()


def test_of_several_tasks_the_metrics_are_means() -> None:
    result = Result.from_json(json.loads((EXAMPLES / "tasks.json").read_text()))
    assert [task.name for task in result.tasks] == ["easy", "hard", "late"]
    assert result.overall["accuracy"] == pytest.approx(sum(t.metrics["accuracy"] for t in result.tasks) / 3)
    assert finish(result.tasks) == max(task.time or 0.0 for task in result.tasks)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["seed"], "0", "seed = '0': expected a whole number"),
        (["updates"], True, "updates = True: expected a whole number"),
        (["metrics"], 3, "metrics = 3: expected a table"),
        (["metrics", "loss"], "x", "metrics.loss = 'x': expected a number"),
        (["measures", "concurrency", "windows"], {}, "measures.concurrency.windows = {}: expected a list"),
        (["measures", "bytes"], {"down": 1}, "measures.bytes.up is missing"),
        (["measures", "wires"], [{"down": 1.5, "up": 1, "jobs": 1}], "wires[0].down = 1.5: expected a whole number"),
        (["tasks"], {"a": {}}, "tasks.a.time is missing"),
        (["curve"], [[0, 1.0]], "curve[0] = [0, 1.0]: expected task, time, updates, version, metrics"),
        (["time"], None, "time is missing"),
    ],
)
def test_what_is_wrong_is_named(path: list[str], value: Any, says: str) -> None:
    table = at = copy.deepcopy(RUN)
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(FolderError) as error:
        Result.from_json(table)
    assert says in str(error.value)


def test_a_number_that_json_does_not_have_is_null_there_and_nan_here() -> None:
    result = Result.from_json({**RUN, "metrics": {"loss": None}})
    assert result.metrics["loss"] != result.metrics["loss"]
    assert json.loads(json_text(result.to_json()))["metrics"] == {"loss": None}


def recorded(folder: Path, *measurements: Measurement) -> Result:
    write_table(metrics_table(measurements), folder / "metrics.parquet")
    return Result.from_json(RUN, folder)


def test_history_is_read_from_the_folder(tmp_path: Path) -> None:
    points = [Measurement(0, 1.0, 10, 5, {"accuracy": 0.5, "loss": 2.0}), Measurement(0, 2.0, 20, 9, {"accuracy": 0.8})]
    assert recorded(tmp_path, *points).history == tuple(points)
    assert Result.from_json(RUN).history == ()


def test_the_time_to_a_value_of_any_metric(tmp_path: Path) -> None:
    values = [(1.0, 0.5, 2.0), (2.0, 0.8, 1.0), (3.0, 0.7, 1.5), (4.0, 0.9, 0.5)]
    result = recorded(tmp_path, *(Measurement(0, t, 0, 0, {"accuracy": a, "loss": b}) for t, a, b in values))
    assert [result.time_to("accuracy", target) for target in (0.8, 0.85, 0.95)] == [2.0, 4.0, None]
    assert [result.time_to("loss", target) for target in (1.0, 0.7, 0.1)] == [2.0, 4.0, None]
    with pytest.raises(SettingError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        result.time_to("acuracy", 0.8)


def test_of_several_tasks_the_last_counts() -> None:
    two = tuple(TaskResult(name, None, "", 0, 0, 0.0, {}, measured=MEASURED) for name in "ab")
    curve = tuple(Measurement(task, time, 0, 0, {"accuracy": time / 10}) for time in (1.0, 2.0) for task in (0, 1))
    late = (*curve, Measurement(1, 3.0, 0, 0, {"accuracy": 0.3}))
    assert Result("fedast", 0, tasks=two, curve=late).time_to("accuracy", 0.2) == 2.0
    assert Result("fedast", 0, tasks=two, curve=late).time_to("accuracy", 0.3) is None


def test_tasks_without_the_metric_do_not_count() -> None:
    measured = {"a": (ACCURACY, LOSS), "b": (Metric("rmse"), LOSS)}
    two = tuple(TaskResult(name, None, "", 0, 0, 0.0, {}, measured=each) for name, each in measured.items())
    curve = [Measurement(0, 1.0, 0, 0, {"accuracy": 0.5}), Measurement(1, 2.0, 0, 0, {"rmse": 0.5})]
    result = Result("fedast", 0, tasks=two, curve=tuple(curve))
    assert (result.time_to("accuracy", 0.5), result.time_to("rmse", 0.6), result.own) == (1.0, 2.0, ACCURACY)
    assert result.metric("rmse") == Metric("rmse")


def test_what_is_not_a_number_reaches_nothing() -> None:
    assert first_reached([float("nan"), 0.4, 0.6], ACCURACY, 0.5) == 2
    assert first_reached([float("nan"), 0.6], LOSS, 0.5) is None


def test_the_model_is_read_from_the_folder(tmp_path: Path) -> None:
    save_file({"digits": torch.arange(3.0)}, tmp_path / "model.safetensors")
    assert Result.from_json(RUN, tmp_path).model.tolist() == [0.0, 1.0, 2.0]
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(FolderError, match=r"model.safetensors is damaged"):
        _ = Result.from_json(RUN, tmp_path).model
    with pytest.raises(FolderError, match="its model was not saved"):
        _ = Result.from_json(RUN).model


def test_a_result_is_shown_in_a_line_and_as_a_small_table() -> None:
    result = Result.from_json(RUN)
    assert repr(result) == "<Result area, seed 0: accuracy 0.9268, loss 0.7685 after 1,288 updates>"
    assert repr(Result("area", 3, error="exploded")) == "<Result area, seed 3: failed>"
    assert "<th>accuracy</th><td>0.9268</td>" in result._repr_html_()
    assert "<script>" not in Result("<script>", 0, error="<script>")._repr_html_()
