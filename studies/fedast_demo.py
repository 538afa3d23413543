"""One run of the entry fedast-demo, in memory, and its curves as JSON: for a machine without pyarrow and a network.

`python -m studies.fedast_demo fedast 0 OUT.json [KEY=VALUE ...]` runs the entry's experiment `fedast` with seed 0. The
file is written again at every tenth evaluation, so that a run that is stopped leaves what it has. Further arguments
are overrides, such as device=cuda precision=tf32 until.time=20.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import offbeat
from offbeat.core.watcher import Measurement
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.overrides import override
from offbeat.experiment.session import Session
from offbeat.watch.history import History

ENTRY = Path(offbeat.__file__).parent / "papers" / "fedast-demo.toml"


def table(part: str) -> dict[str, Any]:
    """One of the entry's experiments; `offbeat.papers` would read it, but imports what writes runs into folders."""
    every = tomllib.loads(ENTRY.read_text(encoding="utf-8"))["experiment"]
    found = every[part]
    return override(every[found["like"]], found["set"]) if "like" in found else dict(found)


def summary(experiment: Experiment, history: History, world: Any, server: Any, seconds: float) -> dict[str, Any]:
    """The run as in docs/results/fedast/fig7.json, with its state so far."""
    spec, tasks = experiment.runs[0], {}
    said = server.report(world.server) if world is not None else {}
    for number, task in enumerate(experiment.tasks):
        mine = [m for m in history.measurements if m.task == number]
        (metric, target), *_ = (task.target or {"accuracy": 2.0}).items()
        finished = next((m.time for m in mine if m.metrics[metric] >= target), None)
        changes = said.get("tasks", [])
        tasks[task.name] = {
            "finished": finished,
            "curve": [[m.time, round(m.metrics[metric], 4)] for m in mine],
            "requests": [change[:2] for change in changes[number]["history"]] if changes else [],
        }
    updates = 0 if world is None else world.tally.updates
    return {"algorithm": spec.label, "seed": spec.seed, "updates": updates, "seconds": round(seconds), "tasks": tasks,
            "decisions": said.get("decisions", [])}  # fmt: skip


def main(part: str, seed: str, out: str, *overrides: str) -> None:
    """Run it."""
    experiment = Experiment.parse({**table(part), "seed": int(seed), "trials": 1}, overrides)
    session, (spec,) = Session(experiment), experiment.runs
    history, began, shown = History(), time.monotonic(), 0

    def write(world: Any) -> None:
        found = summary(experiment, history, world, simulation.server, time.monotonic() - began)
        Path(out).write_text(json.dumps({"part": part, "overrides": overrides, **found}))

    def line(m: Measurement) -> str:
        name, seconds = experiment.tasks[m.task].name, time.monotonic() - began
        return f"{m.time:8.1f} {name:12} {m.metrics['accuracy']:.4f} {seconds:6.0f} s"

    with session.computing(spec):
        simulation = session.simulation(spec, [history])
        world = None
        for world in simulation.steps():
            if len(history.measurements) >= shown + 10:
                print(*map(line, history.measurements[shown:]), sep="\n", flush=True)
                shown = len(history.measurements)
                write(world)
        write(world)
    session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
