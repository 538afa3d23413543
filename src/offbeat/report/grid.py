"""The runs of a sweep: a line for each in `runs.jsonl`, and folders only where events were kept.

Those that are under way, or were when a sweep was stopped, have a line in `unfinished.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.report.run import DAMAGE, Columns, Run, short
from offbeat.report.tables import check
from offbeat.watch.files import SWEEP, UNFINISHED, place_of

_NAMED = 8  # runs under way that are called by their names
_NAMES = ("run", "algorithm", "seed", "settings", "curve")


def sweep_runs(home: Path, said: list[str]) -> list[Run]:
    """Every run that is finished or was saved, in the order of the grid; settings are part of its label."""
    found = _read(home, SWEEP, said)
    under_way = {number: run for number, run in _read(home, UNFINISHED, said).items() if number not in found}
    if under_way:
        names = [run.name for run in under_way.values()]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        said.append(f"not finished, shown as far as they had come: {'; '.join(names[:_NAMED])}{more}")
    return [run for _, run in sorted({**found, **under_way}.items())]


def entries(path: Path, said: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """(line, run) for all runs of this file, if there is one; damaged lines, as a crash leaves the last one, are left
    out and said."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            wrong = short(error)
        else:
            wrong = ", ".join(f"no {name}" for name in _NAMES if not isinstance(entry, dict) or name not in entry)
        if wrong:
            said.append(f"line {number} of {path.name} is damaged and left out ({wrong})")
        else:
            found.append((number, entry))
    return found


def _read(home: Path, name: str, said: list[str]) -> dict[int, Run]:
    """The runs of this file, by their numbers."""
    found: dict[int, Run] = {}
    try:
        lines = entries(home / name, said)
    except OSError as error:
        said.append(f"{name} cannot be read ({error.strerror})")
        return found
    for number, entry in lines:
        try:
            found[int(entry["run"])] = _run(home, entry, finished=name == SWEEP)
        except (*DAMAGE, RecursionError) as error:
            said.append(f"line {number} of {name} is damaged and left out ({short(error)})")
    return found


def _run(home: Path, entry: dict[str, Any], finished: bool) -> Run:
    """The run of this line; an error if no table could be made of it."""
    curve = _curve(entry.pop("curve", []))
    settings = ", ".join(f"{name} = {text}" for name, text in brief(entry["settings"]).items())
    label = f"{entry['algorithm']}{', ' if settings else ''}{settings}"
    if finished:
        check(entry)
    place = place_of(home, int(entry["run"]))
    return Run(place, label, int(entry["seed"]), entry if finished else None, curve)


def _curve(points: list[Any]) -> Columns:
    """Measurements, (task, time, updates, version, metrics, …) each, as columns."""
    names = sorted({str(name) for point in points for name in point[4]})
    columns: Columns = {
        "task": np.array([point[0] for point in points], dtype=np.int64),
        "time": np.array([point[1] for point in points], dtype=np.float64),
        "updates": np.array([point[2] for point in points], dtype=np.int64),
        "version": np.array([point[3] for point in points], dtype=np.int64),
    }
    for name in names:
        values = [point[4].get(name) for point in points]
        columns[name] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return columns


def brief(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings for a table: the last part of each key, or as many as tell it from the others."""
    shown: dict[str, str] = {}
    for path, value in settings.items():
        keys, count = path.split("."), 1
        while count < len(keys) and sum(other.split(".")[-count:] == keys[-count:] for other in settings) > 1:
            count += 1
        shown[".".join(keys[-count:])] = f"{value:g}" if isinstance(value, float) else _text(value)
    return shown


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")
