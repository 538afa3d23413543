"""`python -m offbeat.bench [W1 W2 …] [--quick] [--device cuda] [--json]`: for machines that have little installed."""

from __future__ import annotations

import argparse
import json
import sys

from offbeat.bench.session import bench
from offbeat.bench.table import text
from offbeat.bench.workloads import WORKLOADS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m offbeat.bench")
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; without one, all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = bench(
        given.workloads,
        quick=given.quick,
        device=given.device,
        turns=given.turns,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(json.dumps(report.plain(), indent=2) if given.json else text(report))
    for line in report.disagreements:
        print(line, file=sys.stderr)
    sys.exit(1 if report.disagreements else 0)


if __name__ == "__main__":
    main()
