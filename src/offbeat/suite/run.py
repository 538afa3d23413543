"""Running the suite: every cell is tuned and judged in a folder of its own, several cells at once.

A suite's folder holds `suite.json` (what was asked), `TASK/CLOCK/` (a tuning each, with `scores.json` once it is done),
and at the end `result.json`, `result.md` and `result.html`.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from offbeat.core.errors import FolderError, InterruptedRunError, OffbeatError, SettingError
from offbeat.experiment import mps, tuning
from offbeat.simulate.pool import cores
from offbeat.simulate.ray import reach
from offbeat.simulate.transport import Child
from offbeat.suite import definition
from offbeat.suite.definition import Scale, Suite
from offbeat.suite.scores import scores
from offbeat.watch.files import RUNS, write_json
from offbeat.watch.session import interruptible

REQUEST, SCORED = "suite.json", "scores.json"

Say = Callable[[str], None]


@dataclass(frozen=True)
class SuiteRequest:
    """What to run.

    own: users' methods, `mine.py:Mine`.   settings: of each of these.   only: tasks, clocks or cells.
    device: cpu or cuda.   methods: those of the suite that take part, besides the references; empty: as it says.
    """

    version: str = "v1"
    scale: Scale = "full"
    own: tuple[str, ...] = ()
    settings: tuple[Mapping[str, Any], ...] = ()
    only: tuple[str, ...] = ()
    device: str = "cpu"

    def suite(self) -> Suite:
        """The suite that was asked for."""
        given = self.settings or ({},) * len(self.own)
        mine = [definition.own_method(place, each) for place, each in zip(self.own, given, strict=True)]
        found = definition.load(self.version, self.scale, mine)
        return found.only(self.only) if self.only else found


def create(request: SuiteRequest, out: Path | None, ray: str | None = None) -> Path:
    """A new folder for it; mistakes are found before, also in the address of a Ray cluster."""
    suite = request.suite()
    folder = out or Path(RUNS) / f"suite-{request.version}-{request.scale}-{time.strftime('%Y%m%d-%H%M%S')}"
    if (folder / REQUEST).exists():
        raise FolderError(
            f"{folder} already holds a suite; continue it with `offbeat resume {folder}` or name another folder"
        )
    own = [str(Path(each).resolve()) if each.partition(":")[0].endswith(".py") else each for each in request.own]
    reach(ray)
    if not suite.cells:
        raise FolderError(f"nothing is left to run: {'; '.join(suite.omitted)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REQUEST, {**asdict(request), "own": own, "wall_s": 0.0})
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror}; name another folder with --out") from None
    return folder


def is_suite(folder: Path) -> bool:
    """Whether this is the folder of one."""
    return (folder / REQUEST).is_file()


def read_request(folder: Path) -> SuiteRequest:
    """What a folder was made for."""
    try:
        asked = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        lists = {name: tuple(asked[name]) for name in ("own", "settings", "only")}
        return SuiteRequest(asked["version"], asked["scale"], device=asked["device"], **lists)
    except (OSError, ValueError, KeyError, TypeError):
        raise FolderError(f"{folder / REQUEST} is damaged; start again in another folder") from None


def work(
    folder: Path,
    jobs: int | None = None,
    say: Say = lambda line: None,
    workers: int | None = None,
    ray: str | None = None,
) -> Suite:
    """Do what is not done yet.

    jobs: cells at once, each in a process; default: one per core, on a GPU or a cluster one.   workers: processes that
    share the runs of a cell; default: one, on a cluster as many as it has room for. A cell that has begun keeps its
    number.   ray: the address of a Ray cluster that the runs of a cell are spread over.
    """
    workers = workers if ray is not None else workers or 1
    request = read_request(folder)
    suite = request.suite()
    left = [cell for cell in suite.cells if not (folder / cell / SCORED).exists()]
    count = jobs or (1 if ray is not None or request.device.startswith("cuda") else cores())
    if ray is not None and count > 1:
        raise SettingError(f"jobs = {count}: on a cluster, cells come one after the other; leave jobs out")
    began, done = time.perf_counter(), len(suite.cells) - len(left)
    for line in suite.stand_ins:
        say(line)
    if ray is None and (line := mps.advice(request.device, (workers or 1) * min(count, len(left)))):
        say(line)
    try:
        if count == 1:
            for cell in left:
                run_cell(folder, suite, cell, request.device, workers, ray)
                done += 1
                say(f"{done} of {len(suite.cells)}: {cell}, {time.perf_counter() - began:.0f} s")
        else:
            _several(
                folder, left, count, workers or 1, lambda cell: say(f"{cell} done, {time.perf_counter() - began:.0f} s")
            )
    except InterruptedRunError:
        raise InterruptedRunError(f"stopped and saved; continue with `offbeat resume {folder}`") from None
    finally:
        asked = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        write_json(folder / REQUEST, {**asked, "wall_s": asked["wall_s"] + time.perf_counter() - began})
    return suite


def run_cell(
    folder: Path,
    suite: Suite,
    cell: str,
    device: str,
    workers: int | None = 1,
    ray: str | None = None,
    cells: int = 1,
) -> None:
    """Tune and judge the methods of one cell, while others are at work."""
    place, table = folder / cell, suite.tuned(cell)
    if device != "cpu":
        table["device"] = device
    options = suite.options(cell, workers, ray, cells)
    tuned = tuning.resume(place, progress=False) if tuning.is_tuning(place) else None
    tuned = tuned or tuning.tune(table, place, options, progress=False)
    task = suite.tasks[cell.partition("/")[0]]
    found: dict[str, Any] = {}
    for label, settings in tuned.best.items():
        runs = [run for run in tuned.results if run.algorithm == label]
        clients = 1 if label == definition.CENTRALISED else task.problem["clients"]
        found[label] = {
            "settings": settings,
            "edge": label in tuned.edges,
            "seeds": [{"seed": run.seed, **scores(run, task, clients)} for run in runs],
        }
    write_json(place / SCORED, found)


def _several(folder: Path, cells: Sequence[str], count: int, workers: int, done: Callable[[str], None]) -> None:
    """Cells in processes of their own, each taking the next cell when it is free."""
    left, working, failure, told = list(cells), dict[Connection, tuple[Child, str]](), "", False
    with interruptible() as patience:
        while (left and not failure and not patience.asked) or working:
            while left and len(working) < count and not failure and not patience.asked:
                cell = left.pop(0)
                child = Child(f"{__name__}:serve", (str(folder), cell, workers, count))
                working[child.connection] = child, cell
            for pipe in wait(list(working), timeout=0.2):
                assert isinstance(pipe, Connection)
                child, cell = working.pop(pipe)
                try:
                    problem = pipe.recv()
                except (EOFError, OSError):
                    problem = f"the process of {cell} died ({child.end()})"
                child.end()
                if problem and not patience.asked:
                    failure = failure or f"{cell}: {problem}"
                elif not problem:
                    done(cell)
            if (patience.asked or failure) and not told:
                told = True  # once: the second signal would keep them from saving
                for child, _ in working.values():
                    child.process.send_signal(signal.SIGTERM)  # each saves its runs, however long that takes
    if patience.asked:
        raise InterruptedRunError("stopped")
    if failure:
        raise FolderError(f"{failure}; continue with `offbeat resume {folder}`")


def serve(pipe: Connection, folder: str, cell: str, workers: int, cells: int) -> None:
    """In a process of its own: one cell of those at work."""
    place, problem = Path(folder), ""
    threading.Thread(target=_follow, args=(pipe,), daemon=True).start()
    try:
        request = read_request(place)
        run_cell(place, request.suite(), cell, request.device, workers, cells=cells)
    except OffbeatError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    with suppress(OSError):  # nobody is there any more
        pipe.send(problem)


def _follow(pipe: Connection) -> None:
    """Save and end when the process that started this one is gone, however it went: else it says nothing."""
    wait([pipe])
    os.kill(os.getpid(), signal.SIGTERM)
