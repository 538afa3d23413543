"""From an experiment to a real run: what its server serves, and what a client makes of what the server says."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from offbeat.core import names
from offbeat.core.errors import SettingError
from offbeat.core.problem import Problem
from offbeat.core.random import TASK, key
from offbeat.core.vectors import Vector
from offbeat.deploy.admission import Limits as Limits
from offbeat.deploy.client import Party
from offbeat.deploy.client_data import ClientProblem, ModelOnly, dataset
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.plan import Plan, check_name
from offbeat.deploy.server import Measure, RunServer
from offbeat.experiment.describe import ClientDataTable
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.experiment.session import Session
from offbeat.simulate.execute import Executor
from offbeat.watch.files import REAL_RUN

VERSION = 1  # of the charter


@dataclass(frozen=True)
class DeployOptions:
    """How a real run is served, besides the experiment.

    unit: seconds in one unit of the experiment's time.   paced: clients take as long as the timing model says.
    """

    unit: float = 1.0
    paced: bool = False
    limits: Limits = field(default_factory=Limits)
    dtype: str = ""
    trim: bool = False
    replicas: int = 1


class DeployedRun:
    """A real run as displays, summaries and measures see it."""

    def __init__(self, run: RunServer, problems: Sequence[Problem]) -> None:
        self.run, self.problems = run, problems
        self.server, self.locals = run.plan.server, run.plan.locals
        self.until, self.clients = run.plan.until, len(run.plan.roster)
        self.executor = Executor(stacked=False)

    @property
    def world(self) -> Ledger:
        return self.run.ledger


class LateClock:
    """The clients' message rates by the timing model, which is bound only if a server asks: a real run has none."""

    def __init__(self, bind: Callable[[], Any]) -> None:
        self.bind = bind

    @property
    def rates(self) -> Sequence[float]:
        found: Sequence[float] = self.bind().rates
        return found


def run_name(spec: Spec, folder: Path) -> str:
    """A run's name on the broker: like no other's, and the same when its folder is served again."""
    path = folder / REAL_RUN
    if not path.exists():
        label = re.sub(r"[^A-Za-z0-9_+-]", "_", spec.folder)[:40]
        path.write_text(json.dumps({"run": f"{label}-{secrets.token_hex(4)}"}), encoding="utf-8")
    return check_name("run", str(json.loads(path.read_text(encoding="utf-8"))["run"]))


def plan_of(session: Session, spec: Spec, run: str, roster: Sequence[str], options: DeployOptions) -> Plan:
    """What the server of this run serves."""
    experiment, problems = session.experiment, problems_of(session, spec)
    if problems[0].clients != len(roster):
        raise SettingError(f"the experiment has {problems[0].clients} clients and the roster {len(roster)}")
    algorithm = experiment.algorithms[spec.label]
    names_ = [task.name for task in experiment.tasks]
    return Plan(
        run,
        list(roster),
        algorithm.server.fit(LateClock(lambda: experiment.timing.bind(len(roster), spec.seed, names_))),
        algorithm.locals(len(problems)),
        [problem.initial().cpu() for problem in problems],
        experiment.until,
        seed=spec.seed,
        unit=options.unit,
        terms=[(task.opens, task.closes) for task in experiment.tasks],
        limits=options.limits,
        dtype=options.dtype,
    )


def problems_of(session: Session, spec: Spec) -> list[Problem]:
    """The problems of a run; training without federation has nothing to be deployed."""
    experiment = session.experiment
    if experiment.evaluate.personal is not None:
        raise SettingError("evaluate.personal: the clients' own models stay with them; leave it out for real runs")
    if experiment.algorithm[spec.label].pooled:
        raise SettingError(f"{spec.label} pools all data on one machine; it cannot be deployed")
    return session.problems(spec)


def measure_of(problems: Sequence[Problem]) -> Measure | None:
    """How the server evaluates; None where it has no data, and the clients do it."""
    if any(isinstance(problem, ModelOnly) for problem in problems):
        return None
    return lambda task, vector: problems[task].measure(vector.unsqueeze(0))[0]


def charter_of(experiment: Experiment, spec: Spec, plan: Plan, options: DeployOptions, last: bool) -> dict[str, Any]:
    """What the clients are told: names and numbers only."""
    return {
        "version": VERSION,
        "run": plan.run,
        "experiment": experiment.table,
        "label": spec.label,
        "seed": spec.seed,
        "roster": list(plan.roster),
        "unit": options.unit,
        "paced": options.paced,
        "dtype": options.dtype,
        "beat": min(2.0, options.limits.patience / 4),
        "last": last,
    }


class Partner:
    """Makes a client's part of a run from its charter.

    data: "package.module:function" that gives this client's own samples.   device: "" for the experiment's own.
    models: names outside offbeat, of model factories and others, that the server may ask for: nothing else is imported
        at its word.   holdout: share of the samples kept for evaluation.
    """

    def __init__(self, data: str = "", models: Sequence[str] = (), device: str = "", holdout: float = 0.2) -> None:
        self.data, self.allowed, self.device, self.holdout = data, models, device, holdout
        self.known: dict[str, Experiment] = {}

    def party(self, charter: Mapping[str, Any], client: str) -> Party:
        """This client's part."""
        if charter.get("version") != VERSION:
            raise SettingError(f"the server speaks version {charter.get('version')}, this client {VERSION}; upgrade")
        roster = [str(name) for name in charter["roster"]]
        if client not in roster:
            raise SettingError(f"{client} is not on the roster of {charter['run']}")
        experiment = self._experiment(charter["experiment"])
        spec = Spec(str(charter["label"]), int(charter["seed"]))
        number = roster.index(client)
        problems = self._problems(experiment, spec, len(roster))
        names = [task.name for task in experiment.tasks]
        clock = experiment.timing.bind(len(roster), spec.seed, names) if charter["paced"] else None

        def judge(task: int, vector: Vector) -> tuple[int, int, float]:
            problem = problems[task]
            return problem.judge(vector) if isinstance(problem, ClientProblem) else (0, 0, 0.0)

        return Party(
            check_name("run", str(charter["run"])),
            client,
            number,
            problems,
            experiment.algorithms[spec.label].locals(len(problems)),
            spec.seed,
            judge,
            clock,
            float(charter["unit"]),
            str(charter["dtype"]),
        )

    def _experiment(self, table: Mapping[str, Any]) -> Experiment:
        text = repr(table)
        if text not in self.known:
            for name in names.all_imported(table):
                if name not in self.allowed:
                    raise SettingError(
                        f"the server asks for {name!r}, which is not offbeat's; allow it with --model {name}"
                    )
            own = {**table, "device": self.device} if self.device else dict(table)
            own.pop("trackers", None)
            self.known = {text: Experiment.parse(own)}
        return self.known[text]

    def _problems(self, experiment: Experiment, spec: Spec, clients: int) -> list[Problem]:
        if experiment.threads is not None:
            torch.set_num_threads(experiment.threads)
        if not self.data:
            return problems_of(Session(experiment), spec)
        given = loader(self.data)()
        made: list[Problem] = []
        for number, task in enumerate(experiment.tasks):
            table = task.problem
            if not isinstance(table, ClientDataTable):
                raise SettingError('--data: the experiment names its own data; write data = "own" in it')
            part = given[task.name] if isinstance(given, Mapping) else given
            found = dataset(part, table.classes, table.shape, self.holdout)
            seed = spec.seed if number == 0 else key(spec.seed, TASK, number) >> 1
            name = task.name or "own"
            made.append(ClientProblem(name, table.module(seed), clients, found, table.l2, experiment.device))
        return made


def loader(name: str) -> Callable[[], Any]:
    """The function behind "package.module:function"."""
    if not names.imported(name):
        raise SettingError(f"--data {name}: write package.module:function")
    found = names.import_name(name, f"--data {name}")
    if not callable(found):
        raise SettingError(f"--data {name}: is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def state_folder() -> Path:
    """Where clients keep their state by default."""
    return Path.home() / ".local" / "state" / "offbeat"
