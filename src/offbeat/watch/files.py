"""The files of a run folder: names, table columns, atomic writes and the lock.

experiment.json, summary.json, report.md, report.html           an experiment; each of its runs has a folder
runs.jsonl, unfinished.jsonl, runs.parquet, runs/00007/         a sweep: a line a run, folders if events were kept
reproduction.json, reproduction.md, outcome.json                a reproduction
result.json, metrics.parquet, personal.parquet, clients.parquet, underway.parquet, events/part-00000.parquet,
model.safetensors, personal.safetensors, generated.txt, checkpoint[.older].safetensors   a run
run.json, server.log, trips/part-00000.parquet, checkpoint-00000.safetensors   a real run
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat import __version__
from offbeat.core.errors import FolderError, disk_full

if TYPE_CHECKING:  # heavy, and `import offbeat` leads here
    import pyarrow as pa

EXPERIMENT, SUMMARY, REPORT, PAGE = "experiment.json", "summary.json", "report.md", "report.html"
SWEEP, UNFINISHED, SWEEP_TABLE, RUNS = "runs.jsonl", "unfinished.jsonl", "runs.parquet", "runs"
REPRODUCTION, REPRODUCTION_REPORT, OUTCOME = "reproduction.json", "reproduction.md", "outcome.json"
TUNING, JUDGED = "tuning.json", "judged"
RESULT, MODEL, OWN_PARTS = "result.json", "model.safetensors", "personal.safetensors"
GENERATED = "generated.txt"  # by the language models of a run; ¦ is where the prompt ends
OUTPUTS = "outputs.safetensors"
METRICS, PERSONAL, CLIENTS, UNDERWAY = "metrics.parquet", "personal.parquet", "clients.parquet", "underway.parquet"
EVENTS, TRIPS = "events", "trips"  # folders of parts
MEASURED = "measured"  # in a table's metadata: by task, what is known of each metric
CHECKPOINT, OLDER_CHECKPOINT = "checkpoint.safetensors", "checkpoint.older.safetensors"
SEGMENTS = "checkpoint-*.safetensors"
OWNER = 0o700  # mode of a real run's folders: a checkpoint holds the model, and the secret of [privacy]'s noise
REAL_RUN, SERVER_LOG = "run.json", "server.log"

# Columns of the tables and their types; a word is text with few distinct values, of text there may be many.
_MEASURED = {"task": "int64", "time": "float64"}
_JOB = {"sent": "float64", "started": "float64", "finished": "float64"}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    EVENTS: {
        "number": "int64",
        "time": "float64",
        "event": "word",
        "client": "int32",
        "task": "int32",
        "job": "int64",
        "version": "int64",
        "staleness": "int64",
        **_JOB,
        "reason": "text",
    },
    METRICS: {**_MEASURED, "updates": "int64", "version": "int64"},  # and one for each metric
    PERSONAL: {**_MEASURED, "client": "int64", "value": "float64"},
    CLIENTS: {"client": "int64", "name": "text", "updates": "int64", "busy": "float64", "idle": "float64"},
    UNDERWAY: {"client": "int32", "task": "int32", "job": "int64", "version": "int64", **_JOB},
}

_PACKAGES = ("torch", "numpy", "scikit-learn", "safetensors", "pyarrow")


def place_of(folder: Path, number: int) -> Path:
    """The folder of a run of a sweep."""
    return folder / RUNS / f"{number:05d}"


def pack_folder(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def unpack_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder hold these files and no others; each is there whole, or as it was before."""
    for name, content in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise FolderError(f"{name!r} is no file of a run's folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.replace(path)
    for path in sorted(folder.rglob("*"), reverse=True):  # what a folder holds before the folder
        if path.is_dir():
            with suppress(OSError):  # not empty
                path.rmdir()
        elif str(path.relative_to(folder)) not in files:
            path.unlink()
    if not files and folder.is_dir():
        folder.rmdir()


def part_name(number: int) -> str:
    """The file name of a part of a table."""
    return f"part-{number:05d}.parquet"


def segment_name(number: int) -> str:
    """The file name of a segment of checkpoints."""
    return SEGMENTS.replace("*", f"{number:05d}")


def drop_parts(folder: Path, first: int) -> None:
    """Remove the parts from this number on."""
    for path in list(folder.glob("part-*.parquet*")):
        if int(path.name[5:10]) >= first:
            path.unlink()


def schema(name: str) -> pa.Schema:
    """The pyarrow schema of a table."""
    import pyarrow as pa

    kinds = {"word": pa.dictionary(pa.int8(), pa.string()), "text": pa.dictionary(pa.int32(), pa.string())}
    return pa.schema([(column, kinds.get(kind, kind)) for column, kind in COLUMNS[name].items()])


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a table from one file or from its parts; raise FolderError if it is damaged."""
    import pyarrow.dataset as ds

    try:
        return ds.dataset(path, format="parquet").to_table(columns=columns)
    except (OSError, ValueError, KeyError) as error:
        raise FolderError(f"{path} cannot be read ({error})") from None


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table atomically."""
    import pyarrow.parquet as pq

    with atomic(path) as part:
        pq.write_table(table, part, compression="zstd")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_text(path, json_text(value, indent=1) + "\n")


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write text atomically.   errors: how to treat characters that UTF-8 cannot encode."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8", errors=errors)


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file that replaces the path once it is written."""
    part = path.with_name(path.name + ".part")
    yield part
    part.replace(path)


@contextmanager
def room(folder: Path, again: str = "continue with `offbeat resume`") -> Iterator[None]:
    """Within, a disk without room is a FolderError that says how to go on."""
    try:
        yield
    except Exception as error:
        if not disk_full(error):
            raise
        raise FolderError(
            f"no space left in {folder}; free space and {again}: everything until the last checkpoint is kept"
        ) from None


def json_text(value: Any, indent: int | None = None) -> str:
    """The value as JSON text; infinities and nan, as in the loss of a diverging run, become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def locked(folder: Path, otherwise: str = "") -> Iterator[None]:
    """Lock a folder for this process: two would overwrite each other's checkpoints and records.

    The lock ends with the process, however that ends.   otherwise: the message for a second process.
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


def versions() -> dict[str, str]:
    """The versions of everything a result may depend on."""
    found = {"offbeat": __version__, "python": sys.version.split()[0], "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
