"""One contender in its own process: it loads its data, then does a turn for every line on standard input.

    python -m offbeat.bench.worker WORKLOAD CONTENDER DEVICE

The line {"updates": 1000, "seed": 3} is answered by one line, a `Turn` as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from offbeat.bench.material import Material, prepare
from offbeat.bench.ours import Work, contender
from offbeat.bench.workloads import RUNS, WORKLOADS

_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


@dataclass(frozen=True)
class Turn:
    """How long one turn took, and the metrics of its models.

    wall: seconds.   cpu: seconds of this process and those it started.   memory: peak so far of a process, MB.
    gpu_memory: peak of the tensors on the GPU, MB.
    """

    updates: int
    wall: float
    cpu: float
    memory: float
    gpu_memory: float
    metrics: dict[str, float]


def turn(material: Material, work: Work, updates: int, seed: int, device: str = "cpu", runs: int = 1) -> Turn:
    """Time one turn, which consists of so many runs; the evaluation of the models is not timed."""
    _wait(device)
    cpu, wall = _cpu(), time.perf_counter()
    models = work(updates, seed)
    _wait(device)
    wall, cpu = time.perf_counter() - wall, _cpu() - cpu
    memory = max(resource.getrusage(who).ru_maxrss for who in _WHO) / 1024
    gpu = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    total = runs * material.workload.total(updates)
    return Turn(total, wall, cpu, memory, gpu, dict(material.judge(models)))


def main(arguments: Sequence[str], make: Callable[[str, Material, str], Work] = contender) -> None:
    """Serve turns until standard input ends."""
    workload, name, device = arguments
    torch.set_num_threads(1)
    material = prepare(WORKLOADS[workload], device)
    work = make(name, material, device)
    work(WORKLOADS[workload].size, 0)  # the first calls of everything are slow
    print(json.dumps({"sources": list(material.sources)}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        done = turn(material, work, order["updates"], order["seed"], device, runs=RUNS.get(name, 1))
        print(json.dumps(asdict(done)), flush=True)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _cpu() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


if __name__ == "__main__":
    main(sys.argv[1:])
