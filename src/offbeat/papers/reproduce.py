"""Running a paper's experiment, and comparing what came out with the paper's own numbers."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from offbeat.core.errors import FolderError, InterruptedRunError, SettingError, unknown
from offbeat.experiment import folder as folders, sweep
from offbeat.experiment.grid import Grid
from offbeat.experiment.overrides import override
from offbeat.experiment.session import Session
from offbeat.papers.cells import printed as shows
from offbeat.papers.entry import PaperEntry, load
from offbeat.papers.outcome import Outcome, conclude, rehearse
from offbeat.simulate.ray import reach
from offbeat.watch.files import EXPERIMENT, OUTCOME, REPRODUCTION, REPRODUCTION_REPORT, RUNS, versions, write_json
from offbeat.watch.results import Result


@dataclass(frozen=True)
class Request:
    """What to reproduce.

    name: of a reproduction, or the path of a TOML file of your own.   scale: "quick" or "full", the paper's protocol.
    only: `EXPERIMENT` or `EXPERIMENT/ALGORITHM`, to run these alone.   set: overrides, `key.path=value`.
    printed: run only settings that the paper's table shows, not the grid behind them.
    ray: the address of a Ray cluster to run on.
    """

    name: str
    scale: Literal["quick", "full"] = "quick"
    device: str = "cpu"
    workers: int | None = None
    only: tuple[str, ...] = ()
    printed: bool = False
    set: tuple[str, ...] = ()
    ray: str | None = None

    @property
    def command(self) -> str:
        """As on the command line."""
        words = ["offbeat", "reproduce", self.name, f"--{self.scale}", "--device", self.device]
        words += ["--printed"] if self.printed else []
        words += [word for only in self.only for word in ("--only", only)]
        words += [word for text in self.set for word in ("--set", text)]
        return shlex.join(words)


@dataclass(frozen=True)
class Reproduction:
    """What came out. runs: how many.   so_far: in words, of one that was stopped."""

    folder: Path
    request: Request
    entry: PaperEntry
    outcome: Outcome
    runs: int
    wall_s: float
    page: Path | None
    so_far: str = ""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        page = None if self.page is None else str(self.page)
        return {**self.outcome.data, "wall_s": self.wall_s, "folder": str(self.folder), "report": page}


class StoppedReproductionError(InterruptedRunError):
    """The user stopped a reproduction. known: what is known so far."""

    def __init__(self, message: str, known: Reproduction) -> None:
        super().__init__(message)
        self.known = known


Say = Callable[[str], None]  # a line about progress


def reproduce(request: Request, out: Path | None = None, say: Say = lambda line: None) -> Reproduction:
    """Run a paper's experiment into a new folder and compare."""
    entry = load(request.name, request.scale)
    rehearse(entry)
    reach(request.ray)
    for grid in _grids(entry, request).values():  # a mistake is found before anything is written
        with closing(Session(grid.experiment)) as session:
            session.check()
    name = Path(request.name).stem if request.name.endswith(".toml") else request.name
    folder = out or Path(RUNS) / f"{name}-{request.scale}-{time.strftime('%Y%m%d-%H%M%S')}"
    if (folder / REPRODUCTION).exists() or (folder / EXPERIMENT).exists():
        raise FolderError(
            f"{folder} already holds a run; continue it with `offbeat resume {folder}` or name another folder"
        )
    own = {"name": str(Path(request.name).resolve())} if request.name.endswith(".toml") else {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REPRODUCTION, {**asdict(request), **own, "wall_s": 0.0})
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror}; name another folder with --out") from None
    return resume(folder, say)


def is_reproduction(folder: Path) -> bool:
    """Whether this is the folder of one."""
    return (folder / REPRODUCTION).is_file()


def resume(folder: Path, say: Say = lambda line: None) -> Reproduction:
    """Do what is not done yet, and compare."""
    request, wall = _read(folder)
    entry = load(request.name, request.scale)
    options = sweep.Options(entry.events, None, request.workers, request.ray)
    runs: dict[str, Sequence[Result]] = {}
    grids = _grids(entry, request)
    for name, grid in grids.items():
        place = folder / name if len(entry.experiment) > 1 else folder
        if not (place / EXPERIMENT).exists():
            sweep.create(place, grid, options)
        for change in folders.changes(place):
            print(f"offbeat: {change}: the end may differ from that of an unbroken run", file=sys.stderr)
        say(f"{name}: {len(grid.points):,} runs")
        began, stopped = time.perf_counter(), None
        try:
            runs[name] = sweep.work(place, grid, options)
        except sweep.StoppedSweepError as error:
            stopped, runs[name] = error, error.runs
        finally:  # what an interrupted one has cost counts, too
            wall += time.perf_counter() - began
            write_json(folder / REPRODUCTION, {**asdict(request), "wall_s": wall})
        if stopped is not None:
            known = _concluded(folder, request, entry, grids, runs, wall, _so_far(runs))
            raise StoppedReproductionError(f"stopped and saved; continue with `offbeat resume {folder}`", known)
        if place != folder:
            folders.draw_report(place)
    return _concluded(folder, request, entry, grids, runs, wall)


def _read(folder: Path) -> tuple[Request, float]:
    path = folder / REPRODUCTION
    try:
        asked = json.loads(path.read_text(encoding="utf-8"))
        wall = float(asked.pop("wall_s", 0.0))
        return Request(**{**asked, "only": tuple(asked["only"] or ()), "set": tuple(asked["set"])}), wall
    except (ValueError, KeyError, TypeError):
        raise FolderError(f"{path} is damaged; start again in another folder") from None


def _so_far(runs: Mapping[str, Sequence[Result]]) -> str:
    every = [run for group in runs.values() for run in group]
    left = sum(bool(run.unfinished) for run in every)
    return f"so far: {len(every) - left:,} runs finished, {left:,} under way"


def _concluded(
    folder: Path,
    request: Request,
    entry: PaperEntry,
    grids: Mapping[str, Grid],
    runs: Mapping[str, Sequence[Result]],
    wall: float,
    so_far: str = "",
) -> Reproduction:
    """Compare, write what came of it and draw the page."""
    outcome = conclude(entry, runs, whole=not request.printed and not so_far)
    data = {**outcome.data, "command": request.command, "wall_s": wall, "versions": versions()}
    data["seeds"] = {name: sorted({run.seed for run in grid.experiment.runs}) for name, grid in grids.items()}
    write_json(folder / OUTCOME, data | ({"stopped": so_far} if so_far else {}))
    end = f"\nStopped, {so_far}.\n" if so_far else ""
    end += f"\nCommand: `{request.command}`; {wall:.0f} s on {request.device}; seeds {data['seeds']}.\n"
    (folder / REPRODUCTION_REPORT).write_text(outcome.markdown + end, encoding="utf-8")
    count = sum(map(len, runs.values()))
    return Reproduction(folder, request, entry, outcome, count, wall, folders.draw_report(folder), so_far)


def _grids(entry: PaperEntry, request: Request) -> dict[str, Grid]:
    """The runs that were asked for: of every experiment, or of those, and the algorithms of them, that `only` names."""
    wanted: dict[str, list[str]] = {}
    for each in request.only or entry.experiment:
        name, _, algorithm = each.partition("/")
        if name not in entry.experiment:
            raise unknown("experiment", name, entry.experiment)
        wanted.setdefault(name, []).append(algorithm)
    return {name: _grid(entry, request, name, wanted[name]) for name in entry.experiment if name in wanted}


def _grid(entry: PaperEntry, request: Request, name: str, algorithms: Sequence[str]) -> Grid:
    """The runs of one experiment: of the algorithms named, or of all if a name is empty."""
    try:
        table = override(entry.experiment[name], request.set)
    except SettingError as error:
        if len(entry.experiment) == 1:
            raise
        raise SettingError(f"experiment {name}: {error}; --only runs some of the experiments") from None
    grid = Grid({**table, "device": request.device})
    if all(algorithms):
        labels = dict.fromkeys(point.label for point in grid.points)
        for label in algorithms:
            if label not in labels:
                raise unknown("algorithm", label, labels)
        grid.points = [point for point in grid.points if point.label in algorithms]
    if request.printed:
        grid.points = [point for point in grid.points if shows(entry, name, point.label, point.settings)]
    return grid
