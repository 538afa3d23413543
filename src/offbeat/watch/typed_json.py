"""Frozen dataclasses as JSON and back, checked against their types; an error names the place and what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from math import nan
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from offbeat.core.errors import FolderError

T = TypeVar("T")


def json_key(of: Any) -> str:
    """The name of a dataclass field in JSON."""
    return str(of.metadata.get("key", of.name))


def to_plain(value: Any) -> Any:
    """As JSON has it: tables and lists."""
    if is_dataclass(value):
        return {json_key(f): to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(each) for name, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, tuple | list) else value


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def read_object(kind: type[T], value: Any, where: str, **known: Any) -> T:
    """A table as this dataclass, every field checked.   known: fields that are not in the table."""
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    table, front = read_as(Mapping[str, Any], value, where), f"{where}." if where else ""
    found = dict(known)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in known:
            continue
        if json_key(each) in table:
            found[each.name] = read_as(hints[each.name], table[json_key(each)], front + json_key(each))
        elif each.default is MISSING and each.default_factory is MISSING:
            raise FolderError(f"{front}{json_key(each)} is missing")
    return kind(**found)


def _tuple(kind: Any, value: Any, where: str) -> Any:
    """A named tuple, which is a list in JSON."""
    needed = [name for name in kind._fields if name not in kind._field_defaults]
    items = read_as(tuple[Any, ...], value, where)
    if not len(needed) <= len(items) <= len(kind._fields):
        raise _wrong(value, where, ", ".join(needed))
    return kind(*(read_as(hint, each, where) for hint, each in zip(_hints(kind).values(), items, strict=False)))


_EXPECTED: Mapping[Any, tuple[Any, str]] = {
    float: (int | float, "a number"),
    int: (int, "a whole number"),
    str: (str, "text"),
    bool: (bool, "true or false"),
    tuple: (list | tuple, "a list"),
    Sequence: (list | tuple, "a list"),
    Mapping: (dict, "a table"),
}


def read_as(hint: Any, value: Any, where: str) -> Any:
    """What JSON holds as a type, checked. A number that JSON does not have is null there, and nan here."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or (hint is float and value is None):
        return value if hint is Any else nan
    if is_dataclass(hint):
        return read_object(hint, value, where)  # type: ignore[arg-type]
    if hasattr(hint, "_fields"):
        return _tuple(hint, value, where)
    if origin is UnionType:
        return None if value is None else read_as(inner[0], value, where)
    accepted, words = _EXPECTED[origin or hint]
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(value, where, words)
    if origin is Mapping:
        return {str(name): read_as(inner[1], each, f"{where}.{name}") for name, each in value.items()}
    if origin is None:
        return value
    items = (read_as(inner[0], each, f"{where}[{at}]") for at, each in enumerate(value))
    return tuple(items) if origin is tuple else list(items)


def _wrong(value: Any, where: str, expected: str) -> FolderError:
    text = repr(value)
    return FolderError(f"{where or 'it'} = {text if len(text) <= 40 else text[:39] + '…'}: expected {expected}")
