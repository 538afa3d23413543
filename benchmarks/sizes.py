"""Time of a compiled job by the number of stacked clients: what sizes are worth compiling.

PYTHONPATH=src python3 -m benchmarks.sizes W7 8 12 16 24 32 --device cuda
PYTHONPATH=src python3 -m benchmarks.sizes W7 8 16 32 --device cuda --bf16

Several of these may run at once: they compile side by side and measure one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from offbeat.bench import material, ours
from offbeat.bench.workloads import WORKLOADS, BenchTask
from offbeat.problems import compiled
from offbeat.problems.supervised import Supervised


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--backend", default="inductor")
    given = parser.parse_args()
    torch.set_num_threads(1)
    compiled.SIZES = tuple(sorted(given.sizes))  # type: ignore[assignment,misc]
    made, task = material.prepare(WORKLOADS[given.workload], given.device), WORKLOADS[given.workload].tasks[0]
    problem = ours._again(made.problems[0]) if given.bf16 else made.problems[0]
    assert isinstance(problem, Supervised)
    problem.compile(given.backend)
    for size in given.sizes:
        _job(problem, task, size)
    label = f"{given.workload}{', bf16' if given.bf16 else ''}"
    with (Path(tempfile.gettempdir()) / "offbeat-sizes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for size in given.sizes:
            milliseconds = _timed(problem, task, size)
            print(f"{label}: {size} clients {milliseconds:.2f} ms a job, {milliseconds / size:.4f} each", flush=True)
    print(f"{label}: {problem.compiled}; {torch.cuda.max_memory_allocated() / 1e9:.1f} GB of a GPU at most")


def _job(problem: Supervised, task: BenchTask, size: int) -> torch.Tensor:
    w = problem.initial().expand(size, -1)
    oracle = problem.oracle(np.arange(size), np.arange(size), task.steps, task.batch, False)
    found = oracle.descend_often(w, task.lr, task.steps)
    assert found is not None
    return found


def _timed(problem: Supervised, task: BenchTask, size: int, tries: int = 20) -> float:
    wait = torch.cuda.synchronize if problem.device.type == "cuda" else lambda: None
    taken = []
    for _ in range(tries):
        wait()
        began = time.perf_counter()
        _job(problem, task, size)
        wait()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


if __name__ == "__main__":
    main()
