"""From tables of strings and numbers to frozen dataclasses, with an error that names the key.

`build(SGD, {"lr": 0.1}, "algorithm[0].local.sgd")` calls `SGD(lr=0.1)` after checking every key against the
dataclass's fields and every value against the field's annotation.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from offbeat.core.errors import SettingError, unknown

T = TypeVar("T")
Convert = Callable[[Any, str], Any]  # (value, where it stands) -> object

_SIMPLE = (bool, int, float, str)
_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a list",
    list: "a list",
    dict: "a table",
}


def build(kind: Callable[..., T], table: Any, where: str, convert: Mapping[str, Convert] | None = None) -> T:
    """An object of this dataclass from a table; `convert` makes the fields that are not plain values."""
    convert = convert or {}
    if not isinstance(table, Mapping):
        raise SettingError(f"{where} = {table!r}: expected a table of settings, such as {{ {_example(kind)} }}")
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init and f.metadata.get("setting", True)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in table.items():
        if name not in fields:
            raise unknown(f"key in {where}:", name, fields)
        place = f"{where}.{name}"
        values[name] = convert[name](value, place) if name in convert else plain(value, hints[name], place)
    missing = [
        n
        for n, f in fields.items()
        if n not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SettingError(f"{where} lacks {', '.join(repr(n) for n in missing)}; it takes {_example(kind)}")
    try:
        return kind(**values)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


def plain(value: Any, hint: Any, where: str) -> Any:
    """A number, string, flag, list or tuple of the annotated type, or an error that names the value."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option)
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option in _SIMPLE and type(value) is option:
            return value
        if origin is typing.Literal and value in typing.get_args(option):
            return value
        if origin is tuple and isinstance(value, list):
            return tuple(plain(v, typing.get_args(option)[0], f"{where}[{i}]") for i, v in enumerate(value))
        if origin in (list, dict) and isinstance(value, origin):
            return value
    if typing.get_origin(hint) is typing.Literal:
        raise SettingError(f"{where} = {value!r}: expected one of {', '.join(map(repr, typing.get_args(hint)))}")
    names = " or ".join(_WORDS.get(typing.get_origin(o) or o, "something else") for o in options if o is not type(None))
    raise SettingError(f"{where} = {value!r}: expected {names}")


def one(table: Any, where: str, known: typing.Iterable[str]) -> tuple[str, Any]:
    """The single (name, settings) of a table such as { sgd = { lr = 0.1 } }; a bare name has no settings."""
    known = list(known)
    if isinstance(table, str):
        table = {table: {}}
    if not isinstance(table, Mapping) or len(table) != 1:
        raise SettingError(f"{where} = {table!r}: expected exactly one of {', '.join(known)}, as in {{ name = … }}")
    name, settings = next(iter(table.items()))
    if name not in known:
        raise unknown(f"name in {where}:", name, known)
    return name, settings


def _example(kind: Any) -> str:
    return ", ".join(f.name for f in dataclasses.fields(kind) if f.init)
