"""Reading folders of experiments, even damaged ones: what cannot be read is reported and skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import FolderError
from offbeat.report.grid import sweep_runs
from offbeat.report.run import RecordedRun, short
from offbeat.watch.files import EVENTS, EXPERIMENT, METRICS, RESULT, SUMMARY, SWEEP
from offbeat.watch.results import Result


@dataclass
class ExperimentFolder:
    """One experiment: its settings, the versions it was made with, and its runs."""

    path: Path
    name: str
    experiment: dict[str, Any] | None
    resolved: dict[str, Any]
    versions: dict[str, str]
    runs: list[RecordedRun]
    warnings: list[str]


def read(path: Path) -> ExperimentFolder:
    """The experiment in this folder, or the single run in it together with its experiment."""
    if not path.is_dir():
        raise FolderError(f"{path} is not a folder; name the folder of an experiment, such as runs/20250101-120000")
    swept = (path / SWEEP).exists()
    alone = not (path / EXPERIMENT).exists() and not swept and _is_run(path)
    home = path.resolve().parent if alone else path
    found = [path] if alone else sorted(child for child in path.iterdir() if child.is_dir() and _is_run(child))
    warnings: list[str] = []
    content = _json(home / EXPERIMENT, warnings) or {}
    if not found and not content and not swept:
        raise FolderError(f"{path} holds no run: neither {EXPERIMENT} nor a folder with events or metrics in it")
    experiment = content.get("experiment")
    experiment = experiment if isinstance(experiment, dict) else None
    order = {label: at for at, label in enumerate(_labels(experiment))}  # runs that the file does not name come last
    runs = sweep_runs(home, warnings) if swept else [_run(child) for child in found]
    if not swept:
        runs.sort(key=lambda run: (order.get(run.label, len(order)), run.label, run.seed))
    if not alone and not swept:
        warnings += _absent(home, runs)
    if not runs:
        warnings.append("no run has begun")
    versions = {str(name): str(value) for name, value in _dict(content.get("versions")).items()}
    return ExperimentFolder(
        path, path.resolve().name, experiment, _dict(content.get("resolved")), versions, runs, warnings
    )


def _run(path: Path) -> RecordedRun:
    warnings: list[str] = []
    value = _json(path / RESULT, warnings) if (path / RESULT).exists() else None
    result = None
    if value is not None:
        try:
            result = Result.from_json(value, path)
        except FolderError as error:
            warnings = [f"{RESULT} is damaged and left out ({short(error)})"]
    elif not warnings:
        warnings = [f"not finished: there is no {RESULT}; what was recorded is shown"]
    if result is not None:
        label, seed = result.algorithm, result.seed
    else:
        name, _, number = path.name.rpartition("-")
        label, seed = (name, int(number)) if name and number.isdigit() else (path.name, 0)
    run = RecordedRun(path, label, seed, result)
    for line in warnings:
        run.warn(line)
    return run


def _absent(home: Path, runs: Sequence[RecordedRun]) -> Iterator[str]:
    """A line for every run that is listed in the summary but missing from the folder."""
    warnings: list[str] = []
    summary = _json(home / SUMMARY, warnings)
    yield from warnings
    listed = _dict(summary).get("runs")
    known = {run.name for run in runs}
    for entry in listed if isinstance(listed, list) else []:
        name = f"{entry.get('algorithm')}, seed {entry.get('seed')}" if isinstance(entry, dict) else "a run"
        if name not in known:
            yield f"the folder of {name} is missing"


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in (RESULT, METRICS, EVENTS))


def _labels(experiment: dict[str, Any] | None) -> list[str]:
    tables = _dict(experiment).get("algorithm")
    if isinstance(tables, dict):
        return list(tables)
    found = tables if isinstance(tables, list) else []
    return [str(t.get("label", t.get("name"))) for t in found if isinstance(t, dict)]


def _json(path: Path, warnings: list[str]) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it holds no table")
        return value
    except FileNotFoundError:
        warnings.append(f"{path.name} is missing")
    except (OSError, ValueError, RecursionError) as error:
        warnings.append(f"{path.name} is damaged and left out ({short(error)})")
    return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
