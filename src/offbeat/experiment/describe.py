"""The tables of an experiment file as frozen descriptions; data are read when a description is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, Protocol

import torch
from torch import nn

from offbeat.core import names
from offbeat.core.errors import Checked, Count, DataError, SettingError, Share, at_least
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.random import MODEL, TASK, key
from offbeat.data.base import Dataset
from offbeat.data.splits import IID, Split
from offbeat.experiment import schema
from offbeat.models.build import build as build_model
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised


@dataclass(frozen=True)
class Clients(Checked):
    """The clients that several tasks share.

    count: how many.
    available: share of them that takes new work at any time, redrawn independently of the past.
    """

    count: Count
    available: Share = 1.0


@dataclass(frozen=True)
class Target(Checked):
    """When a task is done.

    accuracy: on the test data, in (0, 1].
    """

    accuracy: Share


# Something to be called later, with its options


@dataclass(frozen=True)
class NamedFactory:
    """A model or a data set by name, with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, base: Any) -> Callable[..., Any]:
        """What it names among the members of a base."""
        found: Callable[..., Any] = names.find(base, self.name, self.name)
        return found


def _choice(base: Any, kind: str) -> dict[str, Any]:
    """How a field that holds a NamedFactory among the members of a base is read and described."""

    def read(value: Any, where: str) -> NamedFactory:
        if not isinstance(value, str | Mapping):
            raise SettingError(
                f"{where} = {schema.shown(value)}: expected {kind}, as a name or as a table with options"
            )
        name, inner, others = schema.choose(base, value, where)
        make = names.find(base, name, where)
        if not callable(make):
            raise SettingError(f"{where}: {name} is a {type(make).__name__}, not callable")
        return NamedFactory(name, schema.arguments(make, schema.behind_name(make, inner, others, where), where))

    def describe(definitions: dict[str, Any]) -> dict[str, Any]:
        return schema.one_of(base, definitions)

    return {"read": read, "schema": describe}


# Problems


class ProblemTable(Protocol):
    """A checked [problem] table."""

    @property
    def clients(self) -> int:
        """How many clients it asks for."""

    def build(self, seed: int, device: str, samples: int | None = None, name: str = "") -> Problem:
        """The problem, split and initialised by this seed. samples: evaluate on at most so many."""


@dataclass(frozen=True)
class SupervisedTable(Checked):
    """A data set split over clients, and a model for it.

    data: a data set by name, or `package.module:function` that returns an `offbeat.data.Dataset`.
    clients: how many.
    model: a model by name, or `package.module:factory`; options in a table, { name = "mlp", hidden = [200, 100] }.
    split: which client gets which samples.
    l2: weight of the regulariser, l2/2·|w|².
    weighted: a client's loss counts by its share of the samples; default: all clients count the same.
    inputs: range of the inputs: "unit" is [0, 1], "signed" is [−1, 1], "standard" has mean 0 and variance 1.
    """

    data: NamedFactory = field(metadata=_choice(Dataset, "a data set"))
    clients: Count
    model: NamedFactory = field(default=NamedFactory("softmax"), metadata=_choice(nn.Module, "a model"))
    split: Split = field(default_factory=IID)
    l2: float = 0.0
    weighted: bool = False
    inputs: Literal["unit", "signed", "standard"] = "unit"

    def build(self, seed: int, device: str, samples: int | None = None, name: str = "") -> Problem:
        return Supervised.split(
            load_data(self.data).as_inputs(self.inputs),
            self.clients,
            self.split,
            self.model.make(nn.Module),
            seed,
            self.model.options,
            l2=self.l2,
            weighted=self.weighted,
            device=device,
            measured=samples,
            name=name,
        )


@dataclass(frozen=True)
class QuadraticTable:
    """Quadratics with a known optimum; the settings are those of `Quadratic`."""

    clients: int
    others: Mapping[str, Any]

    def build(self, seed: int, device: str, samples: int | None = None, name: str = "") -> Problem:
        return Quadratic(self.clients, **self.others, seed=seed, device=device, label=name)


@dataclass(frozen=True)
class ClientDataTable(Checked):
    """Data that the clients of a real run bring themselves.

    clients: how many.
    shape: of one input.
    classes: how many classes the labels have.
    model: a model by name, or `package.module:factory`.
    l2: weight of the regulariser, l2/2·|w|².
    """

    clients: Count
    shape: tuple[Count, ...]
    classes: Count
    model: NamedFactory = field(default=NamedFactory("softmax"), metadata=_choice(nn.Module, "a model"))
    l2: float = 0.0

    def module(self, seed: int) -> nn.Module:
        """The model, with its first parameters."""
        return build_model(self.model.make(nn.Module), self.shape, self.classes, key(seed, MODEL), **self.model.options)

    def build(self, seed: int, device: str, samples: int | None = None, name: str = "") -> Problem:
        from offbeat.deploy.client_data import ModelOnly

        return ModelOnly(name or "own", self.module(seed), self.clients)


PROBLEMS: Mapping[str, type[Any]] = {"quadratic": Quadratic, "own": ClientDataTable}  # all others: supervised


def read_problem(table: Any, where: str) -> ProblemTable:
    """A [problem] table; what `data` names decides which other keys it takes."""
    if not isinstance(table, Mapping) or "data" not in table:
        known = ", ".join([*PROBLEMS, *names.members(Dataset)])
        raise SettingError(f"{where}: data missing; data: one of {known}, or your own package.module:function")
    special = PROBLEMS.get(table["data"]) if isinstance(table["data"], str) else None
    rest = {k: v for k, v in table.items() if k != "data"} if special else table
    if special is Quadratic:
        settings = schema.arguments(Quadratic, rest, where)
        at_least(1, **{f"{where}.clients": settings["clients"]})
        return QuadraticTable(settings.pop("clients"), settings)
    made: ProblemTable = schema.build(special or SupervisedTable, rest, where)
    return made


def describe_problem(definitions: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of a [problem] table: the keys of all kinds of problems."""
    tables = [schema.table_schema(schema.settings(kind), definitions) for kind in (*PROBLEMS.values(), SupervisedTable)]
    properties = {k: v for table in tables for k, v in table["properties"].items()}
    return {"type": "object", "properties": properties, "required": ["data"], "additionalProperties": False}


def load_data(choice: NamedFactory) -> Dataset:
    """The data set of this name."""
    found = choice.make(Dataset)(**choice.options)
    if not isinstance(found, Dataset):
        raise DataError(f"problem.data: {choice.name} gave a {type(found).__name__}, not an offbeat.data.Dataset")
    return found


@dataclass(frozen=True)
class Task:
    """One of the models to train.

    name: what tables, plots and per-task settings call it.
    target: when it is done.
    local: its local trainer, instead of the algorithm's.
    opens: time from which it is there.
    closes: time until which it is there.
    """

    problem: ProblemTable = field(metadata={"setting": False})
    name: str = ""
    target: Target | None = None
    local: Local | None = None
    opens: float = 0.0
    closes: float = inf

    def __post_init__(self) -> None:
        if not 0 <= self.opens < self.closes:
            raise SettingError(f"opens = {self.opens}, closes = {self.closes}: a task opens before it closes")

    def build(self, number: int, seed: int, device: str, samples: int | None) -> Problem:
        """The problem under this seed; tasks of one experiment are drawn independently."""
        own = seed if number == 0 else key(seed, TASK, number) >> 1
        try:
            return self.problem.build(own, device, samples, self.name)
        except SettingError as error:
            raise SettingError(f"{f'task.{self.name}' if self.name else 'problem'}: {error}") from None


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdigit())):
        raise SettingError(f"device = {device!r}: must be cpu, cuda or cuda:N")
    found = torch.cuda.device_count()
    if device != "cpu" and int(number or 0) >= found:
        raise SettingError(f"device = {device!r}: PyTorch finds {found} CUDA devices on this machine; use cpu")
