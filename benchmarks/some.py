"""Workloads for so many updates each, all or some contenders: a few minutes instead of a whole session.

PYTHONPATH=src python3 -m benchmarks.some W6=1000 W7=1000 W8=320 --device cuda --seconds 500 --json $OUT/bench.json
PYTHONPATH=src python3 -m benchmarks.some W7=500 --device cuda --others "PyTorch loop" "offbeat, bf16"

The table of a workload is printed, and the JSON file written, as soon as its contenders are done. A workload does not
begin after --seconds, so that a time limit costs no more than the one that is under way.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from offbeat.bench import session, table
from offbeat.bench.workloads import OFFBEAT, WORKLOADS, Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", metavar="NAME=UPDATES")
    parser.add_argument("--others", nargs="*", help="contenders besides offbeat. Default: all")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    began, done = time.monotonic(), list[session.Report]()
    for word in given.workloads:
        name, _, updates = word.partition("=")
        if time.monotonic() - began > given.seconds:
            print(f"{name}: not begun, {given.seconds:g} s are over")
            continue
        chosen = {name: some(WORKLOADS[name], int(updates), given.others)}
        say = lambda line: print(f"{time.monotonic() - began:.0f} s: {line}", flush=True)  # noqa: E731
        done.append(session.bench([name], device=given.device, turns=given.turns, say=say, workloads=chosen))
        print(table.text(done[-1]), flush=True)
        if given.json:
            given.json.write_text(json.dumps([report.plain() for report in done], indent=1))


def some(workload: Workload, updates: int, others: list[str] | None) -> Workload:
    """The workload with as many updates, and with offbeat and these others."""
    if others is not None:
        workload = replace(workload, contenders=(OFFBEAT, *others), on_cuda=(OFFBEAT, *others))
    return replace(workload, updates=updates, cuda=updates)


if __name__ == "__main__":
    main()
