"""A class is its own schema: tables of plain values become frozen dataclasses by their fields, types and docstrings.

The rules, before the code:

1. Keys are the fields' names; `per-client` is `per_client`. A field with `metadata={"setting": False}` is no key.
2. A field whose type has named members (`names.py`) takes one of them: `"iid"`, `{ sgd = { lr = 1 } }`,
   `{ name = "sgd", lr = 1 }`; or a class of the user's own, `{ "package.module:Class" = { … } }`.
3. What stands behind a member's name goes to its fields: a table to all of them, a plain value to the first, a list to
   the first few, names of the user's own to a first field that is a mapping. Keys beside the name are further fields:
   `{ dirichlet = 0.1, per_client = 300 }`.
4. The members of a field with `metadata={"flat": True}` stand in the table itself: `[timing] exponential = { … }`.
5. A bool is no whole number, a whole number is a number, nan is none. `__post_init__` decides the rest, and the path is
   put before its error.
6. A field with `metadata={"read": …, "schema": …}` is read and described by these functions.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import lru_cache
from typing import Any, TypeVar

from offbeat.core import names
from offbeat.core.errors import SettingError, nearest

_WORDS: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """One key of a table. required: whether it must be given.   text: what it means.

    flat: rule 4.   reader, schema: for a field that reads its value in a way of its own, and its JSON Schema.
    """

    name: str
    hint: Any
    required: bool
    text: str
    flat: bool = False
    reader: Callable[[Any, str], Any] | None = None
    schema: Callable[[dict[str, Any]], dict[str, Any]] | None = None


# Reading


def read(hint: Any, value: Any, where: str) -> Any:
    """The value as the annotated type, or an error that names its place, the value and what was expected."""
    options = _options(hint)
    for option in options:
        if _fits(option, value, len(options) == 1):
            return _read(option, value, where)  # chosen by shape alone: an error inside it is the one to show
    known = [word for option in options if (word := _word(option))]
    raise SettingError(f"{where} = {shown(value)}: expected {' or '.join(dict.fromkeys(known))}")


def build(kind: Callable[..., Any], table: Any, where: str) -> Any:
    """An object of this class from a table of its settings."""
    values = arguments(kind, table, where)
    try:
        return kind(**values)
    except SettingError as error:
        raise within(error, where, [*(setting.name for setting in settings(kind)), *values]) from None


def within(error: SettingError, where: str, known: Iterable[str]) -> SettingError:
    """The error with a path before it, which that of the setting it is about continues. known: settings there."""
    first = re.split(r"[ .\[:]", str(error), maxsplit=1)[0]
    return SettingError(join(where, str(error)) if first in known or not where else f"{where}: {error}")


def arguments(make: Callable[..., Any], table: Any, where: str) -> dict[str, Any]:
    """The settings in a table as what this class, or anything else that is callable, takes for arguments."""
    known = {setting.name: setting for setting in settings(make)}
    if not isinstance(table, Mapping):
        raise SettingError(f"{where} = {shown(table)}: expected a table with {', '.join(known) or 'nothing in it'}")
    values: dict[str, Any] = {}
    said: dict[str, str] = {}  # by which key
    for key, value in table.items():
        if key not in known and (hint := _further(make)) is not None:
            name, found = key, read(hint, value, join(where, key))
        else:
            name, found = _place(known, key, value, where)
        if name in values:
            raise SettingError(f"{where or 'experiment'} has {said[name]} and {key}, which both give {name}; keep one")
        values[name], said[name] = found, key
    for name, setting in known.items():
        if setting.required and name not in values:
            text = f"; {name}: {setting.text}" if setting.text else ""
            raise SettingError(f"{where or 'experiment'}: {name} missing{text}")
    return values


def member(base: Any, value: Any, where: str) -> Any:
    """The member of a base that a value names, with its settings."""
    return chosen(base, value, where, build)[2]


def chosen(base: Any, value: Any, where: str, make: Callable[[Any, Any, str], T]) -> tuple[str, str, T]:
    """(name of the member that a value names, path of its settings, what is made of it, its settings and their path).

    Errors name a setting as it was written: a value that stands behind the name has no name of its own.
    """
    name, inner, others = choose(base, value, where)
    kind = names.find(base, name, where)
    place = where if isinstance(value, Mapping) and name not in value else f"{where}.{name}"
    table = behind_name(kind, inner, others, place)
    try:
        return name, place, make(kind, table, place)
    except SettingError as error:
        first = next((key for key, each in table.items() if each is inner), None)
        if first is None:
            raise
        raise SettingError(re.sub(rf"^{re.escape(place)}\.{re.escape(first)}\b", lambda _: place, str(error))) from None


def choose(base: Any, value: Any, where: str) -> tuple[str, Any, dict[str, Any]]:
    """(name, what stands behind it, the keys beside it) of a value that names a member of a base."""
    if isinstance(value, str):
        return value, {}, {}
    known = names.members(base)
    found = [key for key in value if key in known or names.imported(key)]
    if "name" in value and not found:
        return read(str, value["name"], f"{where}.name"), {}, {k: v for k, v in value.items() if k != "name"}
    if len(found) > 1:
        raise SettingError(f"{where} has {' and '.join(found)}; keep one")
    if not value:
        raise SettingError(f"{where} = {{}}: expected one of {', '.join(known)}")
    if not found:
        raise SettingError(f"{where}.{next(iter(value))}: unknown; {nearest(next(iter(value)), known)}")
    return found[0], value[found[0]], {key: v for key, v in value.items() if key != found[0]}


def behind_name(kind: Callable[..., Any], inner: Any, others: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The table that a member is made from (rule 3)."""
    fields = settings(kind)
    first = fields[0] if fields else None
    free = first is not None and any(_mapping(option) for option in _options(first.hint))
    if isinstance(inner, Mapping) and not (free and first is not None and first.name not in inner):
        given = dict(inner)
    elif inner is True and not (first is not None and bool in _options(first.hint)):
        given = {}
    elif first is None:
        raise SettingError(f"{where} = {shown(inner)}: it takes no settings")
    elif isinstance(inner, list) and not any(_listed(option) for option in _options(first.hint)):
        if len(inner) > len(fields):
            raise SettingError(f"{where} = {shown(inner)}: expected {', '.join(f.name for f in fields)}")
        given = {field.name: each for field, each in zip(fields, inner, strict=False)}
    else:
        given = {first.name: inner}
    for key in others:
        if key in given:
            raise SettingError(f"{where}: {key} is given twice; keep one")
    return {**given, **others}


def _place(known: Mapping[str, Setting], key: str, value: Any, where: str) -> tuple[str, Any]:
    """(field, its value) for one key of a table."""
    name = key.replace("-", "_")
    if name in known:
        reader = known[name].reader
        place = join(where, key)
        return name, read(known[name].hint, value, place) if reader is None else reader(value, place)
    for setting in known.values():
        for base in _options(setting.hint) if setting.flat else ():
            if key in names.members(base) or (names.imported(key) and names.belongs(base, key, where)):
                return setting.name, member(base, {key: value}, where)
    flat = [name for s in known.values() if s.flat for base in _options(s.hint) for name in names.members(base)]
    raise SettingError(f"{join(where, key)}: unknown; {nearest(key, [*flat, *known])}")


def _fits(option: Any, value: Any, sole: bool) -> bool:
    """sole: there is no other option that a name which is no member's could be meant for."""
    if option is Any:
        return True
    if option is float:
        return (type(value) is float and not math.isnan(value)) or (type(value) is int and abs(value) < 2**1000)
    if option in _WORDS:
        return type(value) is option
    if typing.get_origin(option) is typing.Literal:
        return any(value == each and type(value) is type(each) for each in typing.get_args(option))
    if _listed(option):
        return isinstance(value, list | tuple)
    known = names.members(option)
    named = isinstance(value, str) and bool(known) and (sole or value in known or names.imported(value))
    return isinstance(value, Mapping) or named


def _read(option: Any, value: Any, where: str) -> Any:
    if option is float:
        return float(value)
    if option is Any or option in _WORDS or typing.get_origin(option) is typing.Literal:
        return value
    if _listed(option):
        return _list(typing.get_args(option), value, where)
    if names.members(option):
        return member(option, value, where)
    if _mapping(option):
        _, each = typing.get_args(option)
        return {str(key): read(each, v, f"{where}.{key}") for key, v in value.items()}
    return build(option, value, where)


def _list(kinds: tuple[Any, ...], value: Sequence[Any], where: str) -> tuple[Any, ...]:
    """kinds: of tuple[X, ...], or of tuple[X, Y]."""
    if (len(kinds) == 2 and kinds[1] is Ellipsis) or len(kinds) == 1:
        return tuple(read(kinds[0], each, f"{where}[{at}]") for at, each in enumerate(value))
    if len(kinds) != len(value):
        raise SettingError(f"{where} = {shown(value)}: expected a list of {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(read(kind, each, f"{where}[{at}]") for at, (kind, each) in pairs)


def _listed(option: Any) -> bool:
    return typing.get_origin(option) in (tuple, list, Sequence)


def _mapping(option: Any) -> bool:
    return typing.get_origin(option) in (dict, Mapping)


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, None left out; generic classes without their parameters: Flow[Any] is Flow."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = [option for option in (typing.get_args(hint) if union else (hint,)) if option is not type(None)]
    bases = [origin if isinstance(origin := typing.get_origin(o), type) else None for o in options]
    return tuple(base if names.members(base) else option for option, base in zip(options, bases, strict=True))


def _word(option: Any) -> str:
    if option in _WORDS:
        return _WORDS[option]
    if typing.get_origin(option) is typing.Literal:
        values = [json.dumps(each) for each in typing.get_args(option)]
        return " or ".join(values) if len(values) < 3 else f"one of {', '.join(values)}"
    if _listed(option):
        return "a list"
    if members := names.members(option):
        return f"one of {', '.join(members)}"
    return "a table"


def join(where: str, key: str) -> str:
    """The path of a key in a table."""
    return f"{where}.{key}" if where else key


def shown(value: Any) -> str:
    """A value as it would stand in a file, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 100 else text[:99] + "…"


# What a class declares


def _settings(kind: Any) -> tuple[Setting, ...]:
    """The settings of a dataclass, or of anything callable by its parameters; those given by keyword alone last."""
    kind = getattr(kind, "makes", kind)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return tuple(_parameters(kind))
    hints = typing.get_type_hints(kind)
    found = [f for f in dataclasses.fields(kind) if f.init and f.metadata.get("setting", True)]
    texts = _texts(kind, [f.name for f in found])
    return tuple(
        Setting(
            f.name,
            hints[f.name],
            f.default is MISSING and f.default_factory is MISSING,
            texts.get(f.name, ""),
            bool(f.metadata.get("flat")),
            f.metadata.get("read"),
            f.metadata.get("schema"),
        )
        for f in sorted(found, key=lambda f: bool(f.kw_only))
    )


settings: Callable[[Any], tuple[Setting, ...]] = lru_cache(maxsize=1024)(_settings)


def _parameters(make: Callable[..., Any]) -> Iterator[Setting]:
    """Those of a factory, but `shape` and `classes`, which it is given."""
    try:
        parameters = inspect.signature(make).parameters.values()
        hints = _parameter_hints(make)
    except (TypeError, ValueError, NameError):  # some callables written in C have no signature
        return
    for p in parameters:
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in ("shape", "classes"):
            yield Setting(p.name, hints.get(p.name, Any), p.default is p.empty, "")


def _further(make: Callable[..., Any]) -> Any:
    """The type of what a class or factory takes under any other keyword; None: it takes nothing more."""
    try:
        rest = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.VAR_KEYWORD]
        hints = _parameter_hints(make) if rest else {}
    except (TypeError, ValueError, NameError):
        return Any
    return hints.get(rest[0], Any) if rest else None


def _parameter_hints(make: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(vars(make).get("__init__", make) if isinstance(make, type) else make)


def line(kind: Any) -> str:
    """What a member is, in a line: the first sentence of its docstring, or its own `line`."""
    if isinstance(own := getattr(kind, "line", None), str) and own:
        return own
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    found = re.match(r"(.+?)(?:(?<!\bal)(?<!\beq)\.(?=\s+[A-Z]|$)|$)", text)
    return found[1] if found else ""


def _texts(kind: Any, fields: Sequence[str]) -> dict[str, str]:
    """What docstrings say of fields, `name: text` each; a class inherits the texts of its bases.

    The text of a field ends where that of another attribute begins, also of one that is no setting.
    """
    found: dict[str, str] = {}
    if not fields:
        return found
    name = "|".join({*fields, *(name for base in kind.__mro__ for name in vars(base).get("__annotations__", ()))})
    start = re.compile(rf"(?:^|(?<=\n)|(?<=\s\s\s))\s*((?:{name})(?:, (?:{name}))*): ")
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        marks = list(start.finditer(text))
        for mark, after in itertools.zip_longest(marks, marks[1:]):
            said = text[mark.end() : after.start() if after else None].split("\n\n")[0]
            found |= dict.fromkeys(mark[1].split(", "), " ".join(said.split()))
    return found


# JSON Schema, for editors

_TABLE = {"type": "object", "additionalProperties": False}
_OWN: dict[str, Any] = {"patternProperties": {".:.": {}}}  # classes of the user's own


def json_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema (draft 4) of a type; classes go to `definitions`, by name."""
    options = [_json_option(option, definitions) for option in _options(hint)]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _json_option(option: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if option is Any:
        return {}
    if option in _WORDS:
        return {"type": {bool: "boolean", int: "integer", float: "number", str: "string"}[option]}
    if typing.get_origin(option) is typing.Literal:
        return {"enum": list(typing.get_args(option))}
    if _listed(option):
        return {"type": "array", "items": json_schema(typing.get_args(option)[0], definitions)}
    if names.members(option):
        return one_of(option, definitions)
    if _mapping(option):
        return {"type": "object", "additionalProperties": json_schema(typing.get_args(option)[1], definitions)}
    return reference(option, definitions)


def one_of(base: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """A name, or a table with the name of a member and its settings in or beside it."""
    key, members = f"one-{base.__name__}", names.loaded(base)
    if key not in definitions:
        definitions[key] = {}
        properties: dict[str, Any] = {"name": {"type": "string"}}
        for kind in members.values():
            for setting in settings(kind):
                made = json_schema(setting.hint, definitions)
                known = properties.setdefault(setting.name, made)
                properties[setting.name] = known if known == made else {"anyOf": [known, made]}
        properties |= {name: _json_behind(kind, definitions) for name, kind in members.items()}
        own = {"type": "object", "properties": {"name": {"type": "string", "pattern": ".:."}}, "required": ["name"]}
        definitions[key] = {"anyOf": [{"type": "string"}, {**_TABLE, "properties": properties, **_OWN}, own]}
    return {"$ref": f"#/definitions/{key}"}


def _json_behind(kind: Callable[..., Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """What may stand behind a member's name: its table, or the value of its first field, or true."""
    fields = settings(kind)
    options = [
        reference(kind, definitions),
        *(_json_option(o, definitions) for f in fields[:1] for o in _options(f.hint)),
    ]
    if len(fields) > 1:
        options.append({"type": "array"})
    if not any(f.required for f in fields):
        options.append({"enum": [True]})
    return {"description": line(kind), "anyOf": options}


def reference(kind: Callable[..., Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The table of a class."""
    key = f"{kind.__module__}.{getattr(kind, '__qualname__', repr(kind))}"
    if key not in definitions:
        definitions[key] = {}  # it may be within itself
        table = table_schema(settings(kind), definitions, line(kind))
        further = _further(kind) if dataclasses.is_dataclass(kind) else None
        definitions[key] = table if further is None else {**table, "additionalProperties": json_schema(further, {})}
    return {"$ref": f"#/definitions/{key}"}


def table_schema(fields: Sequence[Setting], definitions: dict[str, Any], about: str = "") -> dict[str, Any]:
    """The table with these settings."""
    properties: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for field in fields:
        described = {"description": field.text} if field.text else {}
        if field.flat:
            for base in _options(field.hint):
                properties |= {name: _json_behind(kind, definitions) for name, kind in names.loaded(base).items()}
            own = _OWN
        made = json_schema(field.hint, definitions) if field.schema is None else field.schema(definitions)
        properties[field.name] = {**made, **described}
    table: dict[str, Any] = {**_TABLE, "properties": properties, **own}
    if about:
        table["description"] = about
    required = [field.name for field in fields if field.required]
    return {**table, "required": required} if required else table
