"""The [[algorithm]] tables of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from offbeat.algorithms import (
    AREA,
    CA2FL,
    MIFA,
    SCAFFOLD,
    Alone,
    AsFedAvg,
    AsySG,
    DeFedAvg,
    Favano,
    FedAsync,
    FedAsyncMixing,
    FedAvg,
    FedBuff,
    QuAFL,
)
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
from offbeat.local import MAML, SGD, Gradient, Moreau, Prox, Scaffold

T = TypeVar("T")
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
    local = local_from(table["local"], f"{where}.local")
    if entry.local and type(local) is not LOCALS[entry.local][0]:
        raise SettingError(f"{where}: {name} trains with local = {{ {entry.local} = {{ … }} }}, not {table['local']!r}")
    try:
        return Algorithm(server, local, name)
    except SettingError as error:
        raise SettingError(f"{where} ({name}): {error}") from None


def local_from(table: Any, where: str) -> Local:
    """A local half from { sgd = { … } }."""
    name, settings = one(table, where, LOCALS)
    return build(LOCALS[name][0], settings, f"{where}.{name}")


@dataclass(frozen=True)
class Entry:
    """A row of the table of algorithms: its class, its line in `offbeat list`, which settings are objects.

    local: the local half that makes it this algorithm; empty: any that fits.   pooled: one client with all data.
    """

    kind: Callable[..., Server[Any]]
    line: str
    convert: Mapping[str, str] = field(default_factory=dict)
    local: str = ""
    pooled: bool = False


_WEIGHT = {"weight": "weight"}

ALGORITHMS: dict[str, Entry] = {
    "area": Entry(
        AREA,
        "clients send what changed since they last spoke; no bias towards fast clients: every, schedule, concurrency",
        {"every": "criterion", "schedule": "schedule"},
    ),
    "fedbuff": Entry(
        FedBuff,
        "a server step for every `size` updates: size, lr, weight, concurrency",
        {"size": "criterion", **_WEIGHT},
    ),
    "fedasync": Entry(FedAsync, "a server step for every update: lr, weight, concurrency", _WEIGHT),
    "fedasync-mixing": Entry(
        FedAsyncMixing, "the server's model moves towards each arriving model: mixing, weight, concurrency", _WEIGHT
    ),
    "as-fedavg": Entry(
        AsFedAvg,
        "the server's model becomes the mean of the last few arriving ones: every, concurrency",
        {"every": "criterion"},
    ),
    "asysg": Entry(
        AsySG, "asynchronous SGD, steps along `size` stale gradients: size, lr, cap, concurrency", local="gradient"
    ),
    "defedavg-niid": Entry(
        DeFedAvg, "rounds over the newest results of clients drawn with replacement: sampled, lr, renew"
    ),
    "defedavg-iid": Entry(
        FedBuff, "the first `size` results make a round (FedBuff, client-driven, without weights): size, lr"
    ),
    "favano": Entry(Favano, "rounds by the clock, clients interrupted where they are: sampled, period, normalise"),
    "quafl": Entry(QuAFL, "FAVANO's rounds with quantised messages and clients that mix: sampled, period, bits"),
    "mifa": Entry(MIFA, "the server remembers every client's last delta: every, lr, memory, concurrency"),
    "ca2fl": Entry(CA2FL, "FedBuff calibrated by every client's cached delta: size, lr, memory, concurrency"),
    "persafl-maml": Entry(
        FedAsync, "PersA-FL on the MAML loss: FedAsync with local maml: lr, weight, concurrency", _WEIGHT, "maml"
    ),
    "persafl-me": Entry(
        FedAsync,
        "PersA-FL on the Moreau envelope: FedAsync with local moreau: lr, weight, concurrency",
        _WEIGHT,
        "moreau",
    ),
    "fedavg": Entry(FedAvg, "synchronous rounds; with `first`, over-selection: sampled, lr, first"),
    "fedprox": Entry(FedAvg, "FedAvg whose clients stay near what they were sent: sampled, lr, first", local="prox"),
    "scaffold": Entry(SCAFFOLD, "FedAvg with control variates against drift: sampled, lr, first", local="scaffold"),
    "per-fedavg": Entry(FedAvg, "FedAvg on the MAML loss: sampled, lr, first", local="maml"),
    "pfedme": Entry(FedAvg, "FedAvg on the Moreau envelope, lr is its β: sampled, lr, first", local="moreau"),
    "local-only": Entry(Alone, "every client by itself: concurrency"),
    "centralised": Entry(FedAvg, "one client with everybody's data, the reference: lr", pooled=True),
}

LOCALS: dict[str, tuple[Callable[..., Local], str]] = {
    "sgd": (SGD, "stochastic gradient descent: lr, steps, batch, shuffle, decay, clip"),
    "prox": (Prox, "SGD that stays near the model it was sent: mu, and SGD's settings"),
    "gradient": (Gradient, "one gradient and no step: batch, shuffle"),
    "scaffold": (Scaffold, "SGD corrected by control variates: option (1 or 2), and SGD's settings"),
    "maml": (MAML, "steps on the MAML loss: lr, steps, batch, alpha, hessian (exact, difference, none), delta"),
    "moreau": (
        Moreau,
        "steps on the Moreau envelope: lr, steps, batch, penalty, accuracy, inner, inner_lr, momentum",
    ),
}


def _criterion(rates: Rates) -> Convert:
    def convert(value: Any, where: str) -> Criterion:
        if isinstance(value, int) and not isinstance(value, bool):
            return _placed(where, Every, value)
        name, setting = one(value, where, ("messages", "period", "poisson"))
        place = f"{where}.{name}"
        if name == "messages":
            return _placed(place, Every, plain(setting, int, place))
        if name == "period":
            return _placed(place, Period, plain(setting, float, place))
        return _placed(place, Poisson, optimal_rate(rates()) if setting == "optimal" else plain(setting, float, place))

    return convert


def _schedule(rates: Rates) -> Convert:
    def convert(value: Any, where: str) -> Schedule:
        name, setting = one(value, where, ("constant", "decay"))
        if name == "constant":
            return _placed(where, Steady, plain(setting, float, f"{where}.constant"))
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


def _placed(where: str, kind: Callable[[Any], T], value: Any) -> T:
    try:
        return kind(value)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


_CONVERT: dict[str, Callable[[Rates], Convert]] = {"criterion": _criterion, "schedule": _schedule, "weight": _weight}
