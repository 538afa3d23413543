"""A real client's jobs on a GPU: payload and memory come from the CPU and go back to it, results equal to tolerance.

Also a script (`PYTHONPATH=src python tests/cuda/test_real_cuda.py`), for machines without pytest.
"""

from __future__ import annotations

import torch

import offbeat as ob
from offbeat.algorithms import SCAFFOLD, QuAFL
from offbeat.core.events import Job
from offbeat.core.vectors import Payload
from offbeat.data.base import Dataset
from offbeat.data.splits import Dirichlet
from offbeat.deploy import encoding
from offbeat.deploy.train import Training
from offbeat.local import MAML, Moreau, Scaffold

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # run as a script
    pass


ALGORITHMS = [
    ob.Algorithm(ob.AREA(size=4), ob.SGD(lr=2.0, steps=3, batch=16), "area"),
    ob.Algorithm(ob.FedBuff(size=4), ob.SGD(lr=0.1, steps=3, batch=16, shuffle=True), "fedbuff"),
    ob.Algorithm(SCAFFOLD(sampled=8), Scaffold(lr=0.1, steps=3, batch=16), "scaffold"),
    ob.Algorithm(QuAFL(sampled=8, period=0.1, bits=12), ob.SGD(lr=0.1, steps=8, batch=16), "quafl"),
    ob.Algorithm(ob.FedAsync(lr=0.3), MAML(lr=0.1, alpha=0.1, batch=16), "persafl-maml"),
    ob.Algorithm(ob.FedAsync(lr=0.3), Moreau(lr=0.1, penalty=2.0, inner_lr=0.1, inner=5, batch=16), "persafl-me"),
]


def images() -> Dataset:
    """Noise in ten classes, as bytes."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (3000, 1, 16, 16), generator=g).to(torch.uint8)
    y = torch.randint(10, (3000,), generator=g)
    return Dataset.pairs("noise", x[:2500], y[:2500], x[2500:], y[2500:], 10, 1 / 255)


def trained(algorithm: ob.Algorithm, device: str, steps: int) -> tuple[Payload, Payload]:
    """(upload, memory) of one job, interrupted after so many steps."""
    problem = ob.Supervised.split(images(), 32, Dirichlet(0.3), "softmax", device=device)
    local = algorithm.locals(1)[0]
    start = torch.randn(problem.dim, generator=torch.Generator().manual_seed(1)) * 0.1
    payload = {name: start if name == "model" else start * 0.1 for name in local.needs}
    job = Job(0, 3, 0, 0, 8, 0.1, 5)
    training = Training(problem, local, job, payload, local.remember(start), seed=0)
    for _ in range(steps):
        training.step()
    return training.result()


def compare(algorithm: ob.Algorithm, steps: int) -> float:
    (here, mine), (there, theirs) = trained(algorithm, "cpu", steps), trained(algorithm, "cuda", steps)
    assert all(vector.device.type == "cpu" for vector in (*there.values(), *theirs.values()))
    assert len(encoding.unpack(encoding.pack("trained", {}, there)).parts) == len(here)
    pairs = [(here[name], there[name]) for name in here] + [(mine[name], theirs[name]) for name in mine]
    return max(float((a - b).norm() / (a.norm() + 1e-6)) for a, b in pairs)


def test_a_client_s_job_gives_the_same_on_a_gpu() -> None:
    for algorithm in ALGORITHMS:
        for steps in (3, 8):
            assert compare(algorithm, steps) < 1e-2, algorithm.name


if __name__ == "__main__":
    for each in ALGORITHMS:
        print(f"{each.name:20} relative difference {compare(each, 8):.1e}, after 3 of 8 steps {compare(each, 3):.1e}")
