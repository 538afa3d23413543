"""The result file of a suite: scores of every method, seed and cell, with settings, versions and digests."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import FolderError
from offbeat.suite.definition import CENTRALISED, Suite
from offbeat.suite.run import REQUEST, SCORED, SuiteRequest, read_request
from offbeat.watch.files import RESULT, versions, write_json


@dataclass(frozen=True)
class SeedScores:
    """The scores of one run; None where it has none."""

    seed: int
    time: float | None
    area: float | None
    final: float | None
    worst: float | None
    bytes: float | None
    client_seconds: float | None
    updates: float | None


@dataclass(frozen=True)
class MethodScores:
    """A method in a cell. settings: what tuning chose.   edge: whether that is the least or largest value tried."""

    settings: Mapping[str, Any]
    edge: bool
    seeds: tuple[SeedScores, ...]


@dataclass(frozen=True)
class CellScores:
    """A cell: what counts in it, its experiment without what was tuned, and its methods."""

    task: str
    clock: str
    metric: str
    target: float
    experiment: Mapping[str, Any]
    methods: Mapping[str, MethodScores]


@dataclass(frozen=True)
class SuiteResult:
    """A whole result file.

    own: the files of users' methods with their digests, by label.   stand_ins: what is not the real thing.
    sources: the text of these files, so that anybody can run them.
    """

    suite: str
    scale: str
    digests: Mapping[str, str]
    command: str
    wall_s: float
    device: str
    versions: Mapping[str, str]
    own: Mapping[str, Sequence[str]]
    sources: Mapping[str, str]
    stand_ins: tuple[str, ...]
    cells: Mapping[str, CellScores]

    def with_references(self, cell: str) -> dict[str, MethodScores]:
        """The methods of a cell, and the centralised reference of its task."""
        task = self.cells[cell].task
        alone = self.cells.get(f"{task}/{CENTRALISED}")
        return {**self.cells[cell].methods, **(alone.methods if alone else {})}

    @property
    def compared(self) -> list[str]:
        """The cells in which methods are compared."""
        return [cell for cell in self.cells if not cell.endswith(f"/{CENTRALISED}")]

    @property
    def methods(self) -> list[str]:
        """All labels, in their order."""
        return list(dict.fromkeys(label for cell in self.compared for label in self.with_references(cell)))


def command(request: SuiteRequest) -> str:
    """As on the command line."""
    words = ["offbeat", "suite", request.version, *(["--quick"] if request.scale == "quick" else [])]
    for place, settings in zip(request.own, request.settings or ({},) * len(request.own), strict=True):
        words += ["--algorithm", Path(place).name if place.partition(":")[0].endswith(".py") else place]
        words += [word for key, value in settings.items() for word in ("--with", f"{key}={json.dumps(value)}")]
    words += [word for each in request.only for word in ("--only", each)]
    return shlex.join([*words, *(["--device", request.device] if request.device != "cpu" else [])])


def collect(folder: Path, suite: Suite) -> SuiteResult:
    """What a finished suite found; also written to `result.json`."""
    request = read_request(folder)
    cells = {}
    for cell in suite.cells:
        task = suite.tasks[cell.partition("/")[0]]
        try:
            scored = json.loads((folder / cell / SCORED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise FolderError(f"{folder / cell} is not finished; continue with `offbeat resume {folder}`") from None
        clock = cell.partition("/")[2]
        cells[cell] = {
            "task": task.name,
            "clock": clock,
            "metric": task.metric,
            "target": task.target,
            "experiment": suite.table(cell),
            "methods": scored,
        }
    own = {method.label: list(method.own) for method in suite.methods.values() if method.own}
    files = [Path(place.partition(":")[0]) for place in request.own if place.partition(":")[0].endswith(".py")]
    content = {
        "suite": suite.version,
        "scale": suite.scale,
        "digests": dict(suite.digests),
        "command": command(request),
        "wall_s": json.loads((folder / REQUEST).read_text(encoding="utf-8"))["wall_s"],
        "device": request.device,
        "versions": versions(),
        "own": own,
        "sources": {path.name: path.read_text(encoding="utf-8") for path in files},
        "stand_ins": suite.stand_ins,
        "cells": cells,
    }
    write_json(folder / RESULT, content)
    return read(folder / RESULT)


def read(path: Path) -> SuiteResult:
    """A result file, checked; a folder has one called result.json."""
    from offbeat.watch.typed_json import read_as

    place = path / RESULT if path.is_dir() else path
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise FolderError(f"cannot read {place}: {error.strerror}; name a result.json or its folder") from None
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{place} is not a result file ({error})") from None
    try:
        found: SuiteResult = read_as(SuiteResult, content, "")
    except FolderError as error:
        raise FolderError(f"{place} is not a result file: {error}") from None
    return found


def to_json(result: SuiteResult) -> dict[str, Any]:
    """For `--json`."""
    return asdict(result)
