"""Jobs of unlike length in one batch: rows that are done left out, against all rows to the end of the longest.

    PYTHONPATH=src python benchmarks/uneven.py [--jobs N] [--device cuda]

The jobs of one round of FAVANO with n = 10, 20, 40 and 80 of DeFedAvg's 100 clients, or so many of them; DeFedAvg's
network on noise.
"""

from __future__ import annotations

import argparse
import random
import time

import torch

import offbeat as ob
from offbeat.core.events import Job
from offbeat.data.base import Dataset
from offbeat.simulate import execute
from offbeat.simulate.arena import Arenas

ROOM = {10: 0.9, 20: 0.45, 40: 0.2, 80: 0.07}  # seconds that a client has between two visits, about
STEP = 0.0017  # seconds of a step of the fastest; the slowest takes five times as long


def lengths(rng: random.Random) -> list[int]:
    """Steps that clients get done, of at most 50."""
    found = [min(50, int(room / (STEP * rng.uniform(1, 5)))) for n, room in ROOM.items() for _ in range(n)]
    rng.shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    g = torch.Generator().manual_seed(0)
    x, y = (
        torch.randint(256, (6000, 1, 28, 28), generator=g, dtype=torch.uint8),
        torch.randint(10, (6000,), generator=g),
    )
    data = Dataset.pairs("noise", x, y, x[:10], y[:10], 10, 1 / 255)
    problem = ob.Supervised.split(data, 100, model="cnn", device=chosen.device)
    local, arenas, steps = ob.SGD(lr=0.01, steps=50, batch=10), Arenas(), lengths(random.Random(0))[: chosen.jobs]
    model = problem.initial()
    payload, arena = {"model": arenas.adopt(model)}, arenas.like(model)
    group = [
        (None, execute.Ready(Job(c, c % 100, 0, 0, s, local.lr, 0), payload, {}, key=c, client=c % 100))
        for c, s in enumerate(steps)
    ]
    memory = 1e9 if chosen.device == "cpu" else 0.1 * torch.cuda.get_device_properties(0).total_memory
    wait = torch.cuda.synchronize if chosen.device == "cuda" else lambda: None
    best: dict[float, float] = {}
    for _ in range(3):  # in turns
        for worth in (0.0, 0.75):
            execute._WORTH = worth
            wait()
            began = time.perf_counter()
            execute.Executor(True, memory).compute(problem, local, arena, group)
            wait()
            best[worth] = min(best.get(worth, float("inf")), time.perf_counter() - began)
    print(f"{len(steps)} jobs, {sum(steps)} steps, to the end of the longest {len(steps) * max(steps)}")
    whole, left = best[0.0], best[0.75]
    print(f"all rows {whole * 1e3:.0f} ms, left out {left * 1e3:.0f} ms: {whole / left:.2f} times as fast")


if __name__ == "__main__":
    main()
