"""The same runs on a GPU: identical events, models equal to tolerance. Skipped where there is no CUDA.

Also a script (`PYTHONPATH=src:tests python tests/cuda/test_cuda.py`), for machines without pytest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from rows import SEVERAL, TABLE, N

import offbeat as ob
from offbeat.algorithms.optimisers import FedAdam, FedAMSGrad, FedAvgM, FedYogi
from offbeat.core.vectors import materialise, stacked
from offbeat.data.base import Dataset
from offbeat.data.splits import Dirichlet
from offbeat.local import Adam, AdamW
from offbeat.local.schedules import CosineDecay
from offbeat.simulate.arena import LazyArena
from offbeat.timing import Exponential, OnOff, Times

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # run as a script
    pass

ROUGH = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.2)
SHORT = ob.Until(updates=150)
FEDBUFF = ob.Algorithm(ob.FedBuff(size=4), ob.SGD(lr=0.1, steps=3, batch=16, shuffle=True), "fedbuff, shuffled")
OPTIMISED: list[tuple[Any, Any]] = [
    (ob.FedBuff(size=4, server=FedAdam(lr=0.01)), Adam(lr=0.01, steps=2, batch=16, keep=True)),
    (ob.FedAsync(server=FedYogi(lr=0.01)), AdamW(lr=0.01, steps=2, batch=16, schedule=CosineDecay(100))),
    (ob.AREA(size=4, server=FedAvgM(0.5)), ob.SGD(lr=0.1, batch=16, momentum=0.9, keep=True)),
    (ob.FedAvg(server=FedAMSGrad(lr=0.01, threshold=2)), ob.SGD(lr=0.1, batch=8, accumulate=2, clip=1.0)),
]
HALVES = (ob.SGD(lr=0.2, batch=16), ob.SGD(lr=0.1, steps=2, batch=16), ob.SGD(lr=0.1))


def images(seed: int = 0) -> Dataset:
    """Ten blurred patterns with noise, as bytes."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.rand(10, 1, 16, 16, generator=g)
    y = torch.randint(10, (3000,), generator=g)
    x = 0.6 * patterns[y] + 0.4 * torch.rand(3000, 1, 16, 16, generator=g)
    x = (255 * x).to(torch.uint8)
    return Dataset.pairs("patterns", x[:2500], y[:2500], x[2500:], y[2500:], 10, 1 / 255)


def play(
    algorithm: ob.Algorithm,
    device: str,
    executor: str,
    models: Sequence[str] = ("softmax",),
    timing: Times = ROUGH,
    until: ob.Until = SHORT,
    clients: int = N,
) -> ob.Run:
    tasks = [
        ob.Supervised.split(images(task), clients, Dirichlet(0.3), model, seed=task, device=device, name=f"task{task}")
        for task, model in enumerate(models)
    ]
    problem = tasks[0] if len(tasks) == 1 else tasks
    return ob.run(problem, algorithm, timing, until, executor=executor, evaluate=2.0, keep_events=True)


def trained(run: ob.Run, own: bool) -> torch.Tensor:
    """All that a run has trained, in one vector: the server's models, or the clients' own."""
    if own:
        return torch.cat([run.personal(c, steps=0).cpu() for c in range(N)])
    models = run.simulation.server.models(run.world.server)
    return torch.cat([materialise(model.vector).cpu() for model in models])


def difference(algorithm: ob.Algorithm, models: Sequence[str] = ("softmax",), own: bool = False) -> float:
    """Between a CPU, one by one, and a GPU, stacked: relative, of the models; events have to be the same."""
    here, there = play(algorithm, "cpu", "serial", models), play(algorithm, "cuda", "batched", models)
    assert repr(here.events) == repr(there.events), algorithm.name
    a, b = trained(here, own), trained(there, own)
    return float((a - b).norm() / a.norm())


def every() -> list[tuple[ob.Algorithm, Sequence[str], bool, float]]:
    """Every algorithm of the catalogue: (algorithm, its tasks' models, whether clients' own models count, tolerance).

    A quantiser that rounds the other way, a sign or one of the k largest numbers that is another one, or a difference
    quotient, makes more of the last digits; so do networks, with which one by one and stacked differ by 1e-2 on a CPU.
    """
    rough = ("quafl", "persafl-maml by differences")
    one = [
        (
            ob.Algorithm(r.server, replace(r.local, batch=16), r.name),
            ("softmax",),
            r.own,
            2e-2 if r.name in rough or r.local.compress is not None else 1e-3,
        )
        for r in TABLE
    ]
    several = [
        (ob.Algorithm(row.server, HALVES, row.name), ("softmax", "softmax", "mlp"), False, 1e-3) for row in SEVERAL
    ]
    networks = [(FEDBUFF, (name,), False, 3e-2) for name in ("cnn", "lenet5", "cifar-cnn")]
    optimised = [
        (ob.Algorithm(server, local, f"{type(server).__name__} with optimisers"), ("softmax",), False, 1e-2)
        for server, local in OPTIMISED
    ]
    return [*one, *several, (FEDBUFF, ("softmax",), False, 1e-3), *optimised, *networks]


def recorded_differs(steps: int = 200) -> int:
    """How many numbers of recorded elementwise arithmetic on a GPU are not those of doing it at once, bit for bit."""
    start = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).cuda()
    recorded, eager = LazyArena(1000, start.dtype, start.device).keep(start), list(start.clone())
    for held in (recorded, eager):
        w, m, v, g = held
        v = v * v
        for t in range(1, steps):
            m, v = 0.9 * m + 0.1 * g, torch.maximum(0.99 * v + 0.01 * (g * g), v.abs())
            v = v - 0.01 * (g * g * (v - g * g).sign())
            w, g = w - 0.1 * (m / (1 - 0.9**t)) / (v.sqrt() + 1e-8), g - 0.01 * w
        held[:] = [w, m, v, g]
    return int((stacked(recorded) != torch.stack(eager)).sum())


def test_recorded_elementwise_arithmetic_is_that_of_doing_it_at_once_bit_for_bit() -> None:
    assert recorded_differs() == 0


def test_events_are_identical_and_models_close_on_a_gpu() -> None:
    for algorithm, models, own, tolerance in every():
        assert difference(algorithm, models, own) < tolerance, algorithm.name


if __name__ == "__main__":
    worst = 0.0
    assert recorded_differs() == 0
    for each, tasks, own, tolerance in every():
        apart = difference(each, tasks, own)
        worst = max(worst, apart / tolerance)
        print(f"{each.name:30} {'+'.join(tasks):24} relative difference {apart:.1e} of {tolerance:.0e}", flush=True)
    print(f"{len(every())} algorithms, events identical, largest difference {worst:.2f} of its tolerance")
    busy = ob.Until(updates=400)
    for name in ("softmax", "cnn"):
        for stacked in ("serial", "batched"):
            for _ in range(2):
                began = time.perf_counter()
                play(FEDBUFF, "cuda", stacked, (name,), Times(Exponential(10.0)), busy, 64)
                torch.cuda.synchronize()
            print(f"{name} {stacked}: {400 / (time.perf_counter() - began):,.0f} updates/s on cuda")
    assert worst < 1
