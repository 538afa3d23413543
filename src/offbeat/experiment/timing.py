"""The [timing] table of an experiment: one key for each part of the model, put together into a `Times`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from offbeat.core.errors import SettingError, unknown
from offbeat.experiment.parse import Convert, build, one, plain
from offbeat.timing import (
    Bandwidth,
    Constant,
    Delays,
    Diurnal,
    Exponential,
    Factors,
    Flops,
    Links,
    LogNormal,
    Normal,
    OnOff,
    Pareto,
    PhoneNetwork,
    PhoneSpeeds,
    PhoneTraining,
    ShiftedExponential,
    SpeedClasses,
    Spread,
    Times,
    Timing,
    Trace,
    Uniform,
)
from offbeat.timing.network import Network
from offbeat.timing.parts import Delay
from offbeat.timing.speeds import Speeds

TIMINGS = {
    "exponential": "memoryless jobs: { rate = 10.0 }, rate also { normal = [10, 5], min = 0.5 } or one for each client",
    "shifted_exponential": "β + Exp(mean 2β) a step: { per_step = 0.148 }, also { mnist = 0.148, fashion = 0.240 }",
    "constant": 'the same time for all: { time = 1.0 }, { time = { mnist = 1.0 }, per = "step" }',
    "uniform": 'evenly spread: { low = 1.0, high = 3.0, per = "job" }',
    "lognormal": 'a moderate tail: { median = 1.0, sigma = 0.5, per = "job" }, or mean instead of median',
    "pareto": 'a heavy tail: { scale = 1.0, shape = 1.5, per = "job" }',
    "flops": "operations of a step over speed: { per_step = 17e6, speed = 10e9 }",
    "phone_training": 'measured training time of a batch on real phones: { model = "femnist_cnn" }',
    "trace": 'recorded jobs and stays, replayed: { file = "trace.csv", period = 86400 }',
    "bandwidth": "bytes over Mbit/s: { down = 400, up = 400 }",
    "delays": "random delays each way: { download = 1.0, ratio = [4, 6] } (upload over download, by client)",
    "download": "any time per job for the way down: { lognormal = { … } }; upload must be given too",
    "upload": "any time per job for the way up: { constant = { time = 2.0 } }; download must be given too",
    "phone_network": "measured network speeds of real users: {}",
    "speeds": "how much slower clients compute: { slow = [0.25, 1.3], fast = [0.75, 1.0] } (share, factor), "
    '{ uniform = [1, 5] }, [1.0, 2.0] (one for each client) or "phones"',
    "diurnal": "there for a stretch of every day: { period = 86400, on = 0.5, spread = 1.0 }",
    "on_off": "exponential stays and absences: { on = 600, off = 1800 } (means)",
    "intervals": 'recorded stays alone: { file = "trace.csv" }',
    "available": "share of the clients that take new work at any moment: 0.3",
    "dropout": "probability that a job's result is lost: 0.05",
}


def timing_from(table: Any, where: str = "timing") -> Timing:
    """The timing model that a [timing] table describes.

    >>> timing_from({"exponential": {"rate": 10.0}, "available": 0.3}).compute
    Exponential(rate=10.0)
    """
    if not isinstance(table, Mapping) or not table:
        raise SettingError(f"{where} = {table!r} does not say how long a job takes; give one of {', '.join(TIMINGS)}")
    for name in table:
        if name not in TIMINGS:
            raise unknown(f"key in {where}:", name, TIMINGS)
    table, speeds = _lift_speeds(table, where)
    parts = {
        "compute": _only(table, where, _COMPUTE),
        "network": _network(table, where),
        "presence": _only(table, where, _PRESENCE),
        "speeds": speeds,
    }
    trace = build(Trace, table["trace"], f"{where}.trace") if "trace" in table else None
    shares = {name: plain(table[name], float, f"{where}.{name}") for name in _SHARES if name in table}
    try:
        return Times(**parts, **shares, trace=trace)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


def _only(table: Mapping[str, Any], where: str, known: Mapping[str, Convert]) -> Any:
    """The object of the one key that is known here; None without any."""
    found = [name for name in table if name in known]
    if len(found) > 1:
        raise SettingError(f"{where} has {' and '.join(found)}, which say the same thing in two ways; keep one")
    return known[found[0]](table[found[0]], f"{where}.{found[0]}") if found else None


def _network(table: Mapping[str, Any], where: str) -> Network | None:
    network: Network | None = _only(table, where, _NETWORK)
    ways = [way for way in ("download", "upload") if way in table]
    if not ways:
        return network
    if network is not None:
        raise SettingError(f"{where} has {ways[0]} and {network!r}, two networks; keep one")
    if len(ways) == 1:
        raise SettingError(f"{where} has {ways[0]} alone; give both download and upload, each as in {{ name = … }}")
    return Links(_delay(table["download"], f"{where}.download"), _delay(table["upload"], f"{where}.upload"))


def _lift_speeds(table: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], Speeds | None]:
    """The table without its speeds, which stand beside the other parts or in shifted_exponential (FedAST)."""
    inner = table.get("shifted_exponential")
    places = {f"{where}.speeds": table} if "speeds" in table else {}
    if isinstance(inner, Mapping) and "speeds" in inner:
        places[f"{where}.shifted_exponential.speeds"] = inner
        table = {**table, "shifted_exponential": {k: v for k, v in inner.items() if k != "speeds"}}
    if len(places) > 1:
        raise SettingError(f"{' and '.join(places)} both say how fast clients are; keep one")
    for place, holder in places.items():
        return table, _speeds(holder["speeds"], place)
    return table, None


def _speeds(value: Any, where: str) -> Speeds:
    if isinstance(value, list):
        return build(Factors, {"values": value}, where)
    if isinstance(value, Mapping) and set(value) == {"uniform"}:
        low_high = value["uniform"]
        if not isinstance(low_high, list) or len(low_high) != 2:
            raise SettingError(
                f"{where}.uniform = {low_high!r}: expected two numbers, the lowest and the highest factor"
            )
        return build(Spread, dict(zip(("low", "high"), low_high, strict=True)), where)
    if value == "phones" or (isinstance(value, Mapping) and set(value) == {"phones"}):
        return build(PhoneSpeeds, {} if value == "phones" else value["phones"], where)
    if isinstance(value, Mapping):
        of = {name: tuple(x) if isinstance(x, list) else x for name, x in value.items()}
        return build(SpeedClasses, {"of": of}, where, {"of": lambda x, _: x})
    raise SettingError(f"{where} = {value!r}: expected {TIMINGS['speeds']}")


def _rate(value: Any, where: str) -> float | Normal | tuple[float, ...]:
    if not isinstance(value, Mapping):
        rate: float | tuple[float, ...] = plain(value, float | tuple[float, ...], where)
        return rate
    return build(_CutNormal, value, where).number(where)


def _sizes(value: Any, where: str) -> Any:
    return value if isinstance(value, Mapping) else plain(value, float, where)


def _delay(table: Any, where: str) -> Delay:
    name, settings = one(table, where, _COMPUTE)
    delay: Delay = _COMPUTE[name](settings, f"{where}.{name}")
    return delay


@dataclass(frozen=True)
class _CutNormal:
    normal: tuple[float, float]
    min: float

    def number(self, where: str) -> Normal:
        if len(self.normal) != 2:
            raise SettingError(f"{where}.normal = {list(self.normal)!r}: expected [mean, standard deviation]")
        try:
            return Normal(*self.normal, self.min)
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None


def _made(kind: Callable[..., Any], **convert: Convert) -> Convert:
    return lambda table, where: build(kind, table, where, convert)


_COMPUTE: dict[str, Convert] = {
    "exponential": _made(Exponential, rate=_rate),
    "shifted_exponential": _made(ShiftedExponential, per_step=_sizes),
    "constant": _made(Constant, time=_sizes),
    "uniform": _made(Uniform),
    "lognormal": _made(LogNormal),
    "pareto": _made(Pareto),
    "flops": _made(Flops, per_step=_sizes),
    "phone_training": _made(PhoneTraining),
}
_NETWORK: dict[str, Convert] = {
    "bandwidth": _made(Bandwidth),
    "delays": _made(Delays),
    "phone_network": _made(PhoneNetwork),
}
_PRESENCE: dict[str, Convert] = {"diurnal": _made(Diurnal), "on_off": _made(OnOff), "intervals": _made(Trace)}
_SHARES = ("available", "dropout")
