"""A reproduction's file, read and checked."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from offbeat.core.errors import SettingError, unknown
from offbeat.report.comparison import NOT_CHECKED

SCALES = ("quick", "full")
OF = ("final", "time to", "largest", "finish", "swing", "step time", "measure")
KEEP = ("finite", "improved")
STATES = ("held", "not held", "undecided", NOT_CHECKED)

_KEYS = (
    *("title", "paper", "where", "like", "experiment", "change", "events", "axis", "quantity", "lines", "derived"),
    *("claim", "reason", "notes", "quick"),
)


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it. beyond: it says only that the number is larger than this."""

    text: str
    mean: float | None
    low: float | None = None
    high: float | None = None
    beyond: float | None = None

    @classmethod
    def read(cls, value: Any) -> Printed:
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
        raise SettingError(f"{value!r} is no printed number: write 1.5, 1.5 (1.2 - 1.9), > 1 or -")


@dataclass(frozen=True)
class Quantity:
    """What is read off the runs of a line. of: one of OF.

    metric: of an evaluation.   scale: factor, 100 for per cent.
    task: of this task; None: the mean over all, for `finish` the last of all.
    time to: the first evaluation with metric ≥ target, in units of `per`; curve: of the seeds' "mean" or of "each";
        by: "time" or "version".
    largest: the rank-th largest value of `axis` whose loss is, at the end, "finite" for every seed, or also "improved":
        in the mean below that of the first evaluation.   measure: one of the run's measures, such as concurrency.mean.
    swing: mean change from one evaluation to the next in the second half.   step time: time over server steps.
    best: of the settings that a line leaves open, the one where this quantity is "lowest" or "highest".
    """

    of: str
    shows: str = ""
    metric: str = "accuracy"
    scale: float = 1.0
    target: float | None = None
    per: float = 1.0
    curve: str = "each"
    by: str = "time"
    axis: str = ""
    rank: int = 1
    keep: str = "finite"
    task: str | None = None
    measure: str = ""
    best: str = ""

    def __post_init__(self) -> None:
        closed = {"of": OF, "curve": ("mean", "each"), "by": ("time", "version"), "keep": KEEP}
        closed["best"] = ("", "lowest", "highest")
        for name, values in closed.items():
            if getattr(self, name) not in values:
                raise unknown(f"{name} of a quantity:", getattr(self, name), values)
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
    paper: Printed
    scale: float = 1.0


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a comparison.

    quick: what was found at the quick scale, where it is not `held`; `close`: too close there to be sure.
    """

    text: str
    kind: str
    terms: Sequence[Any]
    bound: float
    quick: str = "held"


@dataclass(frozen=True)
class PaperEntry:
    """One reproduction, at one scale."""

    name: str
    scale: str
    title: str
    paper: str
    where: str
    experiments: Mapping[str, dict[str, Any]]
    axes: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]]  # keys, and short name → value
    quantities: Mapping[str, Quantity]
    lines: Sequence[Line]
    derived: Sequence[Derived]
    claims: Sequence[Claim]
    reasons: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    says: str = ""  # what is smaller in the quick version
    comparable: bool = True  # with the paper's numbers: not where the quick version has another problem
    events: bool = False
    cells: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        ids = [f"{line.name}:{quantity}" for line in self.lines for quantity in line.paper]
        ids += [derived.name for derived in self.derived]
        for name in ids:
            if ids.count(name) > 1:
                raise SettingError(f"two cells are called {name!r}")
        object.__setattr__(self, "cells", ids)


def names() -> list[str]:
    """All reproductions, tables and figures in their order."""
    found = [f.name.removesuffix(".toml") for f in files("offbeat.papers").iterdir() if f.name.endswith(".toml")]
    return sorted(found, key=lambda n: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", n)])


def load(name: str, scale: str = "full") -> PaperEntry:
    """The reproduction of this name; a name that ends in .toml is that of a file of your own."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if name.endswith(".toml"):
        return read(Path(name).stem, _own(Path(name)), scale)
    if name not in names():
        raise unknown("reproduction", name, names())
    return read(name, _table(name), scale)


def read(name: str, table: Mapping[str, Any], scale: str = "full") -> PaperEntry:
    """A reproduction from its table, checked."""
    try:
        return _entry(name, table, scale)
    except SettingError as error:
        raise SettingError(f"reproduction {name}: {error}") from None


def _own(path: Path) -> dict[str, Any]:
    try:
        return _whole(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingError(f"cannot read the reproduction {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} is not TOML: {error}") from None


def _table(name: str) -> dict[str, Any]:
    text = files("offbeat.papers").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return _whole(tomllib.loads(text))


def _whole(table: dict[str, Any]) -> dict[str, Any]:
    """With what it takes over from the one that it is `like`."""
    if "like" not in table:
        return table
    other = _table(table["like"])
    shared: dict[str, Any] = {
        key: other[key]
        for key in ("experiment", "axis", "quantity", "paper", "events", "notes", "reason")
        if key in other
    }
    change = table.get("change", {})
    experiments: dict[str, Any] = {k: _changed(v, change.get(k, {})) for k, v in other["experiment"].items()}
    experiments |= table.get("experiment", {})
    quantities = {**other["quantity"], **table.get("quantity", {})}
    return {**shared, **table, "quantity": quantities, "experiment": experiments}


def _entry(name: str, table: Mapping[str, Any], scale: str) -> PaperEntry:
    for key in table:
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
    for key in ("title", "paper", "where", "experiment", "quantity", "lines"):
        if key not in table:
            raise SettingError(f"lacks {key!r}")
    quick: dict[str, Any] = table.get("quick", {}) if scale == "quick" else {}
    every = {key: _like(table["experiment"], key) for key in table["experiment"]}
    changes = {k: v for k, v in quick.items() if k not in ("says", "comparable", "skip", "all", "quantity")}
    for key in (*changes, *quick.get("skip", ())):
        if key not in every:
            raise unknown("experiment in quick:", key, every)
    axes = {key: _axis(value) for key, value in table.get("axis", {}).items()}
    smaller = quick.get("quantity", {})
    quantities: dict[str, Quantity] = {
        key: _made(Quantity, {**value, **smaller.get(key, {})}, f"quantity.{key}")
        for key, value in table["quantity"].items()
    }
    lines = [_line(each, axes, quantities, every) for each in table["lines"]]
    experiments: dict[str, dict[str, Any]] = {
        key: _copied(_changed(_changed(every[key], quick.get("all", {})), changes.get(key, {})))
        for key in dict.fromkeys(line.experiment for line in lines)
        if key not in quick.get("skip", ())
    }
    derived = [
        Derived(d["name"], d["term"], Printed.read(d["paper"]), float(d.get("scale", 1.0)))
        for d in table.get("derived", ())
    ]
    return PaperEntry(
        name,
        scale,
        table["title"],
        table["paper"],
        table["where"],
        experiments,
        axes,
        quantities,
        lines,
        derived,
        [_claim(each) for each in table.get("claim", ())],
        [(each["cells"], each["text"]) for each in table.get("reason", ())],
        table.get("notes", ()),
        quick.get("says", ""),
        scale == "full" or bool(quick.get("comparable", False)),
        bool(table.get("events", False)),
    )


def _changed(experiment: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """set: key path → value, `*` for every item of a list.   sweep: values of axes.   keep: labels of algorithms."""
    for key in change:
        if key not in ("set", "sweep", "keep"):
            raise unknown("key of a change:", key, ("set", "sweep", "keep"))
    result = copy.deepcopy(dict(experiment))
    if "keep" in change:
        result["algorithm"] = [a for a in result["algorithm"] if label(a) in change["keep"]]
        labels = [label(a) for a in result["algorithm"]]
        result["sweep"] = {k: v for k, v in result.get("sweep", {}).items() if _about(k, labels)}
    for path, value in change.get("set", {}).items():
        _put(result, path.split("."), copy.deepcopy(value), path)
    if "sweep" in change:
        result["sweep"] = {**result.get("sweep", {}), **change["sweep"]}
    return result


def _like(experiments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An experiment; one that is `like` another of the file is that one, changed."""
    table = experiments[name]
    if "like" not in table:
        return dict(table)
    if table["like"] not in experiments:
        raise unknown(f"experiment that {name} is like:", table["like"], experiments)
    return _changed(_like(experiments, table["like"]), {k: v for k, v in table.items() if k != "like"})


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


def label(algorithm: Mapping[str, Any]) -> str:
    """What an algorithm of an experiment calls itself."""
    return str(algorithm.get("label", algorithm.get("name", "")))


def _about(path: str, labels: Sequence[str]) -> bool:
    """Whether an axis concerns algorithms with these labels."""
    keys = path.split(".")
    return keys[0] != "algorithm" or keys[1] == "*" or keys[1] in labels


def _put(node: Any, path: Sequence[str], value: Any, said: str) -> None:
    head, rest = path[0], path[1:]
    if isinstance(node, list):
        chosen = [n for i, n in enumerate(node) if head in ("*", str(i), label(n))]
        if not chosen or not rest:
            raise SettingError(f"a change sets {said}, but {head!r} chooses nothing there")
        for item in chosen:
            _put(item, rest, value, said)
    elif not rest:
        node[head] = value
    else:
        _put(node.setdefault(head, {}), rest, value, said)


def _axis(table: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """key: one key of the sweep, or several, of which each run has one.   values: short names; absent: numbers."""
    keys = table["key"]
    return tuple([keys] if isinstance(keys, str) else keys), table.get("values", {})


def _made(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    known = {f.name for f in fields(kind)}
    for key in table:
        if key not in known:
            raise unknown(f"key in {where}:", key, known)
    return kind(**table)


def _line(
    table: Mapping[str, Any],
    axes: Mapping[str, Any],
    quantities: Mapping[str, Quantity],
    experiments: Mapping[str, Any],
) -> Line:
    for key in table:
        if key not in ("algorithm", "experiment", *axes, *quantities):
            raise unknown("key in a line:", key, ["algorithm", "experiment", *axes, *quantities])
    experiment = table.get("experiment", next(iter(experiments)))
    if experiment not in experiments:
        raise unknown("experiment of a line:", experiment, experiments)
    if table["algorithm"] not in [label(a) for a in experiments[experiment]["algorithm"]]:
        raise unknown("algorithm of a line:", table["algorithm"], map(label, experiments[experiment]["algorithm"]))
    at = {key: _text(table[key]) for key in axes if key in table}
    for key, value in at.items():
        if axes[key][1] and value not in axes[key][1]:
            raise unknown(f"{key} of a line:", value, axes[key][1])
    parts = [experiment] if len(experiments) > 1 else []
    name = "/".join([*parts, table["algorithm"], *at.values()])
    return Line(name, table["algorithm"], experiment, at, {q: Printed.read(table[q]) for q in quantities if q in table})


def _claim(table: Mapping[str, Any]) -> Claim:
    kinds = {"less": "factor", "ratio": "at_least", "near": "within", "order": ""}
    found = [kind for kind in kinds if kind in table]
    if len(found) != 1:
        raise SettingError(f"a claim has one of {', '.join(kinds)}; this one has {', '.join(found) or 'none'}: {table}")
    kind = found[0]
    for key in table:
        if key not in ("text", "quick", kind, kinds[kind]):
            raise unknown("key in a claim:", key, ["text", "quick", kind, kinds[kind]])
    if table.get("quick", "held") not in (*STATES, "close"):
        raise unknown("state of a claim:", table["quick"], (*STATES, "close"))
    bound = float(table.get(kinds[kind], 1.0)) if kind != "near" else float(table["within"])
    terms = table[kind]
    if kind != "order" and not all(isinstance(pair, list) and len(pair) == 2 for pair in terms):
        raise SettingError(f"{kind} takes a list of pairs: {terms}")
    return Claim(table["text"], kind, terms, bound, table.get("quick", "held"))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def cells_of(term: Any) -> Iterator[str]:
    """The names of the cells in a term."""
    if isinstance(term, str):
        yield term
    elif isinstance(term, Mapping | list):
        for each in term.values() if isinstance(term, Mapping) else term:
            yield from cells_of(each)
