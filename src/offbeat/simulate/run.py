"""One call from a problem, an algorithm and a timing model to a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offbeat.core.errors import SettingError, positive
from offbeat.core.problem import Problem
from offbeat.core.server import Algorithm
from offbeat.core.vectors import Vector, settled
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.log import Measurement, Row, Watcher, time_to
from offbeat.simulate.loop import Simulation, Until
from offbeat.simulate.personal import Personal, Shared
from offbeat.simulate.tape import Arenas
from offbeat.simulate.world import World
from offbeat.timing.base import Timing


@dataclass
class History:
    """A watcher that keeps the measurements, and the events if asked to."""

    keep_events: bool = False
    measurements: list[Measurement] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)

    def event(self, row: Row) -> None:
        if self.keep_events:
            self.events.append(row)

    def measured(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)


@dataclass(frozen=True)
class Run:
    """What came out of a run."""

    world: World
    simulation: Simulation
    history: Sequence[Measurement]
    events: Sequence[Row]

    @property
    def model(self) -> Vector:
        """The (first task's) model at the end."""
        model: Vector = self.simulation.server.models(self.world.server)[0].vector
        return settled(model)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last measurement."""
        return self.history[-1].metrics if self.history else {}

    def personal(self, client: int, steps: int = 1) -> Vector:
        """A client's own model at the end, after its own fine-tuning with so many gradients."""
        if not 0 <= client < self.simulation.clients:
            raise SettingError(f"client {client}: there are {self.simulation.clients}, numbered from 0")
        ((_, models),) = self.simulation.personal(0, self.model, [client], steps)
        return models[0]

    def time_to(self, accuracy: float) -> float | None:
        """When a measurement first showed this accuracy; None: never."""
        return time_to(self.history, accuracy)


def prepare(
    problem: Problem | Sequence[Problem],
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seed: int = 0,
    evaluate_every: float | None = None,
    executor: str | Executor = "auto",
    watchers: Sequence[Watcher] = (),
    world: World | None = None,
    personal: Personal | None = None,
    terms: Sequence[tuple[float, float]] = (),
    arenas: Arenas | None = None,
) -> Simulation:
    """A run that has not begun, or with a saved `world` one that goes on where it was.

    evaluate_every: virtual time between evaluations; None: never.   personal: judge the clients' own models too.
    executor: "auto", "serial", "batched", "processes" or "ray", or one that several runs share, with their `arenas`.
    terms: by task, the times from which and until which it is there.
    """
    problems = problem if isinstance(problem, Sequence) else [problem]
    positive(evaluate_every=evaluate_every)
    if until.accuracy is not None and evaluate_every is None:
        raise SettingError("until.accuracy needs evaluations: set how often, as in evaluate = { every = 0.5 }")
    for each in problems:
        if personal is not None and not isinstance(each, Shared):
            raise SettingError(f"personal: the clients of {each.name} have no test data of their own")
    halves = algorithm.locals(len(problems))
    if isinstance(executor, str):
        executor = named_executor(executor, problems, halves, world=world)
    simulation = Simulation(
        problems,
        algorithm.server,
        halves,
        timing.bind(problems[0].clients, seed, [each.name for each in problems]),
        executor,
        until,
        seed,
        evaluate_every,
        watchers,
        world,
        personal,
        terms,
        arenas,
    )
    simulation.world.executor = executor.name
    return simulation


def run(
    problem: Problem | Sequence[Problem],
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    keep_events: bool = False,
    watchers: Sequence[Watcher] = (),
    **options: Any,
) -> Run:
    """Run to the end in virtual time; options as for `prepare`."""
    history = History(keep_events)
    simulation = prepare(problem, algorithm, timing, until, watchers=[history, *watchers], **options)
    try:
        world = simulation.run()
    finally:
        if not isinstance(options.get("executor"), Executor):
            simulation.executor.close()
    return Run(world, simulation, history.measurements, history.events)
