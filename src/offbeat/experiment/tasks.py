"""What an experiment trains: one [problem], or [clients] and several [[task]] tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from offbeat.core.errors import SettingError
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.random import TASK, key
from offbeat.experiment.algorithms import local_from
from offbeat.experiment.parse import build
from offbeat.experiment.problem import ProblemTable, problem_table


@dataclass(frozen=True)
class Clients:
    """count: how many.   available: share that takes new work at any time, redrawn independently of the past."""

    count: int
    available: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingError(f"count = {self.count}: a task needs at least one client")
        if not 0 < self.available <= 1:
            raise SettingError(f"available = {self.available}: is a share in (0, 1]")


@dataclass(frozen=True)
class Target:
    accuracy: float

    def __post_init__(self) -> None:
        if not 0 < self.accuracy <= 1:
            raise SettingError(f"accuracy = {self.accuracy}: is a share in (0, 1]")


@dataclass(frozen=True)
class Task:
    """One thing to learn. opens, closes: the times from which and until which it is there."""

    problem: ProblemTable
    name: str = ""
    target: Target | None = None
    local: Local | None = None
    opens: float = 0.0
    closes: float = field(default=inf)

    def __post_init__(self) -> None:
        if not 0 <= self.opens < self.closes:
            raise SettingError(f"opens = {self.opens}, closes = {self.closes}: a task opens before it closes")

    def build(self, number: int, seed: int, device: str, measured: int | None) -> Problem:
        """The problem under this seed; tasks of one experiment are drawn independently."""
        own = seed if number == 0 else key(seed, TASK, number) >> 1
        try:
            return self.problem.build(own, device, measured, self.name)
        except SettingError as error:
            raise SettingError(f"{f'task {self.name}' if self.name else 'problem'}: {error}") from None


_OWN = [f.name for f in fields(Task) if f.name != "problem"]


def tasks_from(table: Mapping[str, Any]) -> tuple[list[Task], float]:
    """The tasks of an experiment, and the share of clients that takes new work."""
    if "task" not in table:
        if "problem" not in table:
            raise SettingError("the experiment lacks its [problem] table (or [clients] and [[task]] tables)")
        if "clients" in table:
            raise SettingError("[clients] goes with [[task]] tables; with one [problem] write problem.clients")
        return [Task(problem_table(table["problem"], "problem"))], 1.0
    if "problem" in table:
        raise SettingError("the experiment has [problem] and [[task]]; keep one of them")
    if "clients" not in table:
        raise SettingError("[[task]] tables need [clients] with its count")
    if not isinstance(table["task"], list) or not table["task"]:
        raise SettingError("the experiment needs at least one [[task]] table, in double brackets")
    clients = build(Clients, table["clients"], "clients")
    tasks = [_task(each, f"task[{at}]", clients.count) for at, each in enumerate(table["task"])]
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two tasks are called {name!r}: give each its own name")
    return tasks, clients.available


def _task(table: Any, where: str, clients: int) -> Task:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str) or not table["name"]:
        raise SettingError(f'{where} lacks its name, such as name = "mnist"')
    if "clients" in table:
        raise SettingError(f"{where} has clients: all tasks have the same ones, write count in [clients]")
    problem = problem_table({**{k: v for k, v in table.items() if k not in _OWN}, "clients": clients}, where)
    own: dict[str, Any] = {k: v for k, v in table.items() if k in _OWN}
    convert = {
        "problem": lambda value, _: value,
        "target": lambda value, place: build(Target, value, place),
        "local": local_from,
    }
    return build(Task, {**own, "problem": problem}, where, convert)
