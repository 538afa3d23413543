"""What is on record of a sweep: a line for each run that has ended, and for each that is under way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from offbeat.cli.folder import json_text
from offbeat.report.grid import SWEEP, UNFINISHED, entries


class Logbook:
    """results: of the runs that have ended.   so_far: by their numbers, those under way as they were last noted."""

    def __init__(self, folder: Path) -> None:
        self.ended, self.unfinished = folder / SWEEP, folder / UNFINISHED
        self.results = [run for _, run in entries(self.ended)]
        self.so_far = {int(run["run"]): run for _, run in entries(self.unfinished)}
        self.file: TextIO

    @contextmanager
    def open(self) -> Iterator[None]:
        """While runs may end."""
        if self.ended.exists() and not self.ended.read_bytes().endswith(b"\n"):  # a crash has cut off the last line
            _write(self.ended, self.results)
        with self.ended.open("a", encoding="utf-8") as self.file:
            yield

    @property
    def under_way(self) -> list[dict[str, Any]]:
        """The runs that have something to show."""
        return [{**run, "unfinished": True} for run in self.so_far.values() if run["curve"]]

    def note(self, runs: Sequence[dict[str, Any]]) -> None:
        """How far these have come; whoever reads the folder sees it, also after a crash."""
        self.so_far |= {run["run"]: run for run in runs}
        _write(self.unfinished, self.under_way)

    def end(self, result: dict[str, Any]) -> None:
        """On the disk when this returns."""
        self.so_far.pop(result["run"], None)
        self.file.write(_line(result))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.results.append(result)

    def close(self) -> None:
        """All have ended: they are in the order of the grid from now on."""
        self.unfinished.unlink(missing_ok=True)
        self.results.sort(key=lambda result: int(result["run"]))


def _write(path: Path, runs: Iterable[Mapping[str, Any]]) -> None:
    """All at once: nobody finds half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text("".join(map(_line, runs)), encoding="utf-8")
    part.replace(path)


def _line(run: Mapping[str, Any]) -> str:
    return json_text(run) + "\n"
