"""Real phones: how fast they compute and how fast their networks are, from tables that people have measured.

The tables are read from `folder`, by default `$OFFBEAT_DATA/traces`. Times are in seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from offbeat.core.errors import DataError, SettingError, not_negative, positive, unknown
from offbeat.timing import laws
from offbeat.timing.network import Parts
from offbeat.timing.parts import Classed

# A draw far below the mean would be a phone that computes in no time or a network that stands still.
_LOWEST = 0.1  # of the mean
_KILOBYTE = 1000


@dataclass(frozen=True)
class PhoneSpeeds:
    """Each client is a phone of a table, drawn evenly; its factor is its latency over the median latency.

    table: JSON file {"phone": milliseconds}, such as ai-benchmark's MobileNet-V2 latencies.
    folder: folder of the table; by default $OFFBEAT_DATA/traces.
    """

    table: str = "mobilenet_v2_fp16_latency_by_phone.json"
    folder: str | None = None

    def factors(self, clients: int, seed: int) -> list[float]:
        path = located(self.table, self.folder)
        latencies = [_value(positive, path, phone, ms) for phone, ms in _table(path).items()]
        middle = median(latencies)
        last = len(latencies) - 1
        draws = laws.each(laws.uniform(0.0, len(latencies)), clients, seed, laws.SPEED)
        return [latencies[min(int(x), last)] / middle for x in draws]


@dataclass(frozen=True)
class PhoneTraining:
    """Measured training time of one batch on a slow, a middle and a fast phone, with normal noise (FLASH).

    A step is a batch. One draw for each job, times its steps; who has which phone follows the table's
    population counts exactly. A draw below a tenth of the mean becomes a tenth of it.

    model: a name in the table, such as femnist_cnn.
    table: JSON file with milliseconds {"mean": [...], "std": [...]} by class of phones, for each model.
    folder: folder of the table; by default $OFFBEAT_DATA/traces.
    """

    model: str
    table: str = "train_ms_per_batch.json"
    folder: str | None = None
    per: ClassVar[str] = "step"

    def bind(self, clients: int, seed: int, tasks: Sequence[str], factors: Sequence[float]) -> Classed:
        path = located(self.table, self.folder)
        table = _table(path)
        models = [name for name, row in table.items() if isinstance(row, Mapping)]
        if self.model not in models:
            raise unknown(f"model in {path}:", self.model, models)
        counts = _column(path, table, "trace_population_count")
        means, stds = (_column(path, table[self.model], name) for name in ("mean", "std"))
        if not len(counts) == len(means) == len(stds):
            raise DataError(f"{path}: {self.model} and trace_population_count do not have as many classes")
        # milliseconds to seconds
        by_class = [laws.normal(m / 1e3, s / 1e3, _LOWEST * m / 1e3) for m, s in zip(means, stds, strict=True)]
        return Classed(by_class, laws.divide(counts, clients, seed, laws.PHONE), factors)


@dataclass(frozen=True)
class PhoneNetwork:
    """Measured network speeds: each client has those of one user of the table, drawn evenly (FLASH).

    table: JSON file {"user": {"down_u": mean, "down_sigma": deviation, "up_u": …, "up_sigma": …}} in kilobytes per
        second.
    folder: folder of the table; by default $OFFBEAT_DATA/traces.

    Each transfer draws a normal speed. Differs from FLASH: a speed below a tenth of the user's mean becomes a tenth
    of it, where FLASH draws again below 0 (the mean time is then infinite); a kilobyte is 1000 bytes both ways,
    where FLASH takes 1024 for the download.
    """

    table: str = "speed_distri.json"
    folder: str | None = None

    def bind(self, clients: int, seed: int, tasks: Sequence[str]) -> Parts:
        """Parts whose amount is bytes."""
        path = located(self.table, self.folder)
        users = _table(path)
        which = [int(x) for x in laws.each(laws.uniform(0.0, len(users)), clients, seed, laws.USER)]
        which = [min(user, len(users) - 1) for user in which]
        ones = [1.0] * clients
        down, up = ([_speed(path, name, row, way) for name, row in users.items()] for way in ("down", "up"))
        return Classed(down, which, ones), Classed(up, which, ones)


def located(name: str, folder: str | None = None) -> Path:
    """The path of a table: as given, else in `folder`, else in traces/ of $OFFBEAT_DATA or ~/.cache/offbeat."""
    data = Path(os.environ.get("OFFBEAT_DATA") or Path.home() / ".cache" / "offbeat")
    tried = [Path(folder) / name] if folder else [Path(name), data / "traces" / name]
    for path in tried:
        if path.is_file():
            return path
    hint = "give its folder" if folder else "set OFFBEAT_DATA to the folder whose traces/ holds it"
    raise DataError(f"no file {' nor '.join(str(path) for path in tried)}; {hint}")


def read_json(path: Path) -> Any:
    """What the file holds, or an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not readable as JSON: {error}; fetch it again") from None


def _table(path: Path) -> Mapping[str, Any]:
    table = read_json(path)
    if not isinstance(table, Mapping) or not table:
        raise DataError(f"{path}: expected a table of names and values, found {type(table).__name__}")
    return table


def _column(path: Path, table: Mapping[str, Any], name: str) -> list[float]:
    values = table.get(name)
    if not isinstance(values, list) or not values:
        raise DataError(f"{path}: {name} = {values!r}: expected a list of numbers, one for each class of phones")
    check = not_negative if name == "std" else positive
    return [_value(check, path, name, value) for value in values]


def _speed(path: Path, name: str, row: Any, way: str) -> laws.Law:
    if not isinstance(row, Mapping):
        raise DataError(f"{path}: {name} = {row!r}: expected {way}_u and {way}_sigma")
    mean = _value(positive, path, f"{name}.{way}_u", row.get(f"{way}_u"))
    std = _value(not_negative, path, f"{name}.{way}_sigma", row.get(f"{way}_sigma"))
    return laws.inverse_normal(mean * _KILOBYTE, std * _KILOBYTE, _LOWEST * mean * _KILOBYTE)


def _value(check: Any, path: Path, name: str, value: Any) -> float:
    if value is None:
        raise DataError(f"{path}: {name} is missing")
    try:
        check(**{name: value})
    except SettingError as error:
        raise DataError(f"{path}: {error}") from None
    return float(value)
