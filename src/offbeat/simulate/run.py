"""One call from a problem, an algorithm and a timing model to a run that has not begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import Checked, Count, Positive, SettingError, finite, share
from offbeat.core.metric import Goal, Metric
from offbeat.core.problem import Problem, Sampled
from offbeat.core.until import Until
from offbeat.core.watcher import Watcher
from offbeat.privacy.attack import Adversary, Attack, attackers, forgeable
from offbeat.privacy.hurry import Hurried
from offbeat.simulate.arena import Arenas
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.personal import Personal, PersonalProblem, judged, measured_metrics
from offbeat.simulate.world import World
from offbeat.timing.base import Timing

_EVALUATIONS = 1e7  # of a run, at most: more are a slip


@dataclass(frozen=True)
class Evaluate(Checked):
    """When models are evaluated, and on what.

    every: virtual time between two evaluations.
    targets: values of the task's main metric whose first times are reported; default: the one that ends the run, else
        0.8 for a share of which more is better.
    samples: evaluate on at most this many training and test samples, always the same ones, or on "all"; default: on all
        test samples, and the loss on 2,000 training samples, equally many of each client. The loss of a finished run
        is that of all training samples, unless `samples` is a number.
    personal: also evaluate the clients' own models; default: only where they keep a part of it to themselves, and then
        as they are, { steps = 0 }.
    """

    every: Positive = 1.0
    targets: tuple[float, ...] | None = None
    samples: Count | Literal["all"] | None = None
    personal: Personal | None = None

    @classmethod
    def of(cls, value: Evaluate | float | None) -> Evaluate | None:
        """A plain number is the time between two evaluations."""
        return value if value is None or isinstance(value, Evaluate) else cls(value)

    def goals(self, own: Metric, until: Until) -> tuple[Goal, ...]:
        """The targets. own: the task's metric that they are values of."""
        check = share if own.share else finite
        for value in self.targets or ():
            check(**{"evaluate.targets": value})
        usual = (until.metrics[own.name],) if own.name in until.metrics else (0.8,) if own.share and own.higher else ()
        return tuple(Goal(own, value) for value in (usual if self.targets is None else self.targets))


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
    attacks: Sequence[Attack] = (),
    weigh: bool = False,
) -> Simulation:
    """A run that has not begun, or with a saved `world` one that goes on where it was.

    evaluate: how models are evaluated, or the virtual time between two evaluations; None: they are not.
    executor: "auto", "serial", "batched", "processes" or "ray", or one that several runs share, with their `arenas`.
    terms: by task, the times from which and until which it is there.
    attacks: who forges messages and who hurries; `poisoned` changes what attackers train on.
    weigh: compile local steps if that pays, see `offbeat.simulate.compiling`.
    """
    evaluated = Evaluate.of(evaluate)
    given = problem if isinstance(problem, Sequence) else [problem]
    problems = [_measuring(each, evaluated) for each in given]
    every, personal = (evaluated.every, judged(evaluated.personal, problems)) if evaluated else (None, None)
    if until.metrics and evaluated is None:
        name = next(iter(until.metrics))
        raise SettingError(f"until.{name} needs evaluations: set how often, as in evaluate = {{ every = 0.5 }}")
    if every is not None and until.time is not None and (count := until.time / every) > _EVALUATIONS:
        raise SettingError(
            f"evaluate.every = {every:g}: there would be {count:,.0f} evaluations until t = {until.time:g}; use "
            f"{until.time / 1000:g}, say"
        )
    for each in problems:
        if personal is not None and not isinstance(each, PersonalProblem):
            raise SettingError(f"personal: the clients of {each.name} have no test data of their own")
    metrics = [measured_metrics(each, personal) for each in problems]
    until.goals(metrics)  # refuses what no task measures
    if evaluated is not None and len(problems) == 1:
        evaluated.goals(metrics[0][0], until)  # refuses a target that is none
    for name, asked in algorithm.server.at_once().items():
        if isinstance(asked, int) and asked > problems[0].clients:
            raise SettingError(f"{name} = {asked}: there are {problems[0].clients} clients; use at most that many")
    locals_ = algorithm.trainers(problems)
    if isinstance(executor, str):
        executor = named_executor(executor, problems, locals_, world=world)
    who = attackers(attacks, problems[0].clients, seed)
    if hurry := {client: attack.pace for client, attack in who.items() if attack.pace != 1.0}:
        timing = Hurried(timing, hurry)
    clock = timing.bind(problems[0].clients, seed, [each.name for each in problems])
    server = algorithm.server_for(problems).fit(clock)
    adversary = Adversary(who, server.reads, seed, [each.initial() for each in problems]) if who else None
    if adversary is not None and adversary.who:
        forgeable(locals_)
    simulation = Simulation(
        problems,
        server,
        locals_,
        clock,
        executor,
        until,
        seed,
        every,
        watchers,
        world,
        personal,
        terms,
        arenas,
        adversary,
        algorithm.secure,
        weigh,
    )
    simulation.world.executor = simulation.executor.name
    return simulation


def _measuring(problem: Problem, evaluate: Evaluate | None) -> Problem:
    if evaluate is None or evaluate.samples is None:
        return problem
    if not isinstance(problem, Sampled):
        raise SettingError(f"evaluate.samples = {evaluate.samples!r}: {problem.name} has no samples; leave it out")
    return problem.measuring(evaluate.samples)
