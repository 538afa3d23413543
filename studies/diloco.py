"""Synchronous and asynchronous DiLoCo on Shakespeare's plays, and what staleness alone does to the outer momentum.

python -m studies.diloco runs/diloco                                   # all that is not done yet
python -m studies.diloco docs/results/diloco --device cuda --width 24 --limit 450   # as much of the rest as fits
python -m studies.diloco runs/diloco --size tiny --parts unequal-like  # shows that it works, on a CPU
python -m studies.diloco docs/results/diloco/small --size small --methods none nesterov --width 8 \
    --parts staleness-1 staleness-4 staleness-16                       # on a CPU
python -m studies.diloco docs/results/diloco/grace --size small --methods none nesterov delayed dylu --grace 3.33 \
    --parts equal-like unequal-like                                    # on a CPU
python -m studies.diloco docs/results/diloco --page docs/results/diloco.md    # tables and figures, and no runs

Four workers train a GPT of 0.8 million parameters on windows of 64 characters, 32 steps of AdamW a job. Their steps
take the same time, or 0.58, 0.75, 1.51 and 3.33 s (Liu et al. 2024); their shards are alike (mixed), or one has the
comedies, one the tragedies, one the English histories and one the rest. Every method has one outer step size, tuned
over the same values on a seed that is used for nothing else, then judged on others.

The parts staleness-C vary staleness and nothing else: 16 workers of equal speed with like shards, C of which work at a
time, so that every update of a run is C - 1 versions old once it has begun; updates, local steps and data are the same.

FOLDER gets a JSON file for each part; a run is kept when it ends, so a call that is stopped loses the runs at work.
Needs $OFFBEAT_DATA with shakespeare; no pyarrow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from offbeat.core.errors import DivergedError
from offbeat.data.base import Dataset
from offbeat.data.folder import find, root
from offbeat.data.plays import roles
from offbeat.data.samples import Stored
from offbeat.data.texts import windows
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.intervals import SeedMean, difference, estimate
from offbeat.experiment.overrides import override
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.threads import computing
from offbeat.watch.history import History
from studies.in_memory import InMemory, recorded, write

STEPS, UPDATES = 32, 200  # local steps of a job; updates of four workers of equal speed, each step of which takes 1 s
TIME = STEPS * UPDATES / 4.0
OUTER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # step sizes tried
TUNING, SEEDS = 1000, range(3)  # seeds
SPEEDS = {"equal": [1.0] * 4, "unequal": [0.58, 0.75, 1.51, 3.33]}  # seconds a local step
AT_ONCE = (1, 4, 16)  # workers at work in the parts about staleness
EVALUATIONS = 20  # of a run that judges
_FURTHER = 2  # step sizes tried beyond an edge, at most
MARK = "<!-- the tables: studies.diloco --page -->"
KINDS = {  # by the beginnings of the files' names; the rest are comedies
    "histories": ("1king", "2king", "3king", "king", "life"),
    "tragedies": ("antony", "coriolanus", "hamlet", "julius", "macbeth", "othello", "romeo", "timon", "titus"),
    "others": ("cymbeline", "pericles", "tempest", "winters", "troilus", "measure", "alls", "twonoble"),
}


def _kind(play: str) -> str:
    if play.startswith("kinglear"):
        return "tragedies"
    return next((kind for kind, names in KINDS.items() if play.startswith(names)), "comedies")


@lru_cache(maxsize=2)
def kinds(test: int = 1000, plays: int | None = None) -> Dataset:
    """Four texts, one of each kind of play. test: windows that losses are of.   plays: the first of each kind only."""
    said: dict[str, list[str]] = {}
    for path in find("shakespeare", root()):
        if words := roles(path):
            said.setdefault(_kind(path.stem), []).append("\n".join(words.values()))
    found = windows({kind: "\n".join(texts[:plays]) for kind, texts in sorted(said.items())}, name="plays by kind")
    every = max(1, len(found.test["y"]) // test)
    fewer = Stored({name: found.test[name][::every] for name in ("x", "y")})
    return Dataset(
        found.name,
        found.train,
        fewer,
        classes=found.classes,
        owner=found.owner,
        owners=found.owners,
        tokens=found.tokens,
    )


@lru_cache(maxsize=1)
def few() -> Dataset:
    """The first play of each kind, for a trial on a CPU."""
    return kinds(test=64, plays=1)


class Size(NamedTuple):
    """What a run costs. batch: windows.   share: of the virtual time.   shown: evaluations of a run that judges."""

    model: Mapping[str, int]
    steps: int
    batch: int
    data: str = "kinds"
    share: float = 1.0
    shown: int = EVALUATIONS


SIZES = {
    "full": Size({"layers": 4, "heads": 4, "width": 128}, STEPS, 8),
    "small": Size({"layers": 2, "heads": 4, "width": 64}, STEPS // 2, 4, share=0.5, shown=2),
    "tiny": Size({"layers": 1, "heads": 2, "width": 16}, STEPS, 2, "few", 0.1),
}


class Method(NamedTuple):
    """A row of the tables. table: its settings without the outer step size, which has the key `outer`."""

    text: str
    table: Mapping[str, Any]
    outer: str


def _asynchronous(text: str, server: str, more: Mapping[str, Any] | None = None, **settings: Any) -> Method:
    table = {"name": "async-diloco", "server": {server: {"beta": 0.9, **settings}}, **(more or {})}
    return Method(text, table, f"server.{server}.lr")


METHODS = {
    "sync": Method(
        "synchronous DiLoCo, Nesterov", {"name": "diloco", "server": {"nesterov": {"beta": 0.9}}}, "server.nesterov.lr"
    ),
    "none": Method(
        "asynchronous, no momentum",
        {"name": "async-diloco", "server": {"nesterov": {"beta": 0.0}}},
        "server.nesterov.lr",
    ),
    "nesterov": _asynchronous("asynchronous, Nesterov", "nesterov"),
    "delayed": _asynchronous("delayed Nesterov", "delayed-nesterov", size=4),
    "dylu": _asynchronous("delayed Nesterov with DyLU", "delayed-nesterov", {"dynamic": True}, size=4),
    "mla": _asynchronous("momentum look-ahead (MLA)", "look-ahead"),
    "heloco": _asynchronous("HeLoCo", "heloco", {"ahead": True}),
}
CONTROLLED = ("none", "nesterov", "delayed")


class Part(NamedTuple):
    """Runs that are tuned together. at_once: workers at work, of the parts about staleness."""

    name: str
    speeds: str
    like: bool
    at_once: int | None = None

    @property
    def text(self) -> str:
        speeds = "0.58, 0.75, 1.51 and 3.33 s a step" if self.speeds == "unequal" else "1 s a step"
        return f"{speeds}, {'like' if self.like else 'unlike'} shards"

    @property
    def methods(self) -> Sequence[str]:
        return list(METHODS) if self.at_once is None else CONTROLLED

    @property
    def outer(self) -> Sequence[float]:
        """The step sizes that are tried: under much staleness, momentum needs small ones."""
        return OUTER if self.at_once is None else (OUTER[0] / 2, *OUTER)


PARTS = {
    part.name: part
    for part in (
        Part("unequal-like", "unequal", True),
        Part("unequal-unlike", "unequal", False),
        *(Part(f"staleness-{n}", "equal", True, n) for n in AT_ONCE),
        Part("equal-like", "equal", True),
        Part("equal-unlike", "equal", False),
    )
}
COMPARED = [part for part in PARTS.values() if part.at_once is None]
Parts = Mapping[str, Sequence[Mapping[str, Any]]]  # runs by the name of their part


def _length(size: Size) -> tuple[int, float]:
    """(updates of four workers of equal speed, virtual time) of a run."""
    return int(size.share * UPDATES), size.share * size.steps / STEPS * TIME


def table(part: Part, method: str, outer: float, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """The experiment of a run."""
    size, chosen = SIZES[given.size], METHODS[method]
    updates, time = _length(size)
    until: dict[str, Any] = {"time": time}
    if method == "sync" and seed != TUNING:  # as many updates as the others, too
        until["time"] *= max(SPEEDS[part.speeds])
    timing: dict[str, Any] = {"constant": {"time": 1.0, "per": "step"}}
    algorithm = {
        **chosen.table,
        "local": {"adamw": {"lr": 1e-3, "steps": size.steps, "batch": size.batch, "keep": True}},
    }
    if part.at_once is None:
        timing["speeds"] = {"factors": {"values": SPEEDS[part.speeds]}}
    else:
        algorithm["concurrency"] = part.at_once
        until = {"updates": updates}
    if method != "sync" and given.grace is not None:
        algorithm["grace"] = given.grace
    every = time * 4 / (part.at_once or 4)  # the time of a run
    every = 10 * every if seed == TUNING else every / size.shown  # and at the end
    plain = {
        "seed": seed,
        "until": until,
        "evaluate": {"every": every},
        "problem": {
            "data": f"studies.diloco:{size.data}",
            "model": {"gpt": dict(size.model)},
            "clients": 4 if part.at_once is None else 16,
            "split": "iid" if part.like else "owners",
        },
        "timing": timing,
        "algorithm": {method: algorithm},
        "device": given.device,
        "precision": "tf32" if given.device.startswith("cuda") else "single",
        "compile": given.compile,
    }
    return override(plain, {f"algorithm.{method}.{chosen.outer}": outer})


class Bench:
    """The runs of a part as one program. A run is known by (method, outer step size, seed)."""

    def __init__(self, path: Path, part: Part, given: argparse.Namespace, end: float) -> None:
        self.path, self.part, self.given = path, part, given
        self.runs, self.memory = recorded(path), InMemory(end - time.monotonic(), given.share)
        self.at_work: dict[int, tuple[dict[str, Any], History]] = {}

    def work(self) -> None:
        """Tune, then judge; the parts about staleness also with the step size that is best without it."""
        methods = [method for method in self.part.methods if method in self.given.methods]
        self.run([(method, outer, TUNING) for method in methods for outer in self.part.outer])
        for _ in range(_FURTHER):  # where the best is at an edge of what was tried, the next one, too
            self.run([(method, outer, TUNING) for method in methods for outer in beyond(self.runs, method)])
        chosen = [(method, best(self.runs, method)) for method in methods]
        self.run([(*each, seed) for seed in SEEDS for each in chosen])
        if self.part.at_once is not None and self.part.at_once > 1:
            fresh = json.loads((self.path.parent / "staleness-1.json").read_text())["runs"]
            self.run([(method, best(fresh, method), seed) for seed in SEEDS for method in methods])

    def run(self, wanted: Sequence[tuple[str, float, int]]) -> None:
        """Those of these runs that are not done yet."""
        known = {(r["method"], r["outer"], r["seed"]) for r in self.runs}
        left = [each for each in wanted if each not in known]
        makers = ((number, partial(self._make, number, *each)) for number, each in enumerate(left))
        began = time.monotonic()
        for _ in Program(makers, self._over, self.given.width).rounds():
            if self.memory.late:
                print(f"{self.part.name}: stopped by --limit; the same command goes on", flush=True)
                raise SystemExit(3)
        if left:
            print(f"{self.part.name}: {len(left)} runs in {time.monotonic() - began:.0f} s", flush=True)

    def _make(self, number: int, method: str, outer: float, seed: int) -> Simulation:
        experiment = Experiment.parse(table(self.part, method, outer, seed, self.given))
        history = History()
        self.at_work[number] = {"method": method, "outer": outer, "seed": seed}, history
        return self.memory.make(experiment, history)

    def _over(self, number: int, run: Simulation, error: DivergedError | None) -> None:
        known, history = self.at_work.pop(number)
        rows = [[float(f"{x:.5g}") for x in (m.time, m.updates, m.metrics["loss"])] for m in history.measurements]
        self.runs.append({**known, "diverged": error is not None, "curve": rows})
        write(self.path, {"part": self.part.name, "columns": ["time", "updates", "loss"], "runs": self.runs})


def loss(run: Mapping[str, Any], at: float = float("inf"), column: int = 0) -> float:
    """The last loss up to a time, or with column 1 up to so many updates; infinite if the run diverged."""
    rows = [row for row in run["curve"] if row[column] <= at * (1 + 1e-9)]
    return float("inf") if run["diverged"] or not rows else float(rows[-1][2])


def best(runs: Sequence[Mapping[str, Any]], method: str) -> float:
    """The outer step size with the smallest loss on the seed for tuning."""
    tuned: dict[float, float] = {
        run["outer"]: loss(run) for run in runs if run["method"] == method and run["seed"] == TUNING
    }
    return min(sorted(tuned), key=lambda outer: tuned[outer])


def beyond(runs: Sequence[Mapping[str, Any]], method: str) -> list[float]:
    """The next step size, where the best one is at an edge of those that were tried."""
    steps, outer = tried(runs)[method], best(runs, method)
    return [outer / 2] if outer == min(steps) else [2 * outer] if outer == max(steps) else []


def judged(runs: Sequence[Mapping[str, Any]], method: str, outer: float) -> list[Mapping[str, Any]]:
    found = [r for r in runs if (r["method"], r["outer"]) == (method, outer) and r["seed"] in SEEDS]
    return sorted(found, key=lambda run: run["seed"])


def tuned(runs: Sequence[Mapping[str, Any]], part: Part) -> Iterator[tuple[str, float, list[Mapping[str, Any]]]]:
    """Each method that has all of its runs: its step size, and the runs that judge it."""
    for method in part.methods:
        if len(tried(runs).get(method, ())) >= len(part.outer):
            outer = best(runs, method)
            mine = judged(runs, method, outer)
            if len(mine) == len(SEEDS):
                yield method, outer, mine


class Line(NamedTuple):
    """A row of a table of judged runs. edge: whether the step size is at an edge of those that were tried."""

    text: str
    outer: float
    edge: bool
    runs: Sequence[Mapping[str, Any]]


def lines(runs: Sequence[Mapping[str, Any]], part: Part, more: str = "") -> Iterator[Line]:
    """The rows of a part's table.   more: what is said behind a method's name."""
    for method, outer, mine in tuned(runs, part):
        yield Line(METHODS[method].text + more, outer, bool(beyond(runs, method)), mine)


def rows(found: Sequence[Line], size: str = "full") -> Iterator[str]:
    """The table of a part, whose first row is what the others are compared with, if that is synchronous."""
    updates, time = _length(SIZES[size])
    base = found[0].runs if found and found[0].text == METHODS["sync"].text else None
    yield f"| method | loss at the end | less that of sync | loss after {updates} updates | updates | outer step |"
    yield "|---|---:|---:|---:|---:|---:|"
    for text, outer, edge, mine in found:
        losses, fixed = [loss(run, time) for run in mine], [loss(run, updates, 1) for run in mine]
        less = "" if base is None or mine is base else _less(losses, [loss(run, time) for run in base])
        done = statistics.fmean(max((row[1] for row in run["curve"] if row[0] <= time), default=0) for run in mine)
        at = f"{outer:g}{' (edge)' if edge else ''}"
        yield f"| {text} | {_mean(losses)} | {less} | {_mean(fixed)} | {done:.0f} | {at} |"


def tried(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[float, float]]:
    """By method and step size, the loss on the seed for tuning."""
    found: dict[str, dict[float, float]] = {}
    for run in runs:
        if run["seed"] == TUNING:
            found.setdefault(run["method"], {})[run["outer"]] = loss(run)
    return {method: dict(sorted(each.items())) for method, each in found.items()}


def trials(runs: Sequence[Mapping[str, Any]], part: Part) -> Iterator[str]:
    """The table of a part that has been tuned and not judged."""
    yield "| method | smallest loss of all step sizes, one seed | outer step |"
    yield "|---|---:|---:|"
    for method, losses in tried(runs).items():
        outer = min(losses, key=lambda each: losses[each])
        yield f"| {METHODS[method].text} | {losses[outer]:.3f} | {outer:g} |"


def _mean(values: Sequence[float]) -> str:
    return "diverged" if float("inf") in values else estimate(values).text(3)


def _less(ours: Sequence[float], theirs: Sequence[float]) -> str:
    return "" if float("inf") in (*ours, *theirs) else difference(ours, theirs).text(3, sign="+")


def harm(parts: Parts) -> Iterator[str]:
    """What staleness alone does: each method's loss less that of the same method without staleness, seed by seed."""
    fresh = parts.get("staleness-1", ())
    yield "| method | staleness | step tuned for it | loss | more than with 0 | step tuned for 0 | loss | more |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for method in CONTROLLED:
        base = {name: (outer, mine) for name, outer, mine in tuned(fresh, PARTS["staleness-1"])}.get(method)
        for n in AT_ONCE:
            part = PARTS[f"staleness-{n}"]
            line = {name: (o, mine) for name, o, mine in tuned(parts.get(part.name, ()), part)}.get(method)
            if base is None or line is None:
                continue
            edge = " (edge)" if beyond(parts[part.name], method) else ""
            cells = [f"{line[0]:g}{edge}", *_worse(line[1], base[1]), f"{base[0]:g}"]
            cells += _worse(judged(parts[part.name], method, base[0]), base[1])
            yield f"| {METHODS[method].text} | {n - 1} | {' | '.join(cells)} |"


def _worse(runs: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    ours, theirs = [loss(run) for run in runs], [loss(run) for run in base]
    if len(ours) != len(theirs):
        return "not run", ""
    return _mean(ours), "" if runs == base else _less(ours, theirs)


def gap(parts: Parts, n: int) -> SeedMean | None:
    """By how much more staleness n - 1 costs Nesterov than no momentum, each tuned for it."""
    found = {}
    for name in ("staleness-1", f"staleness-{n}"):
        for method, _, mine in tuned(parts.get(name, ()), PARTS[name]):
            found[name, method] = [loss(run) for run in mine]
    try:
        cost = [
            [a - b for a, b in zip(found[f"staleness-{n}", m], found["staleness-1", m], strict=True)]
            for m in ("nesterov", "none")
        ]
    except KeyError:
        return None
    return difference(*cost)


def tables(parts: Parts, small: Parts, waiting: Parts) -> Iterator[str]:
    """All that is known.   small: of the small model.   waiting: of the small model with a grace period."""
    for part in COMPARED:
        if runs := parts.get(part.name):
            yield f"\n### {part.text}\n"
            found = [*lines(runs, part)]
            yield from rows(found) if found else trials(runs, part)
    yield from alone(parts)
    yield from alone(small, ", small model")
    for part in COMPARED:
        found = [*lines(small.get(part.name, ()), part), *lines(waiting.get(part.name, ()), part, ", grace period")]
        if found:
            yield f"\n### {part.text}, small model\n"
            yield from rows(found, "small")


def alone(parts: Parts, size: str = "") -> Iterator[str]:
    """What is known about staleness alone.   size: other than the page's."""
    if fresh := parts.get("staleness-1"):
        yield f"\n### Staleness alone{size}\n"
        yield from harm(parts) if any(tuned(fresh, PARTS["staleness-1"])) else trials(fresh, PARTS["staleness-1"])
        for n in AT_ONCE[1:]:
            if (found := gap(parts, n)) is not None:
                yield f"\nStaleness {n - 1} costs Nesterov {found.text(3, sign='+')} more than it costs no momentum."


def kept(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs in a folder's records, by part."""
    files = {name: folder / f"{name}.json" for name in PARTS}
    return {name: recorded(path) for name, path in files.items() if path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("--width", type=int, default=4, help="runs at work at once; on a GPU 16 or more")
    parser.add_argument("--share", type=float, default=1.0, help="of a GPU's memory, for this process")
    parser.add_argument("--compile", action="store_true", help="compile gradients")
    parser.add_argument("--size", default="full", choices=list(SIZES), help="of the model and of a job")
    parser.add_argument("--grace", type=float, help="virtual seconds that asynchronous methods wait; default: none")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument(
        "--page",
        type=Path,
        help="write its tables, and figures into the folder; run nothing",
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.limit
    if given.page is None:
        for name in given.parts:
            with computing(()):
                Bench(given.folder / f"{name}.json", PARTS[name], given, end).work()
    else:
        parts, small, waiting = (kept(given.folder / name) for name in ("", "small", "grace"))
        words = given.page.read_text(encoding="utf-8").partition(MARK)[0] if given.page.exists() else ""
        text = "\n".join([words + MARK, *tables(parts, small, waiting)])
        given.page.write_text(text + "\n", encoding="utf-8")
        from studies.diloco_figure import draw

        draw(parts, small, given.folder)


if __name__ == "__main__":
    main()
