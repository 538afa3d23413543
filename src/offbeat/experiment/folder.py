"""The folder of an experiment: what was asked for, and with which versions."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from offbeat.core import names
from offbeat.core.errors import FolderError
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.watch.files import EXPERIMENT, REPORT, RUNS, json_text as json_text, locked, versions, write_json

_EXACT = ("offbeat", "torch", "numpy", "scikit-learn")  # a result is the same to the last bit while these are


def create(
    out: Path | str | None, experiment: Experiment, sweep: Mapping[str, Any] | None = None, real: str = ""
) -> Path:
    """A new folder with the experiment in it; without a name, one under runs/ that carries the time.

    sweep: for a sweep, its [sweep] table and options.   real: for a real run, the command that serves it.
    """
    content: dict[str, Any] = {"experiment": experiment.table, "resolved": experiment.resolved}
    if sweep is not None:
        content["sweep"] = dict(sweep)
    if real:
        content["real"] = {"command": real}
    if modules := names.homes(experiment.table):
        content["modules"] = modules  # where the user's own were found
        content["code"] = _code(experiment.table)
    if data := _data(experiment.table):
        content["data"] = data
    return _create(_fresh(Path(RUNS)) if out is None else Path(out), content)


def _create(folder: Path, content: Mapping[str, Any]) -> Path:
    if (folder / EXPERIMENT).exists():
        raise FolderError(
            f"{folder} already holds a run; continue it with `offbeat resume {folder}` or name another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; name a folder that does not exist yet")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):  # two that begin at once in one folder: the first has it
            if (folder / EXPERIMENT).exists():
                return _create(folder, content)
            write_json(folder / EXPERIMENT, {**content, "versions": versions()})
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror}; name another folder with --out") from None
    return folder


def create_by_hand(out: Path | str, settings: Mapping[str, Any]) -> Path:
    """A new folder for a run of objects that were made by hand."""
    return _create(Path(out), {"experiment": {}, "by_hand": dict(settings), "resolved": dict(settings)})


def open_by_hand(folder: Path) -> Mapping[str, Any] | None:
    """What a folder keeps of objects that were made by hand; None for any other."""
    return _saved(folder, "by_hand") or None


def open_experiment(folder: Path) -> Experiment:
    """The experiment that an existing folder was made for."""
    names.search(*_saved(folder, "modules", list))
    return Experiment.parse(_saved(folder, "experiment"))


def open_run(run: Path) -> tuple[Experiment, Spec]:
    """The experiment and the run of a run's own folder."""
    if not run.is_dir():
        raise FolderError(f"{run} is not a folder; name that of a run, such as runs/20250101-120000/area-0")
    if open_by_hand(run.parent) is not None:
        raise FolderError(
            f"{run.parent} was made from Python objects, which it does not hold; in Python, give the problem: "
            f"offbeat.open({str(run.parent)!r})[0].module(problem=problem)"
        )
    experiment = open_experiment(run.parent)
    spec = next((s for s in experiment.runs if s.folder == run.name), None)
    if spec is None:
        raise FolderError(f"{run} is not a run of the experiment in {run.parent}")
    return experiment, spec


def open_sweep(folder: Path) -> dict[str, Any] | None:
    """The [sweep] table and options of a folder that was made for a sweep; None for any other."""
    return _saved(folder, "sweep") or None


def open_real(folder: Path) -> str:
    """The command that serves the real run of a folder; empty for any other folder."""
    return str(_saved(folder, "real").get("command", ""))


def made_with(folder: Path) -> dict[str, str]:
    """The versions that a folder was made with."""
    found: dict[str, str] = _saved(folder, "versions")
    return found


def changes(folder: Path) -> list[str]:
    """Versions and modules that a result may depend on and that are not those the folder was made with."""
    before, now = _saved(folder, "versions"), versions()
    found = [f"{name} {before.get(name)} then, {now[name]} now" for name in _EXACT if before.get(name) != now[name]]
    written, read = _saved(folder, "code"), _code(_saved(folder, "experiment"))
    edited = [name for name in written if name in read and written[name] != read[name]]
    found += [f"the module {name} has changed since the first run of this folder" for name in edited]
    kept, data = _saved(folder, "data"), _data(_saved(folder, "experiment"))
    other = [path for path in kept if path in data and kept[path] != data[path]]
    return found + [f"the data in {path} have changed since the first run of this folder" for path in other]


def _code(table: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 digests of the user's own modules."""
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in names.sources(table).items()}


def _data(table: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 digests of the user's own files of data, and of the texts in folders."""
    return {path: found for path in names.files(table) if (found := _digest(names.placed(path)))}


def _digest(place: Path) -> str:
    digest = hashlib.sha256()
    for file in [place] if place.is_file() else sorted(place.glob("*.txt")):
        with suppress(OSError), file.open("rb") as content:  # what cannot be read is said where it is used
            digest.update(f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()}".encode())
    return digest.hexdigest() if place.exists() else ""


def _saved(folder: Path, name: str, kind: type[Any] = dict) -> Any:
    """A part of what the folder was made with, empty where it has none."""
    path = folder / EXPERIMENT
    if not path.is_file():
        raise FolderError(
            f"{folder} is not a run folder: it has no {EXPERIMENT}; `offbeat run --out {folder}` makes one"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if {"experiment", "versions"} <= set(content):
            return kind(content.get(name) or ())
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    raise FolderError(f"{path} is damaged; start the experiment again in another folder")


def write_report(folder: Path, experiment: Experiment, table: str, errors: Sequence[str]) -> None:
    """A page for people: the table, what failed, the experiment."""
    lines = ["# Results", "", table]
    if errors:
        lines += ["", "## Failed", "", *(f"- {error}" for error in errors)]
    lines += ["", "## Experiment", "", "```json", json.dumps(experiment.table, indent=1), "```", ""]
    lines += ["## Versions", "", *(f"- {name} {value}" for name, value in versions().items()), ""]
    (folder / REPORT).write_text("\n".join(lines), encoding="utf-8")


def draw_report(folder: Path) -> Path | None:
    """The page of a folder whose runs have just ended; whatever goes wrong with it must not cost their results."""
    from offbeat import report

    try:
        return report.write(folder)
    except Exception as error:
        print(f"offbeat: the report could not be drawn ({type(error).__name__}: {error})", file=sys.stderr)
        return None


def _fresh(parent: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder, count = parent / stamp, 2
    while folder.exists():
        folder, count = parent / f"{stamp}-{count}", count + 1
    return folder
