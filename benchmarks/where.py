"""Where the time of a workload goes: how busy the GPU is, with what, and what Python does meanwhile.

PYTHONPATH=src python3 -m benchmarks.where W7=1000 W6=500 --device cuda
PYTHONPATH=src python3 -m benchmarks.where W7=300 --contender "offbeat, bf16" --device cuda --top 20

A turn each without a profiler, with that of the GPU and with that of Python: the first says how fast it is, the second
what the GPU did, the third what Python did, and only that, because profiling it takes longer than the work.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from offbeat.bench import material, ours
from offbeat.bench.workloads import OFFBEAT, WORKLOADS
from offbeat.simulate.execute import Executor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", metavar="NAME=UPDATES")
    parser.add_argument("--contender", default=OFFBEAT)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--top", type=int, default=12, help="lines of each table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for word in given.workloads:
        name, _, updates = word.partition("=")
        made = material.prepare(WORKLOADS[name], given.device)
        look(name, ours.contender(given.contender, made, given.device), int(updates), given.device, given.top)


def look(name: str, work: ours.Work, updates: int, device: str, top: int) -> None:
    """Print where the time of one workload goes."""
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    batches, compute = list[int](), Executor.compute

    def counted(self: Executor, problem: Any, local: Any, arena: Any, group: Any) -> Any:
        batches.append(len(group))
        return compute(self, problem, local, arena, group)

    work(updates, 1)  # warm
    wait()
    Executor.compute = counted  # type: ignore[method-assign]
    wall, cpu = time.perf_counter(), time.process_time()
    work(updates, 2)
    wait()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    Executor.compute = compute  # type: ignore[method-assign]
    each, processor = 1e3 * wall / updates, 1e3 * cpu / updates
    print(f"{name}: {updates / wall:,.0f} updates/s, {each:.3f} ms each, {processor:.3f} CPU-ms")
    print(f"  {len(batches)} batches of {sum(batches) / len(batches):.1f}: {sorted(batches)}")
    if device == "cuda":
        _gpu(lambda: (work(updates, 2), wait()), updates, top)
    python = cProfile.Profile()
    python.runcall(work, updates, 2)
    pstats.Stats(python).sort_stats("tottime").print_stats(top)


def _gpu(run: Callable[[], Any], updates: int, top: int) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
    events = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spent, count = Counter[str](), Counter[str]()
    for event in events:
        spent[event.name] += event.time_range.elapsed_us()
        count[event.name] += 1
    busy, until = 0.0, 0.0
    for begin, end in sorted((e.time_range.start, e.time_range.end) for e in events):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    first = min(e.time_range.start for e in events)
    share, each = busy / (until - first), 1e-3 * busy / updates
    print(f"  GPU busy {each:.3f} ms an update, {share:.0%} of the time; {len(events) / updates:.1f} kernels an update")
    for name, micros in spent.most_common(top):
        print(f"  {1e-3 * micros / updates:8.4f} ms {count[name] / updates:7.1f} × {name[:110]}")


if __name__ == "__main__":
    main()
