"""The folder of an experiment: what was asked for, with which versions, and what came out."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from offbeat import __version__
from offbeat.core.errors import FolderError
from offbeat.core.vectors import settled
from offbeat.experiment.experiment import Experiment
from offbeat.simulate.loop import Simulation
from offbeat.watch.results import Result

EXPERIMENT, RESULT, SUMMARY, REPORT = "experiment.json", "result.json", "summary.json", "report.md"
_PACKAGES = ("torch", "numpy", "scikit-learn", "safetensors", "pyarrow")
_EXACT = ("offbeat", "torch", "numpy", "scikit-learn")  # a result is the same to the last bit while these are


def create(out: Path | None, experiment: Experiment, sweep: Mapping[str, Any] | None = None) -> Path:
    """A new folder with the experiment in it; without a name, one under runs/ that carries the time.

    sweep: for a sweep, its [sweep] table and options.
    """
    folder = out or _fresh(Path("runs"))
    if (folder / EXPERIMENT).exists():
        raise FolderError(f"{folder} already holds a run; go on with `offbeat resume {folder}` or name another folder")
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; name a folder that does not exist yet")
    content = {"experiment": experiment.table, "resolved": experiment.resolved, "versions": versions()}
    if sweep is not None:
        content["sweep"] = dict(sweep)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / EXPERIMENT, content)
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror}; name another folder with --out") from None
    return folder


@contextmanager
def taken(folder: Path, otherwise: str = "") -> Iterator[None]:
    """One process at a time works in a folder: two would write over each other's checkpoints and records.

    The lock goes with the process, however that ends.   otherwise: what a second one is told.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = otherwise or f"another offbeat is at work in {folder}; let it end, or stop it first"
            raise FolderError(told) from None
        yield
    finally:
        os.close(handle)


def open_experiment(folder: Path) -> Experiment:
    """The experiment that an existing folder was made for."""
    path = folder / EXPERIMENT
    if not path.is_file():
        raise FolderError(
            f"{folder} is not a run folder: it has no {EXPERIMENT}; `offbeat run --out {folder}` makes one"
        )
    return Experiment(_saved(path)["experiment"])


def open_sweep(folder: Path) -> dict[str, Any] | None:
    """The [sweep] table and options of a folder that was made for a sweep; None for any other."""
    try:
        found = json.loads((folder / EXPERIMENT).read_text(encoding="utf-8")).get("sweep")
    except (OSError, ValueError, AttributeError):
        return None  # `open_experiment` says what is wrong
    return dict(found) if found else None


def changes(folder: Path) -> list[str]:
    """Versions that a result may depend on and that are not those the folder was made with."""
    before, now = _saved(folder / EXPERIMENT)["versions"], versions()
    return [f"{name} {before.get(name)} then, {now[name]} now" for name in _EXACT if before.get(name) != now[name]]


def _saved(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: dict(content[name]) for name in ("experiment", "versions")}
    except (OSError, ValueError, KeyError, TypeError):
        raise FolderError(f"{path} is damaged; start the experiment anew in another folder") from None


def read_result(folder: Path) -> Result | None:
    """What a finished run found, or None while it is not finished."""
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None  # an interrupted write; the run is done again from its checkpoint
    try:
        return Result.from_json(value, folder)
    except FolderError as error:
        raise FolderError(f"{path} is damaged: {error}; delete it to do this run anew") from None


def finish_run(folder: Path, simulation: Simulation, result: Result) -> None:
    """Keep the final models and the numbers; from now on the run counts as finished."""
    models = simulation.server.models(simulation.world.server)
    tensors = {
        p.name or f"task{i}": settled(m.vector).cpu().clone()
        for i, (p, m) in enumerate(zip(simulation.problems, models, strict=True))
    }
    save_file(tensors, folder / "model.safetensors", metadata={"version": str(models[0].version)})
    write_json(folder / RESULT, result.to_json())
    for old in folder.glob("checkpoint*.safetensors*"):
        old.unlink()


def write_json(path: Path, value: Any) -> None:
    """A value as JSON, whole or not at all."""
    write_text(path, json_text(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON text; numbers that JSON does not have, such as the infinite loss of a run that explodes, become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Of everything that a result may depend on."""
    found = {"offbeat": __version__, "python": sys.version.split()[0], "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def report(folder: Path, experiment: Experiment, table: str, errors: Sequence[str]) -> None:
    """A page for people: the table, what failed, the experiment."""
    lines = ["# Results", "", table]
    if errors:
        lines += ["", "## Failed", "", *(f"- {error}" for error in errors)]
    lines += ["", "## Experiment", "", "```json", json.dumps(experiment.table, indent=1), "```", ""]
    lines += ["## Versions", "", *(f"- {name} {value}" for name, value in versions().items()), ""]
    (folder / REPORT).write_text("\n".join(lines), encoding="utf-8")


def _fresh(parent: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder, count = parent / stamp, 2
    while folder.exists():
        folder, count = parent / f"{stamp}-{count}", count + 1
    return folder
