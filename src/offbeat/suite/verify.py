"""Checking a result file: is it of this suite, and do its judging runs come out the same here?"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from offbeat.core.errors import FolderError
from offbeat.experiment import sweep
from offbeat.experiment.grid import Grid
from offbeat.experiment.overrides import put
from offbeat.suite import definition
from offbeat.suite.result import SuiteResult
from offbeat.suite.scores import scores
from offbeat.watch.files import versions

_TOLERANCE = 0.02  # relative, of scores on another machine or executor; counts of updates must be equal
_EXACT = ("offbeat", "torch", "numpy", "scikit-learn")
_COMPARED = ("time", "area", "final", "worst", "bytes", "client_seconds")


@dataclass(frozen=True)
class Verification:
    """What a check found.

    runs: how many were run again.   near: how many of them differ no more than another seed would.
    wrong: a line for each other difference.   notes: other lines.   unchecked: users' methods that were not run.
    """

    runs: int
    near: int
    wrong: Sequence[str]
    notes: Sequence[str]
    unchecked: Sequence[str]


def verify(
    result: SuiteResult, own: Sequence[str] = (), only: Sequence[str] = (), seeds: int = 1, device: str = "cpu"
) -> Verification:
    """Run the first judging seeds of every method again, in all cells or in these, and compare the scores.

    own: files of users' methods, `mine.py:Mine`, that are to be run; code that comes with a result is never run.
    The tuning is not repeated: what it chose is taken as given.
    With the same versions, system and device, scores must be the stated ones. Elsewhere sums are rounded in another
    way, which training amplifies where the loss is not convex: there both scores may also be ones that another seed
    could have had, by the stated scores of the method's other seeds. Numbers of updates must be equal everywhere.
    """
    suite = definition.load(result.suite, "quick" if result.scale == "quick" else "full")
    if dict(result.digests) != suite.digests_of({cell.task for cell in result.cells.values()}):
        raise FolderError(f"the result is of another suite {result.suite}: its digests are not those of this package")
    notes, wrong, runs, near = [], list[str](), 0, 0
    now = versions()
    same = dict(result.versions) == now and result.device == device
    notes += [
        f"{name} {result.versions.get(name)} then, {now[name]} now"
        for name in _EXACT
        if result.versions.get(name) != now[name]
    ]
    cells = suite.only(only).cells if only else list(result.cells)
    mine = {method.label: method for method in (definition.own_method(place) for place in own)}
    for label, (file, digest) in result.own.items():
        text = result.sources.get(file, "")
        if text and hashlib.sha256(text.encode()).hexdigest() != digest:
            wrong.append(f"{file}: its text is not that of the digest")
        if label in mine and (mine[label].own or ("", ""))[1] != digest:
            wrong.append(f"{file} here is not the file of the result: its digest differs")
    left_out = [label for label in result.own if label not in mine]
    with tempfile.TemporaryDirectory() as place:
        for cell in cells:
            if cell not in result.cells:
                notes.append(f"{cell} is not in the result")
                continue
            if absent := suite.lacking(cell, result.cells[cell].methods):
                notes.append(f"{cell} lacks {', '.join(absent)}")
            found = _again(suite, result, cell, left_out, seeds, device, Path(place) / cell.replace("/", "-"))
            runs += len(found)
            for (label, seed), again in found.items():
                stated = [vars(each) for each in result.cells[cell].methods[label].seeds]
                then = next(each for each in stated if each["seed"] == seed)
                far = _differs(then, again, [] if same else [each for each in stated if each["seed"] != seed])
                if not far and (close := _differs(then, again)):
                    near += 1
                    notes.append(f"{cell}, {label}, seed {seed}: {'; '.join(close)}: as another seed could")
                wrong += [f"{cell}, {label}, seed {seed}: {line}" for line in far]
    return Verification(runs, near, wrong, notes, left_out)


def _again(
    suite: definition.Suite,
    result: SuiteResult,
    cell: str,
    left_out: Collection[str],
    seeds: int,
    device: str,
    folder: Path,
) -> dict[tuple[str, int], dict[str, float | None]]:
    """The scores of each method and seed, from runs of the result's own settings."""
    task, stated = suite.tasks[cell.partition("/")[0]], result.cells[cell]
    table: dict[str, Any] = {**stated.experiment, "device": device}
    ours = suite.table(cell)
    for key in ("problem", "timing", "until", "evaluate"):
        if table[key] != ours[key]:
            absent = f"; {'; '.join(suite.stand_ins)}" if suite.stand_ins != list(result.stand_ins) else ""
            raise FolderError(f"{cell}: {key} is not that of the suite{absent}")
    for key in ("metric", "target"):
        if getattr(stated, key) != getattr(task, key):
            raise FolderError(f"{cell}: {key} is not that of the suite")
    first = [each.seed for each in next(iter(stated.methods.values())).seeds][:seeds]
    methods = {label: method for label, method in stated.methods.items() if label not in left_out}
    algorithms = copy.deepcopy({label: table["algorithm"][label] for label in methods})
    for label, ours_of in ours["algorithm"].items():
        if label in algorithms and algorithms[label] != ours_of:
            raise FolderError(f"{cell}: algorithm.{label} is not that of the suite")
    for label, method in methods.items():
        if label in suite.methods:
            key, values = suite.methods[label].axis(task)
            if list(method.settings) != [key] or method.settings[key] not in values:
                raise FolderError(f"{cell}: {label}'s settings are none that the suite tries")
        for path, value in method.settings.items():
            put({"algorithm": algorithms}, path, value, path)
    table |= {"algorithm": algorithms, "seed": first[0], "trials": 1, "sweep": {"seed": first}}
    options, grid = sweep.Options(True, None, 1), Grid(table)
    runs = sweep.work(sweep.create(folder, grid, options), grid, options, False)
    clients = task.problem["clients"]
    return {
        (run.algorithm, run.seed): scores(run, task, 1 if run.algorithm == definition.CENTRALISED else clients)
        for run in runs
    }


def _differs(
    then: Mapping[str, Any], again: Mapping[str, float | None], others: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """What is not as stated. others: the stated scores of other seeds, if one that these could have had will do."""
    if then["updates"] != again["updates"]:
        return [f"{_text(then['updates'])} updates stated, {_text(again['updates'])} here"]
    return [
        f"{name} {_text(then[name])} stated, {_text(again[name])} here"
        for name in _COMPARED
        if not _close(then[name], again[name])
        and not all(_possible(score, [each[name] for each in others]) for score in (then[name], again[name]))
    ]


def _close(stated: float | None, here: float | None) -> bool:
    if stated is None or here is None:
        return stated is here
    return isclose(stated, here, rel_tol=_TOLERANCE, abs_tol=1e-3)


def _possible(score: float | None, others: Sequence[float | None]) -> bool:
    """Whether a score lies among those of other seeds, or beyond them by no more than they differ."""
    known = [value for value in others if value is not None]
    if score is None or not known:
        return score is None and None in others
    least, most = min(known), max(known)
    return 2 * least - most <= score <= 2 * most - least


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
