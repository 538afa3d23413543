"""Compiled steps on a GPU: the events of a CPU run, and its models to tolerance.

PYTHONPATH=src:tests python3 tests/cuda/test_compiled_cuda.py
"""

from __future__ import annotations

from typing import Any

import torch

from offbeat.core.vectors import materialise
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session

LORA = {"rank": 4, "targets": "blocks.*", "dropout": 0.1}

try:
    import pytest

    pytestmark = [
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"]),
    ]
except ImportError:  # run as a script
    pass

TABLE: dict[str, Any] = {
    "until": {"updates": 60},
    "executor": "batched",
    "problem": {
        "data": {"topics": {"window": 16}},
        "clients": 20,
        "model": {"gpt": {"layers": 1, "heads": 2, "width": 16, "dropout": 0.1}},
    },
    "timing": {"exponential": {"rate": {"normal": [10, 5], "min": 1}}},
    "algorithm": {"area": {"size": 4, "local": {"sgd": {"lr": 0.5, "steps": 3, "batch": 4}}}},
}


def ended(device: str, compile: bool, lora: dict[str, Any] | None) -> tuple[Any, torch.Tensor]:
    """((time, updates, staleness, clients' job numbers), the model) at the end of a run."""
    own = {} if lora is None else {"lora": lora}
    table = {**TABLE, "device": device, "compile": compile, "problem": {**TABLE["problem"], **own}}
    session = Session(Experiment.parse(table))
    simulation = session.simulation(session.experiment.runs[0])
    for _ in simulation.steps():
        pass
    world = simulation.world
    if compile:
        assert simulation.problems[0].compiled.startswith("compiled for"), simulation.problems[0].compiled
    events = (world.now, world.tally.updates, world.tally.staleness_sum, list(world.numbers))
    return events, materialise(simulation.server.models(world.server)[0].vector).cpu()


def test_a_compiled_run_has_the_events_of_a_cpu_run(lora: dict[str, Any] | None) -> None:
    (events, model), (same, found) = ended("cpu", False, lora), ended("cuda", True, lora)
    assert events == same
    apart = float((model - found).norm() / model.norm())
    print(f"compiled on a GPU, {'adapters' if lora else 'whole'}: the model differs by {apart:.1e}")
    assert apart < 1e-3


if __name__ == "__main__":
    for each in (None, LORA):
        test_a_compiled_run_has_the_events_of_a_cpu_run(each)
