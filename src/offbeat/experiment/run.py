"""One call from a problem, an algorithm and a timing model to a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offbeat.core.errors import SettingError
from offbeat.core.problem import Problem
from offbeat.core.server import Algorithm
from offbeat.core.vectors import Vector, materialise
from offbeat.core.watcher import EventRow, Measurement, Watcher
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation, Until
from offbeat.simulate.personal import Personal
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing.base import Timing
from offbeat.watch.history import History
from offbeat.watch.results import time_to_all


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run in memory. history: every evaluation.   events: if they were kept."""

    world: World
    simulation: Simulation
    history: Sequence[Measurement]
    events: Sequence[EventRow]

    @property
    def model(self) -> Vector:
        """The (first task's) final model, one flat vector."""
        model: Vector = self.simulation.server.models(self.world.server)[0].vector
        return materialise(model)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last evaluation."""
        return self.history[-1].metrics if self.history else {}

    def time_to(self, metric: str, value: float) -> float | None:
        """When an evaluation first showed this value or a better one; None: never. Of several tasks the last counts."""
        return time_to_all(self.history, len(self.simulation.problems), metric, value)

    def personal(self, client: int, steps: int = 1) -> Vector:
        """A client's own model at the end, after its own fine-tuning with so many gradients."""
        if not 0 <= client < self.simulation.clients:
            raise SettingError(f"client {client}: there are {self.simulation.clients}, numbered from 0")
        ((_, models),) = self.simulation.personal(0, self.model, [client], steps)
        return models[0]

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"<Run: {metrics or 'no evaluation'} after {self.world.tally.updates:,} updates>"


def run(
    problem: Problem | Sequence[Problem],
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seed: int = 0,
    evaluate_every: float | None = None,
    executor: str | Executor = "auto",
    watchers: Sequence[Watcher] = (),
    personal: Personal | None = None,
    terms: Sequence[tuple[float, float]] = (),
    keep_events: bool = False,
) -> Run:
    """Run to the end in virtual time.

    problem: one, or several that the clients train at the same time.
    seed: of everything random in the run.
    evaluate_every: virtual time between evaluations; None: never.
    executor: "auto", "serial", "batched", "processes" or "ray", or one that several runs share.
    watchers: are told every event and evaluation.
    personal: also evaluate the clients' own models.
    terms: by task, the times from which and until which it is there.
    keep_events: keep the event log in memory.
    """
    history = History(keep_events)
    simulation = prepare(
        problem,
        algorithm,
        timing,
        until,
        seed=seed,
        evaluate_every=evaluate_every,
        executor=executor,
        watchers=[history, *watchers],
        personal=personal,
        terms=terms,
    )
    try:
        world = simulation.run()
    finally:
        if not isinstance(executor, Executor):
            simulation.executor.close()
    return Run(world, simulation, history.measurements, history.events)
