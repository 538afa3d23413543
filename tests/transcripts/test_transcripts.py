"""Small runs whose events are kept in files next to this one, so that a change of behaviour is seen as a diff.

To write them anew after a change that is meant: OFFBEAT_WRITE_TRANSCRIPTS=1 pytest tests/transcripts
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from worlds import run

from offbeat.algorithms import Poisson
from offbeat.algorithms.area import AREA
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.until import Until
from offbeat.experiment.run import Run
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.timing import Delays, Exponential, OnOff, Times

HERE = Path(__file__).parent
WRITE = "OFFBEAT_WRITE_TRANSCRIPTS"

RUNS: dict[str, Any] = {
    "area": (AREA(size=Poisson(0.5)), Times(Exponential((2.0, 1.0, 0.5, 0.25)))),
    "fedbuff": (FedBuff(size=3, concurrency=3), Times(Exponential(1.0), presence=OnOff(on=6.0, off=2.0), dropout=0.2)),
    "fedavg": (FedAvg(sampled=2), Times(Exponential(1.0), network=Delays(download=(0.1, 0.2), ratio=(4.0, 6.0)))),
}


def transcript(result: Run) -> str:
    """One line per event; nine digits of the time, because the last ones depend on the machine's logarithm."""
    lines = ["# number time event client job version staleness"]
    for r in result.events:
        lines.append(
            f"{r.number:3d} {r.time:12.9g} {r.event:8s} {r.client:2d} {r.job:3d} {r.version:2d} {r.staleness:2d}"
        )
    return "\n".join([*lines, f"# {result.world.stopped}", ""])


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_the_events_are_those_in_the_file(name: str, executor: str) -> None:
    server, timing = RUNS[name]
    result = run(Quadratic(4, dim=2), server, SGD(lr=0.1), timing, Until(updates=25), seed=11, executor=executor)
    found, path = transcript(result), HERE / f"{name}.txt"
    if os.environ.get(WRITE):
        path.write_text(found)
    assert found == path.read_text(), f"if this change is meant, run {WRITE}=1 pytest tests/transcripts"
