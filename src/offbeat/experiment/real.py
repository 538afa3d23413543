"""From an experiment to a real run: what its server serves, and what a client makes of what the server says."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offbeat.core import names
from offbeat.core.errors import FolderError, SettingError
from offbeat.core.local import Local, planned_steps
from offbeat.core.metric import all_metrics
from offbeat.core.problem import Problem
from offbeat.core.random import TASK, TURN, key
from offbeat.core.sums import Secure
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import encoding
from offbeat.deploy.admission import Limits as Limits
from offbeat.deploy.client import Party
from offbeat.deploy.client_data import ClientProblem, ModelOnly
from offbeat.deploy.effects import Judgement
from offbeat.deploy.encoding import check_name
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.logs import Level, Style
from offbeat.deploy.plan import Plan
from offbeat.deploy.server import Measure, RunServer
from offbeat.experiment.describe import ClientDataTable
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.experiment.partner import VERSION, samples
from offbeat.experiment.session import Session
from offbeat.experiment.timing import Untimed
from offbeat.models.flat import Flat
from offbeat.simulate.execute import Executor
from offbeat.simulate.personal import Personal, PersonalProblem, counted, judged, measured_metrics, personal_models
from offbeat.simulate.threads import use
from offbeat.timing.base import Timing
from offbeat.watch.files import OWNER, REAL_RUN, write_text


@dataclass(frozen=True)
class DeployOptions:
    """How a real run is served, besides the experiment.

    unit: seconds in one unit of the experiment's time.   paced: clients take as long as the timing model says.
    data: "package.module:function" that gives the samples of the clients on this machine.
    new: begin another run although the same one of the same experiment is active.
    level, style: what is logged, and how; None: information, as text on standard error and as JSON in the run folder.
    """

    unit: float = 1.0
    paced: bool = False
    limits: Limits = field(default_factory=Limits)
    dtype: str = ""
    trim: bool = False
    replicas: int = 1
    data: str = ""
    new: bool = False
    level: Level | None = None
    style: Style | None = None


class DeployedRun:
    """A real run as displays, summaries and measures see it."""

    def __init__(self, run: RunServer, problems: Sequence[Problem]) -> None:
        self.run, self.problems = run, problems
        self.server, self.locals, self.until = run.plan.server, run.plan.locals, run.plan.until
        self.metrics, self.client_names = run.plan.measured, list(run.plan.roster)
        self.executor = Executor(stacked=False)

    @property
    def world(self) -> Ledger:
        return self.run.ledger

    @property
    def clients(self) -> int:
        return len(self.run.ledger.clients)


class LateClock:
    """The clients' message rates by the timing model, which is bound only if a server asks: a real run needs none."""

    def __init__(self, timing: Timing, *arguments: Any) -> None:
        self.timing, self.arguments = timing, arguments

    @property
    def rates(self) -> Sequence[float] | None:
        if isinstance(self.timing, Untimed):
            return None
        found: Sequence[float] | None = getattr(self.timing.bind(*self.arguments), "rates", None)
        return found


@dataclass(frozen=True)
class RunIdentity:
    """A run's name on the broker, like no other's, and the clients that it began with, by number."""

    run: str
    roster: Sequence[str]


def saved_identity(folder: Path) -> RunIdentity | None:
    """Of the run in this folder, if it has one."""
    path = folder / REAL_RUN
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return RunIdentity(check_name("run", str(content["run"])), [str(name) for name in content["roster"]])
    except (OSError, ValueError, KeyError, TypeError):
        raise FolderError(
            f"{path} is damaged; restore it from a backup, or serve the run into another folder"
        ) from None


def new_identity(spec: Spec, folder: Path, roster: Sequence[str]) -> RunIdentity:
    """Of a run that begins in this folder."""
    label = re.sub(r"[^A-Za-z0-9_+-]", "_", spec.folder)[:40].lstrip("_+-") or "run"
    return save_identity(folder, RunIdentity(f"{label}-{secrets.token_hex(4)}", list(roster)))


def save_identity(folder: Path, identity: RunIdentity) -> RunIdentity:
    """Write down which run the folder holds."""
    folder.mkdir(parents=True, exist_ok=True, mode=OWNER)
    write_text(folder / REAL_RUN, json.dumps(vars(identity)))
    return identity


def plan_of(
    session: Session, spec: Spec, run: str, roster: Sequence[str], options: DeployOptions, federation: str = ""
) -> Plan:
    """What the server of this run serves. federation: whose, which masks are made for."""
    experiment, problems = session.experiment, problems_of(session, spec)
    if experiment.attack:
        raise SettingError("attack: attackers are simulated; leave the [[attack]] tables out of a real run")
    if options.paced and isinstance(experiment.timing, Untimed):
        raise SettingError("--pace: the experiment has no [timing] table to follow; add one, or leave --pace out")
    personal = judged(experiment.evaluate.personal, problems)
    if personal is not None and personal.last:
        raise SettingError("evaluate.personal.last: real clients evaluate their own models every time; leave it out")
    for problem in problems if personal is not None else ():
        if not isinstance(problem, ModelOnly | PersonalProblem):
            raise SettingError(f"evaluate.personal: the clients of {problem.name} have no test data of their own")
    if problems[0].clients != len(roster):
        raise SettingError(f"the experiment has {problems[0].clients} clients and the roster {len(roster)}")
    algorithm = experiment.aimed(spec.label, problems, spec.seed)
    locals_ = algorithm.trainers(problems)
    _check_hidden(personal, algorithm.secure, locals_)
    planned = [
        None if isinstance(problem, ModelOnly) else planned_steps(local, problem)
        for local, problem in zip(locals_, problems, strict=True)
    ]
    names_ = [task.name for task in experiment.tasks]
    secure = algorithm.secure
    return Plan(
        run,
        list(roster),
        algorithm.server_for(problems).fit(LateClock(experiment.timing, len(roster), spec.seed, names_)),
        locals_,
        [x if secure is None else secure.round(x) for x in (problem.initial().cpu() for problem in problems)],
        experiment.until,
        seed=spec.seed,
        unit=options.unit,
        terms=[(task.opens, task.closes) for task in experiment.tasks],
        limits=options.limits,
        dtype=options.dtype,
        grows=all(isinstance(problem, ModelOnly) for problem in problems),
        personal=personal,
        metrics=[measured_metrics(problem, personal) for problem in problems],
        scores=[problem.scores if isinstance(problem, ModelOnly) else () for problem in problems],
        planned=planned,
        secure=secure,
        federation=federation,
        frozen=[_frozen(problem) for problem in problems],
    )


def _frozen(problem: Problem) -> str:
    """A digest of what is not trained of a problem's model."""
    flat = getattr(problem, "flat", None)
    return flat.frozen if isinstance(flat, Flat) else ""


def problems_of(session: Session, spec: Spec) -> list[Problem]:
    """The problems of a run; training without federation has nothing to be deployed."""
    experiment = session.experiment
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
        "experiment": _told(experiment),
        "label": spec.label,
        "seed": spec.seed,
        "roster": list(plan.roster),
        "unit": options.unit,
        "paced": options.paced,
        "dtype": options.dtype,
        "beat": min(2.0, options.limits.patience / 4),
        "last": last,
        "frozen": list(plan.frozen),
    }


def same_run(charters: Iterable[Mapping[str, Any]], experiment: Experiment, spec: Spec) -> RunIdentity | None:
    """The newest of these runs that is this one of this experiment, however many clients it began with."""
    found = None
    for charter in charters:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            table, count = _without_count(charter["experiment"])
            same = (charter["label"], charter["seed"]) == (spec.label, spec.seed)
            if same and table == _without_count(json.loads(json.dumps(_told(experiment))))[0]:
                found = RunIdentity(str(charter["run"]), list(charter["roster"])[:count])
    return found


def _told(experiment: Experiment) -> dict[str, Any]:
    """The table of an experiment without the server's own folders."""
    return {key: value for key, value in experiment.table.items() if key != "modules"}


def _without_count(table: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The table of an experiment without the number of its clients, and that."""
    key, name = ("clients", "count") if "task" in table else ("problem", "clients")
    inner = dict(table[key])
    count = int(inner.pop(name))
    return {**table, key: inner}, count


def _check_hidden(personal: Personal | None, secure: Secure | None, locals_: Sequence[Local]) -> None:
    """Raise `SettingError` if what clients send would show what noise or sums are to hide."""
    for local in locals_:
        if local.by_sample and personal is not None and personal.steps:
            raise SettingError(
                f"evaluate.personal: its steps have no noise, and {local.label} is to hide single samples; leave it "
                "out, or give steps = 0"
            )
        if secure is not None and secure.bound is None and local.batch is None and not local.by_sample:
            raise SettingError(
                "secure: without batch, a client sends the same update again if the run is restored from a backup, and "
                "two sums that differ in one client would show that client's; give a batch"
            )


class PartyMaker:
    """Makes a client's part of a run from its charter, as its `Partner` says."""

    def __init__(self, data: str = "", models: Sequence[str] = (), device: str = "", holdout: float = 0.2) -> None:
        self.data, self.allowed, self.device, self.holdout = data, models, device, holdout
        self.known: dict[str, Experiment] = {}

    def party(self, charter: Mapping[str, Any], client: str) -> Party:
        """This client's part; those of a process one after the other: models and data are drawn when they are made."""
        with TURN:
            return self._party(charter, client)

    def _party(self, charter: Mapping[str, Any], client: str) -> Party:
        roster = [str(name) for name in charter["roster"]]
        experiment = self._experiment(charter["experiment"])
        spec = Spec(str(charter["label"]), int(charter["seed"]))
        number = roster.index(client)
        problems = self._problems(experiment, spec, len(roster), client)
        for problem, wanted in zip(problems, charter.get("frozen", ()), strict=False):
            if (here := _frozen(problem)) != wanted:
                raise SettingError(
                    f"the frozen parameters of {problem.name} are not those of the server (digest {here[:12] or '-'}, "
                    f"there {str(wanted)[:12] or '-'}): use the same files of the model and the same version of PyTorch"
                )
        names = [task.name for task in experiment.tasks]
        clock = experiment.timing.bind(len(roster), spec.seed, names) if charter["paced"] else None

        algorithm = experiment.algorithms[spec.label]
        locals_, personal = algorithm.trainers(problems), judged(experiment.evaluate.personal, problems)
        _check_hidden(personal, algorithm.secure, locals_)
        return Party(
            check_name("run", str(charter["run"])),
            client,
            number,
            problems,
            locals_,
            spec.seed,
            HoldoutJudge(problems, locals_, number, spec.seed, personal),
            clock,
            float(charter["unit"]),
            str(charter["dtype"]),
            algorithm.secure,
        )

    def _experiment(self, table: Mapping[str, Any]) -> Experiment:
        text = repr(table)
        if text not in self.known:
            own = {**table, "device": self.device} if self.device else dict(table)
            own.pop("trackers", None)
            others = [name for name in dict.fromkeys(names.all_imported(own)) if name not in self.allowed]
            if others:
                asked, allow = ", ".join(map(repr, others)), " ".join(f"--allow {name}" for name in others)
                what = "which is not offbeat's; allow it" if len(others) == 1 else "which are not offbeat's; allow them"
                raise SettingError(f"the server asks for {asked}, {what} with {allow}")
            self.known = {text: Experiment.parse(own)}
        return self.known[text]

    def _problems(self, experiment: Experiment, spec: Spec, clients: int, client: str) -> list[Problem]:
        use((), experiment.threads or 1)
        if not self.data:
            if any(isinstance(task.problem, ClientDataTable) for task in experiment.tasks):
                raise SettingError(
                    "this run trains on each site's own samples; name the function that gives them: --data"
                )
            return problems_of(Session(experiment), spec)
        given = samples(self.data, client)
        made: list[Problem] = []
        for number, task in enumerate(experiment.tasks):
            table = task.problem
            if not isinstance(table, ClientDataTable):
                raise SettingError('--data: the experiment names its own data; write data = "own" in it')
            part = given[task.name] if task.name and isinstance(given, Mapping) and task.name in given else given
            seed = spec.seed if number == 0 else key(spec.seed, TASK, number) >> 1
            name = task.name or "own"
            precision = experiment.precision
            made.append(table.client(part, seed, clients, self.holdout, experiment.device, name, precision))
        return made


@dataclass(frozen=True)
class HoldoutJudge:
    """Evaluates a model on a client's own held-out samples, and the client's own model that it makes from it."""

    problems: Sequence[Problem]
    locals: Sequence[Local]
    number: int
    seed: int
    personal: Personal | None

    def __call__(self, task: int, vector: Vector, memory: Payload) -> Judgement:
        problem = self.problems[task]
        found = self._claim(problem, vector) if isinstance(problem, ClientProblem) else Judgement(0)
        held = not isinstance(problem, ClientProblem) or problem.held
        if (
            self.number >= counted(self.personal, self.number + 1)
            or not isinstance(problem, PersonalProblem)
            or not held
        ):
            return found
        assert self.personal is not None
        there = problem.initial().device
        known = {self.number: {name: kept.to(there) for name, kept in memory.items()}} if memory else {}
        given = (self.locals[task], vector.to(there), known, [self.number], self.personal.steps, self.seed)
        ((some, models),) = personal_models(problem, *given)
        own = all_metrics(problem.metrics)[0].name
        return found._replace(personal={own: problem.judge(models, some)[0]})

    def _claim(self, problem: ClientProblem, vector: Vector) -> Judgement:
        total, loss, sums = problem.claim(vector)
        if sum(map(len, sums.values())) > encoding.SUMS:
            long = max(sums, key=lambda name: len(sums[name]))
            raise SettingError(
                f"metrics: {long} is made from {len(sums[long]):,} sums; at most {encoding.SUMS:,} are sent"
            )
        return Judgement(total, loss, sums)
