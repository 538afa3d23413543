"""What docs/results/suite lacks, run in memory: for a machine that has PyTorch, numpy and the data, and nothing else.

    python3 -m studies.suite_left FOLDER --plan                 # what is missing; nothing is run
    python3 -m studies.suite_left FOLDER --device cuda --processes 4 --limit 1700
    python -m studies.suite --add FOLDER/*.json                 # at home: into docs/results/suite, and its pages

`--only TASK/CLOCK` as in `offbeat suite`, in the order given; `--quick` runs all of the quick suite's cells that are
named. Methods are tuned and judged as `offbeat suite` does it, a few of a cell in one program; processes take these
parts one after the other. FOLDER gets a line for every finished run, and a result file for every finished part. A
second call does what is missing; runs that were cut short begin anew. `--limit` stops after so many seconds.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import studies.bare  # noqa: F401  # before anything that would import what this machine lacks

# isort: split
import numpy as np
import torch

from offbeat.experiment import mps, sweep_workers, tuning
from offbeat.experiment.grid import Grid, bundles
from offbeat.experiment.sweep import ABREAST
from offbeat.experiment.sweep_workers import Orders, SweepWorker
from offbeat.report.grid import entries
from offbeat.simulate.loop import Simulation
from offbeat.simulate.threads import computing
from offbeat.suite import result
from offbeat.suite.definition import CENTRALISED, Suite, SuiteTask
from offbeat.suite.run import SuiteRequest
from offbeat.suite.scores import scores
from offbeat.watch.files import COLUMNS, EVENTS, json_text, versions, write_json
from offbeat.watch.measures import EVENT_COLUMNS, Measures, of_events
from offbeat.watch.results import Result

RECORDED = Path(__file__).parent.parent / "docs" / "results" / "suite"
OWN = "mine.py"  # the method from outside the package, whose text the result files hold
Given = argparse.Namespace


class Unit(NamedTuple):
    """Some methods of a cell, number `number` of its parts."""

    cell: str
    number: int
    labels: Sequence[str]

    @property
    def slug(self) -> str:
        return f"{self.cell.replace('/', '-')}-{self.number}"


def request(folder: Path, given: Given) -> SuiteRequest:
    """The suite with the method from outside, whose file is written into the folder."""
    own: tuple[str, ...] = ()
    for path in sorted(RECORDED.glob("*.json")) if not given.quick else ():
        (folder / OWN).write_text(result.read(path).sources[OWN], encoding="utf-8")
        own = (f"{folder / OWN}:Mine",)
        break
    return SuiteRequest("v1", "quick" if given.quick else "full", own, only=tuple(given.only), device=given.device)


def left(suite: Suite, order: Sequence[str], size: int) -> list[Unit]:
    """What has no record, the cells in this order. size: methods of a part; a method is always in the same one."""

    def rank(cell: str) -> int:
        return min((at for at, each in enumerate(order) if each in (cell, *cell.split("/"))), default=-1)

    found = []
    for cell in sorted(suite.cells, key=rank):
        path = RECORDED / f"{cell.partition('/')[0]}.json"
        old = result.read(path).cells.get(cell) if suite.scale == "full" and path.exists() else None
        labels = suite.labels(cell)
        for at in range(0, len(labels), size):
            mine = [label for label in labels[at : at + size] if old is None or label not in old.methods]
            found += [Unit(cell, at // size, mine)] if mine else []
    return found


class Worker(SweepWorker):
    """Keeps event logs in memory and saves nothing."""

    def _measures(self, place: Path, watcher: Any, run: Simulation) -> Measures | None:
        if not self.keep_events:
            return None
        kinds = {**COLUMNS[EVENTS], "event": "str"}
        columns = {
            name: np.array([getattr(row, name) for row in watcher.events], kinds[name]) for name in EVENT_COLUMNS
        }
        return of_events(columns, run)[0]

    def _save(self, active: Mapping[int, Simulation]) -> None:
        """Runs that are cut short begin anew."""


class Part:
    """Some methods of a cell, tuned and judged."""

    def __init__(self, folder: Path, unit: Unit, asked: SuiteRequest, given: Given, until: float) -> None:
        self.folder, self.unit, self.asked, self.given, self.until = folder, unit, asked, given, until
        self.suite, self.began = asked.suite(), time.monotonic()

    @property
    def task(self) -> SuiteTask:
        return self.suite.tasks[self.unit.cell.partition("/")[0]]

    def work(self) -> str:
        """What became of it, in a line."""
        unit, path = self.unit, self.folder / f"{self.unit.slug}.json"
        if path.exists():
            return f"{unit.slug}: done before"
        whole = self.suite.tuned(unit.cell)
        axes = [self.suite.methods[label].axis(self.task) for label in unit.labels]
        table = {
            **whole,
            "algorithm": {label: whole["algorithm"][label] for label in unit.labels},
            "tune": dict(axes),
            **({} if self.given.device == "cpu" else {"device": self.given.device}),
        }
        plan = tuning.TuningPlan(table, self.suite.options(unit.cell, 1))
        try:
            best, trials = tuning.search(plan, self.swept)
            runs = self.swept("judged", plan.judging(best))
        except TimeoutError as late:
            return f"{unit.slug}: {late}"
        self._write(path, best, plan.edges(best, trials), runs)
        return f"{unit.slug}: {len(unit.labels)} methods, {time.monotonic() - self.began:.0f} s"

    def swept(self, stage: str, table: Mapping[str, Any]) -> list[Result]:
        """The runs of a grid, those that are recorded and those that are not."""
        points = Grid(table).points
        path = self.folder / f"{self.unit.slug}.{stage}.jsonl"
        known = {(run.algorithm, run.seed): run for run in entries(path, [])}
        missing = [point for point in points if (point.label, point.seed) not in known]
        gpu = self.given.device.startswith("cuda")
        parts = bundles(missing, ABREAST if gpu else 1)
        orders = Orders(str(self.folder / self.unit.slug), self.given.device, False, 1, len(parts),
                        save=float("inf"), sweeps=max(self.given.processes, self.given.sharers))  # fmt: skip
        with path.open("a", encoding="utf-8") as out, computing(()):
            out.write("\n" if path.stat().st_size else "")  # after a line that was cut short

            def tell(message: sweep_workers.Message) -> None:
                if message[0] == "done":
                    run: Result = message[1]
                    known[run.algorithm, run.seed] = run
                    out.write(json_text(run.to_json()) + "\n")
                    out.flush()

            worker = Worker(orders, 0, iter(parts), tell, lambda: time.time() > self.until)
            worker.keep_events = stage == "judged"
            for _ in worker.steps():
                pass
            del worker
            gc.collect()  # its runs refer to themselves, and to memory of a GPU that the next stage needs
            if gpu:
                torch.cuda.empty_cache()
        if short := sum((point.label, point.seed) not in known for point in points):
            raise TimeoutError(f"{stage}: {short} of {len(points)} runs are missing")
        return [known[point.label, point.seed] for point in points]

    def _write(
        self, path: Path, best: Mapping[str, Any], edges: Mapping[str, Sequence[str]], runs: Sequence[Result]
    ) -> None:
        """A result file of this part alone."""
        suite, cell, task = self.suite, self.unit.cell, self.task
        clock = cell.partition("/")[2]
        clients = 1 if clock == CENTRALISED else task.problem["clients"]
        seeds: dict[str, list[Any]] = {label: [] for label in self.unit.labels}
        for run in runs:
            seeds[run.algorithm].append({"seed": run.seed, **scores(run, task, clients)})
        own = {method.label: list(method.own) for method in suite.methods.values() if method.own}
        content = {
            "suite": suite.version,
            "scale": suite.scale,
            "digests": suite.digests_of([task.name]),
            "command": result.command(replace(self.asked, only=(cell,))),
            "wall_s": time.monotonic() - self.began,
            "device": self.given.device,
            "versions": versions(),
            "own": own,
            "sources": {file: (self.folder / file).read_text(encoding="utf-8") for file, _ in own.values()},
            "stand_ins": suite.stand_ins,
            "cells": {
                cell: {
                    "task": task.name,
                    "clock": clock,
                    "metric": task.metric,
                    "target": task.target,
                    "experiment": suite.table(cell),
                    "methods": {
                        label: {"settings": best[label], "edge": label in edges, "seeds": each}
                        for label, each in seeds.items()
                    },
                }
            },
        }
        write_json(path, content)


def _work(folder: Path, unit: Unit, asked: SuiteRequest, given: Given, until: float) -> str:
    if time.time() > until:
        return f"{unit.slug}: no time"
    return Part(folder, unit, asked, given, until).work()


def work(folder: Path, units: Sequence[Unit], asked: SuiteRequest, given: Given) -> Iterator[str]:
    """All of them; gives a line for each."""
    until = time.time() + given.limit
    if given.processes == 1:
        yield from (_work(folder, unit, asked, given, until) for unit in units)
        return
    # a process for each part: one that ran out of a GPU's memory would keep it
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(_work, folder, unit, asked, given, until): unit for unit in units}
        for future in as_completed(futures):
            error = future.exception()
            yield f"{futures[future].slug}: {error}" if error else str(future.result())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="TASK|CLOCK|TASK/CLOCK")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plan", action="store_true", help="say what is missing, and run nothing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--sharers", type=int, default=1, help="processes that share the GPU, with those of others")
    parser.add_argument("--size", type=int, default=10, help="methods of a part; a second call must name the same")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    asked = request(given.folder, given)
    suite = asked.suite()
    for line in suite.omitted:
        print(line)
    if absent := [line for line in suite.stand_ins if line not in suite.omitted]:
        raise SystemExit("; ".join(absent))
    units = left(suite, given.only, given.size)
    for unit in units if given.plan else ():
        print(f"{unit.slug}: {', '.join(unit.labels)}")
    if not units:
        print("nothing is missing")
    if not given.plan:
        if line := mps.advice(given.device, given.processes):
            print(line)
        for line in work(given.folder, units, asked, given):
            print(line, flush=True)


if __name__ == "__main__":
    main()
