"""offbeat beside loops written by hand: the same work in turns.

    python -m benchmarks.by_hand [W1 W2 …] [--quick] [--device cuda] [--turns N] [--json] [--out docs/benchmarks.md]

Run it in the root of the repository; it needs nothing but torch, numpy and offbeat itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.by_hand.workloads import WORKLOADS
from benchmarks.page import markdown, write
from offbeat.bench.session import bench
from offbeat.bench.table import text

COMMAND = "make bench"


def main(given: list[str] | None = None) -> int:
    """Measure and print; 1 if contenders disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; without one, all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="a Markdown page to write the tables into")
    options = parser.parse_args(given)
    report = bench(
        options.workloads,
        quick=options.quick,
        device=options.device,
        turns=options.turns,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        workloads=WORKLOADS,
        worker="benchmarks.by_hand.worker",
    )
    print(json.dumps(report.plain(), indent=2) if options.json else text(report))
    if options.out is not None:
        write(options.out, COMMAND, markdown(report, COMMAND))
    for line in report.disagreements:
        print(line, file=sys.stderr)
    return 1 if report.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
