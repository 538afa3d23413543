"""The targets of the suite, by one rule, from centralised training on the tuning seeds.

    python -m studies.targets                       # of the tasks as they are
    python -m studies.targets --quick tabular       # of one, as the quick suite has it
    python -m studies.targets shakespeare --out DIR # keeps the runs; the same command continues a stopped one
    OFFBEAT_DATA=$(mktemp -d) python -m studies.targets     # of the stand-ins for data sets that are missing

The rule: one machine with all data takes a step every 0.1 for as long as the task lasts, with each of the task's step
sizes, on the two tuning seeds of the full suite. Take the step size with the best mean of the task's metric at the end,
on the samples that the task is evaluated on. The target is 95 % of that mean, rounded to two digits. No judging seed
and no asynchronous method has a part in it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from offbeat.experiment.experiment import Experiment
from offbeat.experiment.runs import resume
from offbeat.suite import definition
from offbeat.suite.definition import CENTRALISED, Suite

SHARE = 0.95
TUNING = [1000, 1001]  # of the full suite, also for quick targets


def ends(suite: Suite, task: str, folder: Path) -> dict[float, list[float]]:
    """The metric at the end of centralised training, seed by seed, of each step size; nan after a divergence.

    folder: of the runs, new or of a run that was stopped.
    """
    aim = suite.tasks[task]
    path, steps = suite.methods[CENTRALISED].axis(aim)
    table = {**suite.table(f"{task}/{CENTRALISED}"), "seed": TUNING[0], "trials": 1}
    table["evaluate"] = {"every": aim.time, **({"samples": aim.samples} if aim.samples is not None else {})}
    values: dict[float, list[float]] = {step: [] for step in steps}
    over: dict[str, list[Any]] = {path: list(steps), "seed": TUNING}
    if folder.exists():
        runs = resume(folder, progress=False)
    else:
        runs = Experiment.parse(table).sweep(over, folder, workers=1, progress=False)
    for run in runs:
        values[run.settings[path]].append(nan if run.error is not None else run.metrics[aim.metric])
    return values


def target(values: Mapping[float, list[float]]) -> float:
    """By the rule."""
    return round(SHARE * max(fmean(each) for each in values.values() if not any(map(isnan, each))), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    asked = parser.parse_args()
    suite = definition.load("v1", "quick" if asked.quick else "full")
    place = asked.out or Path(tempfile.mkdtemp())
    for name in asked.tasks or suite.tasks:
        task = suite.tasks[name]
        found = ends(replace(suite, tasks={name: task}), name, place / name)
        print(f"{task.title}: {task.metric}, time {task.time:g}")
        for step, values in found.items():
            print(f"  step {step:<6g} {'  '.join(f'{value:.4f}' for value in values)}")
        print(f"  target {target(found):g} (in the suite: {task.target:g})", flush=True)


if __name__ == "__main__":
    main()
