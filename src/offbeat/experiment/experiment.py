"""An experiment file: read, overridden, checked and turned into runs."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from offbeat.core.errors import SettingError, positive, unknown
from offbeat.core.problem import Problem
from offbeat.core.server import Algorithm
from offbeat.core.watcher import Watcher
from offbeat.experiment.algorithms import ALGORITHMS, algorithm_from
from offbeat.experiment.parse import build
from offbeat.experiment.problem import check_device
from offbeat.experiment.tasks import tasks_from
from offbeat.experiment.timing import timing_from
from offbeat.experiment.trackers import Boards
from offbeat.problems.supervised import Supervised
from offbeat.simulate.choose import executor as named_executor
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation, Until
from offbeat.simulate.personal import Personal
from offbeat.simulate.pool import cores
from offbeat.simulate.run import prepare
from offbeat.simulate.tape import Arenas
from offbeat.simulate.workers import Workers
from offbeat.simulate.world import World
from offbeat.timing import Times, Timing


@dataclass(frozen=True)
class Evaluate:
    """every: virtual time between evaluations.   targets: accuracies whose first time is reported; None: that at which
    the run ends, or else 0.8.

    samples: at most so many training and test samples, always the same ones; None: all of them.
    personal: judge the clients' own models too; None: not.
    """

    every: float = 1.0
    targets: tuple[float, ...] | None = None
    samples: int | None = None
    personal: Personal | None = None

    def __post_init__(self) -> None:
        positive(every=self.every, samples=self.samples)
        for target in self.targets or ():
            if not 0 < target <= 1:
                raise SettingError(f"targets holds {target}: an accuracy is a share in (0, 1]")


@dataclass(frozen=True)
class Top:
    """The settings above the tables."""

    seed: int = 0
    trials: int = 1
    until: Until = field(default_factory=lambda: Until(time=10.0))
    evaluate: Evaluate = field(default_factory=Evaluate)
    executor: str = "auto"
    workers: int | None = None  # processes, or Ray's; None: as many as there are cores
    ray: str | None = None  # address of a cluster; None: one that is found, else this machine
    device: str = "cpu"
    precision: str = "single"  # of products on a GPU; "tf32": faster, three decimal digits
    memory: float | None = None  # bytes that one batch of stacked clients may take; None: 1e9, on a GPU a tenth of it
    theory: bool = False  # say what the papers' theorems would choose
    boards: Boards = field(default_factory=Boards)
    threads: int | None = None  # of torch; None: one for models that stack, whose operations are small, else all cores

    @property
    def targets(self) -> tuple[float, ...]:
        """Accuracies whose first time is reported."""
        if self.evaluate.targets is not None:
            return self.evaluate.targets
        return (0.8,) if self.until.accuracy is None else (self.until.accuracy,)

    def __post_init__(self) -> None:
        positive(threads=self.threads, workers=self.workers, memory=self.memory)
        if self.precision not in ("single", "tf32"):
            raise SettingError(f"precision = {self.precision!r}: must be 'single' or 'tf32'")
        if self.precision == "tf32" and not self.device.startswith("cuda"):
            raise SettingError("precision = 'tf32' is for GPUs: set device = 'cuda', or leave it out")
        if self.trials < 1:
            raise SettingError(f"trials = {self.trials}: must be at least 1")
        if self.ray is not None and self.executor != "ray":
            raise SettingError(f"ray = {self.ray!r} is the address of a cluster: write executor = 'ray', too")


@dataclass(frozen=True)
class Spec:
    """One run of an experiment."""

    label: str
    seed: int
    index: int  # of the algorithm

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def folder(self) -> str:
        return f"{self.label}-{self.seed}"


class Shelf:
    """Problems that several runs share; the last ones are kept."""

    def __init__(self, size: int = 64) -> None:
        self.size = size
        self._made: dict[Hashable, list[Problem]] = {}

    def get(self, key: Hashable, make: Callable[[], list[Problem]]) -> list[Problem]:
        if key not in self._made:
            while len(self._made) >= self.size:
                del self._made[next(iter(self._made))]
            self._made[key] = make()
        return self._made[key]


class Experiment:
    """A checked experiment. `table` is all of it as plain data; `runs` lists what it asks for."""

    def __init__(self, table: Mapping[str, Any], shelf: Shelf | None = None) -> None:
        self.table = dict(table)
        tables = ("problem", "clients", "task", "timing", "algorithm")
        top = {k: v for k, v in table.items() if k not in tables}
        for name in top:
            if name not in Top.__dataclass_fields__:
                raise unknown("key", name, [*Top.__dataclass_fields__, *tables])
        for name in ("timing", "algorithm"):
            if name not in table:
                raise SettingError(f"the experiment lacks its [{name}] table")
        self.tasks, available = tasks_from(table)
        if len(self.tasks) > 1:  # their time is measured in jobs of many steps
            top = {"until": {"time": 5000.0}, **top, "evaluate": _with_default(top.get("evaluate", {}), "every", 5.0)}
        self.top = build(
            Top, top, "experiment", {"until": _made(Until), "evaluate": _evaluate, "boards": _made(Boards)}
        )
        check_device(self.top.device)
        if not isinstance(table["algorithm"], list) or not table["algorithm"]:
            raise SettingError("the experiment needs at least one [[algorithm]] table, in double brackets")
        self.timing: Timing = _available(timing_from(table["timing"]), available)
        self.labels = _labels(table["algorithm"])
        self._workers: Workers | None = None
        self._chosen: dict[int, tuple[bool, str]] = {}  # (stacked, why), by algorithm
        self.shelf = shelf or Shelf(1)
        self.resolved = {  # every setting with its default, as the objects that run show themselves
            "experiment": repr(self.top),
            "tasks": [repr(task) for task in self.tasks],
            "timing": repr(self.timing),
            "algorithm": [repr(self.algorithm(index, self.top.seed)) for index in range(len(self.labels))],
        }

    @cached_property
    def runs(self) -> Sequence[Spec]:
        """Every algorithm under every seed, one seed after the other."""
        seeds = range(self.top.seed, self.top.seed + self.top.trials)
        return [Spec(label, seed, index) for seed in seeds for index, label in enumerate(self.labels)]

    def problems(self, seed: int) -> list[Problem]:
        """The problems under this seed."""
        device, samples = self.top.device, self.top.evaluate.samples
        return self.shelf.get(
            (repr(self.tasks), seed, device, samples),
            lambda: [task.build(number, seed, device, samples) for number, task in enumerate(self.tasks)],
        )

    def algorithm(self, index: int, seed: int) -> Algorithm:
        """The algorithm of this index."""
        locals_ = [task.local for task in self.tasks]
        targets = [task.target.accuracy if task.target else None for task in self.tasks]
        return algorithm_from(self.table["algorithm"][index], f"algorithm[{index}]", locals_, targets)

    def check(self) -> None:
        """Build the first run of every algorithm, so that a mistake is found before anything is written."""
        for spec in self.runs[: len(self.labels)]:
            self.simulation(spec, tried=False)

    def close(self) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.close()

    def _executor(self, index: int, problems: Sequence[Problem], world: World | None, tried: bool) -> Executor:
        """How a run of this algorithm is computed: workers serve all runs, and what a trial showed holds for all."""
        top = self.top
        if self._workers is not None:
            return self._workers
        if world is None and index in self._chosen:
            stacked, reason = self._chosen[index]
            return Executor(stacked, self._memory, reason)
        halves = self.algorithm(index, top.seed).locals(len(problems)) if tried else ()
        made = named_executor(
            top.executor, problems, halves, workers=top.workers, address=top.ray or "auto", world=world
        )
        if isinstance(made, Workers):
            self._workers = made
        elif tried and world is None:
            self._chosen[index] = made.stacked, made.reason
        made.memory = self._memory
        return made

    @property
    def _memory(self) -> float:
        """Bytes of a batch."""
        if self.top.memory is not None:
            return self.top.memory
        if self.top.device.startswith("cuda"):
            return 0.1 * torch.cuda.get_device_properties(self.top.device).total_memory
        return 1e9

    def simulation(
        self,
        spec: Spec,
        watchers: Sequence[Watcher] = (),
        world: World | None = None,
        shared: Callable[[Executor], Executor] | None = None,
        arenas: Arenas | None = None,
        tried: bool = True,
    ) -> Simulation:
        """One run, from its beginning or from a saved world; runs of a program share an executor and arenas.

        tried: the executor `auto` may make a trial.
        """
        problems = self.problems(spec.seed)
        stacks = all(problem.stacks for problem in problems)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.top.precision == "tf32"
        torch.set_num_threads(self.top.threads or (1 if stacks else cores()))
        if ALGORITHMS[self.table["algorithm"][spec.index]["name"]].pooled:
            if not isinstance(problems[0], Supervised):
                raise SettingError(f"algorithm[{spec.index}]: {problems[0].name} has no data that could be pooled")
            problems = [problems[0].pooled()]
        executor = self._executor(spec.index, problems, world, tried and shared is None)
        if shared is not None:
            if isinstance(executor, Workers):
                raise SettingError(f"executor = {executor.name!r}: a sweep has processes of its own; say --workers")
            executor = shared(executor)
        return prepare(
            problems,
            self.algorithm(spec.index, spec.seed),
            self.timing,
            self.top.until,
            seed=spec.seed,
            evaluate_every=self.top.evaluate.every,
            executor=executor,
            watchers=watchers,
            world=world,
            personal=self.top.evaluate.personal,
            terms=[(task.opens, task.closes) for task in self.tasks],
            arenas=arenas,
        )


def read(path: Path | None, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in this file (None: the embedded one) with `key.path=value` overrides."""
    table = read_table(path, overrides)
    if "sweep" in table:
        raise SettingError(f"{path} has a [sweep] table; run it with `offbeat sweep {path}`")
    return Experiment(table)


def read_table(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The file as plain data."""
    if path is None:
        text, name = (
            files("offbeat.experiment").joinpath("demo.toml").read_text(encoding="utf-8"),
            "the embedded experiment",
        )
    else:
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingError(f"cannot read the experiment {name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingError(f"{name} is not a text file in UTF-8") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{name} is not TOML: {error}") from None
    for override in overrides:
        table = override_with(table, override)
    return table


def override_with(table: Mapping[str, Any], override: str) -> dict[str, Any]:
    """The table with `key.path=value` put in; lists take an index or an algorithm's name, `*` means all of them."""
    path, equals, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise SettingError(f"--set {override!r}: expected key.path=value, such as problem.clients=64")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    result = copy.deepcopy(dict(table))
    _put(result, keys, value, f"--set {override}")
    return result


def assign(table: dict[str, Any], path: str, value: Any, said: str) -> None:
    """Put a value into a table in place; `said` is how the user put it."""
    _put(table, path.split("."), value, said)


def names_of(tables: Sequence[Any]) -> list[str]:
    """What each algorithm of a file calls itself."""
    return [_named(table) for table in tables]


def _put(node: Any, path: Sequence[str], value: Any, override: str) -> None:
    head, rest = path[0], path[1:]
    if isinstance(node, list):
        chosen = [n for i, n in enumerate(node) if head in ("*", str(i), _named(n))]
        if not rest:
            raise SettingError(f"{override}: {head!r} is a whole table; name the key in it, as in {head}.lr=0.1")
        if not chosen:
            names = ", ".join(_named(n) for n in node)
            raise SettingError(f"{override}: {head!r} chooses nothing in a list of {names}")
        for item in chosen:
            _put(item, rest, value, override)
    elif not isinstance(node, dict):
        raise SettingError(f"{override}: {head!r} lies within {node!r}, which is not a table")
    elif not rest:
        node[head] = value
    else:
        _put(node.setdefault(head, {}), rest, value, override)


def _named(node: Any) -> str:
    return str(node.get("label", node.get("name", ""))) if isinstance(node, Mapping) else ""


def _labels(tables: Sequence[Any]) -> list[str]:
    """A label for each algorithm: its own, or its name, with a number where two would be the same."""
    labels: list[str] = []
    for table in tables:
        wanted = _named(table) or "algorithm"
        if not all(c.isalnum() or c in "-_.+" for c in wanted):
            raise SettingError(f"label = {wanted!r}: use letters, digits and - _ . + only; it names a folder")
        label, count = wanted, 2
        while label in labels:
            label, count = f"{wanted}-{count}", count + 1
        labels.append(label)
    return labels


def _made(kind: Any) -> Any:
    return lambda table, where: build(kind, table, where)


def _with_default(table: Any, name: str, value: Any) -> Any:
    return {name: value, **table} if isinstance(table, Mapping) else table


def _available(timing: Timing, share: float) -> Timing:
    if share == 1.0:
        return timing
    if not isinstance(timing, Times) or timing.available != 1.0:
        raise SettingError("clients.available and timing.available both say who takes work; keep one")
    return replace(timing, available=share)


def _evaluate(table: Any, where: str) -> Evaluate:
    return build(Evaluate, table, where, {"personal": _made(Personal)})
