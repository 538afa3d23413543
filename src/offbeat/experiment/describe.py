"""The tables of an experiment file as frozen descriptions; data are read when a description is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn

from offbeat.core import names
from offbeat.core.errors import Checked, Count, DataError, OffbeatError, SettingError, Share, at_least, failure
from offbeat.core.local import Local
from offbeat.core.metric import Goal, all_metrics, goal
from offbeat.core.problem import Problem
from offbeat.core.random import MODEL, TASK, key
from offbeat.data.adapters import dataset
from offbeat.data.base import Dataset, Normalised
from offbeat.data.sharding import owner_column, shards
from offbeat.data.splits import Split
from offbeat.experiment import schema
from offbeat.models.build import build as build_model, required
from offbeat.models.flat import ModelParts, Precision, Statistics
from offbeat.models.lora import LoRA, adapted
from offbeat.problems.absolute import Absolute
from offbeat.problems.evaluation import Measured
from offbeat.problems.given import given
from offbeat.problems.metrics import Score
from offbeat.problems.objective import LOSSES, Loss, Objective
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.shares import Weighted
from offbeat.problems.supervised import Supervised


@dataclass(frozen=True)
class Clients(Checked):
    """The clients that several tasks share.

    count: how many.
    available: share of them that takes new work at any time, redrawn independently of the past.
    """

    count: Count
    available: Share = 1.0


# Something to be called later, with its options


@dataclass(frozen=True)
class NamedFactory:
    """A model or a data set by name, with its options."""

    name: str
    place: str = field(default="", repr=False, compare=False)  # the path of its options
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
        if base is Dataset and isinstance(value, str) and value.endswith((".csv", ".parquet")):
            raise SettingError(f'{where} = "{value}": a file; write {where} = {{ file = "{value}" }}')
        return NamedFactory(*schema.chosen(base, value, where, _arguments))

    def describe(definitions: dict[str, Any]) -> dict[str, Any]:
        return schema.one_of(base, definitions)

    return {"read": read, "schema": describe}


def _arguments(make: Any, table: Any, where: str) -> dict[str, Any]:
    if not callable(make):
        raise SettingError(f"{where} is a {type(make).__name__}, not callable")
    return schema.arguments(make, table, where)


# Problems


class ProblemTable(Protocol):
    """A checked [problem] table."""

    @property
    def clients(self) -> int:
        """How many clients it asks for."""

    def build(
        self, seed: int, device: str, samples: Measured = None, name: str = "", precision: Precision = "single"
    ) -> Problem:
        """The problem, split and initialised by this seed. samples: what it is evaluated on."""


def _function(base: Any, kind: str) -> dict[str, Any]:
    """How a field that holds a loss or a metric is read, by the names of its members or `package.module:function`."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise SettingError(f"{where} = {schema.shown(value)}: expected {kind}, by its name")
        if not callable(found := names.find(base, value, where)):
            raise SettingError(f"{where}: {value} is a {type(found).__name__}, not callable")
        return value

    def describe(definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "examples": list(names.members(base))}

    return {"read": read, "schema": describe}


def _functions(base: Any, kind: str) -> dict[str, Any]:
    """The same for a list of them."""
    one = _function(base, kind)

    def read(value: Any, where: str) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise SettingError(f"{where} = {schema.shown(value)}: expected a list of names")
        return tuple(one["read"](each, f"{where}[{at}]") for at, each in enumerate(value))

    def describe(definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": one["schema"](definitions)}

    return {"read": read, "schema": describe}


def loss_of(name: str | None) -> Loss | None:
    """The loss of a name in a file."""
    return name if name is None or name in LOSSES else names.find(Objective, name, "loss")


@dataclass(frozen=True)
class SupervisedTable(Checked):
    """A data set split over clients, and a model for it.

    data: a data set by name, a file { file = "visits.parquet" }, or `package.module:function` that gives one data set,
        (train, test), or one data set per client; options in a table.
    clients: how many; default: as many as there are natural owners, if the clients are these.
    model: a model by name, or `package.module:factory`; options in a table, { name = "mlp", hidden = [200, 100] }.
    loss: what is minimised, by name, or `package.module:function`; default: cross-entropy of classes, else mse.
    metrics: what is measured on the test samples; the first is the main one; default: the accuracy of classes.
    target: the column that the loss compares outputs with; default: y, label, labels or target.
    columns: those that the model gets; default: all others.
    client: the column that says whose a sample is, for the split owners.
    weight: the column with the weights of samples.
    split: which client gets which samples.
    l2: weight of the regulariser, l2/2·|w|².
    weighted: true: client i's loss counts by its share of the samples, s_i/S, as in AREA's paper; "relative": n·s_i/S,
        the same objective with step sizes that do not depend on the number of clients; false: all count the same.
    inputs: range of the inputs: "unit" is [0, 1], "signed" is [−1, 1], "standard" has mean 0 and variance 1 in every
        channel, and { mean = 0.1307, std = 0.3081 } subtracts and divides by these.
    holdout: share of the samples that is for testing, where the data come without test samples; default: 0.2.
    statistics: running statistics of batch normalisation: "average": sent and averaged with the parameters, "local":
        each client keeps its own, "frozen": as the model has them at first, "refuse": there must be none.
    train: names of the parameters to train, "head.*" or a list of such patterns; default: all that require gradients.
    personal: names of those that each client keeps to itself: they are neither sent nor averaged.
    lora: low-rank adapters over the model, which is frozen: { rank = 8, targets = "blocks.*" }.
    """

    data: NamedFactory = field(metadata=_choice(Dataset, "a data set"))
    clients: Count
    model: NamedFactory = field(default=NamedFactory("softmax"), metadata=_choice(nn.Module, "a model"))
    loss: str | None = field(default=None, metadata=_function(Objective, "a loss"))
    metrics: tuple[str, ...] | None = field(default=None, metadata=_functions(Score, "a metric"))
    target: str | None = None
    columns: tuple[str, ...] | None = None
    client: str | None = None
    weight: str | None = None
    split: Split | None = None
    l2: float = 0.0
    weighted: Weighted = False
    inputs: Literal["unit", "signed", "standard"] | Normalised = "unit"
    holdout: Share | None = None
    statistics: Statistics = "average"
    train: str | tuple[str, ...] | None = None
    personal: str | tuple[str, ...] | None = None
    lora: LoRA | None = None

    def build(
        self, seed: int, device: str, samples: Measured = None, name: str = "", precision: Precision = "single"
    ) -> Problem:
        chosen: dict[str, Any] = {
            "target": self.target,
            "inputs": self.columns,
            "client": self.client,
            "holdout": self.holdout,
        }
        data = load_data(self.data)
        if self.inputs != "unit":
            if not isinstance(data, Dataset):
                model, loss = self.model.make(nn.Module), loss_of(self.loss)
                data, _ = given(data, model, loss, self.weight, self.model.options, seed, name=self.data.name, **chosen)
                chosen = {}  # the data set has its columns and owners now
            data = data.as_inputs(self.inputs)
        return Supervised.split(
            data,
            self.clients,
            self.split,
            self.model.make(nn.Module),
            seed,
            self.model.options,
            **chosen,
            loss=loss_of(self.loss),
            metrics=self.metrics,
            weight=self.weight,
            l2=self.l2,
            weighted=self.weighted,
            device=device,
            measured=samples,
            name=name or self.data.name,
            statistics=self.statistics,
            train=self.train,
            personal=self.personal,
            lora=self.lora,
            precision=precision,
        )

    def of_owners(self) -> SupervisedTable:
        """The same with as many clients as the data have natural owners."""
        data = dataset(
            load_data(self.data),
            target=self.target,
            inputs=self.columns,
            client=owner_column(self.client, self.split),
            holdout=self.holdout,
            aside=[self.weight] if self.weight else [],
            free=True,  # which column is the target is checked with the model
            whole=False,
        )
        return replace(self, clients=len(shards(self.split, data, None, np.random.default_rng(0))))


_LOADED: dict[Any, Any] = {}  # the last few data sets of users' own functions, by what makes them


def load_data(data: NamedFactory) -> Any:
    """What a data set's name and options stand for."""
    make = data.make(Dataset)
    if not names.imported(data.name):
        try:
            return make(**data.options)
        except SettingError as error:
            raise schema.within(error, data.place, data.options) from None
    which = (make, repr(data.options))
    if which not in _LOADED:
        try:
            found = make(**data.options)
        except OffbeatError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"data: {data.name} failed with {failure(error)}") from error
        while len(_LOADED) >= 4:
            del _LOADED[next(iter(_LOADED))]
        _LOADED[which] = found
    return _LOADED[which]


def check_files(problem: ProblemTable) -> None:
    """Refuse a file or folder of a data set or a model that is not there; a user's own may take a path for another."""
    for named in (getattr(problem, "data", None), getattr(problem, "model", None)):
        if isinstance(named, NamedFactory) and not names.imported(named.name):
            for path in names.files(named.options):
                if not names.placed(path).exists():
                    raise DataError(f"{named.place}: {path} is not there")


@dataclass(frozen=True)
class FormulaTable:
    """Functions with a known optimum; the settings are those of their class, `Quadratic` or `Absolute`."""

    kind: type[Quadratic] | type[Absolute]
    clients: int
    others: Mapping[str, Any]

    def build(
        self, seed: int, device: str, samples: Measured = None, name: str = "", precision: Precision = "single"
    ) -> Problem:
        if precision == "bf16":
            raise SettingError('precision = "bf16" is for networks; leave it out for quadratics and absolute values')
        return self.kind(self.clients, **self.others, seed=seed, device=device, label=name)


@dataclass(frozen=True)
class ClientDataTable(Checked):
    """Data that the clients of a real run bring themselves.

    clients: how many.
    shape: of one input; not needed for a model of your own that does not ask for it.
    classes: how many classes the labels have, or outputs the model; likewise.
    model: a model by name, or `package.module:factory`.
    loss: what is minimised, by name, or `package.module:function`.
    metrics: what clients measure on the samples that they hold out; the first is the main one.
    target: the column that the loss compares outputs with; default: y, label, labels or target.
    columns: those that the model gets; default: all others.
    weight: the column with the weights of samples.
    l2: weight of the regulariser, l2/2·|w|².
    statistics: running statistics of batch normalisation: "average": sent and averaged with the parameters, "local":
        each client keeps its own, "frozen": as the model has them at first, "refuse": there must be none.
    train: names of the parameters to train, "head.*" or a list of such patterns; default: all that require gradients.
    personal: names of those that each client keeps to itself: they are neither sent nor averaged.
    lora: low-rank adapters over the model, which is frozen: { rank = 8, targets = "blocks.*" }.
    """

    clients: Count
    shape: tuple[Count, ...] | None = None
    classes: Count | None = None
    model: NamedFactory = field(default=NamedFactory("softmax"), metadata=_choice(nn.Module, "a model"))
    loss: str = field(default="cross-entropy", metadata=_function(Objective, "a loss"))
    metrics: tuple[str, ...] | None = field(default=None, metadata=_functions(Score, "a metric"))
    target: str | None = None
    columns: tuple[str, ...] | None = None
    weight: str | None = None
    l2: float = 0.0
    statistics: Statistics = "average"
    train: str | tuple[str, ...] | None = None
    personal: str | tuple[str, ...] | None = None
    lora: LoRA | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if names.imported(self.model.name):
            return
        for key_, such in (
            ("shape", "the shape of one input, such as [16]"),
            ("classes", "their number, or 1 for numbers"),
        ):
            if getattr(self, key_) is None:
                raise SettingError(f'{key_} missing; with data = "own", the model {self.model.name} needs {such}')

    def module(self, seed: int) -> nn.Module:
        """The model, with its first parameters."""
        make, options = self.model.make(nn.Module), self.model.options
        for key_ in ("shape", "classes"):
            if getattr(self, key_) is None and required(make, key_):
                raise SettingError(f"{key_} missing; the model {self.model.name} asks for it, and the file has no data")
        made = build_model(make, self.shape or (), self.classes or 1, key(seed, MODEL), **options)
        return adapted(made, self.lora, key(seed, MODEL, 1))

    def build(
        self, seed: int, device: str, samples: Measured = None, name: str = "", precision: Precision = "single"
    ) -> Problem:
        from offbeat.deploy.client_data import ModelOnly

        return ModelOnly(
            name or "own", self.module(seed), self.clients, self.metrics, self.loss, **self._parts(precision)
        )

    def _parts(self, precision: Precision) -> ModelParts:
        return {
            "statistics": self.statistics,
            "train": self.train,
            "personal": self.personal,
            "precision": precision,
        }

    def client(
        self, loaded: Any, seed: int, clients: int, holdout: float, device: str, name: str, precision: Precision
    ) -> Problem:
        """The problem of one client, with its own samples."""
        from offbeat.deploy.client_data import ClientProblem, dataset as held_out

        module, loss = self.module(seed), loss_of(self.loss)
        assert loss is not None
        columns = {"target": self.target, "inputs": self.columns}
        data = held_out(loaded, module, loss, shape=self.shape, holdout=holdout, weight=self.weight, **columns)
        return ClientProblem(
            name, module, clients, data, self.l2, device, self.metrics, loss, self.weight, **self._parts(precision)
        )


PROBLEMS: Mapping[str, type[Any]] = {  # all others: supervised
    "quadratic": Quadratic,
    "absolute": Absolute,
    "own": ClientDataTable,
}


def read_problem(table: Any, where: str) -> ProblemTable:
    """A [problem] table; what `data` names decides which other keys it takes."""
    if not isinstance(table, Mapping) or "data" not in table:
        known = ", ".join([*PROBLEMS, *names.members(Dataset)])
        raise SettingError(f"{where}: data missing; data: one of {known}, or your own package.module:function")
    special = PROBLEMS.get(table["data"]) if isinstance(table["data"], str) else None
    rest = {k: v for k, v in table.items() if k != "data"} if special else table
    if special is Quadratic or special is Absolute:
        settings = schema.arguments(special, rest, where)
        at_least(1, **{f"{where}.clients": settings["clients"]})
        return FormulaTable(special, settings.pop("clients"), settings)
    if special is None and "clients" not in rest:
        owned: SupervisedTable = schema.build(SupervisedTable, {**rest, "clients": 1}, where)
        try:
            return owned.of_owners()
        except SettingError as error:
            raise _within(error, where) from None
    made: ProblemTable = schema.build(special or SupervisedTable, rest, where)
    return made


def _within(error: SettingError, where: str) -> SettingError:
    """The error with the path of the problem that it is about, unless it has a path already."""
    if str(error).startswith(f"{where}."):
        return error
    known = [setting.name for setting in schema.settings(SupervisedTable)]
    return schema.within(error, where, known if re.match(r"\w+ = ", str(error)) else ())


def describe_problem(definitions: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of a [problem] table: the keys of all kinds of problems."""
    tables = [schema.table_schema(schema.settings(kind), definitions) for kind in (*PROBLEMS.values(), SupervisedTable)]
    properties = {k: v for table in tables for k, v in table["properties"].items()}
    return {"type": "object", "properties": properties, "required": ["data"], "additionalProperties": False}


@dataclass(frozen=True)
class Task:
    """One of the models to train.

    name: what tables, plots and per-task settings call it.
    target: when it is done: one metric and the value to reach, { accuracy = 0.9 }.
    local: its local trainer, instead of the algorithm's.
    opens: time at which it starts.
    closes: time at which it ends.
    """

    problem: ProblemTable = field(metadata={"setting": False})
    name: str = ""
    target: Mapping[str, float] | None = None
    local: Local | None = None
    opens: float = 0.0
    closes: float = inf

    def __post_init__(self) -> None:
        if not 0 <= self.opens < self.closes:
            raise SettingError(f"opens = {self.opens}, closes = {self.closes}: a task opens before it closes")
        if self.target is not None and len(self.target) != 1:
            raise SettingError(f"target = {schema.shown(self.target)}: expected one metric and the value to reach")

    def goal(self, problem: Problem) -> Goal | None:
        """The goal at which it is done."""
        if self.target is None:
            return None
        ((name, value),) = self.target.items()
        return goal(name, value, all_metrics(problem.metrics), f"task.{self.name}.target")

    def build(self, number: int, seed: int, device: str, samples: Measured, precision: Precision = "single") -> Problem:
        """The problem under this seed; tasks of one experiment are drawn independently."""
        own = seed if number == 0 else key(seed, TASK, number) >> 1
        try:
            return self.problem.build(own, device, samples, self.name, precision)
        except SettingError as error:
            raise _within(error, f"task.{self.name}" if self.name else "problem") from None


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdigit())):
        raise SettingError(f"device = {device!r}: must be cpu, cuda or cuda:N")
    found = torch.cuda.device_count()
    if device != "cpu" and int(number or 0) >= found:
        raise SettingError(f"device = {device!r}: PyTorch finds {found} CUDA devices on this machine; use cpu")
