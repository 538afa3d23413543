"""Processor time of one client's gradient on this CPU, in single precision and under autocast to bfloat16.

PYTHONPATH=src python benchmarks/precision.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from offbeat.data.base import Dataset
from offbeat.models.build import build
from offbeat.problems.supervised import Supervised

MODELS = {
    "cnn": ((1, 28, 28), {}),
    "resnet18-gn": ((3, 16, 16), {}),
    "mlp": ((1, 28, 28), {"hidden": [512, 512]}),
}


def shortest(action: Callable[[], object], times: int = 3, tries: int = 7) -> float:
    """Milliseconds of one call, the best of a few tries."""
    action()
    found = []
    for _ in range(tries):
        began = time.process_time()
        for _ in range(times):
            action()
        found.append((time.process_time() - began) / times)
    return 1e3 * min(found)


def main() -> None:
    torch.set_num_threads(1)
    print(torch.backends.cpu.get_cpu_capability())
    for name, (shape, options) in MODELS.items():
        generator = torch.Generator().manual_seed(0)
        x, y = torch.rand(400, *shape, generator=generator), torch.randint(10, (400,), generator=generator)
        data = Dataset.pairs("made", x, y, x, y, classes=10, scale=1.0)
        took, slopes = [], []
        for precision in ("single", "bf16"):
            model = build(name, shape, 10, seed=0, **options)
            problem = Supervised(data, model, np.array_split(np.arange(400), 4), precision=precision)
            oracle, w = problem.oracle([0], [0], 10, 32, False), problem.initial().unsqueeze(0)
            slopes.append(oracle.gradient(w, 0))
            took.append(shortest(lambda oracle=oracle, w=w: oracle.gradient(w, 0)))
        apart = float((slopes[0] - slopes[1]).norm() / slopes[0].norm())
        print(f"{name}: {took[0]:.1f} ms single, {took[1]:.1f} ms bf16; gradients differ by {apart:.1%}")


if __name__ == "__main__":
    main()
