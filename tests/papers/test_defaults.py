"""Defaults of algorithms/, local/ and theory/ are what they were: who changes one changes other people's results.

After a change that is meant, `PYTHONPATH=src python tests/papers/test_defaults.py` writes the list anew.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import offbeat
from offbeat.core.state import State

LIST = Path(__file__).parent.parent / "transcripts" / "defaults.txt"
PLAIN = (bool, int, float, str, tuple, type(None))


def modules() -> Iterator[Any]:
    for folder in ("algorithms", "local", "theory"):
        for path in sorted((Path(offbeat.__file__).parent / folder).glob("*.py")):
            if path.stem != "__init__":
                yield importlib.import_module(f"offbeat.{folder}.{path.stem}")


def members(module: Any) -> Iterator[tuple[str, Any]]:
    """What a module defines itself, classes and functions."""
    yield from ((n, v) for n, v in sorted(vars(module).items()) if getattr(v, "__module__", "") == module.__name__)


def lines() -> Iterator[str]:
    for module in modules():
        short = module.__name__.removeprefix("offbeat.")
        for name, value in members(module):
            if isinstance(value, type):
                yield from (f"{short}.{name}.{line}" for line in of_class(value))
            elif inspect.isfunction(value):
                yield from (f"{short}.{name}({line})" for line in of_function(value))


def of_class(kind: type) -> Iterator[str]:
    own = vars(kind)
    named = own.get("__annotations__", {})
    for name in named:
        if name in own and isinstance(own[name], PLAIN):
            yield f"{name} = {own[name]!r}"
    if is_dataclass(kind):
        shown = {f.name: f.metadata.get("setting", True) for f in fields(kind) if f.name in named}
        yield from (f"{name}: no setting" for name, setting in shown.items() if not setting)
        yield from (f"{f.name}: by keyword" for f in fields(kind) if f.name in named and f.kw_only)
        made = {f.name: f.default_factory for f in fields(kind) if f.default_factory is not MISSING}
        yield from (f"{name} = {make()!r}" for name, make in made.items() if name in named)
    for name, value in own.items():
        if inspect.isfunction(value) and not name.startswith("__"):
            yield from (f"{name}({line})" for line in of_function(value))


def of_function(function: Any) -> Iterator[str]:
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            yield f"{name} = {parameter.default!r}"


def test_no_default_has_changed() -> None:
    now = set(lines())
    assert [line for line in LIST.read_text(encoding="utf-8").splitlines() if line not in now] == []


def test_settings_are_frozen_and_only_states_are_not() -> None:
    """A hyper-parameter that could be changed in a run would be state that no checkpoint has."""
    kinds = [value for module in modules() for _, value in members(module) if is_dataclass(value)]
    assert len(kinds) > 100
    for kind in kinds:
        assert kind.__dataclass_params__.frozen != issubclass(kind, State), kind  # type: ignore[union-attr]


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
