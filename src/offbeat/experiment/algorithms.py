"""The [[algorithm]] tables of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from offbeat.algorithms import (
    AREA,
    CA2FL,
    MIFA,
    SCAFFOLD,
    AsFedAvg,
    AsySG,
    DeFedAvg,
    DeFedAvgIID,
    Favano,
    FedAST,
    FedAsync,
    FedAsyncMixing,
    FedAvg,
    FedBuff,
    LocalOnly,
    OneByOne,
    QuAFL,
    SyncBayesST,
    SyncST,
    SyncUCBST,
)
from offbeat.algorithms.criteria import Criterion, Messages, Period, Poisson
from offbeat.algorithms.flow import Flow
from offbeat.algorithms.schedules import Decay, Schedule, Steady
from offbeat.algorithms.staleness import Equal, Hinge, Polynomial, Staleness
from offbeat.core.errors import SettingError, unknown
from offbeat.core.local import Local
from offbeat.core.server import Algorithm, Server
from offbeat.experiment.parse import Convert, build, one, plain
from offbeat.local import MAML, SGD, Gradient, Moreau, Prox, Scaffold

T = TypeVar("T")


def algorithm_from(
    table: Any,
    where: str,
    locals_: Sequence[Local | None] = (None,),
    targets: Sequence[float | None] = (),
) -> Algorithm:
    """An algorithm from a table with a name, the server's settings, and a local trainer for tasks that have none."""
    if not isinstance(table, Mapping) or "name" not in table:
        raise SettingError(f"{where} lacks a name; known: {', '.join(ALGORITHMS)}")
    name = table["name"]
    if name not in ALGORITHMS:
        raise unknown(f"algorithm in {where}:", name, ALGORITHMS)
    entry = ALGORITHMS[name]
    place = f"{where} ({name})"
    if len(locals_) > 1 and not entry.several:
        several = ", ".join(n for n, e in ALGORITHMS.items() if e.several)
        raise SettingError(f"{place} trains one model, but there are {len(locals_)} tasks; use one of {several}")
    settings = {k: v for k, v in table.items() if k not in ("name", "label", "local")}
    convert = {key: _CONVERT[how] for key, how in entry.convert.items()}
    server = build(entry.kind, {**entry.preset, **settings}, place, convert)
    if entry.several and any(target is not None for target in targets):
        server = replace(server, targets=tuple(targets))  # type: ignore[call-arg]
    own = local_from(table["local"], f"{where}.local") if "local" in table else None
    halves = tuple(_half(half or own, entry, table, place) for half in locals_)
    try:
        return Algorithm(server, halves if entry.several else halves[0], name)
    except SettingError as error:
        raise SettingError(f"{place}: {error}") from None


def _half(local: Local | None, entry: Entry, table: Mapping[str, Any], place: str) -> Local:
    if local is None and entry.several:
        return SGD(lr=0.1, steps=27, batch=32)  # FedAST, appendix C.5
    if local is None:
        raise SettingError(f"{place} lacks its local trainer, such as local = {{ sgd = {{ lr = 0.1 }} }}")
    if entry.local and type(local) is not LOCALS[entry.local][0]:
        name = table["name"]
        raise SettingError(f"{place}: {name} trains with local = {{ {entry.local} = {{ … }} }}, not {table['local']!r}")
    return local


def local_from(table: Any, where: str) -> Local:
    """A local trainer from { sgd = { … } }."""
    name, settings = one(table, where, LOCALS)
    return build(LOCALS[name][0], settings, f"{where}.{name}")


@dataclass(frozen=True)
class Entry:
    """A row of the table of algorithms: its class, its line in `offbeat list`, which settings are objects.

    local: the local trainer that makes it this algorithm; empty: any that fits.   pooled: one client with all data.
    several: whether it trains several tasks.   preset: settings that make it this algorithm, unless given.
    """

    kind: Callable[..., Server[Any]]
    line: str
    convert: Mapping[str, str] = field(default_factory=dict)
    local: str = ""
    pooled: bool = False
    several: bool = False
    preset: Mapping[str, Any] = field(default_factory=dict)


_WEIGHT = {"weight": "weight"}

ALGORITHMS: dict[str, Entry] = {
    "area": Entry(
        AREA,
        "clients send what changed since they last spoke; no bias towards fast clients: size, schedule, concurrency",
        {"size": "criterion", "schedule": "schedule"},
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
        "the server's model becomes the mean of the last few arriving ones: size, concurrency",
        {"size": "criterion"},
    ),
    "asysg": Entry(
        AsySG, "asynchronous SGD, steps along `size` stale gradients: size, lr, cap, concurrency", local="gradient"
    ),
    "defedavg-niid": Entry(
        DeFedAvg, "rounds over the newest results of clients drawn with replacement: sampled, lr, renew"
    ),
    "defedavg-iid": Entry(
        DeFedAvgIID,
        "the first `size` results make a round, and clients train on while messages travel: size, lr",
    ),
    "favano": Entry(Favano, "rounds by the clock, clients interrupted where they are: sampled, period, normalise"),
    "quafl": Entry(QuAFL, "FAVANO's rounds with quantised messages and clients that mix: sampled, period, bits"),
    "mifa": Entry(MIFA, "the server remembers every client's last delta: size, lr, memory, concurrency"),
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
    "local-only": Entry(LocalOnly, "every client by itself: concurrency"),
    "centralised": Entry(FedAvg, "one client with everybody's data, the reference: lr", pooled=True),
    "fedast": Entry(
        FedAST,
        "several tasks over one pool of clients: requests, ratio, allocation (static, dynamic, variance), lr, size, "
        "window, period, aggregate",
        {"aggregate": "aggregate"},
        several=True,
    ),
    "fedast-nobuffer": Entry(
        FedAST,
        "FedAST with a server step for every update: requests, allocation, lr",
        several=True,
        preset={"size": 1, "lr": 0.038},
    ),
    "one-by-one": Entry(
        OneByOne,
        "several tasks one after the other, each with all clients: requests, ratio, lr, size, aggregate",
        {"aggregate": "aggregate"},
        several=True,
    ),
    "sync-st": Entry(
        SyncST, "several tasks in rounds, a random partition of clients: sampled, first, lr, shares", several=True
    ),
    "sync-ucb-st": Entry(
        SyncUCBST, "Sync-ST whose clients go where a bandit expects large losses: explore, and Sync-ST's", several=True
    ),
    "sync-bayes-st": Entry(
        SyncBayesST,
        "Sync-ST whose partition is chosen by Bayesian optimisation: candidates, fairness, memory, and Sync-ST's",
        several=True,
    ),
}

_PER_TASK = (
    "fedbuff",
    "area",
    "fedasync",
    "fedasync-mixing",
    "as-fedavg",
    "asysg",
)  # servers that can serve one of many

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


def _criterion(value: Any, where: str) -> Criterion:
    if isinstance(value, int) and not isinstance(value, bool):
        return _placed(where, Messages, value)
    name, setting = one(value, where, ("messages", "period", "poisson"))
    place = f"{where}.{name}"
    if name == "messages":
        return _placed(place, Messages, plain(setting, int, place))
    if name == "period":
        return _placed(place, Period, plain(setting, float, place))
    return _placed(place, Poisson, setting if setting == "optimal" else plain(setting, float, place))


def _schedule(value: Any, where: str) -> Schedule:
    name, setting = one(value, where, ("constant", "decay"))
    if name == "constant":
        return _placed(where, Steady, plain(setting, float, f"{where}.constant"))
    return build(Decay, setting, f"{where}.decay")


def _weight(value: Any, where: str) -> Staleness:
    name, setting = one(value, where, ("constant", "polynomial", "hinge"))
    if name == "constant":
        return Equal()
    if name == "polynomial":
        return build(Polynomial, setting, f"{where}.polynomial")
    return build(Hinge, setting, f"{where}.hinge")


def _aggregate(value: Any, where: str) -> Flow[Any]:
    name, settings = one(value, where, _PER_TASK)
    entry = ALGORITHMS[name]
    own = {key: _CONVERT[how] for key, how in entry.convert.items()}
    server: Any = build(entry.kind, settings, f"{where}.{name}", own)
    return server  # type: ignore[no-any-return]


def _placed(where: str, kind: Callable[[Any], T], value: Any) -> T:
    try:
        return kind(value)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


_CONVERT: dict[str, Convert] = {
    "criterion": _criterion,
    "schedule": _schedule,
    "weight": _weight,
    "aggregate": _aggregate,
}
