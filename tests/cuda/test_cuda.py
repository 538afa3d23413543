"""The same runs on a GPU: identical events, models equal to tolerance. Skipped where there is no CUDA.

Also a script (`PYTHONPATH=src python tests/cuda/test_cuda.py`), for machines without pytest.
"""

from __future__ import annotations

import time

import torch

import offbeat as ob
from offbeat.algorithms import CA2FL, SCAFFOLD, DeFedAvg, Favano, QuAFL
from offbeat.data.base import Dataset
from offbeat.data.splits import Dirichlet
from offbeat.local import MAML, Moreau, Scaffold
from offbeat.timing import Exponential, Times

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # run as a script
    pass

ALGORITHMS = [
    ob.Algorithm(ob.AREA(every=4), ob.SGD(lr=2.0, steps=3, batch=16), "area"),
    ob.Algorithm(ob.FedBuff(size=4), ob.SGD(lr=0.1, steps=3, batch=16, shuffle=True), "fedbuff"),
    ob.Algorithm(ob.FedAvg(sampled=8), ob.SGD(lr=0.1), "fedavg, whole data"),
    ob.Algorithm(SCAFFOLD(sampled=8), Scaffold(lr=0.1, steps=3, batch=16, option=1), "scaffold"),
    ob.Algorithm(DeFedAvg(sampled=8), ob.SGD(lr=0.1, batch=16), "defedavg"),
    ob.Algorithm(Favano(sampled=8, period=0.1), ob.SGD(lr=0.1, steps=8, batch=16), "favano"),
    ob.Algorithm(QuAFL(sampled=8, period=0.1, bits=12), ob.SGD(lr=0.1, steps=8, batch=16), "quafl"),
    ob.Algorithm(CA2FL(size=4), ob.SGD(lr=0.1, batch=16), "ca2fl"),
    ob.Algorithm(ob.FedAsync(lr=0.3), MAML(lr=0.1, alpha=0.1, batch=16), "persafl-maml"),
    ob.Algorithm(ob.FedAsync(lr=0.3), Moreau(lr=0.1, penalty=2.0, inner_lr=0.1, inner=5, batch=16), "persafl-me"),
]


def images(seed: int = 0) -> Dataset:
    """Ten blurred patterns with noise, as bytes."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.rand(10, 1, 16, 16, generator=g)
    y = torch.randint(10, (3000,), generator=g)
    x = 0.6 * patterns[y] + 0.4 * torch.rand(3000, 1, 16, 16, generator=g)
    x = (255 * x).to(torch.uint8)
    return Dataset("patterns", x[:2500], y[:2500], x[2500:], y[2500:], 10, 1 / 255)


def play(algorithm: ob.Algorithm, device: str, executor: str, model: str) -> ob.Run:
    problem = ob.Supervised.split(images(), 32, Dirichlet(0.3), model, device=device)
    return ob.run(
        problem,
        algorithm,
        Times(Exponential(rate=10.0)),
        ob.Until(updates=200),
        executor=executor,
        evaluate_every=0.2,
        keep_events=True,
    )


def compare(algorithm: ob.Algorithm, model: str = "softmax") -> float:
    here = play(algorithm, "cpu", "serial", model)
    there = play(algorithm, "cuda", "batched", model)
    assert repr(here.events) == repr(there.events)
    assert abs(here.metrics["accuracy"] - there.metrics["accuracy"]) < 0.02
    return float((there.model.cpu() - here.model).norm() / here.model.norm())


def test_events_are_identical_and_models_close_on_a_gpu() -> None:
    for algorithm in ALGORITHMS:
        assert compare(algorithm) < 2e-2 if algorithm.name == "quafl" else compare(algorithm) < 1e-3, algorithm.name


def test_a_convolutional_model_too() -> None:
    assert compare(ALGORITHMS[1], "cnn") < 1e-2


if __name__ == "__main__":
    for each in ALGORITHMS:
        print(f"{each.name:20} relative difference {compare(each):.2e}", flush=True)
    print(f"{'fedbuff, cnn':20} relative difference {compare(ALGORITHMS[1], 'cnn'):.2e}")
    for name in ("softmax", "cnn"):
        for stacked in ("serial", "batched"):
            play(ALGORITHMS[1], "cuda", stacked, name)
            began = time.perf_counter()
            play(ALGORITHMS[1], "cuda", stacked, name)
            torch.cuda.synchronize()
            print(f"{name} {stacked}: {200 / (time.perf_counter() - began):,.0f} updates/s on cuda")
