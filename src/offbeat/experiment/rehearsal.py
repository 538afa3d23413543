"""`offbeat check`: what an experiment would do, from a short trial of each algorithm. Nothing is written.

A trial is the beginning of the algorithm's first run, with as many seconds as it is given. How far it comes says how
long all runs will take. Then the same stretch is run again with a quarter of the local step size: if that ends lower,
the step size is too large for this problem and this number of clients.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from offbeat.algorithms import FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, materialise
from offbeat.data.samples import Stored
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.experiment.run import run
from offbeat.experiment.session import Session
from offbeat.experiment.tables import algorithm_tables
from offbeat.local.descent import Descent
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised, noted
from offbeat.simulate.loop import Simulation
from offbeat.timing import Constant, Times
from offbeat.watch.watched import left_to_measure, sample

_LARGE = 1.2  # a quarter of the step size is called better if the loss would be so many times lower
_PATIENCE = 10  # times the trial's seconds, to wait for the first update
_WARM = 0.25  # share of the trial's seconds that may be slower than the rest
_MANY = 10_000  # evaluations of one run
_FAR = 10.0  # means and standard deviations of a column that make steps difficult


@dataclass(frozen=True)
class Tryout:
    """The beginning of a run.

    set_up: seconds until it could begin.   share: of the run.   time, updates, versions: reached.   wall: seconds it
    took.   training_s: seconds that a run would take, evaluations apart; None if the trial did not come far enough to
    tell.   evaluations: how many a run would make, and the seconds that each takes; last_s: that the last one takes
    besides.   before, after: the loss.   error: why it ended early.
    """

    label: str
    set_up: float
    share: float
    time: float
    updates: int
    versions: int
    wall: float
    training_s: float | None
    evaluations: float
    evaluation_s: float
    last_s: float
    before: float
    after: float
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """Of one run."""
        if self.training_s is None:
            return None
        return self.training_s + self.evaluations * self.evaluation_s + self.last_s

    @property
    def total_updates(self) -> float | None:
        """Of one run."""
        return self.updates / self.share if self.share else None


@dataclass(frozen=True)
class Remark:
    """Something that looks wrong ("problem", "warning") or is worth knowing ("note")."""

    level: Literal["problem", "warning", "note"]
    text: str


@dataclass(frozen=True)
class Rehearsal:
    """What an experiment would do.

    start, end: seconds that it takes once, before the first run (imports, data, models) and after it (files, report).
    memory: bytes at most so far, PyTorch and the data included.
    """

    what: str
    start: float
    end: float
    runs: int
    trials: Sequence[Tryout]
    memory: float
    remarks: Sequence[Remark]

    @property
    def seconds(self) -> float | None:
        """Of everything, runs one after the other; None if that cannot be told."""
        each = [trial.seconds for trial in self.trials]
        known = [one for one in each if one is not None]
        if len(known) < len(each):
            return None
        return self.start + self.runs / max(1, len(each)) * math.fsum(known) + self.end

    @property
    def wrong(self) -> bool:
        return any(remark.level == "problem" for remark in self.remarks)


def rehearse(experiment: Experiment, seconds: float = 2.0, spent: float = 0.0) -> Rehearsal:
    """Try every algorithm of an experiment for so many seconds, and look at its settings.

    spent: seconds that its process has taken until now, to import what it needs and to read the experiment.
    """
    quiet = _without_evaluations(experiment)
    trials, remarks = list[Tryout](), list[Remark]()
    with _unnoted(), closing(Session(quiet)) as session:
        specs = quiet.runs[: len(quiet.labels)]
        for spec in specs:
            first, reached = _try(session, experiment, spec, seconds)
            trials.append(first)
            remarks += _step_size(session, experiment, spec, first, reached)
        remarks += _settings(experiment, session, specs[0], trials)
        what = "; ".join(repr(problem) for problem in session.problems(specs[0]))
    start = spent + math.fsum(trial.set_up for trial in trials)
    return Rehearsal(what, start, _end(), len(experiment.runs), trials, _memory(experiment.device), remarks)


def _end() -> float:
    """Seconds to write down a run and to draw the report, from a small one in a folder that is removed again."""
    algorithm, began = Algorithm(FedAsync(), SGD(lr=0.1)), time.perf_counter()
    with TemporaryDirectory() as place:
        out = Path(place) / "run"
        run(Quadratic(2), algorithm, Times(Constant(1.0)), Until(updates=1), evaluate=1.0, executor="serial", out=out)
    return time.perf_counter() - began


@contextmanager
def _unnoted() -> Iterator[None]:
    """Within, what is noted of the data is not logged: it is among the remarks."""
    noted.disabled = True
    try:
        yield
    finally:
        noted.disabled = False


def _without_evaluations(experiment: Experiment, overrides: Sequence[tuple[str, Any]] = ()) -> Experiment:
    """The experiment in this process alone, evaluated only at the start and the end."""
    table = {key: value for key, value in experiment.table.items() if key not in ("executor", "ray", "workers")}
    executor = "auto" if experiment.executor in ("processes", "ray") else experiment.executor
    return Experiment.parse(table, [*overrides, ("evaluate.every", 1e30), ("executor", executor)])


def _try(
    session: Session, asked: Experiment, spec: Spec, seconds: float, end: float = math.inf
) -> tuple[Tryout, Vector | None]:
    """The beginning of a run, and the model that it reached.   end: virtual time at which to stop, too."""
    called = time.perf_counter()
    with session.computing(spec):
        simulation = session.simulation(spec)
        before, _ = _loss(simulation)
        over, error, world = False, None, simulation.world
        began = start = time.perf_counter()
        set_up = began - called
        warm = began, 0.0  # when it was under way, and how far: the first calls of a model take longer than later ones
        try:
            while not over and world.now < end and (wall := time.perf_counter() - start) < seconds:
                patient = not world.tally.updates and time.perf_counter() - began < _PATIENCE * seconds
                over = simulation.advance(1)
                if patient:
                    start = time.perf_counter()  # choosing an executor, or a busy machine, takes nothing off the trial
                if warm[1] == 0.0 and wall > _WARM * seconds:
                    warm = time.perf_counter(), _share(simulation)
            wall = time.perf_counter() - began
            after, evaluation = _loss(simulation)
        except DivergedError as failure:
            wall, after, evaluation, error = time.perf_counter() - began, math.nan, 0.0, str(failure)
    share = 1.0 if over else _share(simulation)
    training = None
    if share > warm[1]:
        training = warm[0] - began + (began + wall - warm[0]) * (1 - warm[1]) / (share - warm[1])
    count = world.now / share / asked.evaluate.every if share else 0.0
    reached = None if error else materialise(simulation.server.models(world.server)[0].vector)
    made = Tryout(
        spec.label,
        set_up,
        share,
        world.now,
        world.tally.updates,
        _versions(simulation),
        wall,
        training,
        evaluations=count,
        evaluation_s=evaluation,
        last_s=evaluation * left_to_measure(simulation) / (sample(simulation) or 1),
        before=before,
        after=after,
        error=error,
    )
    return made, reached


def _share(simulation: Simulation) -> float:
    """How much of a run is done, by the limit that is nearest."""
    world, until = simulation.world, simulation.until
    limits = ((world.now, until.time), (world.tally.updates, until.updates), (_versions(simulation), until.versions))
    return min(1.0, max(done / most for done, most in limits if most is not None))


def _versions(simulation: Simulation) -> int:
    return sum(model.version for model in simulation.server.models(simulation.world.server))


def _loss(simulation: Simulation) -> tuple[float, float]:
    """(loss of the first task's model now, seconds it took to evaluate all tasks)."""
    began = time.perf_counter()
    models = simulation.server.models(simulation.world.server)
    found = [
        problem.measure(materialise(model.vector).unsqueeze(0))[0]
        for problem, model in zip(simulation.problems, models, strict=True)
    ]
    return float(found[0]["loss"]), time.perf_counter() - began


# What looks wrong


def _step_size(
    session: Session, experiment: Experiment, spec: Spec, first: Tryout, reached: Vector | None
) -> Iterator[Remark]:
    """Whether a quarter of the local step size does better over the same stretch."""
    found = _written_step_size(experiment.table, spec.label)
    if not first.updates and first.error is None:
        yield Remark("note", f"{spec.label}: no update arrived within {first.wall:.1f} s; try longer, --seconds")
        return
    if not first.versions and first.share == 1.0 and first.error is None:
        if experiment.algorithms[spec.label].server.reads:  # a server that reads nothing takes no steps
            never = f"the run ends after {first.updates:,} updates without a server step, so its model never changes"
            yield Remark("problem", f"algorithm.{spec.label}: {never}; aggregate fewer updates, or run longer")
        return
    went = "diverged" if first.error else f"went from {first.before:.3g} to {first.after:.3g}"
    rose = first.error is not None or not first.after < first.before
    if found is None:
        if rose:
            yield Remark("problem", f"{spec.label}: the loss {went} by time {first.time:.3g}: lower its step sizes")
        return
    path, lr = found
    less = _without_evaluations(experiment, [(path, lr / 4)])
    with closing(Session(less, session.shared_problems)) as other:
        second, nearby = _try(other, experiment, spec, 4 * max(first.wall, 0.5), first.time)
    if reached is not None and nearby is not None and torch.equal(reached, nearby) and first.updates:
        yield Remark("warning", f"{path} = {lr:g} has no effect: a quarter of it gives the same model")
        return
    better = second.error is None and (first.error is not None or second.after * _LARGE < first.after)
    instead = f"; with {lr / 4:g} it goes to {second.after:.3g}" if second.error is None else ""
    if rose:
        cause = "" if second.error is None and second.after < first.before else _other_cause(experiment)
        yield Remark("problem", f"{path} = {lr:g}: the loss {went} by time {first.time:.3g}{instead}{cause}")
    elif better and second.time >= first.time:
        yield Remark("warning", f"{path} = {lr:g} looks large: the loss {went} by time {first.time:.3g}{instead}")


def _other_cause(experiment: Experiment) -> str:
    """What raises the loss if a smaller step size does not help."""
    if experiment.attack:
        return "; the clients of [[attack]] may be the cause"
    if experiment.privacy is not None:
        return "; the noise of [privacy] may be the cause: average more updates in a step, or allow a larger epsilon"
    return ""


def _scales(problem: Supervised) -> Iterator[Remark]:
    """Columns of a table that are far from mean 0 and variance 1."""
    train, target = problem.data.train, problem.data.target
    if isinstance(train, Stored) and problem.objective.name in ("mse", "mae", "huber"):
        spread, mean = torch.std_mean(train.columns[target].double())
        if (largest := float(torch.maximum(spread, mean.abs()))) > _FAR:
            yield Remark(
                "warning",
                f"the target {target!r} has a mean or standard deviation of {largest:.3g}; scale it where it is loaded",
            )
    for name in problem.data.inputs:
        if not isinstance(train, Stored) or len(train.shape(name)) > 1 or not train.columns[name].is_floating_point():
            continue
        spread, mean = torch.std_mean(train.columns[name], 0)
        if (largest := float(torch.maximum(spread, mean.abs()).max())) > _FAR:
            yield Remark(
                "warning",
                f"input columns have means or standard deviations up to {largest:.3g}; "
                'problem.inputs = "standard" gives each of them mean 0 and variance 1',
            )


def _written_step_size(table: Mapping[str, Any], label: str) -> tuple[str, float] | None:
    """The path and value of an algorithm's local step size, where the experiment states one."""
    local = algorithm_tables(table["algorithm"])[label].get("local")
    if not isinstance(local, Mapping):
        return None
    for name, settings in local.items():
        lr = settings.get("lr") if isinstance(settings, Mapping) else None
        if isinstance(lr, int | float) and not isinstance(lr, bool):
            name = f'"{name}"' if "." in name else name
            return f"algorithm.{label}.local.{name}.lr", float(lr)
    return None


def _settings(experiment: Experiment, session: Session, spec: Spec, trials: Sequence[Tryout]) -> Iterator[Remark]:
    """Settings without effect, and those that people regret."""
    problem = session.problems(spec)[0]
    if isinstance(problem, Supervised):
        yield from _scales(problem)
        yield from (Remark("note", remark) for remark in problem.data.remarks)
    if isinstance(problem, Supervised) and problem.weighted is True:
        yield Remark(
            "note",
            "problem.weighted = true: step sizes have to grow with the number of clients; "
            '"relative" has the same objective without that',
        )
    if experiment.workers is not None and experiment.executor not in ("processes", "ray"):
        yield Remark("warning", f'workers = {experiment.workers} has no effect with executor = "{experiment.executor}"')
    for label, algorithm in experiment.algorithms.items():
        for local in algorithm.locals(len(experiment.tasks)):
            inner = getattr(local, "inner", local)
            momentum = getattr(inner, "momentum", 0.0)
            if isinstance(inner, Descent) and momentum and inner.steps == 1 and not inner.keep and inner.epochs is None:
                yield Remark(
                    "warning",
                    f"algorithm.{label}: momentum = {momentum:g} has no effect with one local step per job; "
                    "set keep = true, or more steps",
                )
    every, longest = experiment.evaluate.every, max((t.time / t.share for t in trials if t.share), default=0.0)
    if longest and every > longest:
        yield Remark("warning", f"evaluate.every = {every:g}: a run ends at time {longest:.3g}, before the first one")
    most = max((trial.evaluations for trial in trials), default=0.0)
    if most > _MANY:
        yield Remark("problem", f"evaluate.every = {every:g}: that is {most:,.0f} evaluations of one run")
    spent = [t for t in trials if t.training_s is not None and t.evaluations * t.evaluation_s > 2 * t.training_s]
    if spent and most <= _MANY:
        names = ", ".join(t.label for t in spent)
        yield Remark("note", f"evaluate.every = {every:g}: evaluating takes longer than training ({names})")
    if experiment.trials == 1:
        yield Remark("note", "trials = 1: one seed shows no spread; 3 or more do")


def _memory(device: str) -> float:
    """Bytes at most so far."""
    if device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
