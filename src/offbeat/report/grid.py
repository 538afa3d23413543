"""The runs of a sweep: one line each in `runs.jsonl`, and a folder only if events were kept.

Runs in progress, now or when the sweep was stopped, have a line in `unfinished.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.core.errors import FolderError
from offbeat.core.watcher import Measurement
from offbeat.report.run import Columns, RecordedRun, short
from offbeat.watch.files import COLUMNS, METRICS, SWEEP, UNFINISHED, place_of
from offbeat.watch.results import Result

_NAMED = 8  # runs under way that are called by their names
_NAMES = ("run", "algorithm", "seed", "settings", "curve")


def sweep_runs(home: Path, warnings: list[str]) -> list[RecordedRun]:
    """Every finished or saved run in grid order; its settings are part of its label."""
    found = _read(home, SWEEP, warnings)
    under_way = {number: run for number, run in _read(home, UNFINISHED, warnings).items() if number not in found}
    if under_way:
        names = [run.name for run in under_way.values()]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        warnings.append(f"not finished, shown as far as they had come: {'; '.join(names[:_NAMED])}{more}")
    return [run for _, run in sorted({**found, **under_way}.items())]


def entries(path: Path, warnings: list[str]) -> list[Result]:
    """All runs of this file, if it exists; damaged lines, such as one cut off by a crash, are reported and skipped."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_entry(json.loads(line)))
        except (ValueError, RecursionError, FolderError) as error:
            warnings.append(f"line {number} of {path.name} is damaged and left out ({short(error)})")
    return found


def _entry(value: Any) -> Result:
    absent = ", ".join(f"no {name}" for name in _NAMES if not isinstance(value, dict) or name not in value)
    if absent:
        raise FolderError(absent)
    return Result.from_json(value)


def _read(home: Path, name: str, warnings: list[str]) -> dict[int, RecordedRun]:
    """The runs of this file, by number."""
    try:
        return {result.number or 0: _run(home, result) for result in entries(home / name, warnings)}
    except OSError as error:
        warnings.append(f"{name} cannot be read ({error.strerror})")
        return {}


def _run(home: Path, result: Result) -> RecordedRun:
    settings = ", ".join(f"{name} = {text}" for name, text in brief(result.settings).items())
    label = f"{result.algorithm}{', ' if settings else ''}{settings}"
    place, curve = place_of(home, result.number or 0), _curve(result.history)
    known = tuple(task.measured for task in result.tasks)
    finished = None if result.unfinished else replace(result, curve=None)
    return RecordedRun(place, label, result.seed, finished, curve, known)


def _curve(history: Sequence[Measurement]) -> Columns:
    """The evaluations as columns."""
    names = sorted({name for m in history for name in m.metrics})
    columns: Columns = {
        name: np.array([getattr(m, name) for m in history], dtype=kind) for name, kind in COLUMNS[METRICS].items()
    }
    return columns | {name: np.array([m.metrics.get(name, np.nan) for m in history], np.float64) for name in names}


def brief(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings for a table: each key shortened to as many of its last parts as make it unique."""
    shown: dict[str, str] = {}
    for path, value in settings.items():
        keys, count = path.split("."), 1
        while count < len(keys) and sum(other.split(".")[-count:] == keys[-count:] for other in settings) > 1:
            count += 1
        shown[".".join(keys[-count:])] = f"{value:g}" if isinstance(value, float) else _text(value)
    return shown


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")
