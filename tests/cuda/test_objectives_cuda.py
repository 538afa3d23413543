"""Every kind of loss on a GPU: gradients, products with the Hessian, evaluations and whole runs as on a CPU.

Also a script (`PYTHONPATH=src:tests python tests/cuda/test_objectives_cuda.py`), for machines without pytest.
"""

from __future__ import annotations

import torch
from objectives import CASES, KEYS

import offbeat as ob
from offbeat.timing import Exponential, Times

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # run as a script
    pass

CLOSE = 1e-4


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative difference of what a GPU gives from what a CPU gives."""
    return float((found.cpu() - expected).norm() / expected.norm().clamp_min(1e-12))


def differences(name: str) -> dict[str, float]:
    """How far a GPU is from a CPU, for one client at a time and for all at once."""
    here, there = (CASES[name].problem(l2=0.01, device=device) for device in ("cpu", "cuda"))
    found = {}
    for label, clients in (("one", [2]), ("all", [0, 1, 2, 3])):
        w = here.initial() + 0.1 * torch.randn(len(clients), here.dim, generator=torch.Generator().manual_seed(5))
        v = torch.randn(w.shape, generator=torch.Generator().manual_seed(6))
        keys = [KEYS[client] for client in clients]
        a, b = (problem.oracle(clients, keys, 3, 4, False) for problem in (here, there))
        found |= {
            f"gradient, {label}": apart(b.gradient(w.cuda(), 1), a.gradient(w, 1)),
            f"full, {label}": apart(b.full(w.cuda()), a.full(w)),
            f"loss, {label}": apart(b.loss(w.cuda(), 1), a.loss(w, 1)),
            f"hvp, {label}": apart(b.hvp(w.cuda(), v.cuda(), 1), a.hvp(w, v, 1)),
        }
    measured = [problem.measure(problem.initial().unsqueeze(0))[0] for problem in (here, there)]
    found["measure"] = max(abs(measured[1][key] - value) / max(abs(value), 1e-6) for key, value in measured[0].items())
    runs = [
        ob.run(
            problem,
            ob.Algorithm(ob.FedBuff(size=2, lr=0.5), ob.SGD(lr=0.05, steps=3, batch=4)),
            Times(Exponential(1.0)),
            ob.Until(updates=24),
            executor=executor,
            keep_events=True,
        )
        for problem, executor in ((here, "serial"), (there, "serial"), (there, "batched"))
    ]
    assert all(run.events == runs[0].events for run in runs), name
    return found | {
        f"a run, {kind}": apart(run.model, runs[0].model)
        for kind, run in zip(("one by one", "at once"), runs[1:], strict=True)
    }


def test_a_gpu_gives_what_a_cpu_gives() -> None:
    for name in CASES:
        for what, difference in differences(name).items():
            assert difference < CLOSE, f"{name}: {what}"


if __name__ == "__main__":
    worst = 0.0
    for each in CASES:
        by = differences(each)
        most = max(by, key=lambda key: by[key])
        worst = max(worst, by[most])
        print(f"{each:20} largest relative difference {by[most]:.1e} ({most})", flush=True)
    print(f"{len(CASES)} kinds of loss, events identical, largest difference {worst:.1e} of {CLOSE:.0e}")
    assert worst < CLOSE
