"""The results of an experiment and of a sweep, for Python users."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import DIGITS, TASKS
from matplotlib.pyplot import close

import offbeat as ob
from offbeat.core.errors import FolderError, SettingError
from offbeat.experiment.results import Results
from offbeat.report import write
from offbeat.report.curves import curves


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of two algorithms under two seeds."""
    experiment = ob.Experiment.parse({**tomllib.loads(DIGITS), "trials": 2})
    return experiment.run(tmp_path_factory.mktemp("results") / "out", progress=False)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of a sweep over two step sizes."""
    experiment = ob.Experiment.parse(tomllib.loads(DIGITS))
    folder = tmp_path_factory.mktemp("grid") / "out"
    return experiment.sweep({"algorithm.*.local.sgd.lr": [0.1, 0.5]}, folder, workers=1, progress=False)


def test_results_are_a_sequence(results: Results) -> None:
    assert len(results) == 4
    assert [(r.algorithm, r.seed) for r in results] == [("area", 0), ("fedbuff", 0), ("area", 1), ("fedbuff", 1)]
    assert isinstance(results[1:], Results)
    assert (len(results[1:]), results[-1] in results) == (3, True)


def test_a_result_has_its_history_and_its_model(results: Results) -> None:
    last = results[0].history[-1]
    assert last.metrics == results[0].metrics
    assert results[0].time_to("accuracy", last.metrics["accuracy"]) is not None
    assert results[0].time_to("accuracy", 1.1) is None
    assert results[0].model.shape == (640,)


def test_a_folder_that_is_opened_again_has_the_same_results(results: Results, grid: Results) -> None:
    for found in (results, grid):
        again = ob.open(found.folder)
        assert list(again) == list(found)
        assert [r.history for r in again] == [r.history for r in found]


def test_frames_have_a_row_a_run_and_a_row_an_evaluation(results: Results) -> None:
    frame, history = results.frame(), results.history()
    assert list(frame["seed"]) == [0, 0, 1, 1]
    assert list(frame["accuracy"]) == [r.metrics["accuracy"] for r in results]
    assert list(frame["updates"]) == [r.updates for r in results]
    assert len(history) == sum(len(r.history) for r in results)
    area = history[(history.algorithm == "area") & (history.seed == 1)]
    assert list(area["loss"]) == [
        m.metrics["loss"] for m in next(r for r in results if r.name == "area, seed 1").history
    ]


def test_frames_of_a_sweep_have_its_settings(grid: Results) -> None:
    assert sorted(set(grid.frame()["algorithm.*.local.sgd.lr"])) == [0.1, 0.5]
    assert set(grid.history()["algorithm.*.local.sgd.lr"]) == {0.1, 0.5}


def test_frames_of_several_tasks_have_their_names(tmp_path: Path) -> None:
    found = ob.Experiment.parse(tomllib.loads(TASKS)).run(tmp_path / "out", progress=False)
    assert {"a.accuracy", "b.accuracy"} <= set(found.frame().columns)
    assert set(found.history()["task"]) == {"a", "b"}


def test_without_pandas_a_frame_says_what_to_install(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for make in (results.frame, results.history):
        with pytest.raises(SettingError, match="install the extra frames: pip install"):
            make()


def test_the_best_setting_by_any_metric(results: Results, grid: Results) -> None:
    for found in (results, grid):
        by_accuracy, by_loss = found.best("accuracy"), found.best("loss")
        assert by_accuracy.mean == max(each.mean or 0.0 for each in found.ranked("accuracy"))
        assert by_loss.mean == min(each.mean or 9.9 for each in found.ranked("loss"))
    assert grid.best("accuracy").settings == {"algorithm.*.local.sgd.lr": 0.5}
    with pytest.raises(SettingError, match="no run has a metric 'acuracy'; there are accuracy, loss"):
        results.best("acuracy")


def test_a_metric_that_is_not_a_number_is_never_the_best(grid: Results) -> None:
    broken = replace(grid[0], metrics={"loss": float("nan")}, tasks=())
    found = Results([broken, *grid[1:]], grid.folder)
    assert found.ranked("loss")[-1].mean is None


def test_the_time_to_an_accuracy_that_was_never_measured_ranks_nothing(grid: Results) -> None:
    blind = [replace(r, curve=tuple(m._replace(metrics={"gap": 1.0}) for m in r.history)) for r in grid]
    assert [each.mean for each in Results(blind, grid.folder).ranked("time:0.8")] == [None] * 4


def test_the_report_is_written_where_it_is_wanted(results: Results, tmp_path: Path) -> None:
    assert results.report(tmp_path / "page.html") == tmp_path / "page.html"
    assert "fedbuff" in (tmp_path / "page.html").read_text()
    with pytest.raises(FolderError, match=r"is a folder; name a file to write, or compare folders as a list"):
        write(results.folder, tmp_path)


def test_several_folders_are_opened_one_by_one(results: Results) -> None:
    with pytest.raises(FolderError, match="open takes one folder; to compare several, open each of them"):
        ob.open([results.folder, results.folder])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("against", "field", "title"),
    [("time", "time", "virtual time"), ("updates", "updates", "updates"), ("versions", "version", "versions")],
)
def test_a_plot_has_a_line_an_algorithm_with_the_mean_of_its_seeds(
    results: Results, against: str, field: str, title: str
) -> None:
    ax = results[:2].plot("loss", against=against)
    assert (ax.get_xlabel(), ax.get_ylabel()) == (title, "loss")
    for line, result in zip(ax.lines, results, strict=False):
        last = result.history[-1]
        assert (line.get_label(), line.get_xydata()[-1].tolist()) == (
            result.algorithm,
            [getattr(last, field), last.metrics["loss"]],
        )
    mean = results.plot("loss", ax=ax)  # over two seeds, in the same axes
    assert mean is ax
    ends = [r.history[-1].metrics["loss"] for r in results if r.algorithm == "area"]
    assert ax.lines[2].get_ydata()[-1] == pytest.approx(sum(ends) / 2)
    assert [line.get_label() for line in ax.lines] == ["area", "fedbuff", "area, out", "fedbuff, out"]
    assert len({line.get_color() for line in ax.lines}) == 4
    close(ax.figure)


def test_a_plot_of_a_sweep_or_of_several_tasks_names_each_line(grid: Results, tmp_path: Path) -> None:
    ax = grid.plot()
    assert [line.get_label() for line in ax.lines][:2] == ["area, lr = 0.1", "area, lr = 0.5"]
    assert ax.get_ylabel() == "accuracy"
    close(ax.figure)
    tasks = ob.Experiment.parse(tomllib.loads(TASKS)).run(tmp_path / "out", progress=False)
    assert {label.rpartition(", ")[2] for label in curves(tasks).bands} == {"a", "b"}


def test_what_cannot_be_plotted_is_said(grid: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        grid.plot("acuracy")
    with pytest.raises(SettingError, match="unknown axis 'epochs'; known: time, updates, versions"):
        grid.plot(against="epochs")
    with pytest.raises(SettingError, match="no run has an evaluation"):
        Results([], grid.folder).plot()
    broken = replace(grid[0], curve=tuple(m._replace(metrics={"loss": float("nan")}) for m in grid[0].history))
    with pytest.raises(SettingError, match="loss was never a finite number"):
        Results([broken], grid.folder).plot("loss")
    many = Results([replace(grid[0], algorithm=str(at)) for at in range(25)], grid.folder)
    with pytest.raises(SettingError, match="25 lines are more than the 24 that can be distinguished"):
        many.plot()
    assert "<svg" not in many._repr_html_() + Results([broken], grid.folder)._repr_html_()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(SettingError, match="a plot needs matplotlib; install the extra plots"):
        grid.plot()


def test_in_a_notebook_a_small_plot_stands_below_the_table(grid: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # not needed
    named = [replace(r, algorithm=f"<{r.algorithm}>") for r in grid]
    image = ElementTree.fromstring(re.search("<svg.*</svg>", Results(named, grid.folder)._repr_html_())[0])
    lines = [p for p in image.iter("{http://www.w3.org/2000/svg}path") if p.get("fill") == "none"]
    texts = [t.text for t in image.iter("{http://www.w3.org/2000/svg}text")]
    assert len(lines) == 2 * 4  # a line and its key
    assert {"virtual time", "accuracy", "<area>, lr = 0.1"} <= set(texts)


def test_results_are_shown_briefly(results: Results) -> None:
    assert repr(results).splitlines()[0] == f"Results of 4 runs in {results.folder}"
    assert max(map(len, repr(results).splitlines()[1:])) < 100
    assert results._repr_html_().count("<tr>") == 5
