"""Experiment files as plain tables: read, and changed at a path of keys."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from offbeat.core.errors import SettingError

# {"until.time": 2.0}, or the same as pairs, or "until.time=2.0" as on the command line
Overrides = Mapping[str, Any] | Iterable[str | tuple[str, Any]]


def read_table(path: Path | None, overrides: Overrides = ()) -> dict[str, Any]:
    """A file (None: the embedded demonstration) as plain data, overridden."""
    if path is None:
        text, name = files("offbeat.experiment").joinpath("demo.toml").read_text("utf-8"), "the embedded experiment"
    else:
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise SettingError(f"cannot read {name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingError(f"{name} is not a text file in UTF-8") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{name} is not TOML: {error}") from None
    return override(table, overrides)


def override(table: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """The table with values put in at paths of keys."""
    result = copy.deepcopy(dict(table))
    overrides = [overrides] if isinstance(overrides, str) else overrides
    for each in overrides.items() if isinstance(overrides, Mapping) else overrides:
        path, value = parse(each) if isinstance(each, str) else each
        put(result, path, plain(copy.deepcopy(value)), f"{path} = {value!r}")
    return result


def parse(text: str, option: str = "--set", example: str = "problem.clients=64") -> tuple[str, Any]:
    """(path, value) of `key.path=value`; the value is TOML, and a bare word is a string.

    option, example: for errors, where the text was given and what it might be.
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not all(split_path(path)):
        raise SettingError(f"{option} {text!r}: expected key.path=value, such as {example}")
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path, value.strip()
    except (ValueError, RecursionError):
        raise SettingError(f"{path}: the value is too long or too deeply nested") from None


def split_path(path: str) -> list[str]:
    """The keys of a path; one that has dots of its own stands in quotes.

    >>> split_path('algorithm.mine.local."mylab.smooth:Normalised".lr')
    ['algorithm', 'mine', 'local', 'mylab.smooth:Normalised', 'lr']
    """
    found = re.split(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)', path)  # at dots that are not within quotes
    return [key.strip().strip('"') for key in found]


def join_path(keys: Iterable[str]) -> str:
    """The path of these keys."""
    return ".".join(f'"{key}"' if "." in key else key for key in keys)


def plain(value: Any) -> Any:
    """The value without NumPy's types; tuples and ranges are lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(map(plain, value)) if isinstance(value, list | tuple | range) else value


def put(table: dict[str, Any], path: str, value: Any, said: str) -> None:
    """Put a value into a table in place. In [[algorithm]] and [[task]], a key is an index, a label or a name, and `*`
    means all of them.

    said: the setting as the user wrote it, for errors.
    """
    _put(table, split_path(path), value, said, top=True)


def differing(one: Any, other: Any, before: Sequence[str] = ()) -> Iterator[str]:
    """The paths of the keys in which two tables differ.

    >>> list(differing({"until": {"time": 1.0}, "seed": 0}, {"until": {"time": 2.0}}))
    ['until.time', 'seed']
    """
    if isinstance(one, list) and isinstance(other, list):
        one, other = ({str(at): each for at, each in enumerate(listed)} for listed in (one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            if (key in one) != (key in other):
                yield join_path([*before, key])
            else:
                yield from differing(one[key], other[key], [*before, key])
    elif one != other:
        yield join_path(before)


def ending(node: Any, key: str, before: Sequence[str] = ()) -> Iterator[str]:
    """The paths within a table that end with this key."""
    listed = enumerate(node) if isinstance(node, list) else ()
    inner = node.items() if isinstance(node, Mapping) else ((label(each) or str(at), each) for at, each in listed)
    for name, value in inner:
        if name == key and before:
            yield join_path([*before, name])
        yield from ending(value, key, [*before, name])


def label(table: Any) -> str:
    """What an algorithm or a task of a list calls itself."""
    return str(table.get("label", table.get("name", ""))) if isinstance(table, Mapping) else ""


def _put(node: Any, path: Sequence[str], value: Any, said: str, top: bool = False, tables: bool = False) -> None:
    """top: the node is the whole table.   tables: the node is the table of algorithms or of tasks, by label."""
    head, rest = path[0], path[1:]
    if isinstance(node, list):
        chosen = [each for at, each in enumerate(node) if head in ("*", str(at), label(each))]
        known = [label(each) for each in node]
    elif not isinstance(node, dict):
        raise SettingError(f"{said}: {head!r} lies within {node!r}, which is not a table")
    elif tables and rest and (chosen := [t for key, t in node.items() if head in ("*", key, label(t) or key)]):
        known = list(node)
    elif not rest:
        node[head] = value
        return
    else:
        _put(node.setdefault(head, {}), rest, value, said, tables=top and head in ("algorithm", "task"))
        return
    if not rest:
        raise SettingError(f"{said}: {head!r} is a whole table; name the key in it, as in {head}.lr=0.1")
    if not chosen:
        raise SettingError(f"{said}: {head!r} matches none of {', '.join(known)}")
    for each in chosen:
        _put(each, rest, value, said)
