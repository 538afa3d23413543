"""What is on record of a sweep: a line for each run that has ended, and for each that is under way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from offbeat.report.grid import entries
from offbeat.watch.files import SWEEP, UNFINISHED, json_text, write_text
from offbeat.watch.results import Result


class Logbook:
    """results: of the runs that have ended.   so_far: by their numbers, those under way as they were last noted."""

    def __init__(self, folder: Path) -> None:
        self.ended, self.unfinished = folder / SWEEP, folder / UNFINISHED
        self.results = entries(self.ended, [])
        self.so_far = {run.number: run for run in entries(self.unfinished, [])}
        self.file: TextIO

    @contextmanager
    def open(self) -> Iterator[None]:
        """While runs may end."""
        if _cut_off(self.ended):
            write_text(self.ended, _lines(self.results))
        with self.ended.open("a", encoding="utf-8") as self.file:
            yield

    @property
    def under_way(self) -> list[Result]:
        """The runs that have something to show."""
        return [run for run in self.so_far.values() if run.history]

    def note(self, runs: Sequence[Result]) -> None:
        """How far these have come, for readers of the folder, also after a crash."""
        self.so_far |= {run.number: run for run in runs}
        write_text(self.unfinished, _lines(self.under_way))

    def end(self, result: Result) -> None:
        """On the disk when this returns."""
        self.so_far.pop(result.number, None)
        self.file.write(_lines([result]))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.results.append(result)

    def close(self) -> None:
        """All have ended: they are in the order of the grid from now on."""
        self.unfinished.unlink(missing_ok=True)
        self.results.sort(key=lambda result: result.number or 0)


def _cut_off(path: Path) -> bool:
    """Whether a crash has cut off the last line."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _lines(runs: Iterable[Result]) -> str:
    return "".join(json_text(run.to_json()) + "\n" for run in runs)
