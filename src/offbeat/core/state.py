"""State that can be written down: JSON for the shape, tensors beside it, no code.

`State` subclasses are plain mutable dataclasses. `dump` turns a tree of them (and of dicts, lists, tuples, numbers,
strings and tensors) into JSON-ready data plus a table of tensors; `load` turns it back. A tensor that several places
share is stored once and is shared again afterwards. `load` only ever builds `State` classes that the program has
already defined, by name, so a file cannot make it run anything.

>>> from dataclasses import dataclass
>>> @dataclass
... class Counter(State):
...     count: int
>>> tensors = Tensors()
>>> load(dump(Counter(3), tensors), tensors.table)
Counter(count=3)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, ClassVar, TypeVar

import torch

from offbeat.core.errors import FolderError
from offbeat.core.vectors import materialise

T = TypeVar("T")


class State:
    """Base of everything an algorithm remembers between events; subclass it with `@dataclass`."""

    kinds: ClassVar[dict[str, type[State]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        State.kinds[_name(cls)] = cls


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


class Tensors:
    """A table of tensors in which each distinct tensor has one name."""

    def __init__(self) -> None:
        self.table: dict[str, torch.Tensor] = {}
        self._names: dict[Any, str] = {}

    def name(self, vector: Any) -> str:
        base = getattr(vector, "base", None)  # of lazy ones, several may be multiples of one
        which = id(vector) if isinstance(vector, torch.Tensor) else (id(vector if base is None else base), vector.scale)
        name = self._names.get(which)
        if name is None:
            name = self._names[which] = f"t{len(self.table)}"
            self.table[name] = materialise(vector)
        return name


_ATOMS = {type(None), bool, int, str}
_shapes: dict[type, tuple[str, list[str]]] = {}  # state -> (its name, its fields' names)


def _shape(kind: type) -> tuple[str, list[str]]:
    if kind not in _shapes:
        _shapes[kind] = _name(kind), [f.name for f in dataclasses.fields(kind)]
    return _shapes[kind]


def dump(value: Any, tensors: Tensors) -> Any:
    """JSON-ready data for a tree of states, with its tensors put into the table."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:  # most of what is large is one of these: they take the short way
        return [v if type(v) in _ATOMS else dump(v, tensors) for v in value]
    if kind is dict:
        return {"$map": [[dump(k, tensors), dump(v, tensors)] for k, v in value.items()]}
    if isinstance(value, State):
        name, names = _shape(kind)
        fields = {f: v if type(v := getattr(value, f)) in _ATOMS else dump(v, tensors) for f in names}
        return {"$state": name, "fields": fields}
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else {"$float": str(value)}
    if isinstance(value, torch.Tensor) or hasattr(value, "tensor"):
        return {"$tensor": tensors.name(value)}
    if isinstance(value, tuple):
        return {"$tuple": [v if type(v) in _ATOMS else dump(v, tensors) for v in value]}
    if isinstance(value, list):
        return [dump(v, tensors) for v in value]
    if isinstance(value, Mapping):  # as pairs: keys may be integers
        return {"$map": [[dump(k, tensors), dump(v, tensors)] for k, v in value.items()]}
    raise TypeError(
        f"{type(value).__name__} cannot be saved: state is made of State dataclasses, mappings, lists, tuples, "
        f"numbers, strings and tensors"
    )


def exchange(value: Any, vector: Callable[[Any], Any], seen: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """The same tree with every vector in it replaced, a shared one by one and the same; states change in place."""
    seen = {} if seen is None else seen  # id -> (old, new): the old one is kept, so that its id stays its own
    if isinstance(value, torch.Tensor) or hasattr(value, "tensor"):
        if id(value) not in seen:
            seen[id(value)] = value, vector(value)
        return seen[id(value)][1]
    if isinstance(value, State):
        for f in dataclasses.fields(value):  # type: ignore[arg-type]
            setattr(value, f.name, exchange(getattr(value, f.name), vector, seen))
        return value
    if isinstance(value, dict):
        return {k: exchange(v, vector, seen) for k, v in value.items()}
    if isinstance(value, list):
        return [exchange(v, vector, seen) for v in value]
    if type(value) is tuple:
        return tuple(exchange(v, vector, seen) for v in value)
    return value


def copied(value: T) -> T:
    """The same tree again: states, mappings and lists are new ones, the vectors in them, which nobody changes, are not.

    >>> first = [1, {"a": [2]}]
    >>> copied(first) == first, copied(first)[1] is first[1]
    (True, False)
    """
    kind: Any = type(value)
    found: Any = value
    if kind is dict:
        found = {key: each if type(each) in _SHARED else copied(each) for key, each in found.items()}
    elif kind is list:
        found = [each if type(each) in _SHARED else copied(each) for each in found]
    elif issubclass(kind, dict):
        found = copy(found)
        found.update((key, copied(each)) for key, each in found.items())
    elif issubclass(kind, list):
        found = copy(found)
        found[:] = [copied(each) for each in found]
    elif issubclass(kind, tuple) and any(type(each) not in _SHARED for each in found):
        new = [copied(each) for each in found]
        found = kind(*new) if hasattr(kind, "_fields") else tuple(new)
    elif issubclass(kind, State) and not kind.__dataclass_params__.frozen:
        found = object.__new__(kind)
        for f in dataclasses.fields(kind):
            each = getattr(value, f.name)
            setattr(found, f.name, each if type(each) in _SHARED else copied(each))
    result: T = found
    return result


_SHARED = frozenset((type(None), bool, int, float, str, torch.Tensor))


def load(data: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value that `dump` was given."""
    if isinstance(data, list):
        return [load(v, tensors) for v in data]
    if not isinstance(data, dict):
        return data
    if "$tensor" in data:
        return tensors[data["$tensor"]]
    if "$float" in data:
        return float(data["$float"])
    if "$tuple" in data:
        return tuple(load(v, tensors) for v in data["$tuple"])
    if "$map" in data:
        return {load(k, tensors): load(v, tensors) for k, v in data["$map"]}
    kind = State.kinds.get(data.get("$state", ""))
    if kind is None:
        raise FolderError(
            f"saved state of unknown kind {data.get('$state')!r}: import the module that defines it before resuming"
        )
    return kind(**{name: load(v, tensors) for name, v in data["fields"].items()})
