"""One call from a problem, an algorithm and a timing model to a run that has not begun."""

from __future__ import annotations

from collections.abc import Sequence

from offbeat.core.errors import SettingError, positive
from offbeat.core.problem import Problem
from offbeat.core.server import Algorithm
from offbeat.core.watcher import Watcher
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.lazy import Arenas
from offbeat.simulate.loop import Simulation, Until
from offbeat.simulate.personal import Personal, PersonalProblem
from offbeat.simulate.world import World
from offbeat.timing.base import Timing


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
        if personal is not None and not isinstance(each, PersonalProblem):
            raise SettingError(f"personal: the clients of {each.name} have no test data of their own")
    locals_ = algorithm.locals(len(problems))
    if isinstance(executor, str):
        executor = named_executor(executor, problems, locals_, world=world)
    clock = timing.bind(problems[0].clients, seed, [each.name for each in problems])
    simulation = Simulation(
        problems,
        algorithm.server.fit(clock),
        locals_,
        clock,
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
