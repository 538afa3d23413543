"""Writing TOML: an experiment laid out as a person would, exact when read back."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


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
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
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


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(value)
    return text if "." in text or "e" in text else text + ".0"


def _string(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(c, c if _printable(c) else f"\\U{ord(c):08X}") for c in text) + '"'


def _printable(c: str) -> bool:
    return ord(c) >= 0x20 and ord(c) != 0x7F
