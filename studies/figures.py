"""The papers' experiments at full size, in parts, in memory: for a machine without pyarrow and a network.

python -m studies.figures FOLDER "defedavg-fig7/fashion-iid" "fedast-fig10/mnist trials=2" --device cuda --processes 8
python -m studies.figures FOLDER WAVE... --plan       # write FOLDER/plan.json, which a machine without pyarrow can run
python -m studies.figures FOLDER --device cuda        # do what the plan has and FOLDER has no record of
python -m studies.figures FOLDER --pack records.zip --wait 500    # after 500 s, or when all is done: the records so far
python -m studies.figures FOLDER --merge defedavg-fig7 docs/results/defedavg/fig7.json    # the waves of an entry as one
python -m studies.figures docs/results/defedavg --judge defedavg-fig7    # our numbers and the paper's claims

A wave is ENTRY/EXPERIMENT of `offbeat reproduce ENTRY --full`, or ENTRY/EXPERIMENT/ALGORITHM,ALGORITHM, and overrides
behind it; of a sweep, the settings that the paper shows. persafl-fig2/PART is a part of `studies.persafl`. The runs of
a wave are one program; processes take the waves in the order in which they are written, so the most important ones come
first. FOLDER gets a JSON file for each wave, written every few seconds. A second call does the runs that are missing;
those that were cut short begin anew. `--limit` stops after so many seconds with what there is. On a
GPU, start NVIDIA's multi-process service first (`nvidia-cuda-mps-control -d`).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import re
import shlex
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from offbeat.core.errors import DivergedError
from offbeat.core.metric import Metric
from offbeat.core.watcher import Measurement
from offbeat.experiment.experiment import Experiment
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.threads import computing
from offbeat.watch.history import History
from offbeat.watch.results import Result, TaskResult
from studies import persafl
from studies.in_memory import InMemory, recorded, write

METRIC = Metric("accuracy", higher=True, share=True)
Given = argparse.Namespace
_SAME = ("algorithm", "settings", "seed")  # what a run is known by, within a wave


def plan(waves: Sequence[str]) -> list[dict[str, Any]]:
    """The runs of each wave, with their complete tables."""
    from offbeat.experiment.grid import Grid  # with pyarrow
    from offbeat.experiment.overrides import override
    from offbeat.papers import load
    from offbeat.papers.cells import printed

    found: list[dict[str, Any]] = []
    for wave in waves:
        place, *overrides = shlex.split(wave)
        entry, experiment, labels = [*place.split("/"), ""][:3]
        if entry == persafl.ENTRY.stem:
            found.append({"wave": wave, "entry": entry, "part": experiment, "set": overrides})
            continue
        paper = load(entry)
        points = Grid(override(paper.experiment[experiment], overrides)).points
        wanted = labels.split(",") if labels else [point.label for point in points]
        runs = [
            {"algorithm": p.label, "settings": p.settings, "seed": p.seed, "table": p.table}
            for p in points
            if p.label in wanted and printed(paper, experiment, p.label, p.settings)
        ]
        found.append({"wave": wave, "entry": entry, "experiment": experiment, "runs": runs})
    return found


def slug(wave: str) -> str:
    """The name of a wave's file."""
    return re.sub(r"[^a-z0-9.=]+", "-", wave.lower()).strip("-")


class Wave:
    """Runs of one experiment as one program."""

    def __init__(self, folder: Path, wave: Mapping[str, Any], given: Given, until: float) -> None:
        self.path, self.wave, self.given = folder / f"{slug(wave['wave'])}.json", wave, given
        self.runs = [run for run in recorded(self.path) if run["finished"]]
        self.memory = InMemory(until - time.time(), given.share)
        self.began = time.monotonic()
        self.at_work: dict[int, tuple[dict[str, Any], Simulation, History]] = {}

    @property
    def left(self) -> list[Mapping[str, Any]]:
        """The runs that are not done yet."""
        known = [[run[key] for key in _SAME] for run in self.runs]
        return [run for run in self.wave["runs"] if [run[key] for key in _SAME] not in known]

    def work(self) -> str:
        """Do them; says how it went."""
        left = self.left
        makers = ((number, lambda n=number, r=run: self._make(n, r)) for number, run in enumerate(left))
        for active in self.memory.rounds(Program(makers, self._over), self.write) if left else ():
            if self.memory.late:
                for run in active.values():
                    run.flush()  # evaluations wait for others, and would be lost
                self.write()
                break
        updates, seconds = sum(run["updates"] for run in self.record), time.monotonic() - self.began
        done = f"{len(self.runs)} of {len(self.wave['runs'])} runs"
        return f"{self.wave['wave']}: {done}, {updates:,} updates, {seconds:.0f} s"

    def _make(self, number: int, run: Mapping[str, Any]) -> Simulation:
        table = {**run["table"], "device": self.given.device}
        if self.given.device != "cpu":
            table["precision"] = self.given.precision
        experiment, history = Experiment.parse(table), History()
        simulation = self.memory.make(experiment, history)
        for problem in simulation.problems:  # nobody reads the objective on training samples
            evaluation: Any = problem.evaluation  # type: ignore[attr-defined]
            evaluation.used, evaluation.weights = evaluation.used[:1], evaluation.weights[:1]
        known = {**{key: run[key] for key in _SAME}, "precision": experiment.precision}
        self.at_work[number] = known, simulation, history
        return simulation

    def _over(self, number: int, run: Simulation, error: DivergedError | None) -> None:
        known, _, history = self.at_work.pop(number)
        self.runs.append(_record(known, run, history, True, error))

    @property
    def record(self) -> list[dict[str, Any]]:
        """The runs that are over, and what is known of those under way."""
        return [*self.runs, *(_record(*each, False, None) for each in self.at_work.values())]

    def write(self) -> None:
        """What is known so far."""
        said = {key: self.wave[key] for key in ("wave", "entry", "experiment")}
        seconds = round(time.monotonic() - self.began)
        write(self.path, {**said, "columns": ["time", "version", METRIC.name], "seconds": seconds, "runs": self.record})


def _record(
    known: Mapping[str, Any], run: Simulation, history: History, finished: bool, error: DivergedError | None
) -> dict[str, Any]:
    world = run.world
    tasks = []
    for task, problem in enumerate(run.problems):
        mine = [m for m in history.measurements if m.task == task]
        curve = [[round(m.time, 6), m.version, round(m.metrics[METRIC.name], 4)] for m in mine]
        stopped = world.finished.get(task, world.stopped)
        tasks.append({"name": problem.name, "ended": world.ends.get(task), "stopped": stopped, "curve": curve})
    said = None if error is None else str(error)
    return {**known, "finished": finished, "error": said, "updates": world.tally.updates, "time": world.now,
            "tasks": tasks}  # fmt: skip


def result(run: Mapping[str, Any]) -> Result:
    """A run as in a sweep, from its record."""
    rows = [
        Measurement(number, at, 0, version, {METRIC.name: value})
        for number, task in enumerate(run["tasks"])
        for at, version, value in task["curve"]
    ]
    tasks = tuple(
        TaskResult(
            task["name"],
            task["ended"],
            task["stopped"],
            task["curve"][-1][1] if task["curve"] else 0,
            0,
            0.0,
            {METRIC.name: task["curve"][-1][2]} if task["curve"] else {},
            measured=(METRIC,),
        )
        for task in run["tasks"]
    )
    only = tasks[0].metrics if len(tasks) == 1 else {}
    return Result(
        run["algorithm"],
        run["seed"],
        number=0,
        settings=run["settings"],
        measured=(METRIC,),
        error=run["error"],
        time=run["time"],
        updates=run["updates"],
        versions=sum(task.versions for task in tasks),
        metrics=only,
        tasks=tasks,
        curve=tuple(sorted(rows, key=lambda m: (m.time, m.task))),
        unfinished=None if run["finished"] else True,
    )


def pack(folder: Path, archive: Path) -> None:
    """The plan and all records in one file."""
    replacement = archive.with_suffix(".new")
    with zipfile.ZipFile(replacement, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.glob("*.json")):
            out.write(path, path.name)
    replacement.replace(archive)


def merged(folder: Path, name: str) -> dict[str, Any]:
    """The records of an entry's waves as one; of runs that were recorded twice, the finished one."""
    seconds: dict[str, int] = {}
    runs: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        if data.get("entry") != name:
            continue
        seconds |= data["waves"] if "waves" in data else {data["wave"]: data["seconds"]}
        for run in data["runs"]:
            whole = {"experiment": data.get("experiment"), **run}
            key = json.dumps([whole["experiment"], *(run[key] for key in _SAME)], sort_keys=True)
            if key not in runs or run["finished"]:
                runs[key] = whole
    return {"entry": name, "columns": ["time", "version", METRIC.name], "waves": seconds, "runs": list(runs.values())}


def judged(folder: Path, name: str) -> str:
    """An entry's cells and claims, from the records of its waves."""
    from offbeat.papers import conclude, load  # with pyarrow

    runs: dict[str, list[Result]] = {}
    for run in merged(folder, name)["runs"]:
        runs.setdefault(run["experiment"], []).append(result(run))
    return conclude(load(name), runs).markdown


def _work(folder: Path, wave: Mapping[str, Any], given: Given, until: float) -> str:
    if time.time() > until:
        return f"{wave['wave']}: no time"
    with computing(()):
        said = _part(folder, wave, given, until) if "part" in wave else Wave(folder, wave, given, until).work()
    gc.collect()
    torch.cuda.empty_cache()  # nothing without a GPU
    return said


def _part(folder: Path, wave: Mapping[str, Any], given: Given, until: float) -> str:
    """A part of `studies.persafl`, which tunes before it judges."""
    own = ["--set", *wave["set"]] if wave["set"] else []
    words = [str(folder), "--device", given.device, "--share", str(given.share), "--limit", str(until - time.time())]
    words += [] if given.grid is None else ["--grid", str(given.grid)]
    part = persafl.Part(folder, wave["part"], persafl.arguments([*words, *own]))
    with suppress(SystemExit):  # out of time
        part.work()
    return f"{wave['wave']}: {len(part.runs)} runs, {part.memory.seconds:.0f} s"


def run(folder: Path, waves: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> Iterator[str]:
    """All waves; gives a line for each."""
    until = time.time() + given.limit
    if given.processes == 1:
        yield from (_work(folder, wave, given, until) for wave in waves)
        return
    if given.device != "cpu":  # less than all of it: others are at work there, see `offbeat.models.gpu.undivided`
        given = argparse.Namespace(**{**vars(given), "share": min(given.share, 0.99)})
    # a process for each wave: one that ran out of a GPU's memory would keep it
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = [pool.submit(_work, folder, wave, given, until) for wave in waves]
        for future in as_completed(futures):
            failed = future.exception()
            yield str(future.result()) if failed is None else f"{waves[futures.index(future)]['wave']}: {failed!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("waves", nargs="*", metavar="WAVE")
    parser.add_argument("--plan", action="store_true", help="write the plan, and run nothing")
    parser.add_argument("--judge", metavar="ENTRY", help="judge what is recorded")
    parser.add_argument("--merge", nargs=2, metavar=("ENTRY", "FILE"), help="write the records of an entry as one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="tf32", choices=["single", "tf32", "bf16"], help="of training, on a GPU")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="of a GPU's memory, for each process")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("--grid", type=float, metavar="TIME", help="horizon of PersA-FL's grids, see studies.persafl")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the records so far into one file")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds before that, or until all is done")
    given = parser.parse_intermixed_args()
    if given.judge:
        print(judged(given.folder, given.judge))
        return
    if given.merge:
        write(Path(given.merge[1]), merged(given.folder, given.merge[0]))
        return
    path, done = given.folder / "plan.json", given.folder / "done"
    if given.pack:
        began = time.monotonic()
        while time.monotonic() - began < given.wait and not done.exists():
            time.sleep(1.0)
        pack(given.folder, given.pack)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    done.unlink(missing_ok=True)
    if given.waves:
        write(path, {"waves": plan(given.waves)})
    if not given.plan:
        for line in run(given.folder, json.loads(path.read_text())["waves"], given):
            print(line, flush=True)
        done.touch()


if __name__ == "__main__":
    main()
