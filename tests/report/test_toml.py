"""Experiments as TOML: what is written reads back as it was."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, strategies as st

from offbeat.report.toml import dumps

text = st.text(st.characters(exclude_categories=["Cs"]))
scalar = st.one_of(text, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False))
value = st.recursive(
    scalar, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(text, v, max_size=3)), max_leaves=8
)
table = st.dictionaries(
    text, st.one_of(value, st.lists(st.dictionaries(text, value, max_size=3), max_size=3)), max_size=5
)


@given(table)
def test_any_table_reads_back_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(dumps(table)) == table


def test_the_demonstration_reads_back_and_looks_like_its_file() -> None:
    source = files("offbeat.experiment").joinpath("demo.toml").read_text(encoding="utf-8")
    written = dumps(tomllib.loads(source))
    assert tomllib.loads(written) == tomllib.loads(source)
    assert "[problem]\n" in written
    assert written.count("[[algorithm]]\n") == source.count("[[algorithm]]\n")
    assert "until = { time = 12.0 }\n" in written


def test_what_toml_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="None cannot be written"):
        dumps({"until": {"time": None}})
