"""offbeat's own ways to do a workload end alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from offbeat.bench import material
from offbeat.bench.material import synthetic
from offbeat.bench.ours import contender
from offbeat.bench.workloads import BOTH, OFFBEAT, SERIAL, SWEEP, WORKLOADS


@pytest.mark.parametrize("name", [SERIAL, BOTH, SWEEP])
def test_one_run_of_several_ends_as_it_would_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "dataset", lambda task: synthetic(task.data, train=400, test=100))
    made = material.prepare(replace(WORKLOADS["W1"], clients=10))
    (alone,), (other,) = (contender(way, made)(60, 3) for way in (OFFBEAT, name))
    torch.testing.assert_close(other, alone, rtol=1e-4, atol=1e-5)
