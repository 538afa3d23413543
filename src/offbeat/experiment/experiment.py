"""An experiment: read from a file or a table, checked, and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offbeat.core import names
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import Checked, Count, Positive, SettingError
from offbeat.core.problem import Problem
from offbeat.core.server import Server
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.experiment import catalogue, schema
from offbeat.experiment.describe import (
    Clients,
    ProblemTable,
    Task,
    check_device,
    describe_problem,
    read_problem,
)
from offbeat.experiment.overrides import Overrides, ending, override, plain, read_table
from offbeat.experiment.tables import (
    AlgorithmTable,
    describe_algorithms,
    describe_tasks,
    read_algorithms,
    read_task,
    read_tasks,
)
from offbeat.experiment.timing import Untimed, describe_timing, read_timing
from offbeat.models.flat import Precision
from offbeat.privacy.attack import Attack
from offbeat.privacy.differential import Privacy
from offbeat.privacy.protect import guarded
from offbeat.privacy.robust import Robust
from offbeat.simulate.run import Evaluate
from offbeat.theory.schedules import settle
from offbeat.timing import Times, Timing
from offbeat.watch.trackers import Trackers

if TYPE_CHECKING:
    from offbeat.experiment.results import Results
    from offbeat.experiment.samplers import SamplerName
    from offbeat.experiment.tuning import Tuned


@dataclass(frozen=True)
class Spec:
    """One run of an experiment: an algorithm by its label, under a seed."""

    label: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def folder(self) -> str:
        return f"{self.label}-{self.seed}"


@dataclass(frozen=True, repr=False)
class Experiment(Checked):
    """A checked experiment; `Experiment.parse` makes one from a table, `offbeat.load` from a file.

    problem: what is trained: data, clients, split, model.
    clients: the clients that several tasks share; goes with `task`.
    task: several models to train at once, [task.NAME] tables.
    timing: how long jobs take and which clients are online, a [timing] table; only a real run needs none.
    algorithm: what is compared, [algorithm.LABEL] or [[algorithm]] tables.
    seed: of the first run.
    trials: how many seeds, one after the other.
    until: when a run ends: at whichever of these comes first.
    evaluate: when models are evaluated, and on what.
    executor: how clients' jobs are computed: one by one, batched, in processes, on Ray; "auto" picks the faster.
    workers: processes, or Ray's workers; default: one per core.
    ray: address of a Ray cluster; default: auto-detected, else this machine.
    device: cpu, cuda or cuda:N.
    precision: of matrix products and convolutions in training: "tf32" is faster on a GPU and has three decimal digits,
        "bf16" (autocast) has two; vectors, sums and evaluations are in single precision.
    compile: compile the local steps of stacked clients, for a few sizes of batches: pays in long runs of networks;
        "auto": where it does.
    memory: bytes that one batch of stacked clients may take; default: 1e9, on a GPU a tenth of its memory.
    theory: also print what the papers' theorems would choose.
    privacy: differential privacy of the clients in what the server releases: clipping, noise, budgets; by default none.
    robust: what takes the place of the mean of updates, so that bad clients do little harm; by default nothing.
    attack: clients of a simulation that attack it, [[attack]] tables; a real run refuses them.
    trackers: experiment trackers that get the measurements, too.
    secure: secure aggregation: the server sees sums of updates only, a [secure] table.
    threads: of PyTorch; default: one, or one per core for models of 250,000 parameters or more that do not stack.
    modules: folders, from the file's on, where modules and data files are looked for, too.
    """

    algorithm: Mapping[str, AlgorithmTable] = field(metadata={"read": read_algorithms, "schema": describe_algorithms})
    timing: Timing = field(default=Untimed(), metadata={"read": read_timing, "schema": describe_timing})
    problem: ProblemTable | None = field(default=None, metadata={"read": read_problem, "schema": describe_problem})
    clients: Clients | None = None
    task: Mapping[str, Any] = field(default_factory=dict, metadata={"read": read_tasks, "schema": describe_tasks})
    seed: int = 0
    trials: Count = 1
    until: Until = field(default_factory=lambda: Until(time=10.0))
    evaluate: Evaluate = field(default_factory=Evaluate)
    executor: Literal["auto", "serial", "batched", "processes", "ray"] = "auto"
    workers: Count | None = None
    ray: str | None = None
    device: str = "cpu"
    precision: Precision = "single"
    compile: bool | Literal["auto"] = False
    memory: Positive | None = None
    theory: bool = False
    privacy: Privacy | None = None
    robust: Robust | None = None
    attack: tuple[Attack, ...] = ()
    trackers: Trackers = field(default_factory=Trackers)
    threads: Count | None = None
    secure: Secure | None = None
    modules: tuple[str, ...] = ()
    table: Mapping[str, Any] = field(default_factory=dict, metadata={"setting": False})  # given, with `problem.clients`

    @classmethod
    def parse(cls, table: Mapping[str, Any], overrides: Overrides = ()) -> Experiment:
        """From a table such as a TOML file holds."""
        if not isinstance(table, Mapping):
            raise SettingError(f"{table!r} is not a table of settings; use load for a file")
        table = override(table, overrides)
        if "sweep" in table:
            raise SettingError("the experiment has a [sweep] table; run it with `offbeat sweep`, or `Experiment.sweep`")
        if "tune" in table:
            raise SettingError("the experiment has a [tune] table; run it with `offbeat tune`, or `Experiment.tune`")
        given = dict(table)
        if len(table.get("task", ())) > 1:  # their time is measured in jobs of many steps
            given = {"until": {"time": 5000.0}, **table}
            if isinstance(evaluate := table.get("evaluate", {}), Mapping):
                given["evaluate"] = {"every": 5.0, **evaluate}
        try:
            made: Experiment = schema.build(cls, given, "")
        except SettingError as error:
            raise SettingError(_within(given, str(error))) from None
        if made.problem is not None:  # for those who know no data: a run folder, real clients
            table = {**table, "problem": {**table["problem"], "clients": made.problem.clients}}
        object.__setattr__(made, "table", table)
        return made

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision == "tf32" and not self.device.startswith("cuda"):
            raise SettingError('precision = "tf32" is for GPUs: set device = "cuda", or leave it out')
        if self.ray is not None and self.executor != "ray":
            raise SettingError(f'ray = "{self.ray}" is the address of a cluster: write executor = "ray", too')
        check_device(self.device)
        if self.problem is None and not self.task:
            raise SettingError("the experiment lacks its [problem] table (or [clients] and [task.NAME] tables)")
        if self.problem is not None and self.task:
            raise SettingError("the experiment has both problem and task; keep one of them")
        if self.clients is not None and not self.task:
            raise SettingError("clients goes with [task.NAME] tables; with one [problem] write problem.clients")
        if self.task and self.clients is None:
            raise SettingError("[task.NAME] tables need [clients] with its count")
        if not self.algorithms:  # which checks them
            raise SettingError("the experiment needs at least one algorithm")
        if self.secure is not None:
            self._check_secure(self.secure)
        share = 1.0 if self.clients is None else self.clients.available
        if share != 1.0 and not isinstance(self.timing, Untimed):
            if not isinstance(self.timing, Times) or self.timing.available != 1.0:
                raise SettingError("clients.available and timing.available both set who takes work; keep one")
            object.__setattr__(self, "timing", replace(self.timing, available=share))

    def _check_secure(self, secure: Secure) -> None:
        secure.check_clients(self.tasks[0].problem.clients)
        for name, table in self.algorithm.items():
            if table.pooled:
                raise SettingError(f"algorithm.{name}: pooled data have no updates to sum; leave it out, or [secure]")
            for task in range(len(self.tasks)):
                secure.check_size(self.algorithms[name].server.adds(task) or 1, self.tasks[0].problem.clients)

    def __repr__(self) -> str:
        data = self.table.get("problem", {}).get("data", "a problem")
        name = data.get("file", next(iter(data), "a problem")) if isinstance(data, Mapping) else data
        what = ", ".join(self.task) if self.task else str(name)
        return f"Experiment({what}: {', '.join(self.algorithm)}; {len(self.runs)} runs)"

    @cached_property
    def tasks(self) -> Sequence[Task]:
        """What is trained: the tasks, or the one problem as a task without a name."""
        if self.problem is not None:
            return [Task(self.problem)]
        assert self.clients is not None
        return [read_task(name, table, self.clients.count) for name, table in self.task.items()]

    @cached_property
    def algorithms(self) -> Mapping[str, Algorithm]:
        """The algorithms by label, each server paired with the local trainers of the tasks."""
        return {name: self._paired(name, table) for name, table in self.algorithm.items()}

    def _paired(self, name: str, table: AlgorithmTable) -> Algorithm:
        where, server, tasks = f"algorithm.{name}", table.server, self.tasks
        if len(tasks) > 1 and not server.several:
            recipes = names.members(Server).items()
            known = ", ".join(n for n, r in recipes if isinstance(r, catalogue.Recipe) and r.server.several)
            raise SettingError(f"{where} trains one model, but there are {len(tasks)} tasks; use one of {known}")
        trainers = tuple(task.local or table.local or server.default_local for task in tasks)
        if None in trainers:
            raise SettingError(
                f"{where}: local missing; give a local trainer, such as local = {{ sgd = {{ lr = 0.1 }} }}"
            )
        try:
            server = server.for_tasks([task.name for task in tasks])
            if table.pooled and self.privacy is not None:
                raise SettingError("privacy: all data are one client's here, and that client could not be hidden")
            server = guarded(server, self.robust, self.privacy, tasks[0].problem.clients)
            given = trainers if server.several else trainers[0]
            return Algorithm(server, given, table.name, self.secure)  # type: ignore[arg-type]
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None

    def aimed(self, label: str, problems: Sequence[Problem], seed: int) -> Algorithm:
        """An algorithm with the goals of the tasks, whose metrics their problems know, and a theorem's step sizes."""
        try:
            algorithm = settle(self.algorithms[label], problems, self.timing, self.until, seed)
        except SettingError as error:
            raise SettingError(f"algorithm.{label}: {error}") from None
        goals = tuple(task.goal(problem) for task, problem in zip(self.tasks, problems, strict=True))
        if not algorithm.server.several or not any(goals):
            return algorithm
        table = self.algorithm[label]
        server = replace(table.server, targets=goals)  # type: ignore[call-arg]
        return self._paired(label, replace(table, server=server))

    @property
    def labels(self) -> list[str]:
        """Of the algorithms."""
        return list(self.algorithm)

    @cached_property
    def runs(self) -> Sequence[Spec]:
        """Every algorithm under every seed, one seed after the other."""
        return [Spec(name, seed) for seed in range(self.seed, self.seed + self.trials) for name in self.algorithm]

    @property
    def resolved(self) -> dict[str, Any]:
        """Every setting with its default, as the objects that run show themselves."""
        return {
            "experiment": {
                s.name: repr(getattr(self, s.name)) for s in schema.settings(Experiment) if s.reader is None
            },
            "tasks": [repr(task) for task in self.tasks],
            "timing": repr(self.timing),
            "algorithm": {name: repr(algorithm) for name, algorithm in self.algorithms.items()},
        }

    # What can be done with it

    def run(self, out: Path | str | None = None, *, progress: bool = True) -> Results:
        """Run every algorithm under every seed into a new folder, as `offbeat run` does.

        out: the folder; by default one under runs/ that carries the time.   progress: show how far it is.
        Ctrl-C (or a notebook's stop button) saves the run at work; `offbeat.resume` continues it.
        """
        from offbeat.experiment import runs

        return runs.run(self, out, progress=progress)

    def sweep(
        self,
        over: Mapping[str, Sequence[Any]],
        out: Path | str | None = None,
        *,
        workers: int | None = None,
        ray: str | None = None,
        events: bool = False,
        best: str | None = None,
        progress: bool = True,
    ) -> Results:
        """Run a grid as one program: every algorithm, seed and combination of these values, as `offbeat sweep` does.

        over: values by their path of keys, `{"algorithm.*.local.sgd.lr": [1.0, 4.0]}`.
        workers: processes; by default one per core.   ray: address of a Ray cluster to run on.
        events: also keep the event log of every run.
        best: what settings are ranked by; see `Results.ranked`.
        """
        from offbeat.experiment import sweep

        axes = {path: values if isinstance(values, str) else plain(values) for path, values in over.items()}
        options = sweep.Options(events, best, workers, ray)
        return sweep.sweep({**self.table, "sweep": axes}, out, options, progress=progress)

    def tune(
        self,
        budget: int,
        over: Mapping[str, Any] | None = None,
        out: Path | str | None = None,
        *,
        best: str | None = None,
        rungs: int | None = None,
        seeds: int = 2,
        seed: int | None = None,
        sampler: SamplerName = "latin",
        workers: int | None = None,
        ray: str | None = None,
        events: bool = False,
        progress: bool = True,
    ) -> Tuned:
        """Find good settings of each algorithm on seeds of their own, then judge them on the experiment's seeds.

        budget: settings that are tried of each algorithm.
        over: by path of keys a list of values or `{"low": 0.01, "high": 10.0}`; default: each algorithm's step size.
        best: a metric, or `time:accuracy=0.8`.   Others: see `offbeat.experiment.tuning.TuneOptions`.
        """
        from offbeat.experiment import tuning

        options = tuning.TuneOptions(budget, best, rungs, seeds, seed, sampler, workers, events, ray)
        table = {**self.table, **({"tune": dict(over)} if over else {})}
        return tuning.tune(table, out, options, progress=progress)

    def advice(self) -> list[str]:
        """What the papers' theorems would choose, next to what the experiment has chosen, for every algorithm in it."""
        from offbeat.experiment.session import Session
        from offbeat.theory.compare import report

        problems = Session(self).problems(self.runs[0])
        return report(problems, self.algorithms, self.timing, self.until, self.seed)


def _within(table: Mapping[str, Any], error: str) -> str:
    """The error, or if it is about a key that belongs within tables and stands at the top, where it was meant to be."""
    key = error.partition(":")[0].partition(" ")[0]
    misplaced = f"{key}: unknown", f"{key} = {schema.shown(table.get(key))}: expected a table"
    found = list(ending(table, key)) if error.startswith(misplaced) else []
    said = error.partition(";")[0]
    return f"{said}; settings have a path: did you mean {' or '.join(found[:3])}?" if found else error


def load(path: Path | str | None = None, overrides: Overrides | None = None) -> Experiment:
    """The experiment in this file; without one, the embedded demonstration.

    overrides: values by their path of keys, `{"until.time": 2.0, "algorithm.*.local.sgd.lr": 0.1}`.
    Modules that the file names are looked for in its folder and in the working folder, too.
    """
    return Experiment.parse(read(path, overrides))


def read(path: Path | str | None, overrides: Overrides | None = None) -> dict[str, Any]:
    """The table of a file; its folder, those it names and the working folder are searched for modules from now on."""
    place = None if path is None else Path(path)
    table = read_table(place, overrides or ())
    named = schema.read(tuple[str, ...], table.get("modules", []), "modules")
    names.search(*([] if place is None else [place.parent, *(place.parent / each for each in named)]), Path.cwd())
    return table


def json_schema() -> dict[str, Any]:
    """The JSON Schema of an experiment file, for editors."""
    definitions: dict[str, Any] = {}
    table = schema.table_schema(schema.settings(Experiment), definitions, "An offbeat experiment.")
    table["properties"]["sweep"] = {"type": "object", "description": "Keys to sweep over, each with a list of values."}
    text = "Keys to tune, each with a list of values or a table with low and high."
    table["properties"]["tune"] = {"type": "object", "description": text}
    return {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "title": "offbeat experiment",
        **table,
        "definitions": definitions,
    }
