"""--set key.path=value."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from command import DIGITS, QUADRATIC, run, sets

from offbeat.core.errors import SettingError
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.overrides import override as override_all

TABLE = tomllib.loads(DIGITS)


def override_with(table: dict[str, Any], override: str) -> dict[str, Any]:
    return override_all(table, [override])


def after(override: str) -> dict[str, Any]:
    return override_with(TABLE, override)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("1e-3", 1e-3),
        ("true", True),
        ("mnist", "mnist"),
        ('"mnist"', "mnist"),
        ("[1, 2]", [1, 2]),
        ("{ classes = 2 }", {"classes": 2}),
        ("tests.models:factory", "tests.models:factory"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_a_value_is_read_as_toml_and_a_bare_word_is_a_string(text: str, value: object) -> None:
    assert after(f"problem.data={text}")["problem"]["data"] == value


@pytest.mark.parametrize(
    ("chosen", "expected"), [("0", [9, 2]), ("area", [9, 2]), ("fedbuff", [2, 9]), ("*", [9, 9]), ("1", [2, 9])]
)
def test_algorithms_are_chosen_by_number_by_name_or_all_at_once(chosen: str, expected: list[int]) -> None:
    start = override_with(TABLE, "algorithm.*.local.sgd.steps=2")
    made = override_with(start, f"algorithm.{chosen}.local.sgd.steps=9")
    assert [a["local"]["sgd"]["steps"] for a in made["algorithm"]] == expected


def test_algorithms_are_chosen_by_their_label_too() -> None:
    table = {"algorithm": [{"name": "area"}, {"name": "area", "label": "slow"}]}
    assert override_with(table, "algorithm.slow.size=3")["algorithm"] == [
        {"name": "area"},
        {"name": "area", "label": "slow", "size": 3},
    ]


def test_keys_that_are_not_there_yet_are_made_with_the_tables_around_them() -> None:
    assert after("timing.diurnal.period=5")["timing"]["diurnal"] == {"period": 5}
    assert after("seed=4")["seed"] == 4


def test_the_table_itself_is_left_alone() -> None:
    after("algorithm.*.local.sgd.lr=3")
    assert tomllib.loads(DIGITS) == TABLE


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("seed", "expected key.path=value"),
        ("=3", "expected key.path=value"),
        ("problem..l2=1", "expected key.path=value"),
        ("algorithm.scaffold.lr=1", "'scaffold' matches none of area, fedbuff"),
        ("algorithm.2.lr=1", "'2' matches none of area, fedbuff"),
        ("algorithm.0=1", "'0' is a whole table; name the key in it"),
        ("problem.clients.x=1", "'x' lies within 5, which is not a table"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(override: str, says: str) -> None:
    with pytest.raises(SettingError) as error:
        after(override)
    assert says in str(error.value)
    assert override.partition("=")[0] in str(error.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("clients=4", "clients = 4: expected a table; settings have a path: did you mean "),
        ("lr=0.1", "lr: unknown; settings have a path: did you mean "),
    ],
)
def test_a_key_without_its_path_is_refused_with_the_paths_that_end_with_it(override: str, says: str) -> None:
    paths = {"clients": "problem.clients", "lr": "algorithm.area.local.sgd.lr or algorithm.fedbuff.local.sgd.lr"}
    with pytest.raises(SettingError) as error:
        Experiment.parse(TABLE, override)
    assert str(error.value) == f"{says}{paths[override.partition('=')[0]]}?"


def test_overrides_reach_the_run_in_their_order(tmp_path: Path) -> None:
    words = sets("seed=1", "seed=5", "until.updates=12", "algorithm.*.local.sgd.lr=0.2", "algorithm.area.label=mine")
    outcome = run(tmp_path, QUADRATIC, "--json", *words)
    assert [(r["algorithm"], r["seed"], r["updates"]) for r in outcome.runs] == [("mine", 5, 12), ("fedasync", 5, 12)]


def test_a_mistyped_override_is_refused_like_a_mistyped_key(tmp_path: Path) -> None:
    outcome = run(tmp_path, DIGITS, *sets("problem.cleints=3"))
    assert outcome.code == 1
    assert outcome.err == "offbeat: problem.cleints: unknown; did you mean 'clients'?\n"
