"""A reproduction's file, read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args

from offbeat.core.errors import SettingError, nearest, unknown
from offbeat.experiment import schema
from offbeat.experiment.overrides import label, override, read_table
from offbeat.experiment.tables import algorithm_tables

Scale = Literal["quick", "full"]
Pairs = Sequence[tuple[Any, Any]]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it. beyond: it says only that the number is larger than this."""

    text: str
    mean: float | None
    low: float | None = None
    high: float | None = None
    beyond: float | None = None

    @classmethod
    def read(cls, value: Any, where: str = "paper") -> Printed:
        """From "87.54 (79.38 - 91.41)", "0.09", "> 1", "-" for no number, or a plain number."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls(f"{value:g}", float(value))
        text = str(value).strip()
        number = r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
        if text == "-":
            return cls(text, None)
        if found := re.fullmatch(rf">\s*{number}", text):
            return cls(text, inf, beyond=float(found[1]))
        if found := re.fullmatch(rf"{number}(?:\s*\({number}\s*-\s*{number}\))?", text):
            low, high = (None if g is None else float(g) for g in found.groups()[1:])
            return cls(text, float(found[1]), low, high)
        raise SettingError(f"{where} = {schema.shown(value)}: expected 1.5, 1.5 (1.2 - 1.9), > 1 or -")


@dataclass(frozen=True)
class Axis:
    """key: one key of the sweep, or several, of which each run has one.   values: by short name; none: numbers."""

    key: str | Sequence[str]
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> Sequence[str]:
        return [self.key] if isinstance(self.key, str) else self.key


@dataclass(frozen=True)
class Quantity:
    """What is read off the runs of a line.

    metric: of an evaluation.   scale: factor, 100 for per cent.
    task: of this task; None: the mean over all, for `finish` the last of all.
    time to: the first evaluation at the target or better, in units of `per`; curve: of the seeds' "mean" or of "each";
        by: "time" or "version".
    largest: the rank-th largest value of `axis` whose loss is, at the end, "finite" for every seed, or also "improved":
        in the mean below that of the first evaluation.   measure: one of the run's measures, such as concurrency.mean.
    swing: mean change from one evaluation to the next in the second half.   step time: time over server steps.
    best: of the settings that a line leaves open, the one where this quantity is "lowest" or "highest".
    """

    of: Literal["final", "time to", "largest", "finish", "swing", "step time", "measure"]
    shows: str = ""
    metric: str = "accuracy"
    scale: float = 1.0
    target: float | None = None
    per: float = 1.0
    curve: Literal["mean", "each"] = "each"
    by: Literal["time", "version"] = "time"
    axis: str = ""
    rank: int = 1
    keep: Literal["finite", "improved"] = "finite"
    task: str | None = None
    measure: str = ""
    best: Literal["", "lowest", "highest"] = ""

    def __post_init__(self) -> None:
        if (self.of == "time to") != (self.target is not None):
            raise SettingError("a quantity has a target if and only if it is a `time to`")


@dataclass(frozen=True)
class Line:
    """Runs of one algorithm at some settings, and what the paper prints for them.

    at: short name of an axis → short name of its value.   paper: quantity → printed number.
    """

    name: str
    algorithm: str
    experiment: str
    at: Mapping[str, str]
    paper: Mapping[str, Printed]


@dataclass(frozen=True)
class Derived:
    """A number made of cells, which the paper prints."""

    name: str
    term: Any
    paper: Printed = field(metadata={"read": Printed.read})
    scale: float = 1.0


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as one comparison: `less`, `ratio`, `near` or `order`.

    factor, at_least, within: the bound of the first three.
    quick: what the means show at the quick scale, where it is not `held`; `close`: too close there to be sure.
    """

    text: str
    less: Pairs = ()
    ratio: Pairs = ()
    near: Pairs = ()
    order: Sequence[Any] = ()
    factor: float | None = None
    at_least: float | None = None
    within: float | None = None
    quick: Literal["held", "not held", "undecided", "not checked", "close"] = "held"

    def __post_init__(self) -> None:
        kinds = {"less": "factor", "ratio": "at_least", "near": "within", "order": ""}
        found = [kind for kind in kinds if getattr(self, kind)]
        if len(found) != 1:
            raise SettingError(f"a claim has one of {', '.join(kinds)}; this one has {' and '.join(found) or 'none'}")
        for kind, bound in kinds.items():
            if kind not in found and bound and getattr(self, bound) is not None:
                raise SettingError(f"{bound} goes with {kind}, not with {found[0]}")
        if self.near and self.within is None:
            raise SettingError("within missing")

    @property
    def pairs(self) -> Pairs:
        """What is compared with what."""
        return self.less or self.ratio or self.near or list(pairwise(self.order))

    @property
    def bound(self) -> float:
        return next((bound for bound in (self.factor, self.at_least, self.within) if bound is not None), 1.0)


@dataclass(frozen=True)
class Reason:
    """Why cells whose names match this pattern may differ from the paper's.

    ours: the reason explains only numbers of ours that are "smaller", or "larger"; by default either.
    """

    cells: str
    text: str
    ours: Literal["smaller", "larger"] | None = None


@dataclass(frozen=True)
class ExperimentChange:
    """How one experiment differs from another.

    keep: labels of the algorithms that remain; none: all.   set: overrides.   sweep: values of axes.
    """

    keep: Sequence[str] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, experiment: Mapping[str, Any]) -> dict[str, Any]:
        """The experiment, changed."""
        result = dict(experiment)
        if self.keep:
            result["algorithm"] = [each for each in result["algorithm"] if label(each) in self.keep]
            result["sweep"] = {
                path: value
                for path, value in result.get("sweep", {}).items()
                if (keys := path.split("."))[0] != "algorithm" or keys[1] in ("*", *self.keep)
            }
        result = override(result, self.set)
        if self.sweep:
            result["sweep"] = {**result.get("sweep", {}), **self.sweep}
        return result


@dataclass(frozen=True)
class Quick:
    """What is smaller in the quick version.

    says: in words.   comparable: with the paper's numbers, because the problem is still the paper's.
    skip: experiments that are not run.   all: changes of every experiment.   quantity: settings of quantities.
    """

    says: str = ""
    comparable: bool = False
    skip: Sequence[str] = ()
    all: ExperimentChange = ExperimentChange()
    quantity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperEntry:
    """One reproduction, at one scale.

    reason: why numbers may differ.   says, comparable: see `Quick`.
    """

    title: str
    paper: str
    where: str
    experiment: Mapping[str, Mapping[str, Any]]
    quantity: Mapping[str, Quantity]
    lines: Sequence[Line] = field(metadata={"read": partial(schema.read, Sequence[Mapping[str, Any]])})
    axis: Mapping[str, Axis] = field(default_factory=dict)
    derived: Sequence[Derived] = ()
    claim: Sequence[Claim] = ()
    reason: Sequence[Reason] = ()
    notes: Sequence[str] = ()
    events: bool = False
    name: str = field(default="", metadata={"setting": False})
    scale: str = field(default="full", metadata={"setting": False})
    says: str = field(default="", metadata={"setting": False})
    comparable: bool = field(default=True, metadata={"setting": False})

    @property
    def cells(self) -> list[str]:
        """Their names."""
        return [name for name, _ in self.printed]

    @property
    def printed(self) -> list[tuple[str, Printed]]:
        """What the paper prints, by cell."""
        of_lines = [(f"{line.name}:{name}", printed) for line in self.lines for name, printed in line.paper.items()]
        return of_lines + [(derived.name, derived.paper) for derived in self.derived]


def names() -> list[str]:
    """All reproductions, tables and figures in their order."""
    found = [path.stem for path in _HERE.glob("*.toml")]
    return sorted(found, key=lambda n: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", n)])


def load(name: str, scale: str = "full") -> PaperEntry:
    """The reproduction of this name; a name that ends in .toml is the path of a file of your own."""
    if scale not in get_args(Scale):
        raise unknown("scale", scale, get_args(Scale))
    own = name.endswith(".toml")
    if not own and name not in names():
        raise unknown("reproduction", name, names())
    path = Path(name) if own else _HERE / f"{name}.toml"
    return read(path.stem, _whole(read_table(path)), scale)


def _whole(table: dict[str, Any]) -> dict[str, Any]:
    """With what it takes over from the one that it is `like`."""
    if "like" not in table:
        return table
    other = read_table(_HERE / f"{table['like']}.toml")
    taken = ("experiment", "axis", "quantity", "paper", "events", "notes", "reason")
    changes = schema.read(Mapping[str, ExperimentChange], table.get("change", {}), "change")
    experiments = {
        name: changes.get(name, ExperimentChange()).apply(each) for name, each in other["experiment"].items()
    }
    return {
        **{key: other[key] for key in taken if key in other},
        **{key: value for key, value in table.items() if key not in ("like", "change")},
        "quantity": {**other["quantity"], **table.get("quantity", {})},
        "experiment": {**experiments, **table.get("experiment", {})},
    }


def read(name: str, table: Mapping[str, Any], scale: str = "full") -> PaperEntry:
    """A reproduction from its table, checked."""
    where = f"reproduction {name}"
    entry: PaperEntry = schema.build(PaperEntry, {key: each for key, each in table.items() if key != "quick"}, where)
    every = {key: _like(entry.experiment, key, where) for key in entry.experiment}
    smaller: Mapping[str, Any] = table.get("quick", {}) if scale == "quick" else {}
    general = {key: each for key, each in smaller.items() if key in vars(Quick())}
    quick: Quick = schema.build(Quick, general, f"{where}.quick")
    changes = {
        k: schema.build(ExperimentChange, each, f"{where}.quick.{k}") for k, each in smaller.items() if k not in general
    }
    for key in (*changes, *quick.skip):
        _check(key, every, f"{where}.quick")
    quantities = dict(entry.quantity)
    for key, change in quick.quantity.items():
        _check(key, quantities, f"{where}.quick.quantity")
        quantities[key] = schema.build(Quantity, {**table["quantity"][key], **change}, f"{where}.quantity.{key}")
    lines = [_line(entry, each, f"{where}.lines[{at}]", every) for at, each in enumerate(table["lines"])]
    experiments = {
        key: _copied(changes.get(key, ExperimentChange()).apply(quick.all.apply(every[key])))
        for key in dict.fromkeys(line.experiment for line in lines)
        if key not in quick.skip
    }
    entry = replace(entry, name=name, scale=scale, experiment=experiments, quantity=quantities, lines=lines)
    entry = replace(entry, says=quick.says, comparable=scale == "full" or quick.comparable)
    for cell in entry.cells:
        if entry.cells.count(cell) > 1:
            raise SettingError(f"{where}: two cells are called {cell!r}")
    return entry


def _check(value: str, known: Iterable[str], where: str) -> None:
    if value not in known:
        raise SettingError(f"{where}: unknown {value!r}; {nearest(value, known)}")


def _like(experiments: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """An experiment; one that is `like` another of the file is that one, changed."""
    table, place = dict(experiments[name]), f"{where}.experiment.{name}"
    if "like" not in table:
        return table
    other = table.pop("like")
    _check(other, experiments, f"{place}.like")
    change: ExperimentChange = schema.build(ExperimentChange, table, place)
    return change.apply(_like(experiments, other, where))


def _copied(experiment: dict[str, Any]) -> dict[str, Any]:
    """A task with `copies` is that many tasks, which differ in nothing but the number behind their name."""
    if "task" not in experiment:
        return experiment
    tasks: list[dict[str, Any]] = []
    for task in experiment["task"]:
        plain = {k: v for k, v in task.items() if k != "copies"}
        count = task.get("copies", 0)
        tasks += [{**plain, "name": f"{task['name']}-{k + 1}"} for k in range(count)] if count else [plain]
    return {**experiment, "task": tasks}


def _line(entry: PaperEntry, table: Mapping[str, Any], where: str, experiments: Mapping[str, Any]) -> Line:
    for key in table:
        _check(key, ("algorithm", "experiment", *entry.axis, *entry.quantity), where)
    experiment = table.get("experiment", next(iter(experiments)))
    _check(experiment, experiments, f"{where}.experiment")
    algorithm = schema.read(str, table.get("algorithm"), f"{where}.algorithm")
    _check(algorithm, algorithm_tables(experiments[experiment]["algorithm"]), f"{where}.algorithm")
    at = {key: text(table[key]) for key in entry.axis if key in table}
    for key, value in at.items():
        _check(value, entry.axis[key].values or [value], f"{where}.{key}")
    name = "/".join([*([experiment] if len(experiments) > 1 else []), algorithm, *at.values()])
    paper = {key: Printed.read(table[key], f"{where}.{key}") for key in entry.quantity if key in table}
    return Line(name, algorithm, experiment, at, paper)


def text(value: Any) -> str:
    """The short name of a value of an axis that has none."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)
