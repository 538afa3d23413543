"""The [problem] table of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from offbeat.cli.parse import build
from offbeat.cli.problem_parts import DATA, split_from
from offbeat.core.errors import SettingError, unknown
from offbeat.core.problem import Problem
from offbeat.data import load
from offbeat.data.splits import IID, Split
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised

QUADRATIC = "n quadratics with a known optimum: dim, smoothness, convexity, noise, heterogeneity, distance"


@dataclass(frozen=True)
class _Supervised:
    data: str
    clients: int
    model: Any = "softmax"
    split: Split = field(default_factory=IID)
    l2: float = 0.0
    weighted: bool = False


@dataclass(frozen=True)
class _Quadratic:
    clients: int
    dim: int = 10
    smoothness: float = 1.0
    convexity: float = 0.1
    noise: float = 0.0
    heterogeneity: float = 1.0
    distance: float = 10.0


def problem_from(table: Any, where: str, seed: int, device: str, measured: int | None = None) -> Problem:
    """The problem that a [problem] table describes, split and initialised by this seed."""
    if not isinstance(table, Mapping) or "data" not in table:
        raise SettingError(f"{where} lacks `data`; known: quadratic, {', '.join(DATA)}")
    if table["data"] == "quadratic":
        settings = {k: v for k, v in table.items() if k != "data"}
        q = build(_Quadratic, settings, where)
        try:
            return Quadratic(**vars(q), seed=seed, device=device)
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None
    if table["data"] not in DATA:
        raise unknown(f"data set in {where}:", table["data"], [*DATA, "quadratic"])
    p = build(_Supervised, table, where, {"split": split_from, "model": lambda value, _: value})
    return _supervised(p, where, seed, device, measured)


def _supervised(p: _Supervised, where: str, seed: int, device: str, measured: int | None) -> Supervised:
    name, options = _model(p.model, f"{where}.model")
    settings = {"l2": p.l2, "weighted": p.weighted, "device": device, "measured": measured}
    try:
        return Supervised.split(load(p.data), p.clients, p.split, name, seed, options, **settings)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


def _model(value: Any, where: str) -> tuple[str, dict[str, Any]]:
    """ "mlp", or { name = "mlp", hidden = [200, 100] }."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value["name"], {k: v for k, v in value.items() if k != "name"}
    raise SettingError(f'{where} = {value!r}: expected a model\'s name, or {{ name = "mlp", … }} with its options')


def check_device(device: str) -> str:
    """Refuse a device that is not there."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise SettingError(f"device = {device!r}: must be cpu, cuda or cuda:N") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"device = {device!r}: this machine or this build of PyTorch has no CUDA; use cpu")
    return device
