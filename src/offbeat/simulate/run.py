"""One call from a problem, an algorithm and a timing model to a run that has not begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.core.course import Until
from offbeat.core.errors import Checked, Count, Positive, SettingError, Share, share
from offbeat.core.problem import Problem
from offbeat.core.server import Algorithm
from offbeat.core.watcher import Watcher
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.lazy import Arenas
from offbeat.simulate.loop import Simulation
from offbeat.simulate.personal import Personal, PersonalProblem
from offbeat.simulate.world import World
from offbeat.timing.base import Timing


@dataclass(frozen=True)
class Evaluate(Checked):
    """When models are evaluated, and on what.

    every: virtual time between two evaluations.
    targets: accuracies whose first time is reported; default: the one that ends the run, else 0.8.
    samples: evaluate on at most so many training and test samples, always the same ones; default: all.
    personal: also evaluate the clients' own models.
    """

    every: Positive = 1.0
    targets: tuple[Share, ...] | None = None
    samples: Count | None = None
    personal: Personal | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for target in self.targets or ():
            share(targets=target)

    @classmethod
    def of(cls, value: Evaluate | float | None) -> Evaluate | None:
        """A plain number is the time between two evaluations."""
        return value if value is None or isinstance(value, Evaluate) else cls(value)


def prepare(
    problem: Problem | Sequence[Problem],
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seed: int = 0,
    evaluate: Evaluate | float | None = None,
    executor: str | Executor = "auto",
    watchers: Sequence[Watcher] = (),
    world: World | None = None,
    terms: Sequence[tuple[float, float]] = (),
    arenas: Arenas | None = None,
) -> Simulation:
    """A run that has not begun, or with a saved `world` one that goes on where it was.

    evaluate: how models are evaluated, or the virtual time between two evaluations; None: they are not.
    executor: "auto", "serial", "batched", "processes" or "ray", or one that several runs share, with their `arenas`.
    terms: by task, the times from which and until which it is there.
    """
    problems = problem if isinstance(problem, Sequence) else [problem]
    evaluated = Evaluate.of(evaluate)
    every, personal = (evaluated.every, evaluated.personal) if evaluated else (None, None)
    if until.accuracy is not None and evaluated is None:
        raise SettingError("until.accuracy needs evaluations: set how often, as in evaluate = { every = 0.5 }")
    for each in problems:
        if personal is not None and not isinstance(each, PersonalProblem):
            raise SettingError(f"personal: the clients of {each.name} have no test data of their own")
    locals_ = algorithm.locals(len(problems))
    if isinstance(executor, str):
        executor = named_executor(executor, problems, locals_, world=world)
    clock = timing.bind(problems[0].clients, seed, [each.name for each in problems])
    server = algorithm.server.fit(clock)
    simulation = Simulation(
        problems, server, locals_, clock, executor, until, seed, every, watchers, world, personal, terms, arenas
    )
    simulation.world.executor = executor.name
    return simulation
