"""Some contenders of one workload on a GPU, for so many updates: a few minutes instead of a whole session.

PYTHONPATH=src python3 -m benchmarks.some W7 500 "PyTorch loop" "offbeat, bf16"
"""

from __future__ import annotations

import sys
from dataclasses import replace

from offbeat.bench import session, table
from offbeat.bench.workloads import OFFBEAT, WORKLOADS


def main(name: str, updates: str, *others: str) -> None:
    """Measure offbeat and these others in one turn each, and print the table."""
    chosen = replace(WORKLOADS[name], on_cuda=(OFFBEAT, *others), cuda=int(updates))
    report = session.bench(
        [name], device="cuda", turns=1, say=lambda line: print(line, flush=True), workloads={name: chosen}
    )
    print(table.text(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
