"""The [[algorithm]] tables of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offbeat.algorithms.area import AREA
from offbeat.algorithms.asfedavg import AsFedAvg
from offbeat.algorithms.fedasync import FedAsync, FedAsyncMixing
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.parts import (
    Criterion,
    Decay,
    Every,
    Hinge,
    Period,
    Poisson,
    Polynomial,
    Schedule,
    Staleness,
    Steady,
    constant,
    optimal_rate,
)
from offbeat.cli.parse import Convert, build, one, plain
from offbeat.core.errors import SettingError, unknown
from offbeat.core.local import Local
from offbeat.core.server import Algorithm, Server
from offbeat.local.sgd import SGD

Rates = Callable[[], Sequence[float]]  # the clients' message rates, where the timing model has them


def algorithm_from(table: Any, where: str, rates: Rates) -> Algorithm:
    """An algorithm from a table with a name, a local half and the server's settings."""
    if not isinstance(table, Mapping) or "name" not in table:
        raise SettingError(f"{where} lacks a name; known: {', '.join(ALGORITHMS)}")
    name = table["name"]
    if name not in ALGORITHMS:
        raise unknown(f"algorithm in {where}:", name, ALGORITHMS)
    if "local" not in table:
        raise SettingError(f"{where} ({name}) lacks its local half, such as local = {{ sgd = {{ lr = 0.1 }} }}")
    entry = ALGORITHMS[name]
    settings = {k: v for k, v in table.items() if k not in ("name", "label", "local")}
    convert = {key: _CONVERT[how](rates) for key, how in entry.convert.items()}
    server = build(entry.kind, settings, f"{where} ({name})", convert)
    return Algorithm(server, local_from(table["local"], f"{where}.local"), name)


def local_from(table: Any, where: str) -> Local:
    """A local half from { sgd = { … } }."""
    name, settings = one(table, where, LOCALS)
    return build(LOCALS[name][0], settings, f"{where}.{name}")


@dataclass(frozen=True)
class Entry:
    """A row of the table of algorithms: its class, its line in `offbeat list`, which settings are objects."""

    kind: Callable[..., Server[Any]]
    line: str
    convert: Mapping[str, str] = field(default_factory=dict)


ALGORITHMS: dict[str, Entry] = {
    "area": Entry(
        AREA,
        "clients send what changed since they last spoke; no bias towards fast clients: every, schedule, concurrency",
        {"every": "criterion", "schedule": "schedule"},
    ),
    "fedbuff": Entry(
        FedBuff,
        "a server step for every `size` updates: size, lr, weight, concurrency",
        {"size": "criterion", "weight": "weight"},
    ),
    "fedasync": Entry(FedAsync, "a server step for every update: lr, weight, concurrency", {"weight": "weight"}),
    "fedasync-mixing": Entry(
        FedAsyncMixing,
        "the server's model moves towards each arriving model: mixing, weight, concurrency",
        {"weight": "weight"},
    ),
    "as-fedavg": Entry(
        AsFedAvg,
        "the server's model becomes the mean of the last few arriving ones: every, concurrency",
        {"every": "criterion"},
    ),
    "fedavg": Entry(FedAvg, "synchronous rounds: sampled, lr"),
}

LOCALS: dict[str, tuple[Callable[..., Local], str]] = {
    "sgd": (SGD, "stochastic gradient descent: lr, steps, batch, shuffle, decay, clip"),
}


def _criterion(rates: Rates) -> Convert:
    def convert(value: Any, where: str) -> Criterion:
        if isinstance(value, int) and not isinstance(value, bool):
            return Every(value)
        name, setting = one(value, where, ("messages", "period", "poisson"))
        place = f"{where}.{name}"
        if name == "messages":
            return Every(plain(setting, int, place))
        if name == "period":
            return Period(plain(setting, float, place))
        return Poisson(optimal_rate(rates()) if setting == "optimal" else plain(setting, float, place))

    return convert


def _schedule(rates: Rates) -> Convert:
    def convert(value: Any, where: str) -> Schedule:
        name, setting = one(value, where, ("constant", "decay"))
        if name == "constant":
            return Steady(plain(setting, float, f"{where}.constant"))
        return build(Decay, setting, f"{where}.decay")

    return convert


def _weight(rates: Rates) -> Convert:
    def convert(value: Any, where: str) -> Staleness:
        name, setting = one(value, where, ("constant", "polynomial", "hinge"))
        if name == "constant":
            return constant
        if name == "polynomial":
            return build(Polynomial, setting, f"{where}.polynomial")
        return build(Hinge, setting, f"{where}.hinge")

    return convert


_CONVERT: dict[str, Callable[[Rates], Convert]] = {"criterion": _criterion, "schedule": _schedule, "weight": _weight}
