"""Every client-driven method of the catalogue on three tasks under four clocks, with equal tuning budgets.

python -m studies.contest runs/contest                                # all that is not done yet, then who wins
python -m studies.contest runs/contest --tasks regression             # one task
python -m studies.contest runs/contest --clocks equal slow --until 1  # shows that it works
python -m studies.contest runs/contest --tasks cifar10 --device cuda --processes 3   # on a GPU, 3 processes a clock
python -m studies.contest docs/results/contest --page docs/results/contest.md   # the tables of a page, and no runs

The methods are those of experiments/contest.toml. Each has one step size, which is tuned on two seeds that are used for
nothing else; then it runs with the best value on five other seeds. A task under a clock is one program in a process of
its own, or several that share the methods out. On a GPU they take turns unless NVIDIA's multi-process service runs
(`nvidia-cuda-mps-control -d`), which makes them several times as fast.
FOLDER gets a JSON file for each task, written every few seconds: stopped, it goes on with the runs that are
missing. Needs $OFFBEAT_DATA with mnist, cifar-10-batches-bin (its first training file and its test file) and traces; no
pyarrow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from offbeat.core.errors import DivergedError
from offbeat.data import Dataset
from offbeat.data.folder import root
from offbeat.experiment.experiment import Experiment, load
from offbeat.experiment.intervals import SeedMean, difference, estimate
from offbeat.experiment.overrides import override
from offbeat.experiment.tables import algorithm_tables
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.threads import computing
from offbeat.watch.history import History
from studies.in_memory import InMemory, recorded, write

FILE = Path(__file__).parent.parent / "experiments" / "contest.toml"
TUNING, JUDGING = (1000, 1001), (0, 1, 2, 3, 4)  # seeds
JITTER = {"low": 0.08, "high": 0.12, "per": "step"}
SLOWER = 20.0
BASELINE, POOLED = "m-sync", "centralised"
WIDTHS = {"cpu": 12}  # runs at work at once in a process: on a CPU, what the cache holds
WAVE = 200  # runs of a program: on a GPU all are at work at once, and so many are lost if time runs out
_MERGE = 3.0  # seconds
MARK = "<!-- the tables: studies.contest --page -->"
PATIENCE = 60.0  # seconds that parts get to write down what they have


def photographs(train: int = 8000, test: int = 2000) -> Dataset:
    """The first photographs of CIFAR-10's first training file and of its test file."""
    (x, y), (to, right) = _photographs("data_batch_1.bin", train), _photographs("test_batch.bin", test)
    return Dataset.pairs("cifar10, a part", x, y, to, right, classes=10, scale=1 / 255)


def _photographs(name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    raw = np.fromfile(root() / "cifar-10-batches-bin" / name, np.uint8, count * 3073).reshape(count, 3073)
    return torch.from_numpy(raw[:, 1:].reshape(count, 3, 32, 32).copy()), torch.from_numpy(raw[:, 0].astype(np.int64))


@dataclass(frozen=True)
class Task:
    """What is trained. steps: step sizes that are tried; of methods that divide by the size of gradients, `adaptive`.

    metric: that people read, and its value to be reached.   until: horizon, 0.1 being the time of a local step.
    """

    text: str
    problem: Mapping[str, Any]
    steps: Sequence[float]
    adaptive: Sequence[float]
    metric: str
    goal: float
    until: float
    gpu: bool = True

    @property
    def clients(self) -> int:
        return int(self.problem["clients"])


TASKS = {
    "mnist": Task(
        "Softmax regression on MNIST, 12 clients with 500 samples each, Dirichlet(0.1), l2 = 0.001",
        {
            "data": "mnist",
            "model": "softmax",
            "clients": 12,
            "split": {"dirichlet": 0.1, "per_client": 500},
            "l2": 1e-3,
        },
        (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
        "accuracy",
        0.8,
        15.0,
    ),
    "cifar10": Task(
        "LeNet-5 on CIFAR-10, 12 clients with 500 photographs each, Dirichlet(0.3)",
        {
            "data": "studies.contest:photographs",
            "model": "lenet5",
            "clients": 12,
            "split": {"dirichlet": 0.3, "per_client": 500},
        },
        (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
        "accuracy",
        0.35,
        60.0,
    ),
    "regression": Task(
        "Linear regression on employment, the 15 sectors are the clients",
        {"data": "employment", "model": "linear", "clients": 15, "split": "owners", "metrics": ["r2"]},
        (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
        (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
        "r2",
        0.55,
        10.0,
        gpu=False,
    ),
}


class Clock(NamedTuple):
    """A [timing] table. without: methods that have no sense under it."""

    text: str
    table: Mapping[str, Any]
    without: tuple[str, ...] = ()


def clocks(clients: int) -> dict[str, Clock]:
    slow = [SLOWER] + [1.0] * (clients - 1)
    return {
        "equal": Clock("Equal speeds: a local step takes U(0.08, 0.12)", {"uniform": JITTER}),
        "exponential": Clock(
            "Exponential times with rates N(10, 5), at least 0.5: a job's time does not depend on its steps",
            {"exponential": {"rate": {"normal": [10, 5], "min": 0.5}}},
            ("fedcompass", "async-comm-sgd", "favano", "quafl"),  # they would get several steps for the time of one
        ),
        "phones": Clock("Phones: U(0.08, 0.12), times a phone's latency", {"uniform": JITTER, "speeds": "phones"}),
        "slow": Clock(
            f"One site {SLOWER:g} times slower: U(0.08, 0.12), the first client's times {SLOWER:g}",
            {"uniform": JITTER, "speeds": {"factors": {"values": slow}}},
        ),
    }


def methods() -> dict[str, Mapping[str, Any]]:
    return algorithm_tables(load(FILE).table["algorithm"])


def axis(label: str, table: Mapping[str, Any], task: Task) -> tuple[str, Sequence[float]]:
    """The step size of a method that is tuned, and its values."""
    if table.get("name", label) == "fadas":
        return f"algorithm.{label}.lr", task.adaptive
    (trainer,) = table["local"]
    return f"algorithm.{label}.lr" if trainer == "gradient" else f"algorithm.{label}.local.{trainer}.lr", task.steps


def taking_part(clock: str, share: int = 0, processes: int = 1) -> dict[str, Mapping[str, Any]]:
    """The methods that run under a clock: every `processes`-th, from number `share` on."""
    without = clocks(1)[clock].without
    several = {k: v for k, v in methods().items() if v.get("name", k) not in without}
    if clock != "equal":
        several.pop(POOLED, None)  # one machine has no stragglers
    return dict(list(several.items())[share::processes])


class Part:
    """A share of the methods of a task under a clock as one program. A run is known by (method, step size, seed)."""

    def __init__(self, path: Path, task: str, clock: str, share: int, given: argparse.Namespace) -> None:
        self.path, self.task, self.given = path, TASKS[task], given
        self.clock = clocks(self.task.clients)[clock]
        self.device = given.device if self.task.gpu else "cpu"
        self.methods = taking_part(clock, share, given.processes)
        self.runs, self.memory = recorded(path), InMemory(given.limit)
        self.at_work: dict[int, tuple[dict[str, Any], History]] = {}

    def work(self) -> None:
        """Tune, then judge."""
        axes = {label: axis(label, table, self.task) for label, table in self.methods.items()}
        self.run([(x, step, seed) for seed in TUNING for x, (_, steps) in axes.items() for step in steps])
        chosen = best(self.runs, {label: steps for label, (_, steps) in axes.items()})
        self.runs = [run for run in self.runs if run["seed"] in TUNING or run["step"] == chosen.get(run["method"])]
        self.run([(x, step, seed) for seed in JUDGING for x, step in chosen.items()])
        self.write()

    def run(self, wanted: Sequence[tuple[str, float, int]]) -> None:
        """Those of these runs that are not done yet."""
        known = {(r["method"], r["step"], r["seed"]) for r in self.runs}
        left = [each for each in wanted if each not in known]
        for at in range(0, len(left), WAVE):
            self._wave(left[at : at + WAVE])

    def _wave(self, wanted: Sequence[tuple[str, float, int]]) -> None:
        """These runs, as one program."""
        makers = ((number, lambda n=number, e=each: self._make(n, *e)) for number, each in enumerate(wanted))
        program = Program(makers, self._over, WIDTHS.get(self.device, WAVE))
        for _ in self.memory.rounds(program, self.write):
            if self.memory.late:
                self.write()
                raise SystemExit(3)
        print(f"{self.path.stem}: {len(self.runs)} runs after {self.memory.seconds:.0f} s", flush=True)

    def _make(self, number: int, label: str, step: float, seed: int) -> Simulation:
        until = self.given.until or self.task.until
        table = {
            "seed": seed,
            "trials": 1,
            "until": {"time": until},
            "evaluate": {"every": until if seed in TUNING else until / 10},
            "problem": self.task.problem,
            "timing": self.clock.table,
            "algorithm": {label: self.methods[label]},
            "device": self.device,
            "precision": "single" if self.device == "cpu" else "tf32",
        }
        experiment = Experiment.parse(override(table, {axis(label, self.methods[label], self.task)[0]: step}))
        history = History()
        self.at_work[number] = {"method": label, "step": step, "seed": seed}, history
        return self.memory.make(experiment, history)

    def _over(self, number: int, run: Simulation, error: DivergedError | None) -> None:
        known, history = self.at_work.pop(number)
        rows = [[m.time, m.metrics["loss"], m.metrics[self.task.metric]] for m in history.measurements]
        curve = [[float(f"{x:.5g}") for x in row] for row in (rows[-1:] if known["seed"] in TUNING else rows)]
        self.runs.append({**known, "diverged": error is not None, "updates": run.world.tally.updates, "curve": curve})

    def write(self) -> None:
        """What is known so far."""
        write(self.path, {"seconds": round(self.memory.seconds), "runs": self.runs})


def final(run: Mapping[str, Any]) -> float:
    """The loss at the end; infinite if the run diverged."""
    return float("inf") if run["diverged"] or not run["curve"] else float(run["curve"][-1][1])


def best(runs: Sequence[Mapping[str, Any]], grids: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of every method, the step size with the smallest mean loss on the seeds for tuning."""
    losses: dict[tuple[str, float], list[float]] = {}
    for run in runs:
        if run["seed"] in TUNING:
            losses.setdefault((run["method"], run["step"]), []).append(final(run))
    return {
        label: min(grid, key=lambda step, label=label: statistics.fmean(losses[label, step]))  # type: ignore[misc]
        for label, grid in grids.items()
        if all((label, step) in losses for step in grid)
    }


class Line(NamedTuple):
    """A method's runs on the seeds that judge, in order. edge: whether its step size was the first or the last."""

    label: str
    step: float
    edge: bool
    runs: Sequence[Mapping[str, Any]]

    @property
    def finished(self) -> bool:
        return all(not run["diverged"] for run in self.runs)

    def last(self, column: int) -> list[float]:
        return [run["curve"][-1][column] for run in self.runs]


def lines(runs: Sequence[Mapping[str, Any]], task: Task) -> list[Line]:
    """The methods that have run on all seeds that judge, by their mean loss."""
    tables = methods()
    found = []
    for label in dict.fromkeys(run["method"] for run in runs):
        mine = sorted((r for r in runs if r["method"] == label and r["seed"] in JUDGING), key=lambda r: r["seed"])
        if len(mine) == len(JUDGING):
            _, steps = axis(label, tables[label], task)
            step = mine[0]["step"]
            found.append(Line(label, step, step in (steps[0], steps[-1]), mine))
    return sorted(found, key=lambda line: statistics.fmean(map(final, line.runs)))


def ahead(line: Line, base: Line) -> SeedMean | None:
    """By how much its loss is above that of another method, seed by seed."""
    return difference(line.last(1), base.last(1)) if line.finished and base.finished else None


def rows(found: Sequence[Line], task: Task) -> Iterator[str]:
    yield f"| method | loss | less that of `{BASELINE}` | {task.metric} | time to {task.goal:g} | updates | step |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    base = next((line for line in found if line.label == BASELINE), None)
    for line in found:
        step = f"{line.step:g}{' (edge)' if line.edge else ''}"
        if not line.finished:
            lost = sum(run["diverged"] for run in line.runs)
            yield f"| `{line.label}` | diverged in {lost} of {len(line.runs)} | | | | | {step} |"
            continue
        times = [next((row[0] for row in run["curve"] if row[2] >= task.goal), None) for run in line.runs]
        reached = [at for at in times if at is not None]
        when = estimate(reached).text(1) if len(reached) == len(times) else f"{len(reached)} of {len(times)}"
        less = None if base is None or line is base else ahead(line, base)
        updates = statistics.fmean(run["updates"] for run in line.runs)
        yield (
            f"| `{line.label}` | {estimate(line.last(1)).text(3)} | {'' if less is None else less.text(3, sign='+')} | "
            f"{estimate(line.last(2)).text(3)} | {when} | {updates:.0f} | {step} |"
        )


def tables(parts: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """A table for each task and clock, and before them who wins where."""
    yield from winners(parts)
    for name, task in TASKS.items():
        for clock, kind in clocks(task.clients).items():
            if found := judged(parts, name, clock):
                yield f"\n## {task.text}. {kind.text}\n"
                yield from rows(found, task)


def judged(parts: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], task: str, clock: str) -> list[Line]:
    """The lines of a table; the reference is that of equal clocks everywhere."""
    runs = list(parts.get((task, clock), ()))
    if runs and clock != "equal":
        runs += [run for run in parts.get((task, "equal"), ()) if run["method"] == POOLED]
    return lines(runs, TASKS[task])


def winners(parts: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """For each table: the lowest mean loss, the methods whose losses cannot be told from it, and those below m-sync."""
    yield f"| task | clock | lowest mean loss | cannot be told from it | below `{BASELINE}` | above it |"
    yield "|---|---|---|---:|---|---:|"
    for name, task in TASKS.items():
        for clock in clocks(task.clients):
            found = [line for line in judged(parts, name, clock) if line.label != POOLED]
            base = next((line for line in found if line.label == BASELINE), None)
            if base is None:
                continue
            first = found[0]
            like = [x for x in found[1:] if (gap := ahead(x, first)) is not None and gap.sign == 0]
            signs = {line.label: gap.sign for line in found if (gap := ahead(line, base)) is not None}
            below = ", ".join(f"`{label}`" for label, sign in signs.items() if sign < 0) or "none"
            above = sum(sign > 0 for sign in signs.values()) + sum(not line.finished for line in found)
            lowest = f"`{first.label}` {estimate(first.last(1)).text(3)}"
            yield f"| {name} | {clock} | {lowest} | {len(like)} of {len(found) - 1} | {below} | {above} |"


def read(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All runs, by task and clock."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name in TASKS:
        if (path := folder / f"{name}.json").exists():
            for clock, part in json.loads(path.read_text())["clocks"].items():
                found[name, clock] = part["runs"]
    return found


def merge(folder: Path, work: Path, asked: Iterable[tuple[str, str]]) -> None:
    """What the parts have written, as one file for each task."""
    for name, several in itertools.groupby(sorted(asked), key=lambda each: each[0]):
        path = folder / f"{name}.json"
        known = json.loads(path.read_text())["clocks"] if path.exists() else {}
        for _, clock in several:
            if parts := [json.loads(part.read_text()) for part in sorted(work.glob(f"{name}-{clock}-*.json"))]:
                runs = [run for part in parts for run in part["runs"]]
                known[clock] = {"seconds": max(part["seconds"] for part in parts), "runs": runs}
        found = {"task": TASKS[name].text, "columns": ["time", "loss", TASKS[name].metric], "clocks": known}
        write(path, found)


def contest(given: argparse.Namespace) -> None:
    """All parts at once, each in its own processes."""
    asked = [(name, clock) for name in given.tasks for clock in given.clocks]
    shares = [(name, clock, str(share)) for name, clock in asked for share in range(given.processes)]
    work = given.folder / "parts"
    work.mkdir(parents=True, exist_ok=True)
    known = read(given.folder)
    for name, clock, share in shares:  # each goes on with what was done of its own methods
        mine = taking_part(clock, int(share), given.processes)
        done = [run for run in known.get((name, clock), ()) if run["method"] in mine]
        write(work / f"{name}-{clock}-{share}.json", {"seconds": 0, "runs": done})
    same = ["--device", given.device, "--limit", str(given.limit), "--processes", str(given.processes)]
    same += ["--until", str(given.until)] if given.until else []
    base = [sys.executable, "-m", "studies.contest", str(given.folder), *same]
    children = {each: subprocess.Popen([*base, "--part", *each]) for each in shares}
    began = time.monotonic()
    while (
        any(child.poll() is None for child in children.values()) and time.monotonic() - began < given.limit + PATIENCE
    ):
        time.sleep(_MERGE)
        merge(given.folder, work, asked)
    for each, child in children.items():
        if child.poll() is None:
            child.kill()
        print(f"{'-'.join(each)}: exit {child.wait()}", flush=True)
    merge(given.folder, work, asked)
    for name, clock in asked:
        for path in work.glob(f"{name}-{clock}-*"):
            path.unlink()
    if not any(work.iterdir()):
        work.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--clocks", nargs="+", default=list(clocks(1)), choices=list(clocks(1)))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="for each task under a clock")
    parser.add_argument("--until", type=float, help="horizon; default: that of the task")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("--page", type=Path, help="write the tables at the end of this page, and run nothing")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        with computing(()):
            task, clock, share = given.part
            Part(given.folder / "parts" / f"{task}-{clock}-{share}.json", task, clock, int(share), given).work()
        return
    if given.page is None:
        contest(given)
        with suppress(ModuleNotFoundError):  # intervals need scipy; the page can be made elsewhere
            print(*winners(read(given.folder)), sep="\n")
    else:
        words = given.page.read_text(encoding="utf-8").partition(MARK)[0] if given.page.exists() else ""
        given.page.write_text("\n".join([words + MARK, "", *tables(read(given.folder))]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
