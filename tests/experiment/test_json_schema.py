"""`offbeat schema`: editors accept every right file with it, and mark what the reader refuses."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command import offbeat
from jsonschema import Draft4Validator

from offbeat.experiment.experiment import json_schema
from offbeat.experiment.overrides import override, read_table
from offbeat.papers import load, names

ROOT = Path(__file__).parents[2]
DEMO = read_table(None)


@pytest.fixture(scope="module")
def schema() -> Draft4Validator:
    printed: dict[str, Any] = json.loads(offbeat("schema").out)
    assert printed == json_schema()
    Draft4Validator.check_schema(printed)
    return Draft4Validator(printed)


def test_every_experiment_of_the_repository_is_accepted(schema: Draft4Validator) -> None:
    tables = [table for name in names() for table in load(name, "full").experiment.values()]
    tables += [tomllib.loads(path.read_text()) for path in ROOT.glob("experiments/*.toml")]
    for table in [*tables, DEMO]:
        assert [error.message for error in schema.iter_errors(table)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        *("untl=3", "until.rmse=low", "seed=x", "executor=fast", "until=3", "problem.client=3", "problem.weighted=1"),
        *("timing.exponental=1", "problem.split.dirichlt=2", "algorithm.area.sise=3", "algorithm.fedbuff.lr=fast"),
        *("algorithm.area.local.sgd.stps=2", "algorithm.fedavg.local.sgd.batch=8.5"),
    ],
)
def test_what_the_reader_refuses_is_marked(schema: Draft4Validator, wrong: str) -> None:
    assert list(schema.iter_errors(override(DEMO, [wrong])))


def test_any_metric_may_end_a_run(schema: Draft4Validator) -> None:
    assert [error.message for error in schema.iter_errors(override(DEMO, ["until.rmse=0.5"]))] == []


def test_the_users_own_names_are_accepted(schema: Draft4Validator) -> None:
    own = {"name": "mylab.smooth:Smooth", "keep": 0.5, "local": {"mylab.smooth:Normalised": {"lr": 0.01}}}
    table = {**DEMO, "algorithm": {"mine": own}, "timing": {"mylab.delays:Shifts": {"times": [1.0]}}}
    assert [error.message for error in schema.iter_errors(table)] == []
    table = override(DEMO, {"problem.model": {"name": "mine:net", "width": 4}})
    assert [error.message for error in schema.iter_errors(table)] == []


def test_a_setting_s_text_ends_where_that_of_the_next_attribute_begins(schema: Draft4Validator) -> None:
    until = schema.schema["definitions"]["offbeat.core.until.Until"]["properties"]
    assert until["iterations"]["description"].endswith("may end one past the number.")
    assert re.findall(r"\. [a-z_]+: [^\"]*", json.dumps(schema.schema)) == []


def test_every_setting_has_its_text(schema: Draft4Validator) -> None:
    texts = schema.schema["properties"]
    assert [name for name, key in texts.items() if not key.get("description")] == []
