"""What is on record of a sweep: a line for each run that has ended, and for each that is under way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from offbeat.report.grid import entries
from offbeat.watch.files import SWEEP, UNFINISHED, json_text, write_text


class Logbook:
    """results: of the runs that have ended.   so_far: by their numbers, those under way as they were last noted."""

    def __init__(self, folder: Path) -> None:
        self.ended, self.unfinished = folder / SWEEP, folder / UNFINISHED
        self.results = [run for _, run in entries(self.ended, [])]
        self.so_far = {int(run["run"]): run for _, run in entries(self.unfinished, [])}
        self.file: TextIO

    @contextmanager
    def open(self) -> Iterator[None]:
        """While runs may end."""
        if _cut_off(self.ended):
            write_text(self.ended, _lines(self.results))
        with self.ended.open("a", encoding="utf-8") as self.file:
            yield

    @property
    def under_way(self) -> list[dict[str, Any]]:
        """The runs that have something to show."""
        return [{**run, "unfinished": True} for run in self.so_far.values() if run["curve"]]

    def note(self, runs: Sequence[dict[str, Any]]) -> None:
        """How far these have come; whoever reads the folder sees it, also after a crash."""
        self.so_far |= {run["run"]: run for run in runs}
        write_text(self.unfinished, _lines(self.under_way))

    def end(self, result: dict[str, Any]) -> None:
        """On the disk when this returns."""
        self.so_far.pop(result["run"], None)
        self.file.write(_lines([result]))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.results.append(result)

    def close(self) -> None:
        """All have ended: they are in the order of the grid from now on."""
        self.unfinished.unlink(missing_ok=True)
        self.results.sort(key=lambda result: int(result["run"]))


def _cut_off(path: Path) -> bool:
    """Whether a crash has cut off the last line."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _lines(runs: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json_text(run) + "\n" for run in runs)
