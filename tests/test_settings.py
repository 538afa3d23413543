"""Every class that an experiment file can name explains itself: one sentence, and a text for each of its settings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest

import offbeat.algorithms
import offbeat.local
import offbeat.timing
from offbeat.data import splits

HOMES = (offbeat.algorithms, offbeat.local, offbeat.timing, splits)
KINDS = sorted(
    {k for home in HOMES for k in vars(home).values() if isinstance(k, type) and dataclasses.is_dataclass(k)},
    key=lambda kind: (kind.__module__, kind.__name__),
)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def texts(kind: type) -> dict[str, str]:
    """`name: text` of a docstring's lines at its own margin, with those that go on indented; bases' texts first."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        lines = inspect.cleandoc(base.__dict__.get("__doc__") or "").replace("\n    ", " ").splitlines()
        found |= {m[1]: m[2] for line in lines if (m := re.fullmatch(r"(\w+): (.+)", line))}
    return found


def settings(kind: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if f.metadata.get("setting", True)]


@EVERY_KIND
def test_every_setting_has_a_text_in_the_docstring_of_its_class(kind: type) -> None:
    said = texts(kind)
    assert [name for name in settings(kind) if name not in said] == []
    assert all(said[name].endswith((".", "}", "…")) and len(said[name]) > 8 for name in settings(kind))


@EVERY_KIND
def test_no_line_of_a_docstring_explains_what_is_not_a_field(kind: type) -> None:
    own = inspect.cleandoc(kind.__doc__ or "")
    named = set(re.findall(r"^(\w+): ", own, flags=re.MULTILINE))
    assert named <= {f.name for f in dataclasses.fields(kind)}
    assert "   " not in own.replace("\n    ", "\n")  # one field a line


@EVERY_KIND
def test_its_docstring_begins_with_one_sentence_on_one_line(kind: type) -> None:
    first = inspect.cleandoc(kind.__doc__ or "").splitlines()[0]
    assert first.endswith(".")
    assert 10 < len(first) <= 120
