"""The runs of one experiment: the problems, executors and workers that they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from offbeat.core.errors import SettingError
from offbeat.core.problem import Problem
from offbeat.core.watcher import Watcher
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.problems.supervised import Supervised
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.lazy import Arenas
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.simulate.threads import computing
from offbeat.simulate.workers import Workers
from offbeat.simulate.world import World

_KEPT = 2.5e8  # bytes of vectors, at most, of runs that are checked and then wait for their turn


class Problems:
    """Problems that several runs share; the last ones are kept."""

    def __init__(self, size: int = 64) -> None:
        self.size = size
        self._made: dict[Hashable, list[Problem]] = {}

    def get(self, key: Hashable, make: Callable[[], list[Problem]]) -> list[Problem]:
        """Those of this key."""
        if key not in self._made:
            while len(self._made) >= self.size:
                del self._made[next(iter(self._made))]
            self._made[key] = make()
        return self._made[key]


class Session:
    """The runs of an experiment. `check` finds mistakes before anything is written."""

    def __init__(self, experiment: Experiment, problems: Problems | None = None) -> None:
        self.experiment = experiment
        self._problems = problems or Problems(1)
        self._workers: Workers | None = None
        self._chosen: dict[str, tuple[bool, str]] = {}  # (stacked, why), by label
        self._ready: dict[Spec, Simulation] = {}  # checked, not begun

    def problems(self, spec: Spec) -> list[Problem]:
        """What a run trains on."""
        experiment, seed = self.experiment, spec.seed
        device, samples = experiment.device, experiment.evaluate.samples
        made = self._problems.get(
            (repr(experiment.tasks), seed, device, samples),
            lambda: [task.build(number, seed, device, samples) for number, task in enumerate(experiment.tasks)],
        )
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
        made = self._executor(spec, self.problems(spec), world, tried=False)
        if isinstance(made, Workers):
            raise SettingError(f"executor = {made.name!r}: a sweep has processes of its own; set its workers instead")
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
            experiment.algorithms[spec.label],
            experiment.timing,
            experiment.until,
            seed=spec.seed,
            evaluate=experiment.evaluate,
            executor=executor or self._executor(spec, problems, world),
            watchers=watchers,
            world=world,
            terms=[(task.opens, task.closes) for task in experiment.tasks],
            arenas=arenas,
        )

    @contextmanager
    def computing(self, spec: Spec) -> Iterator[None]:
        """Within, PyTorch has the threads and the precision that this run asks for."""
        experiment = self.experiment
        with computing(self.problems(spec), experiment.threads, experiment.precision):
            yield

    def _executor(self, spec: Spec, problems: Sequence[Problem], world: World | None, tried: bool = True) -> Executor:
        """How a run is computed: workers serve all runs, and what a trial showed holds for all of an algorithm's."""
        experiment = self.experiment
        if self._workers is not None:
            return self._workers
        if world is None and spec.label in self._chosen:
            stacked, reason = self._chosen[spec.label]
            return Executor(stacked, self._memory, reason)
        made = named_executor(
            experiment.executor,
            problems,
            experiment.algorithms[spec.label].locals(len(problems)) if tried else (),
            workers=experiment.workers,
            address=experiment.ray or "auto",
            world=world,
        )
        if isinstance(made, Workers):
            self._workers = made
        elif tried and world is None:
            self._chosen[spec.label] = made.stacked, made.reason
        made.memory = self._memory
        return made

    @property
    def _memory(self) -> float:
        """Bytes of a batch."""
        experiment = self.experiment
        if experiment.memory is not None:
            return experiment.memory
        if experiment.device.startswith("cuda"):
            return 0.1 * torch.cuda.get_device_properties(experiment.device).total_memory
        return 1e9

    def close(self) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.close()
