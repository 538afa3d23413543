"""PersA-FL's figure 2 with its grids, in memory: for a machine without pyarrow and a network.

`python -m studies.persafl FOLDER --device cuda` runs the entry persafl-fig2, each of its parts in its own process. The
grid of a method runs with one seed to half of the horizon, or to `--grid`; its best setting then runs with the seeds
that judge. FOLDER gets a JSON file for each part, written every few seconds: a second call goes on with what is
missing, and a run that was cut short begins anew. `--limit` stops after so many seconds with what there is; `--until
20` shows that it works. `--part mnist-asynchronous --known docs/results/persafl` runs the asynchronous methods in one
process, with the settings that the grids in those records ask for: at the last time that all runs of a grid have
reached. `--judge 300` reads the records in FOLDER and judges the entry's claims at that time, without those about how
many clients are active.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import offbeat
from offbeat.core.errors import DivergedError
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.overrides import override
from offbeat.experiment.tables import algorithm_tables
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.threads import computing
from offbeat.watch.history import History
from studies.in_memory import InMemory, recorded, write

ENTRY = Path(offbeat.__file__).parent / "papers" / "persafl-fig2.toml"
TUNING, JUDGING = 100, (0, 1, 2, 3)  # seeds
LONG = ("persafl-maml", "persafl-me")  # with a process of their own
DIFFERENCE = "algorithm.{}.local.maml.hessian=difference"  # as in the paper's appendix D, with the right factor
COLUMNS = ("personal", "personal_worst", "accuracy")


def parts(data: str) -> dict[str, list[str]]:
    """Which methods run in one process, by the name of the part."""
    every = list(algorithm_tables(_entry(data)["algorithm"]))
    rest = [label for label in every if label not in LONG]
    return {f"{data}-rest": rest, **{f"{data}-{label}": [label] for label in LONG}}


def _entry(data: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(ENTRY.read_text(encoding="utf-8"))["experiment"][data]
    return found


class Part:
    """The runs of some methods as one program."""

    def __init__(self, folder: Path, name: str, given: argparse.Namespace) -> None:
        self.path, self.given = folder / f"{name}.json", given
        data, _, _ = name.partition("-")
        self.table = _entry(data)
        self.labels = {f"{data}-asynchronous": ["fedasync", *LONG], **parts(data)}[name]
        self.methods = algorithm_tables(self.table["algorithm"])
        self.grids = self.table.pop("sweep")
        # differences of gradients need more than TF32, and a process has one precision
        self.exact = any("maml" in self.methods[label]["local"] for label in self.labels)
        self.runs = [run for run in recorded(self.path) if run["finished"]]
        places = [] if given.known is None else sorted(given.known.glob(f"{data}-*.json"))
        self.known = [run for path in places for run in recorded(path)]
        self.memory = InMemory(given.limit, given.share)

    def settings(self, label: str) -> list[dict[str, float]]:
        """The grid of a method."""
        keys = [key for key in self.grids if key.startswith(f"algorithm.{label}.")]
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(self.grids[k] for k in keys))]

    def work(self) -> None:
        """Tune, then judge."""
        tuned, end = [x for x in self.labels if len(self.settings(x)) > 1], self.given.until
        self.run([(x, s, TUNING, self.given.grid or end / 2) for x in tuned for s in self.settings(x)])
        chosen = {label: self.best(label) for label in self.labels}
        self.run([(x, s, seed, end) for x, s in chosen.items() for seed in JUDGING])
        self.write()

    def best(self, label: str) -> dict[str, float]:
        """The best setting of a method's grid, at the last time that all its runs have reached."""
        grid = self.settings(label)
        if len(grid) == 1:
            return grid[0]
        tried = [r for r in (*self.known, *self.runs) if r["algorithm"] == label and r["seed"] == TUNING]
        whole = [r for r in tried if r["curve"] and not r["error"]]
        last = min(r["curve"][-1][0] for r in whole)
        found: dict[str, float] = max(whole, key=lambda r: _at(r, last))["settings"]
        return found

    def run(self, wanted: Sequence[tuple[str, dict[str, float], int, float]]) -> None:
        """Those of these runs that are not done yet."""
        known = [(r["algorithm"], r["settings"], r["seed"]) for r in (*self.known, *self.runs) if r["seed"] == TUNING]
        known += [(r["algorithm"], r["settings"], r["seed"]) for r in self.runs]
        left = [each for each in wanted if each[:3] not in known]
        self.at_work: dict[int, tuple[dict[str, Any], History]] = {}
        program = Program(self._makers(left), self._over)
        for active in self.memory.rounds(program, self.write):
            for number, run in active.items():
                self.at_work[number][0]["updates"] = run.world.tally.updates
            if self.memory.late:
                for run in active.values():
                    run.flush()  # evaluations wait for others, up to 64, and would be lost
                self.write()
                raise SystemExit(f"{self.path.stem}: out of time")

    def _makers(self, wanted: Sequence[tuple[str, dict[str, float], int, float]]) -> Iterator[Any]:
        for number, each in enumerate(wanted):
            yield number, lambda number=number, each=each: self._make(number, *each)

    def _make(self, number: int, label: str, settings: dict[str, float], seed: int, horizon: float) -> Simulation:
        given = self.given
        said = [f"device={given.device}", f"until.time={horizon}", f"evaluate.every={given.every}"]
        said += [DIFFERENCE.format(label)] if "maml" in self.methods[label]["local"] else []
        said += [] if given.device == "cpu" or self.exact else ["precision=tf32"]
        said += [f"{key}={value}" for key, value in settings.items()]
        said += given.set
        table = {**self.table, "seed": seed, "trials": 1}
        table["algorithm"] = {label: self.methods[label]}
        experiment, history = Experiment.parse(override(table, said)), History()
        record = {"algorithm": label, "settings": settings, "seed": seed, "horizon": horizon, "finished": False,
                  "error": None, "updates": 0, "curve": []}  # fmt: skip
        self.at_work[number] = record, history
        return self.memory.make(experiment, history)

    def _over(self, number: int, run: Simulation, error: DivergedError | None) -> None:
        record, history = self.at_work.pop(number)
        ended = {"finished": True, "error": None if error is None else str(error), "updates": run.world.tally.updates}
        self.runs.append({**record, **ended, "curve": _curve(history)})

    def write(self) -> None:
        """What is known so far."""
        under_way = [{**record, "curve": _curve(history)} for record, history in self.at_work.values()]
        seconds, columns = round(self.memory.seconds), ["time", *COLUMNS]
        write(self.path, {"columns": columns, "seconds": seconds, "runs": [*self.runs, *under_way]})


def _at(run: Mapping[str, Any], time: float) -> float:
    """The clients' own accuracy at the evaluation next to this time."""
    return float(min(run["curve"], key=lambda row: abs(row[0] - time))[1])


def _curve(history: History) -> list[list[float]]:
    return [[m.time, *(round(m.metrics[name], 4) for name in COLUMNS)] for m in history.measurements]


def table(folder: Path) -> Iterator[str]:
    """Of every method, the means of the seeds that judge at a few times."""
    for path in sorted(folder.glob("*.json")):
        runs = [run for run in recorded(path) if run["seed"] in JUDGING]
        for label in dict.fromkeys(run["algorithm"] for run in runs):
            mine = [run for run in runs if run["algorithm"] == label and run["curve"]]
            last = min((run["curve"][-1][0] for run in mine), default=0.0)
            for at in dict.fromkeys((last / 3, last)):
                found = [_at(run, at) for run in mine]
                if found:
                    setting = {k.rpartition(".")[2]: v for k, v in mine[0]["settings"].items()}
                    said = " ".join(f"{value:.3f}" for value in found)
                    yield f"{path.stem:20} {label:14} t = {at:5.0f}  {mean(found):.3f}  [{said}]  {setting}"


def judged(folder: Path, data: str, at: float) -> Iterator[str]:
    """The methods' accuracies at a time, with their 95 % intervals, and the entry's claims about them."""
    from offbeat.papers import load  # with pyarrow
    from offbeat.papers.cells import Cell
    from offbeat.papers.outcome import JudgedClaim

    cells: dict[str, Cell] = {}
    for run in (run for path in sorted(folder.glob(f"{data}-*.json")) for run in recorded(path)):
        name, (last, *_) = f"{data}/{run['algorithm']}:personal", run["curve"][-1] if run["curve"] else (0.0,)
        if run["seed"] in JUDGING and last >= at and not run["error"]:
            cells[name] = _with(cells.get(name, Cell(0.0, 100.0, 0.0)), 100.0 * _at(run, at))
    for name, cell in sorted(cells.items(), key=lambda item: -(item[1].mean or 0.0)):
        low, high = cell.interval
        yield f"{name:32} {cell.mean:6.2f}  [{low:.2f}, {high:.2f}]  {cell.seeds} seeds"
    for claim in load("persafl-fig2", "full").claim:
        names = {end for pair in claim.pairs for end in pair}
        if all(isinstance(end, str) and end.startswith(data) and end.endswith(":personal") for end in names):
            known = {**{str(end): Cell(None) for end in names}, **cells}
            yield f"{JudgedClaim.of(claim, known).said:30} {claim.text}"


def _with(cell: Any, value: float) -> Any:
    """A cell with the number of one more seed."""
    total = cell.mean * cell.seeds + value
    known = {"low": min(cell.low, value), "high": max(cell.high, value), "seeds": cell.seeds + 1}
    return replace(cell, mean=total / (cell.seeds + 1), **known)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", help="one part alone, in this process")
    parser.add_argument("--judge", type=float, metavar="TIME", help="judge what is recorded")
    parser.add_argument("--data", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--known", type=Path, help="folder of records whose grids decide")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--until", type=float, default=600.0, help="horizon")
    parser.add_argument("--grid", type=float, metavar="TIME", help="horizon of the grids; default: half of --until")
    parser.add_argument("--every", type=float, default=30.0, help="time between evaluations")
    parser.add_argument("--share", type=float, default=1.0, help="of a GPU's memory, for each process")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("--set", action="extend", nargs="+", default=[], help="overrides")
    return parser.parse_args(words)


def main() -> None:
    given = arguments()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.judge is not None:
        print(*(line for data in given.data for line in judged(given.folder, data, given.judge)), sep="\n")
        return
    if given.part:
        with computing(()):
            try:
                Part(given.folder, given.part, given).work()
            finally:
                print(*table(given.folder), sep="\n", flush=True)
        return
    began, same = time.monotonic(), [word for word in sys.argv[1:] if word not in ("--data", *given.data)]
    names = [name for data in given.data for name in parts(data)]
    children = [subprocess.Popen([sys.executable, "-m", "studies.persafl", *same, "--part", name]) for name in names]
    for name, child in zip(names, children, strict=True):
        print(f"{name}: exit {child.wait()} after {time.monotonic() - began:.0f} s", flush=True)
    print(*table(given.folder), sep="\n")


if __name__ == "__main__":
    main()
