"""A run as summaries, measures and displays see it, simulated or real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import torch

from offbeat.core.errors import SettingError
from offbeat.core.local import Local
from offbeat.core.metric import Metric
from offbeat.core.problem import Countable, Problem, Sampled
from offbeat.core.run_state import RunState
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, materialise
from offbeat.core.watcher import Measurement
from offbeat.simulate.execute import Executor


class WatchedRun(Protocol):
    """A run that others may look at while it goes on and afterwards. problems, locals, metrics: by task.

    client_names: by number, of those that have one.
    """

    @property
    def world(self) -> RunState: ...
    @property
    def problems(self) -> Sequence[Problem]: ...
    @property
    def server(self) -> Server[Any]: ...
    @property
    def locals(self) -> Sequence[Local]: ...
    @property
    def until(self) -> Until: ...
    @property
    def metrics(self) -> Sequence[Sequence[Metric]]: ...
    @property
    def clients(self) -> int: ...
    @property
    def client_names(self) -> Sequence[str]: ...
    @property
    def executor(self) -> Executor: ...


def sample(run: WatchedRun) -> int | None:
    """How many training samples a task's loss is measured on during the run; None: all."""
    found = [p.sample for p in run.problems if isinstance(p, Sampled) and p.sample is not None]
    return max(found, default=None)


def sampled_to_end(run: WatchedRun) -> bool | None:
    """Whether the final loss is measured on that sample, too; None: on all."""
    return any(isinstance(p, Sampled) and p.sampled_to_end for p in run.problems) or None


def left_to_measure(run: WatchedRun) -> int:
    """On how many training samples the loss of a run that ends now is measured: on all of them, or on no more."""
    problems = [p for p in run.problems if _measured_at_end(p) and isinstance(p, Countable)]
    return sum(p.samples_of(client) for p in problems for client in range(run.clients))


def _measured_at_end(problem: object) -> TypeGuard[Sampled]:
    """Whether the run measured the loss on some samples, without being asked for so many."""
    return isinstance(problem, Sampled) and problem.sample is not None and not problem.sampled_to_end


def _exact(problem: Problem, model: Vector) -> dict[str, float]:
    return {"loss": problem.exact(model)} if _measured_at_end(problem) else {}


def final_metrics(run: WatchedRun, measurements: Sequence[Measurement], task: int) -> dict[str, float]:
    """A task's last metrics, with the loss on all training samples unless it was to be measured on so many."""
    found = next((dict(m.metrics) for m in reversed(measurements) if m.task == task), {})
    model = run.server.models(run.world.server)[task].vector
    return {**found, **_exact(run.problems[task], materialise(model))} if found else {}


def final_outputs(run: WatchedRun) -> dict[str, dict[str, float]]:
    """The metrics of what a server gives besides its model; none where the server of a real run has no data."""
    given = run.server.outputs(run.world.server)
    if not given:
        return {}
    problem, vectors = run.problems[0], [materialise(vector) for vector in given.values()]
    try:
        found = [dict(metrics) for metrics in problem.measure(torch.stack(vectors))]
    except SettingError:
        return {name: {} for name in given}
    found = [{**metrics, **_exact(problem, w)} for metrics, w in zip(found, vectors, strict=True)]
    return dict(zip(given, found, strict=True))
