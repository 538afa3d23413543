"""The [problem] table of an experiment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from offbeat.core.errors import SettingError, unknown
from offbeat.core.problem import Problem
from offbeat.core.random import MODEL, key
from offbeat.data import load
from offbeat.data.base import INPUTS
from offbeat.data.splits import IID, Split
from offbeat.experiment.parse import build
from offbeat.experiment.problem_parts import DATA, split_from
from offbeat.models.build import build as make_model
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised

QUADRATIC = "n quadratics with a known optimum: dim, smoothness, convexity, noise, heterogeneity, distance"


class ProblemTable(Protocol):
    """A checked [problem] table, defaults included."""

    @property
    def clients(self) -> int:
        """How many clients it asks for."""

    def build(self, seed: int, device: str, measured: int | None = None, name: str = "") -> Problem:
        """The problem, split and initialised by this seed; measured: at most so many samples are evaluated on."""


@dataclass(frozen=True)
class _Supervised:
    data: str
    clients: int
    model: Any = "softmax"
    split: Split = field(default_factory=IID)
    l2: float = 0.0
    weighted: bool = False
    inputs: str = "unit"

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if self.inputs not in INPUTS:
            raise unknown("inputs:", self.inputs, INPUTS)

    def build(self, seed: int, device: str, measured: int | None = None, name: str = "") -> Problem:
        data = load(self.data).as_inputs(self.inputs)
        model, options = _model(self.model, "model")
        settings = {"l2": self.l2, "weighted": self.weighted, "device": device, "measured": measured, "name": name}
        return Supervised.split(data, self.clients, self.split, model, seed, options, **settings)


@dataclass(frozen=True)
class OwnTable:
    """Data that the clients bring. shape, classes: of every client's samples."""

    clients: int
    shape: tuple[int, ...]
    classes: int
    model: Any = "softmax"
    l2: float = 0.0

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if self.classes < 1 or not self.shape or min(self.shape) < 1:
            raise SettingError(f"shape = {list(self.shape)}, classes = {self.classes}: must be positive")

    @property
    def factory(self) -> str:
        """The model's name; one with a colon is imported."""
        return _model(self.model, "model")[0]

    def module(self, seed: int) -> nn.Module:
        """The model, with its first parameters."""
        model, options = _model(self.model, "model")
        return make_model(model, self.shape, self.classes, key(seed, MODEL), **options)

    def build(self, seed: int, device: str, measured: int | None = None, name: str = "") -> Problem:
        from offbeat.deploy.own import Blank

        return Blank(name or "own", self.module(seed), self.clients)


@dataclass(frozen=True)
class _Quadratic:
    clients: int
    dim: int = 10
    smoothness: float = 1.0
    convexity: float = 0.1
    noise: float = 0.0
    heterogeneity: float = 1.0
    distance: float = 10.0

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def build(self, seed: int, device: str, measured: int | None = None, name: str = "") -> Problem:
        return Quadratic(**vars(self), seed=seed, device=device, label=name)


def problem_table(table: Any, where: str) -> ProblemTable:
    """A [problem] table, its keys and values checked; the data are read when it is built."""
    if not isinstance(table, Mapping) or "data" not in table:
        raise SettingError(f"{where} lacks `data`; known: quadratic, {', '.join(DATA)}")
    if table["data"] == "quadratic":
        return build(_Quadratic, {k: v for k, v in table.items() if k != "data"}, where)
    if table["data"] == "own":
        own = {k: v for k, v in table.items() if k != "data"}
        return build(OwnTable, own, where, {"model": lambda value, _: value})
    if table["data"] not in DATA:
        raise unknown(f"data set in {where}:", table["data"], [*DATA, "quadratic", "own"])
    return build(_Supervised, table, where, {"split": split_from, "model": lambda value, _: value})


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise SettingError(f"clients = {clients}: must be at least 1")


def _model(value: Any, where: str) -> tuple[str, dict[str, Any]]:
    """ "mlp", or { name = "mlp", hidden = [200, 100] }."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value["name"], {k: v for k, v in value.items() if k != "name"}
    raise SettingError(f'{where} = {value!r}: expected a model\'s name, or {{ name = "mlp", … }} with its options')


def check_device(device: str) -> str:
    """Refuse a device that is not there."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise SettingError(f"device = {device!r}: must be cpu, cuda or cuda:N")
    found = torch.cuda.device_count()
    if device != "cpu" and int(device.partition(":")[2] or 0) >= found:
        raise SettingError(f"device = {device!r}: PyTorch finds {found} CUDA devices on this machine; use cpu")
    return device
