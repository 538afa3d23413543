"""The runs of one experiment: the problems, executors and workers that they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager

from offbeat.core.errors import SettingError
from offbeat.core.metric import Metric
from offbeat.core.problem import Problem
from offbeat.core.watcher import Watcher
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.models.gpu import room
from offbeat.privacy.attack import attackers
from offbeat.privacy.poison import poisoned
from offbeat.problems.supervised import Supervised
from offbeat.simulate.arena import Arenas
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.personal import judged, measured_metrics
from offbeat.simulate.run import prepare
from offbeat.simulate.threads import computing
from offbeat.simulate.workers import Workers
from offbeat.simulate.world import World

_KEPT = 2.5e8  # bytes of vectors, at most, of runs that are checked and then wait for their turn


Problems = dict[Hashable, list[Problem]]  # that several runs share, by what makes them; the last ones are kept


class Session:
    """The runs of an experiment. `check` finds mistakes before anything is written.

    problems: shared with other sessions.
    """

    def __init__(self, experiment: Experiment, problems: Problems | None = None) -> None:
        self.experiment = experiment
        self._problems = {} if problems is None else problems
        self._most = 1 if problems is None else 64
        self._workers: Workers | None = None
        self._executors: dict[str, Executor] = {}  # by label
        self._ready: dict[Spec, Simulation] = {}  # checked, not begun

    @property
    def shared_problems(self) -> Problems:
        """Those made so far, for another session."""
        return self._problems

    def problems(self, spec: Spec) -> list[Problem]:
        """What a run trains on."""
        experiment, seed = self.experiment, spec.seed
        device, samples = experiment.device, experiment.evaluate.samples
        precision = experiment.precision
        which = (repr(experiment.tasks), seed, device, samples, precision == "bf16", experiment.compile is True)
        if which not in self._problems:
            while len(self._problems) >= self._most:
                del self._problems[next(iter(self._problems))]
            tasks = enumerate(experiment.tasks)
            self._problems[which] = [task.build(number, seed, device, samples, precision) for number, task in tasks]
            for problem in self._problems[which]:
                if experiment.compile is True and isinstance(problem, Supervised):
                    problem.compile()
        made = self._problems[which]
        if experiment.attack:
            who = attackers(experiment.attack, made[0].clients, seed)
            poison = (*which, repr(experiment.attack))
            if poison not in self._problems:
                self._problems[poison] = [poisoned(problem, who, seed) for problem in made]
            made = self._problems[poison]
        if not experiment.algorithm[spec.label].pooled:
            return made
        if not isinstance(made[0], Supervised):
            raise SettingError(f"algorithm.{spec.label}: {made[0].name} has no data that could be pooled")
        return [made[0].pooled()]

    def check(self) -> None:
        """Build the first run of every algorithm; small ones are kept until it is their turn."""
        for spec in self.experiment.runs[: len(self.experiment.labels)]:
            with self.computing(spec):
                made = self._make(spec)
            if sum(256.0 * p.dim for p in made.problems) * len(self.experiment.labels) <= _KEPT:
                self._ready[spec] = made

    @property
    def measured(self) -> list[Metric]:
        """What the first run measures of its tasks."""
        problems = self.problems(self.experiment.runs[0])
        personal = judged(self.experiment.evaluate.personal, problems)
        return list(dict.fromkeys(metric for p in problems for metric in measured_metrics(p, personal)))

    def simulation(self, spec: Spec, watchers: Sequence[Watcher] = (), world: World | None = None) -> Simulation:
        """One run, from its beginning or from a saved world."""
        ready = self._ready.pop(spec, None)
        if ready is None or world is not None:
            return self._make(spec, watchers, world)
        ready.watch(watchers)
        return ready

    def shared(
        self,
        spec: Spec,
        watchers: Sequence[Watcher],
        world: World | None,
        executor: Callable[[Executor], Executor],
        arenas: Arenas,
    ) -> Simulation:
        """One run of a program whose runs share executors and arenas."""
        made = self._executor(spec, self.problems(spec), world, tried=False).settle()
        if isinstance(made, Workers):
            raise SettingError(f"executor = {made.name!r}: a sweep has its own processes; set its workers instead")
        return self._make(spec, watchers, world, executor(made), arenas)

    def _make(
        self,
        spec: Spec,
        watchers: Sequence[Watcher] = (),
        world: World | None = None,
        executor: Executor | None = None,
        arenas: Arenas | None = None,
    ) -> Simulation:
        experiment, problems = self.experiment, self.problems(spec)
        return prepare(
            problems,
            experiment.aimed(spec.label, problems, spec.seed),
            experiment.timing,
            experiment.until,
            seed=spec.seed,
            evaluate=experiment.evaluate,
            executor=executor or self._executor(spec, problems, world),
            watchers=watchers,
            world=world,
            terms=[(task.opens, task.closes) for task in experiment.tasks],
            arenas=arenas,
            attacks=experiment.attack,
            weigh=experiment.compile == "auto" and arenas is None,  # the runs of a program are too entangled
        )

    def computing(self, spec: Spec) -> AbstractContextManager[None]:
        """Within, PyTorch has the threads and the precision that this run asks for."""
        return computing(self.problems(spec), self.experiment.threads, self.experiment.precision)

    def _executor(self, spec: Spec, problems: Sequence[Problem], world: World | None, tried: bool = True) -> Executor:
        """How a run is computed: workers serve all runs, and what a trial shows holds for all of an algorithm's."""
        experiment = self.experiment
        if self._workers is not None:
            return self._workers
        if world is None and spec.label in self._executors:
            return self._executors[spec.label]
        made = named_executor(
            experiment.executor,
            problems,
            experiment.algorithms[spec.label].trainers(problems) if tried else (),
            workers=experiment.workers,
            address=experiment.ray or "auto",
            world=world,
        )
        if isinstance(made, Workers):
            self._workers = made
        elif world is None:
            self._executors[spec.label] = made
        if experiment.memory is not None:
            made.memory = experiment.memory
        elif experiment.device.startswith("cuda"):
            made.memory = 0.1 * room(experiment.device)
        return made

    def close(self) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.close()
