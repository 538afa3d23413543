"""Server steps at times of runs that were recorded without them: they follow from the clock alone.

`python -m studies.rounds defedavg-fig6/fashion-classes/n-20 0 123` runs the entry's experiment with seed 0 to that time
and prints how many server steps it had made at the last evaluations. It trains a softmax regression in place of the
entry's model. Messages take as long as the model's own, because the bandwidth is cut in proportion, so every event
comes when it came in the recorded run.
"""

from __future__ import annotations

import sys
from contextlib import closing

from offbeat.experiment.experiment import Experiment
from offbeat.experiment.overrides import override
from offbeat.experiment.session import Session
from offbeat.watch.history import History
from studies.figures import plan


def versions(wave: str, seed: int, until: float) -> dict[float, int]:
    """By time of an evaluation, the server's version."""
    (planned,) = plan([f"{wave} seed={seed} trials=1"])
    (run,) = planned["runs"]
    place, whole = f"algorithm.{run['algorithm']}.local.sgd", run["table"]
    light = override(whole, ["problem.model=softmax", f"until={{time={until}}}", "evaluate.samples=10",
                             f"{place}.batch=1", f"{place}.lr=1e-9"])  # fmt: skip
    share = _size(light) / _size(whole)
    bandwidth = {key: share * value for key, value in whole["timing"]["bandwidth"].items()}
    experiment, history = Experiment.parse(override(light, {"timing.bandwidth": bandwidth})), History()
    with closing(Session(experiment)) as session, session.computing(experiment.runs[0]):
        for _ in session.simulation(experiment.runs[0], [history]).steps():
            pass
    return {m.time: m.version for m in history.measurements}


def _size(table: dict[str, object]) -> int:
    """Parameters of the model."""
    experiment = Experiment.parse(table)
    with closing(Session(experiment)) as session:
        return session.problems(experiment.runs[0])[0].dim


if __name__ == "__main__":
    for at, version in list(versions(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])).items())[-3:]:
        print(f"{at:g}: {version}")
