"""What is on record of a sweep: a line for each run that has ended, and for each that was stopped on its way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from offbeat.cli.folder import json_text
from offbeat.report.grid import SWEEP, UNFINISHED


class Logbook:
    """results: of the runs that have ended.   saved: by their numbers, those under way as they were last saved."""

    def __init__(self, folder: Path) -> None:
        self.ended, self.stopped = folder / SWEEP, folder / UNFINISHED
        self.results = _recorded(self.ended)
        self.saved = {int(run["run"]): run for run in _recorded(self.stopped)}
        self.file: TextIO

    @contextmanager
    def open(self) -> Iterator[None]:
        """While runs may end."""
        with self.ended.open("a", encoding="utf-8") as self.file:
            yield

    def save(self, run: dict[str, Any]) -> None:
        self.saved[run["run"]] = run

    def end(self, result: dict[str, Any]) -> None:
        """On the disk when this returns."""
        self.saved.pop(result["run"], None)
        self.file.write(_line(result))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.results.append(result)

    def stop(self) -> list[dict[str, Any]]:
        """Write down how far those under way have come; gives all runs of which anything is known."""
        under_way = [{**run, "unfinished": True} for run in self.saved.values() if run["curve"]]
        self.stopped.write_text("".join(map(_line, under_way)), encoding="utf-8")
        return [*self.results, *under_way]

    def close(self) -> None:
        """All have ended: they are in the order of the grid from now on."""
        self.stopped.unlink(missing_ok=True)
        self.results.sort(key=lambda result: int(result["run"]))


def _recorded(path: Path) -> list[dict[str, Any]]:
    """Runs that are on record; a line that was cut off by a crash is a run to be done again."""
    results: list[dict[str, Any]] = []
    if path.exists():
        whole = path.read_bytes()
        for line in whole.splitlines():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if isinstance(result, dict) and result.keys() >= {"run", "algorithm", "seed", "settings", "curve"}:
                results.append(result)
        if whole and not whole.endswith(b"\n"):
            part = path.with_name(path.name + ".part")
            part.write_text("".join(map(_line, results)), encoding="utf-8")
            part.replace(path)
    return results


def _line(run: Mapping[str, Any]) -> str:
    return json_text(run) + "\n"
