"""How long Sync-ST's rounds are if clients that are too late finish their jobs, and if they are stopped.

`python -m studies.late` prints the mean length of a round on the clock of the authors' demonstration (`fedast-demo`),
for the tasks that are left as one after the other is done. It follows from the clock alone, so a quadratic is trained
in place of each task.
"""

from __future__ import annotations

from contextlib import closing
from statistics import fmean
from typing import Any

from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.papers import load

LEFT = (("mnist", "fashion", "cifar10", "shakespeare"), ("fashion", "cifar10", "shakespeare"), ("fashion", "cifar10"),
        ("cifar10",))  # fmt: skip
UNTIL, SEEDS = 600.0, range(3)


def length(left: tuple[str, ...], stop: bool, seed: int, until: float = UNTIL) -> float:
    """The mean length of the rounds that have ended by then."""
    table: Any = load("fedast-demo", "full").experiment["sync"]
    (server,) = table["algorithm"]
    shares = dict(zip([task["name"] for task in table["task"]], server["shares"], strict=True))
    steps = {"sgd": {"lr": 0.1, "steps": 27}}
    light = {
        **{key: table[key] for key in ("clients", "timing")},
        "timing": {**table["timing"], "shifted_exponential": {"per_step": {
            name: size for name, size in table["timing"]["shifted_exponential"]["per_step"].items() if name in left}}},
        "task": [{"name": name, "data": "quadratic", "dim": 1, "local": steps} for name in left],
        "algorithm": [{**server, "shares": [shares[name] for name in left], "stop": stop}],
        "until": {"time": until},
        "seed": seed,
    }  # fmt: skip
    experiment = Experiment.parse(light)
    with closing(Session(experiment)) as session, session.computing(experiment.runs[0]):
        *_, world = session.simulation(experiment.runs[0], []).steps()
    return float(world.server.began / (world.server.rounds - 1))


if __name__ == "__main__":
    for tasks in LEFT:
        finish, stopped = (fmean(length(tasks, stop, seed) for seed in SEEDS) for stop in (False, True))
        print(f"{', '.join(tasks):40} {finish:6.2f} {stopped:6.2f}  {stopped / finish - 1:+.0%}", flush=True)
