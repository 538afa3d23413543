"""Reports go by any metric: its name, its direction, and per cent only for shares."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import DIGITS, QUADRATIC, run
from report.folders import embedded

from offbeat.core.metric import LOSS, Metric
from offbeat.report import write
from offbeat.report.content import gather
from offbeat.report.tables import cell, first, ladder, number
from offbeat.report.work import last_values

RMSE, R2 = Metric("rmse"), Metric("r2", higher=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("quadratic")
    assert run(place, QUADRATIC, "--set", "evaluate.targets=[5.0]").code == 0
    return place / "out"


def curve(**columns: list[float]) -> Any:
    return {name: np.array(values) for name, values in columns.items()}


def test_the_tasks_own_metric_comes_first_and_is_no_share(folder: Path) -> None:
    page = embedded(write(folder))
    assert (page["metrics"], page["shares"], page["own"]) == (["loss", "gap", "distance"], [], "loss")
    html = (folder / "report.html").read_text()
    assert "Time to loss" in html
    assert "Time to gap" in html
    assert ">5</th>" in html  # the target
    assert "500 %" not in html


def test_a_run_that_is_not_finished_says_what_its_metrics_are(folder: Path) -> None:
    for result in folder.glob("*/result.json"):
        result.unlink()
    assert [*gather([folder]).measured[0].values()] == [LOSS, Metric("gap"), Metric("distance")]


def test_values_worth_a_column_lie_between_the_start_and_the_best() -> None:
    falls = [curve(rmse=[9.0, 3.0, 0.6]), curve(rmse=[8.0, 2.0, 0.45])]
    assert ladder(falls, RMSE, [0.3]) == [5.0, 2.0, 1.0, 0.5, 0.3]  # the best last
    rises = [curve(r2=[-0.5, 0.3, 0.75])]
    assert ladder(rises, R2, []) == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert ladder([curve(loss=[1.0])], RMSE, [0.3]) == []


def test_a_value_is_reached_in_the_metrics_direction() -> None:
    history = curve(rmse=[3.0, 1.0, 2.0, 0.5], time=[0.0, 1.0, 2.0, 3.0])
    assert [first(history, RMSE, target, "time") for target in (5.0, 1.5, 0.6, 0.1)] == [0.0, 1.0, 3.0, None]
    assert cell([history, curve(rmse=[3.0], time=[0.0])], RMSE, 1.5, "time", number) == ("1", "by 1 of 2")


def test_the_worst_clients_come_first() -> None:
    table = curve(time=[1.0, 1.0, 1.0], value=[0.2, 0.9, 0.5])
    for metric, order in ((RMSE, [0.9, 0.5, 0.2]), (Metric("accuracy", True, True), [0.2, 0.5, 0.9])):
        band = last_values([table], metric)
        assert band is not None
        assert band.mean.tolist() == order


@pytest.mark.parametrize(("samples", "shown"), [("100", ["100"]), ('"all"', [])])
def test_the_page_says_how_many_training_samples_the_plotted_loss_is_measured_on(
    tmp_path: Path, samples: str, shown: list[str]
) -> None:
    assert run(tmp_path, DIGITS, "--set", f"evaluate.samples={samples}").code == 0
    page = write(tmp_path / "out").read_text()
    assert re.findall(r"measured on ([\d,]+) training samples, the same ones every time", page) == shown
    assert ("Metrics are measured on at most as many test samples." in page) == bool(shown)
