"""The same work in every simulator, each in its own environment, beside offbeat: see README.md in this folder.

python -m benchmarks.compare [NAME …] [--workloads W1 W2 W3] [--turns 2] [--install] [--out docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.page import write
from offbeat.bench.material import Material, prepare
from offbeat.bench.session import Contender, Report, machine
from offbeat.bench.table import figure, setting
from offbeat.bench.worker import Turn
from offbeat.bench.workloads import OFFBEAT, WORKLOADS

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".envs"
LIMIT = 900  # seconds that one adapter may take
# Updates of a turn: multiples of the buffer, and of the clients for those who only know full rounds.
UPDATES = {"W1": 2560, "W2": 640, "W3": 100}


@dataclass(frozen=True)
class Simulator:
    """One of the others. asynchronous: whether this run of it was; kind: what it did."""

    name: str
    package: str
    asynchronous: bool
    kind: str

    @property
    def python(self) -> Path:
        return ENVIRONMENTS / self.name / "bin" / "python"

    @property
    def version(self) -> str:
        code = f"from importlib.metadata import version; print(version({self.package!r}))"
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


SIMULATORS = {
    s.name: s
    for s in (
        Simulator("appfl", "appfl", True, "FedBuff in virtual time"),
        Simulator("flsim", "flsim", True, "FedBuff in virtual time"),
        Simulator("fedlab", "fedlab", False, "FedAvg, rounds of 10"),
        Simulator("pfl", "pfl", False, "FedAvg, rounds of 10"),
        Simulator("fluke", "fluke-fl", False, "FedAvg, rounds of 10"),
        Simulator("fedjax", "fedjax", False, "FedAvg, rounds of 10, compiled"),
        Simulator("easyfl", "easyfl", False, "FedAvg, rounds of 10"),
        Simulator("flwr", "flwr", False, "FedAvg, all clients in every round, Ray on both cores"),
    )
}


@dataclass(frozen=True)
class Line:
    """One simulator at one workload, or why there is nothing to say."""

    simulator: Simulator
    version: str
    turns: list[Turn]
    ours: list[Turn]
    accuracy: float
    reason: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times offbeat's updates per CPU second, turn by turn."""
        return [(a.updates / a.cpu) / (b.updates / b.cpu) for a, b in zip(self.ours, self.turns, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SIMULATORS)}; without one, all")
    parser.add_argument("--workloads", nargs="+", default=list(UPDATES), choices=list(UPDATES))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--install", action="store_true", help="make the environments that are missing")
    parser.add_argument("--out", type=Path, help="a Markdown page to write the tables into")
    given = parser.parse_args()
    chosen = [SIMULATORS[name] for name in given.names or SIMULATORS]
    if given.install:
        for simulator in chosen:
            install(simulator)
    report = Report(machine("cpu"), [])
    parts = [f"`make bench-others` on {setting(report)}.\n"]
    for workload in given.workloads:
        parts.append(table(workload, compare(workload, chosen, given.turns), given.turns))
    page = "\n".join(parts)
    print(page)
    if given.out:
        write(given.out, "make bench-others", page)


def install(simulator: Simulator) -> None:
    """An environment of its own; torch first and pinned, so that nothing pulls a build with CUDA libraries."""
    if simulator.python.exists():
        return
    say(f"{simulator.name}: installing")
    subprocess.run([sys.executable, "-m", "venv", ENVIRONMENTS / simulator.name], check=True)
    pip = [simulator.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "torch==2.13.0", "numpy"], check=True)
    subprocess.run([*pip, "-r", HERE / "requirements" / f"{simulator.name}.txt"], check=True)


def compare(workload: str, chosen: list[Simulator], turns: int) -> list[Line]:
    """Every simulator after a turn of offbeat's, so many times."""
    material = prepare(WORKLOADS[workload])
    ours = Contender(workload, OFFBEAT, "cpu")
    ours.ready()
    try:
        with tempfile.TemporaryDirectory() as folder:
            export(material, UPDATES[workload], Path(folder))
            return [measure(simulator, material, ours, Path(folder), workload, turns) for simulator in chosen]
    finally:
        ours.close()


def measure(simulator: Simulator, material: Material, ours: Contender, folder: Path, workload: str, turns: int) -> Line:
    """Turns of one simulator, each after one of offbeat's."""
    if not simulator.python.exists():
        return Line(simulator, "", [], [], 0.0, "not installed; run with --install")
    taken, beside, accuracies = [], [], []
    for turn in range(turns):
        beside.append(ours.turn(UPDATES[workload], seed=turn + 1))
        result = run(simulator, folder)
        if isinstance(result, str):
            return Line(simulator, simulator.version, [], [], 0.0, result)
        taken.append(Turn(result["updates"], result["wall"], result["cpu"], result["memory"], 0.0, {}))
        accuracies.append(material.judge([torch.from_numpy(np.load(folder / "model.npy"))])["accuracy"])
        say(f"{workload}, {simulator.name}: {taken[-1].updates / taken[-1].cpu:,.0f} updates a CPU second")
    return Line(simulator, simulator.version, taken, beside, statistics.fmean(accuracies))


def run(simulator: Simulator, folder: Path) -> dict[str, Any] | str:
    """What the adapter measured, or the last thing it said."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    env = {**os.environ, **single, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    env.pop("PYTHONPATH", None)  # of offbeat, not of theirs
    adapter = HERE / "adapters" / f"with_{simulator.name}.py"
    try:
        done = subprocess.run(
            [simulator.python, adapter, folder], capture_output=True, text=True, env=env, timeout=LIMIT, cwd=folder
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {LIMIT} s"
    found = re.findall(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    if not found:
        return (done.stderr.strip() or done.stdout.strip() or "said nothing").splitlines()[-1]
    result: dict[str, Any] = json.loads(found[-1])
    return result


def export(material: Material, updates: int, folder: Path) -> None:
    """The work as files: see adapters/common.py."""
    workload, data = material.workload, material.datasets[0]
    task, shards = workload.tasks[0], material.shards[0]
    np.savez(
        folder / "arrays.npz",
        x=data.train["x"].numpy(),
        y=data.train["y"].numpy(),
        order=np.concatenate(shards),
        sizes=[len(shard) for shard in shards],
        first=material.problems[0].initial().numpy(),
        means=material.means,
    )
    settings = {
        "clients": workload.clients,
        "model": task.model,
        "steps": task.steps,
        "batch": task.batch,
        "lr": task.lr,
        "size": workload.size,
        "updates": updates,
    }
    (folder / "work.json").write_text(json.dumps(settings))


def table(workload: str, lines: list[Line], turns: int) -> str:
    """One workload in Markdown."""
    rows = [
        "| | what it ran | updates/s | CPU-ms | peak MB | accuracy | offbeat is faster |",
        "|---|---|" + "---:|" * 5,
    ]
    ours = [turn for line in lines for turn in line.ours]
    if ours:
        accuracy = statistics.fmean(turn.metrics["accuracy"] for turn in ours)
        rows.append(f"| offbeat | FedBuff in virtual time | {rates(ours)} | {100 * accuracy:.1f} % | |")
    for line in lines:
        name = f"{line.simulator.package} {line.version}".strip()
        if line.reason:
            rows.append(f"| {name} | {line.reason} | | | | | |")
            continue
        ratios = line.ratios
        said = f"× {statistics.median(ratios):.1f} ({min(ratios):.1f}–{max(ratios):.1f})"
        kind = f"{'asynchronous' if line.simulator.asynchronous else 'synchronous'}: {line.simulator.kind}"
        rows.append(f"| {name} | {kind} | {rates(line.turns)} | {100 * line.accuracy:.1f} % | {said} |")
    about = f"**{workload}: {WORKLOADS[workload].title}; {turns} turns of {UPDATES[workload]:,} updates**"
    return f"{about}\n\n" + "\n".join(rows) + "\n"


def rates(turns: list[Turn]) -> str:
    """Updates by the clock, CPU time of an update, memory."""
    by_clock = statistics.median(turn.updates / turn.wall for turn in turns)
    cpu = statistics.median(1000 * turn.cpu / turn.updates for turn in turns)
    return f"{figure(by_clock)} | {figure(cpu)} | {turns[0].memory:,.0f}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
