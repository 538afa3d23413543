"""Writing TOML: an experiment laid out as a person would, exact when read back."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """The table as TOML, such that `tomllib.loads(dumps(table)) == table`.

    Tables at the top get a section of their own and lists of them one each; what lies deeper is written in a line.

    >>> print(dumps({"seed": 0, "problem": {"split": {"dirichlet": 0.1}}, "algorithm": [{"name": "area"}]}))
    seed = 0
    <BLANKLINE>
    [problem]
    split = { dirichlet = 0.1 }
    <BLANKLINE>
    [[algorithm]]
    name = "area"
    <BLANKLINE>
    """
    top = {name: value for name, value in table.items() if not _is_section(name, value)}
    parts = [_lines(top)] if top else []
    for name, value in table.items():
        if name in top:
            continue
        if isinstance(value, Mapping):
            parts.append(f"[{_key(name)}]\n" + _lines(value))
        else:
            parts += [f"[[{_key(name)}]]\n" + _lines(each) for each in value]
    return "\n".join(parts)


def _is_section(name: str, value: Any) -> bool:
    """Short tables such as `until` stay on one line."""
    if isinstance(value, Mapping):
        return name not in ("until", "evaluate")
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in table.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    raise TypeError(f"{value!r} cannot be written in TOML")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
