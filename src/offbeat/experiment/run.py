"""One call from a problem, an algorithm and a timing model to a finished run, in memory or in a folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, overload

from torch import nn

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError, FolderError, InterruptedRunError, SettingError
from offbeat.core.problem import Problem
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, materialise, norm
from offbeat.core.watcher import EventRow, Measurement, Watcher
from offbeat.experiment import folder as folders
from offbeat.experiment.results import Results
from offbeat.models.modules import trained
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.personal import Personal
from offbeat.simulate.run import Evaluate, prepare
from offbeat.simulate.threads import computing
from offbeat.simulate.world import World
from offbeat.theory.schedules import settle
from offbeat.timing.base import Timing
from offbeat.watch import checkpoint
from offbeat.watch.files import SUMMARY, locked, write_json
from offbeat.watch.folder import RunFolder, final_tensors
from offbeat.watch.history import History
from offbeat.watch.record import Recorder
from offbeat.watch.results import Result, html_table, time_to_all
from offbeat.watch.session import interruptible, summary
from offbeat.watch.watched import final_metrics


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run. history: every evaluation.   events: if they were kept.   folder: where its files are."""

    world: World
    simulation: Simulation
    history: Sequence[Measurement]
    events: Sequence[EventRow]
    folder: Path | None = None

    @property
    def model(self) -> Vector:
        """The (first task's) final model, one flat vector."""
        model: Vector = self.simulation.server.models(self.world.server)[0].vector
        return materialise(model)

    @property
    def outputs(self) -> Mapping[str, Vector]:
        """What the server gives besides its model, by name, each one flat vector."""
        return {name: materialise(vector) for name, vector in self.simulation.server.outputs(self.world.server).items()}

    def module(self, task: int = 0, client: int | None = None, steps: int = 1) -> nn.Module:
        """The trained `torch.nn.Module` of a task, in evaluation mode.

        client: instead, that client's own model after its own fine-tuning with so many gradients; of the first task.
        """
        problems = self.simulation.problems
        if not 0 <= task < len(problems):
            raise SettingError(f"task = {task}: there are {len(problems)}, numbered from 0")
        if client is not None and task:
            raise SettingError(f"task = {task}: clients' own models are those of the first task")
        vector = materialise(self.simulation.server.models(self.world.server)[task].vector)
        return trained(problems[task], vector if client is None else self.personal(client, steps))

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """The last evaluation, with the loss on all training samples unless `Evaluate.samples` is a number."""
        return final_metrics(self.simulation, self.history, self.history[-1].task) if self.history else {}

    def time_to(self, metric: str, value: float) -> float | None:
        """When an evaluation first showed this value or a better one; None: never. Of several tasks the last counts."""
        return time_to_all(self.history, self.simulation.metrics, metric, value)

    def personal(self, client: int, steps: int = 1) -> Vector:
        """A client's own model at the end, after its own fine-tuning with so many gradients."""
        if not 0 <= client < self.simulation.clients:
            raise SettingError(f"client {client}: there are {self.simulation.clients}, numbered from 0")
        ((_, models),) = self.simulation.personal(0, self.model, [client], steps)
        return models[0]

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"<Run: {metrics or 'no evaluation'} after {self.world.tally.updates:,} updates>"

    def _repr_html_(self) -> str:
        metrics = {name: f"{value:.4g}" for name, value in self.metrics.items()}
        return html_table({**metrics, "updates": f"{self.world.tally.updates:,}", "time": f"{self.world.now:g}"})


Trained = Problem | Sequence[Problem] | Callable[[int], Problem | Sequence[Problem]]  # by a seed, if it depends on it


@overload
def run(
    problem: Trained,
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seed: int = 0,
    seeds: None = None,
    evaluate: Evaluate | float | None = None,
    executor: str | Executor = "auto",
    watchers: Sequence[Watcher] = (),
    terms: Sequence[tuple[float, float]] = (),
    keep_events: bool = False,
    threads: int | None = None,
    out: Path | str | None = None,
) -> Run: ...
@overload
def run(
    problem: Trained,
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seeds: Iterable[int],
    evaluate: Evaluate | float | None = None,
    executor: str | Executor = "auto",
    watchers: Sequence[Watcher] = (),
    terms: Sequence[tuple[float, float]] = (),
    threads: int | None = None,
    out: Path | str | None = None,
) -> Results: ...
def run(
    problem: Trained,
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seed: int = 0,
    seeds: Iterable[int] | None = None,
    evaluate: Evaluate | float | None = None,
    executor: str | Executor = "auto",
    watchers: Sequence[Watcher] = (),
    terms: Sequence[tuple[float, float]] = (),
    keep_events: bool = False,
    threads: int | None = None,
    out: Path | str | None = None,
) -> Run | Results:
    """Run to the end in virtual time.

    problem: one, or several that the clients train at the same time; or a function that makes them from a seed.
    seed: of everything random in the run.
    seeds: run once with each of these, and give the results of all, as those of an experiment.
    evaluate: how models are evaluated, or just the virtual time between two evaluations; None: they are not.
    executor: "auto", "serial", "batched", "processes" or "ray", or one that several runs share.
    watchers: are told every event and evaluation.
    terms: by task, the times from which and until which it is there.
    keep_events: keep the event log in memory.
    threads: of PyTorch while it runs; None: one, or one per core for large models that do not stack.
    out: a new folder for the files that `offbeat run` writes, and for checkpoints. Ctrl-C saves the run, and
        `offbeat.resume(out, problem, algorithm, timing)` continues it.
    """
    if not isinstance(algorithm, Algorithm):
        raise SettingError(f"algorithm = {algorithm!r}: pair it with a local trainer, Algorithm(server, SGD(lr=0.1))")
    if not isinstance(until, Until):
        raise SettingError(f"until = {until!r}: set when the run ends, as in Until(time=10.0)")
    if hasattr(timing, "per"):
        raise SettingError(f"timing = {timing!r}: this is one part of a timing model; use Times({timing!r})")
    if not hasattr(timing, "bind"):
        raise SettingError(f"timing = {timing!r}: give a timing model, as in Times(Exponential(rate=1.0))")
    chosen = (seed,) if seeds is None else _several(seeds, seed, keep_events)
    by_hand = ByHand(problem, algorithm, timing, until, chosen, Evaluate.of(evaluate), tuple(terms), threads)
    folder = None if out is None else folders.create_by_hand(out, by_hand.settings)
    if seeds is not None:
        return by_hand.run_all(folder, executor, watchers)
    history = History(keep_events)
    if folder is not None:
        return by_hand.run_into(folder, seed, executor, [history, *watchers])
    return by_hand.run(seed, executor, history, watchers)


def _several(seeds: Iterable[int], seed: int, keep_events: bool) -> tuple[int, ...]:
    """The seeds, each once."""
    if isinstance(seeds, int):
        raise SettingError(f"seeds = {seeds}: give several, as in seeds=range({seeds}), or seed={seeds}")
    found = tuple(int(each) for each in seeds)
    if not found:
        raise SettingError("seeds is empty: give at least one")
    if twice := [each for each in found if found.count(each) > 1]:
        raise SettingError(f"seeds: {twice[0]} is given twice; leave one out")
    if seed:
        raise SettingError(f"seed = {seed} and seeds: keep one of them")
    if keep_events:
        raise SettingError("keep_events: the events of several seeds are kept in a folder; give out instead")
    return found


@dataclass(frozen=True)
class ByHand:
    """Runs of objects that were made by hand, and not from an experiment file."""

    problem: Trained
    algorithm: Algorithm
    timing: Timing
    until: Until
    seeds: tuple[int, ...]
    evaluate: Evaluate | None
    terms: tuple[tuple[float, float], ...] = ()
    threads: int | None = None
    _made: dict[int, Sequence[Problem]] = field(default_factory=dict, repr=False, compare=False)  # of the last seed

    @property
    def settings(self) -> dict[str, Any]:
        """What their folder keeps: enough to continue them, once the objects are given again."""
        problems = self.problems(self.seeds[0])
        with computing(problems, self.threads):
            return {
                "problems": [_fingerprint(problem) for problem in problems],
                "algorithm": repr(self.algorithm),
                "name": self.algorithm.name,
                "timing": repr(self.timing),
                "until": _flat(self.until),
                "evaluate": None if self.evaluate is None else dataclasses.asdict(self.evaluate),
                "seeds": list(self.seeds),
                "terms": [[opens, None if closes == inf else closes] for opens, closes in self.terms],
            }

    def problems(self, seed: int) -> Sequence[Problem]:
        """What is trained under a seed."""
        if seed not in self._made:
            made: Any = self.problem
            if callable(made) and not hasattr(made, "oracle"):
                made = made(seed)
            self._made.clear()
            self._made[seed] = made if isinstance(made, Sequence) else [made]
        return self._made[seed]

    def run(self, seed: int, executor: str | Executor, history: History, watchers: Sequence[Watcher] = ()) -> Run:
        """One in memory."""
        problems = self.problems(seed)
        with computing(problems, self.threads):
            simulation = self._prepare(problems, seed, [history, *watchers], executor)
            try:
                world = simulation.run()
            finally:
                if not isinstance(executor, Executor):
                    simulation.executor.close()
        return Run(world, simulation, history.measurements, history.events)

    def run_into(
        self, folder: Path, seed: int, executor: str | Executor = "auto", watchers: Sequence[Watcher] = ()
    ) -> Run:
        """One in the folder of all, from its checkpoint if it has one."""
        with locked(folder):
            simulation, recorder, _ = self._recorded(folder, seed, executor, watchers)
            self.sum_up(folder)
        events = next((w.events for w in watchers if isinstance(w, History)), ())
        return Run(simulation.world, simulation, recorder.measurements, events, folder)

    def run_all(
        self, folder: Path | None, executor: str | Executor = "auto", watchers: Sequence[Watcher] = ()
    ) -> Results:
        """All, one after the other, with one executor; in a folder, those that are not finished."""
        with nullcontext() if folder is None else locked(folder), ExitStack() as opened:
            shared = executor
            if isinstance(shared, str):
                shared = self._executor(shared)
                opened.callback(shared.close)
            if folder is None:
                return Results([self._result(seed, shared, watchers) for seed in self.seeds])
            for seed, done in zip(self.seeds, self.finished(folder), strict=True):
                if done is None:
                    begun = checkpoint.exists(folder / self._name(seed))  # it goes on with the executor that it had
                    self._kept(folder, seed, executor if begun else shared, watchers)
            return self.sum_up(folder)

    def finished(self, folder: Path) -> list[Result | None]:
        """By seed, the result of what is finished in a folder."""
        return [RunFolder(folder / self._name(seed)).result() for seed in self.seeds]

    def sum_up(self, folder: Path) -> Results:
        """The results of what is finished in a folder, with its summary and page."""
        results = Results([result for result in self.finished(folder) if result is not None], folder)
        write_json(folder / SUMMARY, results.summary)
        folders.draw_report(folder)
        return results

    def _name(self, seed: int) -> str:
        return f"{self.algorithm.name}-{seed}"

    def _result(self, seed: int, executor: Executor, watchers: Sequence[Watcher]) -> Result:
        """One in memory, as those in folders."""
        history, began = History(), time.perf_counter()
        try:
            run = self.run(seed, executor, history, watchers)
        except DivergedError as error:  # the others still count
            return Result(self.algorithm.name, seed, error=str(error), curve=tuple(history.measurements))
        simulation, wall = run.simulation, time.perf_counter() - began
        found = summary(simulation, history, wall, self.evaluate, algorithm=self.algorithm.name, seed=seed)
        return dataclasses.replace(
            found,
            curve=tuple(history.measurements),
            tensors=final_tensors(simulation),
            problems=lambda: self.problems(seed),
        )

    def _kept(self, folder: Path, seed: int, executor: str | Executor, watchers: Sequence[Watcher]) -> None:
        """One of several in their folder."""
        try:
            self._recorded(folder, seed, executor, watchers)
        except DivergedError as error:  # the others still count
            place = folder / self._name(seed)
            RunFolder(place).finish(Result(self.algorithm.name, seed, error=str(error), folder=place))

    def _recorded(
        self, folder: Path, seed: int, executor: str | Executor, watchers: Sequence[Watcher]
    ) -> tuple[Simulation, Recorder, Result]:
        from offbeat.experiment.runs import record

        problems = self.problems(seed)

        def make(others: Sequence[Watcher], world: World | None) -> Simulation:
            made = self._prepare(problems, seed, [*others, *watchers], executor, world)
            if not isinstance(executor, Executor):
                opened.callback(made.executor.close)
            return made

        name, place = self.algorithm.name, folder / self._name(seed)
        try:
            with computing(problems, self.threads), interruptible() as patience, ExitStack() as opened:
                return record(make, place, name, seed, self.evaluate, patience=patience)
        except InterruptedRunError as error:
            how = f"offbeat.resume({str(folder)!r}, problem, algorithm, timing)"
            raise InterruptedRunError(f"{error}; continue with {how}") from None

    def _executor(self, name: str) -> Executor:
        """One for all seeds."""
        problems = self.problems(self.seeds[0])
        return named_executor(name, problems, self._settled(problems, self.seeds[0]).trainers(problems))

    def _settled(self, problems: Sequence[Problem], seed: int) -> Algorithm:
        return settle(self.algorithm, problems, self.timing, self.until, seed)

    def _prepare(
        self,
        problems: Sequence[Problem],
        seed: int,
        watchers: Sequence[Watcher],
        executor: str | Executor,
        world: World | None = None,
    ) -> Simulation:
        return prepare(
            problems,
            self._settled(problems, seed),
            self.timing,
            self.until,
            seed=seed,
            evaluate=self.evaluate,
            executor=executor,
            watchers=watchers,
            world=world,
            terms=self.terms,
        )


def _flat(until: Until) -> dict[str, float | None]:
    """What `Until` takes."""
    return {**until.limits, **until.metrics}


def _fingerprint(problem: Problem) -> str:
    """What tells a problem from another: its size, its first model, and gradients of two clients there."""
    w = problem.initial()
    some = sorted({0, problem.clients - 1})
    rows = w.expand(len(some), -1)
    slopes = problem.oracle(some, some, 1, 8, False).gradient(rows, 0)
    norms = ", ".join(f"{norm(vector):.4g}" for vector in (w, *slopes))
    return f"{problem.name}, {problem.clients} clients, {problem.dim} parameters, norms {norms}"


def open_by_hand(folder: Path, saved: Mapping[str, Any]) -> Results:
    """The results of what is finished in a folder."""
    found = (RunFolder(folder / f"{saved['name']}-{seed}").result() for seed in saved["seeds"])
    return Results([result for result in found if result is not None], folder)


def resume_by_hand(
    folder: Path,
    saved: Mapping[str, Any],
    problem: Trained | None,
    algorithm: Algorithm | None,
    timing: Timing | None,
) -> Results:
    """Continue runs whose objects were made by hand; they are given again, and must be the same."""
    if problem is None or algorithm is None or timing is None:
        raise FolderError(
            f"{folder} was made from Python objects; pass them: resume(folder, problem, algorithm, timing)"
        )
    evaluate = saved["evaluate"]
    if evaluate is not None:
        personal = evaluate["personal"]
        evaluate = Evaluate(**{**evaluate, "personal": None if personal is None else Personal(**personal)})
    terms = tuple((opens, inf if closes is None else closes) for opens, closes in saved["terms"])
    made = ByHand(problem, algorithm, timing, Until(**saved["until"]), tuple(saved["seeds"]), evaluate, terms)
    given = made.settings
    for name in ("problems", "algorithm", "timing"):
        if given[name] != saved[name]:
            raise FolderError(f"{folder} was made with {name} = {saved[name]}, not {given[name]}")
    return made.run_all(folder)
