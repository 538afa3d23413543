"""The frozen files of a suite, and the experiment of each of its cells."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from offbeat.core import names
from offbeat.core.errors import FolderError, OffbeatError, SettingError, unknown
from offbeat.data import status
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.tuning import TuneOptions

VERSIONS = ("v1",)
FILES = ("tasks.toml", "clocks.toml", "methods.toml", "protocol.toml")
DIGESTS = "digests.json"
CENTRALISED = "centralised"  # a clock of its own: one machine has no stragglers
BASELINE = "m-sync"

Scale = Literal["full", "quick"]


@dataclass(frozen=True)
class SuiteTask:
    """What is trained, and what counts. steps: step sizes that methods try.   stand_in: why it is not the real one."""

    name: str
    title: str
    metric: str
    target: float
    time: float
    every: float
    steps: Sequence[float]
    batch: int
    problem: Mapping[str, Any]
    samples: int | None = None
    stand_in: str = ""


@dataclass(frozen=True)
class SuiteClock:
    """A [timing] table.

    slow: the factor of the first client's times.   by_job: a job takes as long however many steps it has.
    """

    name: str
    title: str
    timing: Mapping[str, Any]
    slow: float = 1.0
    by_job: bool = False
    stand_in: str = ""

    def table(self, clients: int) -> dict[str, Any]:
        """For so many clients."""
        speeds = {} if self.slow == 1.0 else {"speeds": [self.slow] + [1.0] * (clients - 1)}
        return {**self.timing, **speeds}


@dataclass(frozen=True)
class SuiteMethod:
    """An algorithm of the suite, or one of a user's own.

    settings: of its table.   local: "sgd" or "gradient".   adaptive: the server's step size is tuned, in other units.
    several: whether its jobs have several local steps.   steps: how many; None: the server says, or one.
    own: the file of a user's method, and the digest of that file.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    local: str = "sgd"
    adaptive: bool = False
    several: bool = False
    steps: int | None = None
    reference: bool = False
    own: tuple[str, str] | None = None

    def table(self, task: SuiteTask) -> dict[str, Any]:
        """Its [algorithm.LABEL] table on a task."""
        settings = dict(self.settings)
        if isinstance(first := settings.get("first"), float):
            settings["first"] = max(1, round(first * task.problem["clients"]))
        middle = task.steps[len(task.steps) // 2]
        local = {"batch": task.batch} | ({} if self.local == "gradient" else {"lr": middle})
        local |= {} if self.steps is None else {"steps": self.steps}
        return {**settings, "local": {self.local: local}}

    def axis(self, task: SuiteTask) -> tuple[str, list[float]]:
        """What is tuned, and its values."""
        if self.adaptive:
            return f"algorithm.{self.label}.lr", [float(f"{0.01 * step:g}") for step in task.steps]
        if self.local == "gradient":
            return f"algorithm.{self.label}.lr", list(task.steps)
        return f"algorithm.{self.label}.local.{self.local}.lr", list(task.steps)


@dataclass(frozen=True)
class Suite:
    """A version of the suite at a scale, with the methods that take part.

    digests: of the files, and of each task alone, so that a result does not depend on tasks that are not in it.
    cells: `TASK/CLOCK`; the reference on one machine is one for each task.   omitted: what is left out, and why.
    """

    version: str
    scale: Scale
    tasks: Mapping[str, SuiteTask]
    clocks: Mapping[str, SuiteClock]
    methods: Mapping[str, SuiteMethod]
    protocol: Mapping[str, Any]
    digests: Mapping[str, str]
    cells: Sequence[str]
    omitted: Sequence[str] = ()

    @property
    def stand_ins(self) -> list[str]:
        """What is not the real thing because its data are missing, in words."""
        used = {name for cell in self.cells for name in cell.split("/")}
        parts: list[SuiteTask | SuiteClock] = [*self.tasks.values(), *self.clocks.values()]
        return [*(each.stand_in for each in parts if each.name in used and each.stand_in), *self.omitted]

    def only(self, wanted: Sequence[str]) -> Suite:
        """With these tasks (`mnist`) and cells (`mnist/phones`) alone."""
        for each in wanted:
            if each not in self.cells and each not in self.tasks and each not in self.clocks:
                raise unknown("task, clock or cell", each, [*self.tasks, *self.clocks, *self.cells])
        cells = {cell for cell in self.cells if {cell, *cell.split("/")} & set(wanted)}
        tasks = {cell.partition("/")[0] for cell in cells}
        kept = [cell for cell in self.cells if cell in cells or cell in {f"{name}/{CENTRALISED}" for name in tasks}]
        left = {name: task for name, task in self.tasks.items() if name in tasks}
        return replace(self, tasks=left, digests=self.digests_of(left), cells=kept, omitted=())

    def digests_of(self, tasks: Collection[str]) -> dict[str, str]:
        """The digests of these tasks, and of the files that all share."""
        others = {_digest_name(name) for name in self.tasks if name not in tasks}
        return {name: text for name, text in self.digests.items() if name not in others}

    def labels(self, cell: str) -> list[str]:
        """The methods of a cell.

        Clients that only send gradients train no personal parts, and jobs of several steps would gain by a clock that
        does not count steps.
        """
        task, _, clock = cell.partition("/")
        stepping = "personal" in self.tasks[task].problem
        alone = clock == CENTRALISED
        by_job = not alone and self.clocks[clock].by_job
        return [
            label
            for label, method in self.methods.items()
            if (label == CENTRALISED) == alone
            and not (stepping and method.local == "gradient")
            and not (by_job and method.several)
        ]

    def lacking(self, cell: str, found: Collection[str]) -> list[str]:
        """The methods of a cell that are not among those found."""
        return [label for label in self.labels(cell) if label not in found]

    @property
    def runs(self) -> int:
        """How many runs it takes, shorter ones that tune among them."""
        _, judging = self.protocol["judging"]
        return sum(len(self.labels(cell)) * (self.options(cell, None).runs + judging) for cell in self.cells)

    def table(self, cell: str) -> dict[str, Any]:
        """The experiment of a cell, on the judging seeds."""
        name, _, clock = cell.partition("/")
        task, methods = self.tasks[name], [self.methods[label] for label in self.labels(cell)]
        timing = self.clocks["equal" if clock == CENTRALISED else clock]
        first, seeds = self.protocol["judging"]
        evaluate: dict[str, Any] = {"every": task.every, "personal": {"steps": 0}}
        if task.metric != "personal":
            evaluate |= {"targets": [task.target], "personal": {"steps": 0, "last": True}}  # for the worst tenth
        if task.samples is not None:
            evaluate["samples"] = task.samples
        return {
            "seed": first,
            "trials": seeds,
            "until": {"time": task.time},
            "evaluate": evaluate,
            "problem": dict(task.problem),
            "timing": timing.table(task.problem["clients"]),
            "algorithm": {method.label: method.table(task) for method in methods},
        }

    def tuned(self, cell: str) -> dict[str, Any]:
        """The same with its [tune] table."""
        task = self.tasks[cell.partition("/")[0]]
        return {**self.table(cell), "tune": dict(self.methods[label].axis(task) for label in self.labels(cell))}

    def options(self, cell: str, workers: int | None, ray: str | None = None, cells: int = 1) -> TuneOptions:
        """How its methods are tuned: for the time to the task's target. cells: at work at the same time."""
        task, (seed, seeds) = self.tasks[cell.partition("/")[0]], self.protocol["tuning"]
        best = f"time:{task.metric}={task.target:g}"
        budget, rungs = min(self.protocol["budget"], len(task.steps)), self.protocol["rungs"]
        return TuneOptions(budget, best, rungs, seeds, seed, "latin", workers, events=True, ray=ray, sweeps=cells)


def task_names(version: str) -> list[str]:
    """The tasks of a version, whether or not their data are here."""
    if version not in VERSIONS:
        raise unknown("suite", version, VERSIONS)
    return list(tomllib.loads(files("offbeat.suite").joinpath(version, "tasks.toml").read_text(encoding="utf-8")))


def load(version: str = "v1", scale: Scale = "full", own: Sequence[SuiteMethod] = ()) -> Suite:
    """A version of the suite as it is installed; its files must be those that were frozen.

    own: methods to put beside the others.
    """
    if version not in VERSIONS:
        raise unknown("suite", version, VERSIONS)
    texts = {name: files("offbeat.suite").joinpath(version, name).read_bytes() for name in (*FILES, DIGESTS)}
    digests = {name: hashlib.sha256(texts[name]).hexdigest() for name in FILES}
    frozen = json.loads(texts[DIGESTS])
    if changed := [name for name in FILES if frozen.get(name) != digests[name]]:
        raise FolderError(f"suite {version}: {', '.join(changed)} differs from the frozen version; reinstall offbeat")
    tasks, clocks, methods, protocol = (tomllib.loads(texts[name].decode("utf-8")) for name in FILES)
    chosen = {**protocol[scale]}
    wanted = chosen.get("methods", list(methods))
    ours = {label: _method(label, methods[label]) for label in methods if label in wanted}
    for method in own:
        if method.label in methods:
            raise SettingError(f"{method.label} is a method of the suite; give yours another name")
    budget = chosen["budget"]
    found, omitted = {}, []
    for name, table in tasks.items():
        if name not in chosen.get("tasks", tasks):
            continue
        try:
            found[name] = _task(name, table, scale, budget)
        except LookupError as error:
            omitted.append(str(error.args[0]))
    return Suite(
        version,
        scale,
        found,
        {name: _clock(name, table) for name, table in clocks.items()},
        {**ours, **{method.label: method for method in own}},
        chosen,
        {**{_digest_name(name): _digest(tasks[name]) for name in found}, **{name: digests[name] for name in FILES[1:]}},
        [f"{task}/{clock}" for task in found for clock in (CENTRALISED, *clocks)],
        omitted,
    )


def _digest_name(task: str) -> str:
    return f"tasks.toml, {task}"


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _task(name: str, table: Mapping[str, Any], scale: Scale, budget: int) -> SuiteTask:
    given = {k: v for k, v in table.items() if k not in ("embedded", "quick")}
    stand_in = ""
    if absent := _absent(given["problem"]["data"]):
        if "embedded" not in table:
            raise LookupError(f"{name} is left out: {absent}")
        given |= table["embedded"]
        stand_in = f"{given['title']}: {absent}"
    if scale == "quick":
        given |= {k: v for k, v in table.get("quick", {}).items() if not stand_in or k == "time"}
    steps = given.pop("steps")
    if len(steps) > budget:  # evenly, with both ends
        steps = [steps[round(at * (len(steps) - 1) / (budget - 1))] for at in range(budget)]
    return SuiteTask(name, steps=steps, stand_in=stand_in, **given)


def _absent(data: str) -> str:
    """Why a data set cannot be used; empty if it can."""
    (row,) = (row for row in status() if row.name == data)
    return "" if row.state == "present" else f"{data} is {row.state} ({row.get})"


def _clock(name: str, table: Mapping[str, Any]) -> SuiteClock:
    given = {k: v for k, v in table.items() if k != "embedded"}
    if "embedded" in table:
        try:
            Experiment.parse({**_SMALLEST, "timing": given["timing"]}).timing.bind(2, 0, ["quadratic"])
        except OffbeatError as error:
            given |= table["embedded"]
            return SuiteClock(name, stand_in=f"{given['title']}: {error}", **given)
    return SuiteClock(name, **given)


_SMALLEST: Mapping[str, Any] = {
    "problem": {"data": "quadratic", "clients": 2},
    "algorithm": {"fedasync": {"local": {"sgd": {"lr": 0.1}}}},
}


def _method(label: str, table: Mapping[str, Any]) -> SuiteMethod:
    named = {key: table[key] for key in ("local", "adaptive", "several", "steps", "reference") if key in table}
    return SuiteMethod(label, {k: v for k, v in table.items() if k not in named}, **named)


def own_method(place: str, settings: Mapping[str, Any] | None = None) -> SuiteMethod:
    """A user's method: `mine.py:Mine`, or `package.module:Mine`. Its label is the class's name in lower case.

    settings: of its table.   Its clients take SGD steps or, where its server wants gradients, none.
    """
    module, colon, name = place.partition(":")
    if not colon or not name.isidentifier():
        raise SettingError(f"--algorithm {place}: write the file and the class, as in mine.py:Mine")
    digest, path = "", Path(module)
    if module.endswith(".py"):
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise SettingError(f"cannot read {module}: {error.strerror}") from None
        names.search(path.resolve().parent)
        module = path.stem
    names.search(Path.cwd())
    given = {"name": f"{module}:{name}", **(settings or {})}
    problem: OffbeatError | None = None
    for local in ("sgd", "gradient"):
        trainer: dict[str, Any] = {"batch": 8} | ({} if local == "gradient" else {"lr": 0.1})
        try:
            Experiment.parse({**_SMALLEST, "algorithm": {name.lower(): {**given, "local": {local: trainer}}}})
        except OffbeatError as error:
            problem = problem or error
            continue
        return SuiteMethod(name.lower(), given, local, own=(path.name if digest else module, digest))
    raise SettingError(f"--algorithm {place}: {problem}")
