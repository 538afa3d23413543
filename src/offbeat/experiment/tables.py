"""The tables of algorithms and of tasks in an experiment file: read, checked and described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core import names
from offbeat.core.errors import SettingError, nearest
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.experiment import catalogue, schema
from offbeat.experiment.describe import Task, describe_problem, read_problem
from offbeat.experiment.overrides import label


@dataclass(frozen=True)
class AlgorithmTable:
    """An [algorithm.LABEL] table. pooled: trained on everybody's data as one client."""

    name: str
    server: Server[Any]
    local: Local | None
    needs: type[Local] | None = None
    pooled: bool = False


def read_algorithms(value: Any, where: str) -> dict[str, AlgorithmTable]:
    """[algorithm.LABEL] tables, or [[algorithm]] ones with a name and perhaps a label."""
    if not isinstance(value, list | Mapping) or not value:
        raise SettingError("the experiment needs at least one [algorithm.LABEL] or [[algorithm]] table")
    return {name: _algorithm(name, table, f"{where}.{name}") for name, table in algorithm_tables(value).items()}


def algorithm_tables(value: Any) -> dict[str, Any]:
    """The tables by label."""
    if not isinstance(value, Mapping):
        return dict(zip(_labels(value), value, strict=True))
    own = [(label(table) if isinstance(table, Mapping) and "label" in table else key) for key, table in value.items()]
    named = ({"name": key, **table} if isinstance(table, Mapping) else table for key, table in value.items())
    _check_unique(own)
    return dict(zip(own, named, strict=True))


def is_label(text: str) -> bool:
    """Whether this may name an algorithm, and a folder."""
    return bool(text.strip(".")) and len(text) <= 100 and all(c.isalnum() or c in "-_.+" for c in text)


def _algorithm(label: str, table: Any, where: str) -> AlgorithmTable:
    if not isinstance(table, Mapping):
        raise SettingError(f"{where} = {schema.shown(table)}: expected a table with the settings of an algorithm")
    if not is_label(label):
        raise SettingError(f"label = {label!r}: it names a folder; use letters, digits and - _ . + only")
    known = names.members(Server)
    name = table.get("name", label)
    if label not in known and table.get("name", label) == label and not names.imported(label):
        raise SettingError(f"{where}: there is no algorithm {label!r}; {nearest(label, known)}")
    found = names.find(Server, schema.read(str, name, f"{where}.name"), f"{where}.name")
    recipe = found if isinstance(found, catalogue.Recipe) else catalogue.Recipe(found)
    if not (isinstance(recipe.server, type) and issubclass(recipe.server, Server)):
        raise SettingError(f"{where}.name: {name} is not a class derived from offbeat.Server")
    own = {key: value for key, value in table.items() if key not in ("name", "label", "local")}
    server = schema.build(recipe.server, {**recipe.preset, **own}, where)
    local = schema.read(Local, table["local"], f"{where}.local") if "local" in table else None
    if local is not None and recipe.local is not None and type(local) is not recipe.local:
        wanted = next(n for n, kind in names.members(Local).items() if kind is recipe.local)
        raise SettingError(f"{where}.local = {schema.shown(table['local'])}: {name} needs {{ {wanted} = {{ … }} }}")
    return AlgorithmTable(str(name), server, local, recipe.local, recipe.pooled)


def _check_unique(labels: Sequence[str]) -> None:
    for name in labels:
        if labels.count(name) > 1:
            raise SettingError(f"two algorithms have the label {name!r}: use another for one of them")


def _labels(tables: Sequence[Any]) -> list[str]:
    """A label for each algorithm of a list: its own, or its name, with a number where two would be the same."""
    labels: list[str] = []
    for at, table in enumerate(tables):
        wanted = label(table)
        _check_unique([*(label(t) for t in tables[:at] if isinstance(t, Mapping) and "label" in t), wanted])
        if not wanted:
            raise SettingError(f"algorithm[{at}]: name missing; name: one of {', '.join(names.members(Server))}")
        found, count = wanted, 2
        while found in labels:
            found, count = f"{wanted}-{count}", count + 1
        labels.append(found)
    return labels


def describe_algorithms(definitions: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema: [algorithm.LABEL] tables, those named after an algorithm with its own keys; or a list of tables."""
    local = schema.json_schema(Local, definitions)
    common = {"name": {"type": "string"}, "label": {"type": "string"}, "local": local}
    tables: dict[str, Any] = {}
    for name, found in names.loaded(Server).items():
        recipe = found if isinstance(found, catalogue.Recipe) else catalogue.Recipe(found)
        made = schema.table_schema(schema.settings(recipe.server), definitions, schema.line(recipe))
        tables[name] = {**made, "properties": {**common, **made["properties"]}}
    every = {key: value for table in tables.values() for key, value in table["properties"].items()}
    definitions["algorithm"] = {"type": "object", "properties": {**every, **common}}
    other = {"$ref": "#/definitions/algorithm"}
    return {
        "anyOf": [
            {"type": "object", "properties": tables, "additionalProperties": other},
            {"type": "array", "items": other},
        ]
    }


def read_tasks(value: Any, where: str) -> dict[str, Any]:
    """[task.NAME] tables, or [[task]] ones with a name."""
    if not isinstance(value, list | Mapping) or not value:
        raise SettingError("the experiment needs at least one [task.NAME] or [[task]] table")
    if isinstance(value, Mapping):
        return {name: {"name": name, **table} if isinstance(table, Mapping) else table for name, table in value.items()}
    found: dict[str, Any] = {}
    for at, table in enumerate(value):
        name = table.get("name") if isinstance(table, Mapping) else None
        if not isinstance(name, str) or not name:
            raise SettingError(f'{where}[{at}]: name missing; give each task its own, such as name = "mnist"')
        if name in found:
            raise SettingError(f"two tasks are called {name!r}: rename one")
        found[name] = table
    return found


def describe_tasks(definitions: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema: a problem's keys and a task's in one table."""
    task = schema.table_schema(schema.settings(Task), definitions)
    problem = describe_problem(definitions)
    definitions["task"] = {**problem, "properties": {**problem["properties"], **task["properties"]}}
    each = {"$ref": "#/definitions/task"}
    return {"anyOf": [{"type": "object", "additionalProperties": each}, {"type": "array", "items": each}]}


def read_task(name: str, table: Any, clients: int) -> Task:
    """One of the tasks, for so many clients."""
    where = f"task.{name}"
    if not isinstance(table, Mapping):
        raise SettingError(f"{where} = {schema.shown(table)}: expected a table")
    if "clients" in table:
        raise SettingError(f"{where}.clients: all tasks share their clients; write count in [clients]")
    own = [setting.name for setting in schema.settings(Task)]
    problem = read_problem({**{k: v for k, v in table.items() if k not in own}, "clients": clients}, where)
    settings = schema.arguments(Task, {k: v for k, v in table.items() if k in own}, where)
    try:
        return Task(problem, **settings)
    except SettingError as error:
        raise SettingError(f"{where}.{error}") from None
