"""The frozen files: every cell is an experiment, every method has the same budget, a change is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offbeat.core.errors import FolderError, SettingError
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.overrides import read_table
from offbeat.suite import definition
from offbeat.suite.definition import BASELINE, CENTRALISED


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without data sets."""
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "none"))


@pytest.mark.parametrize("scale", ["full", "quick"])
@pytest.mark.usefixtures("bare")
def test_every_cell_is_an_experiment_that_parses_and_has_the_references(scale: Any) -> None:
    suite = definition.load("v1", scale)
    for cell in suite.cells:
        experiment = Experiment.parse(suite.table(cell))
        assert cell.endswith(CENTRALISED) or BASELINE in experiment.labels
    assert {f"{task}/{CENTRALISED}" for task in suite.tasks} <= set(suite.cells)


@pytest.mark.usefixtures("bare")
def test_what_is_missing_has_a_stand_in_or_is_left_out_and_both_are_said() -> None:
    suite = definition.load("v1")
    assert suite.tasks["mnist"].problem["data"] == "digits"
    assert "shakespeare" not in suite.tasks
    said = " ".join(suite.stand_ins)
    assert all(words in said for words in ("in place of MNIST", "in place of CIFAR-10", "shakespeare is left out"))
    assert "in place of phones" in said


@pytest.mark.usefixtures("bare")
def test_every_method_has_the_same_number_of_step_sizes_and_its_own_seeds() -> None:
    suite = definition.load("v1")
    for cell in suite.cells:
        counts = {len(values) for values in suite.tuned(cell)["tune"].values()}
        assert counts == {suite.protocol["budget"]}
        options, table = suite.options(cell, 1), suite.table(cell)
        judging = set(range(table["seed"], table["seed"] + table["trials"]))
        assert options.seed is not None
        assert not judging & set(range(options.seed, options.seed + options.seeds))


@pytest.mark.usefixtures("bare")
def test_it_says_how_many_runs_it_takes() -> None:
    tabular = definition.load("v1").only(["tabular/equal"])
    methods = sum(len(tabular.labels(cell)) for cell in tabular.cells)
    assert tabular.runs == methods * (2 * (7 + 3) + 5)  # two rungs on two seeds, then five that judge
    assert definition.load("v1", "quick").runs < definition.load("v1").runs / 10


def test_a_changed_file_is_not_the_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from importlib.resources import files

    place = tmp_path / "v1"
    place.mkdir()
    for name in (*definition.FILES, definition.DIGESTS):
        (place / name).write_bytes(files("offbeat.suite").joinpath("v1", name).read_bytes())
    with (place / "tasks.toml").open("a") as file:
        file.write("\n# easier\n")
    monkeypatch.setattr(definition, "files", lambda package: tmp_path)
    with pytest.raises(FolderError, match=r"tasks.toml differs from the frozen version"):
        definition.load("v1")
    assert set(json.loads((place / definition.DIGESTS).read_text())) == set(definition.FILES)


@pytest.mark.usefixtures("bare")
def test_clients_that_only_send_gradients_are_left_out_where_parameters_are_personal() -> None:
    suite = definition.load("v1")
    assert "ringmaster" in suite.labels("tabular/equal")
    assert "ringmaster" not in suite.labels("personal/equal")
    assert Experiment.parse(suite.table("personal/equal")).labels == suite.labels("personal/equal")


@pytest.mark.usefixtures("bare")
def test_all_client_driven_methods_take_part_unless_a_clock_would_give_them_steps_for_free() -> None:
    suite = definition.load("v1")
    everyone = Experiment.parse(read_table(Path(__file__).parents[2] / "experiments/contest.toml")).labels
    assert set(suite.methods) == set(everyone)
    assert set(suite.labels("tabular/equal")) == set(everyone) - {CENTRALISED}
    several = {"fedcompass", "async-comm-sgd", "favano", "quafl"}
    assert set(suite.labels("tabular/exponential")) == set(everyone) - {CENTRALISED} - several
    assert suite.table("tabular/equal")["algorithm"]["quafl"]["local"]["sgd"]["steps"] == 4


def test_a_slow_site_is_the_first_client() -> None:
    clock = definition.SuiteClock("c", "", {"constant": {"time": 1.0}}, slow=20.0)
    assert clock.table(3)["speeds"] == [20.0, 1.0, 1.0]


@pytest.mark.usefixtures("bare")
def test_only_some_cells_keep_the_reference_of_their_tasks() -> None:
    suite = definition.load("v1").only(["tabular/phones", "hospital"])
    assert "tabular/centralised" in suite.cells
    assert {cell for cell in suite.cells if "tabular" in cell and not cell.endswith(CENTRALISED)} == {
        "tabular/phones",
        "tabular/hospital",
    }
    with pytest.raises(SettingError, match="did you mean 'tabular'"):
        definition.load("v1").only(["tabulr"])


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("mine.py", "write the file and the class"),
        ("nowhere.py:Mine", "cannot read nowhere.py"),
        ("offbeat.core.errors:OffbeatError", "is not a class derived from offbeat.Server"),
    ],
)
def test_a_class_that_is_none_is_one_line(place: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        definition.own_method(place)


def test_a_server_that_wants_gradients_gets_them() -> None:
    assert definition.own_method("offbeat.algorithms:AsySG", {"lr": 0.1}).local == "gradient"
    assert definition.own_method("offbeat.algorithms:FedAsync").local == "sgd"


@pytest.mark.usefixtures("bare")
def test_a_result_depends_on_the_digests_of_its_own_tasks_alone() -> None:
    suite = definition.load("v1")
    ours = suite.only(["tabular"]).digests
    assert ours == suite.digests_of(["tabular"])
    assert set(ours) == {"tasks.toml, tabular", "clocks.toml", "methods.toml", "protocol.toml"}


def test_a_cell_is_spread_over_a_cluster_if_one_is_named() -> None:
    suite = definition.load("v1", "quick")
    cell = suite.cells[0]
    assert (suite.options(cell, None, "10.0.0.1:6379").ray, suite.options(cell, 2).ray) == ("10.0.0.1:6379", None)
