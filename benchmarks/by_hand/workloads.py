"""offbeat's workloads with the loops written by hand as further contenders, and what the ratios should be."""

from __future__ import annotations

from dataclasses import replace

from offbeat.bench import workloads
from offbeat.bench.workloads import AGAINST, BOTH, OFFBEAT, SERIAL, SWEEP

LEAN, PLAIN = "lean loop", "plain PyTorch loop"
_AIMS = {"W1": {LEAN: 0.5, PLAIN: 3.0}, "W2": {LEAN: 0.7, PLAIN: 3.0}, "W3": {PLAIN: 1.0, BOTH: 1.8}}

WORKLOADS = {
    name: replace(
        workload,
        contenders=(OFFBEAT, LEAN, PLAIN, *workload.contenders[1:]),
        on_cuda=(OFFBEAT, SWEEP, SERIAL, LEAN, PLAIN),
        against={**AGAINST, BOTH: PLAIN},
        aims=_AIMS.get(name, {}),
    )
    for name, workload in workloads.WORKLOADS.items()
    if not any(task.packed for task in workload.tasks)  # the loops have their samples in memory
    and not workload.compile  # those have a loop of their own beside them
}
