"""One call from a problem, an algorithm and a timing model to a finished run, in memory or in a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from torch import nn

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import FolderError, InterruptedRunError, SettingError
from offbeat.core.problem import Problem
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, materialise, norm
from offbeat.core.watcher import EventRow, Measurement, Watcher
from offbeat.experiment import folder as folders
from offbeat.models.modules import trained
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.personal import Personal
from offbeat.simulate.run import Evaluate, prepare
from offbeat.simulate.threads import computing
from offbeat.simulate.world import World
from offbeat.theory.schedules import settle
from offbeat.timing.base import Timing
from offbeat.watch.files import SUMMARY, locked, write_json
from offbeat.watch.history import History
from offbeat.watch.results import html_table, time_to_all
from offbeat.watch.session import interruptible
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


def run(
    problem: Problem | Sequence[Problem],
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seed: int = 0,
    evaluate: Evaluate | float | None = None,
    executor: str | Executor = "auto",
    watchers: Sequence[Watcher] = (),
    terms: Sequence[tuple[float, float]] = (),
    keep_events: bool = False,
    threads: int | None = None,
    out: Path | str | None = None,
) -> Run:
    """Run to the end in virtual time.

    problem: one, or several that the clients train at the same time.
    seed: of everything random in the run.
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
    problems = problem if isinstance(problem, Sequence) else [problem]
    by_hand = ByHand(problems, algorithm, timing, until, seed, Evaluate.of(evaluate), tuple(terms))
    history = History(keep_events)
    with computing(problems, threads):
        if out is not None:
            return by_hand.run_into(folders.create_by_hand(out, by_hand.settings), executor, [history, *watchers])
        return by_hand.run(executor, history, watchers)


@dataclass(frozen=True)
class ByHand:
    """A run of objects that were made by hand, and not from an experiment file."""

    problems: Sequence[Problem]
    algorithm: Algorithm
    timing: Timing
    until: Until
    seed: int
    evaluate: Evaluate | None
    terms: tuple[tuple[float, float], ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """What its folder keeps: enough to continue it, once the objects are given again."""
        return {
            "problems": [_fingerprint(problem) for problem in self.problems],
            "algorithm": repr(self.algorithm),
            "name": self.algorithm.name,
            "timing": repr(self.timing),
            "until": _flat(self.until),
            "evaluate": None if self.evaluate is None else dataclasses.asdict(self.evaluate),
            "seed": self.seed,
            "terms": [[opens, None if closes == inf else closes] for opens, closes in self.terms],
        }

    def run(self, executor: str | Executor, history: History, watchers: Sequence[Watcher] = ()) -> Run:
        """In memory."""
        simulation = self._prepare([history, *watchers], executor)
        try:
            world = simulation.run()
        finally:
            if not isinstance(executor, Executor):
                simulation.executor.close()
        return Run(world, simulation, history.measurements, history.events)

    def run_into(self, folder: Path, executor: str | Executor = "auto", watchers: Sequence[Watcher] = ()) -> Run:
        """In a folder, from its checkpoint if it has one."""
        from offbeat.experiment.results import Results
        from offbeat.experiment.runs import record

        def make(others: Sequence[Watcher], world: World | None) -> Simulation:
            made = self._prepare([*others, *watchers], executor, world)
            if not isinstance(executor, Executor):
                opened.callback(made.executor.close)
            return made

        name = self.algorithm.name
        place = folder / f"{name}-{self.seed}"
        try:
            with locked(folder), interruptible() as patience, ExitStack() as opened:
                simulation, recorder, result = record(make, place, name, self.seed, self.evaluate, patience=patience)
        except InterruptedRunError as error:
            how = f"offbeat.resume({str(folder)!r}, problem, algorithm, timing)"
            raise InterruptedRunError(f"{error}; continue with {how}") from None
        write_json(folder / SUMMARY, Results([result], folder).summary)
        folders.draw_report(folder)
        events = next((w.events for w in watchers if isinstance(w, History)), ())
        return Run(simulation.world, simulation, recorder.measurements, events, folder)

    def _prepare(self, watchers: Sequence[Watcher], executor: str | Executor, world: World | None = None) -> Simulation:
        return prepare(
            self.problems,
            settle(self.algorithm, self.problems, self.timing, self.until, self.seed),
            self.timing,
            self.until,
            seed=self.seed,
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


def resume_by_hand(
    folder: Path,
    saved: Mapping[str, Any],
    problem: Problem | Sequence[Problem] | None,
    algorithm: Algorithm | None,
    timing: Timing | None,
) -> Run:
    """Continue a run whose objects were made by hand; they are given again, and must be the same."""
    if problem is None or algorithm is None or timing is None:
        raise FolderError(
            f"{folder} was made from Python objects; pass them: resume(folder, problem, algorithm, timing)"
        )
    evaluate = saved["evaluate"]
    if evaluate is not None:
        personal = evaluate["personal"]
        evaluate = Evaluate(**{**evaluate, "personal": None if personal is None else Personal(**personal)})
    problems = problem if isinstance(problem, Sequence) else [problem]
    terms = tuple((opens, inf if closes is None else closes) for opens, closes in saved["terms"])
    made = ByHand(problems, algorithm, timing, Until(**saved["until"]), int(saved["seed"]), evaluate, terms)
    given = made.settings
    for name in ("problems", "algorithm", "timing"):
        if given[name] != saved[name]:
            raise FolderError(f"{folder} was made with {name} = {saved[name]}, not {given[name]}")
    with computing(problems):
        return made.run_into(folder)
