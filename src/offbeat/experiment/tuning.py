"""Tuning: settings tried by successive halving on seeds of their own, and the best judged on the experiment's seeds.

A tuning folder holds `tuning.json` (what was asked), `rung-W-R/` (the runs of rung R of wave W, a sweep), `judged/`
(the best settings on the experiment's seeds, a sweep with its report), `best.toml` (the experiment with the best
settings) and `tuned.json`, the outcome.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, inf, isfinite, isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from offbeat.core import names
from offbeat.core.errors import Checked, Count, FolderError, SettingError
from offbeat.experiment import folder as folders, ranking, sweep
from offbeat.experiment.catalogue import file
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.grid import Grid
from offbeat.experiment.intervals import SeedMean, estimate
from offbeat.experiment.overrides import plain, put, split_path
from offbeat.experiment.results import Results
from offbeat.experiment.samplers import Axis, SamplerName, Settings, Values, axis, sampler
from offbeat.experiment.tables import algorithm_tables, is_label
from offbeat.report import toml
from offbeat.watch.files import EXPERIMENT, JUDGED, RUNS, TUNING, json_text, write_json, write_text
from offbeat.watch.results import Result

TUNED, BEST = "tuned.json", "best.toml"
_KEEP = 3  # of so many settings, one goes on to the next rung, where runs are so many times longer
_SEEDS_APART = 1000  # between the experiment's first seed and the first one for tuning


@dataclass(frozen=True)
class TuneOptions(Checked):
    """How to tune.

    budget: settings that are tried of each algorithm; all get the same number, but for those whose lists hold fewer.
    best: what settings are judged by: a metric, or `time:accuracy=0.8` for the time to a value of one.
    rungs: lengths of runs; each rung has runs three times as long as the one before and a third as many of them.
        Default: as many as the budget allows, at most 3. With 1, every setting runs to the end.
    seeds: how many seeds settings are tried on; never those of the experiment.
    seed: the first of them; default: 1,000 above the experiment's.
    sampler: which settings are tried: `latin`, an even spread; `tpe`, `qmc` or `random` of Optuna.
    workers: processes; default: one per core.
    events: keep the event logs of the runs that judge, for bytes and busy times.
    ray: the address of a Ray cluster to run on; default: this machine.
    sweeps: how many run at the same time and share the memory of the machine's GPUs.
    """

    budget: Count
    best: str | None = None
    rungs: Count | None = None
    seeds: Count = 2
    seed: int | None = None
    sampler: SamplerName = "latin"
    workers: Count | None = None
    events: bool = False
    ray: str | None = None
    sweeps: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        ranking.check_best(self.best)
        most = _rungs(self.budget)
        if self.rungs is not None and self.rungs > most:
            raise SettingError(f"rungs = {self.rungs}: a budget of {self.budget} is enough for {most}")

    @property
    def runs(self) -> int:
        """How many runs tune one algorithm with `latin`."""
        rungs = range(min(self.rungs or 3, _rungs(self.budget)))
        return self.seeds * sum(ceil(self.budget / float(_KEEP) ** rung) for rung in rungs)


@dataclass(frozen=True)
class Trial:
    """Settings of one algorithm and what came of them in a rung.

    length: of the runs, as a share of whole ones.   cost: mean over the seeds; the lower, the better.
    """

    algorithm: str
    settings: Settings
    length: float
    cost: float


@dataclass(frozen=True)
class Tuned:
    """The outcome of a tuning.

    best: the best settings of each algorithm.   edges: those of them that are the least or the largest that was tried.
    trials: all that was tried.   results: of the best settings, on the experiment's seeds.   by: what decided.
    """

    folder: Path
    experiment: Experiment
    by: str
    best: Mapping[str, Settings]
    edges: Mapping[str, Sequence[str]]
    trials: Sequence[Trial] = field(repr=False)
    results: Results = field(repr=False)

    def judged(self) -> dict[str, tuple[SeedMean | None, int, int]]:
        """Of each algorithm: the mean with its interval, how many seeds reached a value, and how many there are."""
        found: dict[str, tuple[SeedMean | None, int, int]] = {}
        for label in self.best:
            mine = [ranking.value(result, self.by) for result in self.results if result.algorithm == label]
            known = [value for value in mine if value is not None]
            found[label] = (estimate(known) if known else None), len(known), len(mine)
        return found

    def to_json(self) -> dict[str, Any]:
        """As in `tuned.json`."""
        judged = {
            label: {"mean": each and each.mean, "half": each and each.half, "reached": reached, "seeds": seeds}
            for label, (each, reached, seeds) in self.judged().items()
        }
        trials = [asdict(trial) for trial in self.trials]
        return {"by": self.by, "best": self.best, "edges": self.edges, "judged": judged, "trials": trials}


def tune(table: Mapping[str, Any], out: Path | str | None, options: TuneOptions, *, progress: bool = True) -> Tuned:
    """Tune the algorithms of a table, whose [tune] says what to try, into a new folder."""
    plan = TuningPlan(table, options)
    place = Path(RUNS) / f"tuning-{time.strftime('%Y%m%d-%H%M%S')}" if out is None else Path(out)
    if (place / TUNING).exists() or (place / EXPERIMENT).exists():
        raise FolderError(
            f"{place} already holds a run; continue it with `offbeat resume {place}` or name another folder"
        )
    first = Grid(plan.rung(plan.first(), 1.0))
    sweep.check(first, options.best, options.ray)  # a mistake is found before anything is written
    try:
        place.mkdir(parents=True, exist_ok=True)
        tuned = {"tune": table["tune"]} if "tune" in table else {}
        write_json(place / TUNING, {"experiment": {**plan.base, **tuned}, "options": asdict(options)})
    except OSError as error:
        raise FolderError(f"cannot write to {place}: {error.strerror}; name another folder with --out") from None
    return work(place, plan, progress)


def is_tuning(folder: Path) -> bool:
    """Whether this is the folder of one."""
    return (folder / TUNING).is_file()


def resume(folder: Path, *, progress: bool = True) -> Tuned:
    """Do what is not done yet."""
    try:
        asked = json.loads((folder / TUNING).read_text(encoding="utf-8"))
        table, options = asked["experiment"], TuneOptions(**asked["options"])
    except (OSError, ValueError, KeyError, TypeError):
        raise FolderError(f"{folder / TUNING} is damaged; start again in another folder") from None
    names.search(*table.get("modules", ()), Path.cwd())
    return work(folder, TuningPlan(table, options), progress)


def work(folder: Path, plan: TuningPlan, progress: bool) -> Tuned:
    """Try settings, wave by wave and rung by rung, then judge the best ones."""
    best, trials = search(plan, lambda name, table: _swept(folder / name, table, plan.options, progress))
    return _judged(folder, plan, best, trials, progress)


def search(
    plan: TuningPlan, swept: Callable[[str, Mapping[str, Any]], Sequence[Result]]
) -> tuple[dict[str, Settings], list[Trial]]:
    """The best settings of each algorithm, and all that were tried.   swept: the runs of a rung, from its table."""
    trials: list[Trial] = []
    options, finals = plan.options, dict[str, list[Trial]]()
    samplers = {label: sampler(options.sampler, axes, options.budget) for label, axes in plan.axes.items()}
    waves = max(each.waves for each in samplers.values())
    for wave in range(waves):
        count = len(range(wave, options.budget, waves))
        alive: dict[str, list[Settings]] = {label: each.ask(count) for label, each in samplers.items()}
        lengths = plan.lengths(count)
        for rung, length in enumerate(lengths):
            runs = swept(f"rung-{wave}-{rung}", plan.rung(alive, length))
            found = {
                label: [
                    Trial(label, each, length, plan.cost(runs, name))
                    for name, each in zip(_names(label, settings), settings, strict=True)
                ]
                for label, settings in alive.items()
            }
            for label, mine in found.items():
                trials += mine
                if rung == 0:
                    for each in mine:
                        samplers[label].tell(each.settings, each.cost)
                if rung == len(lengths) - 1:
                    finals.setdefault(label, []).extend(mine)
            alive = {label: _kept(mine) for label, mine in found.items()}
    best = {label: min(mine, key=lambda each: each.cost) for label, mine in finals.items()}
    return {label: each.settings for label, each in best.items()}, trials


def _judged(
    folder: Path, plan: TuningPlan, best: Mapping[str, Settings], trials: Sequence[Trial], progress: bool
) -> Tuned:
    table = plan.with_settings(best)
    write_text(folder / BEST, toml.dumps(table))
    options = _options(plan.options, plan.options.events)
    results = _swept(folder / JUDGED, plan.judging(best), plan.options, progress, options)
    by = ranking.judged_by(results, plan.options.best)
    found = Tuned(folder, Experiment.parse(table), by, best, plan.edges(best, trials), trials, results)
    write_text(folder / TUNED, json_text(found.to_json(), indent=1) + "\n")
    folders.draw_report(folder / JUDGED)
    return found


def _located(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with full paths of files, folders and modules, so that it can be run from any folder."""
    found = {key: _resolved(value, key) for key, value in table.items()}
    return {**found, "modules": homes} if (homes := names.homes(table)) else found


def _resolved(node: Any, key: str) -> Any:
    if isinstance(node, Mapping):
        return {name: _resolved(value, name) for name, value in node.items()}
    if isinstance(node, list):
        return [_resolved(each, key) for each in node]
    if key in ("file", "folder") and isinstance(node, str) and (place := file(node)).exists():
        return str(place.resolve())
    return node


def _swept(
    place: Path, table: Mapping[str, Any], tuning: TuneOptions, progress: bool, options: sweep.Options | None = None
) -> Results:
    """A sweep, or what is left of it to do."""
    grid, options = Grid(table), options or _options(tuning, False)
    if not (place / EXPERIMENT).exists():
        sweep.create(place, grid, options)
    try:
        return sweep.work(place, grid, options, progress)
    except sweep.StoppedSweepError:
        raise sweep.StoppedSweepError(f"stopped and saved; continue with `offbeat resume {place.parent}`", []) from None


def _options(tuning: TuneOptions, events: bool) -> sweep.Options:
    return sweep.Options(events, tuning.best, tuning.workers, tuning.ray, tuning.sweeps)


def _kept(trials: Sequence[Trial]) -> list[Settings]:
    """The best third, at least one."""
    ordered = sorted(trials, key=lambda each: each.cost)
    return [each.settings for each in ordered[: ceil(len(ordered) / _KEEP)]]


def _rungs(budget: int) -> int:
    """The most rungs for which a budget is enough: the last one has at least one setting."""
    count = 1
    while budget >= _KEEP**count:
        count += 1
    return count


def _names(label: str, settings: Sequence[Settings]) -> list[str]:
    """What the settings of an algorithm are called in a rung: `area+lr0.3`; by number where that is no label."""
    found = ["+".join([label, *(f"{split_path(path)[-1]}{_short(v)}" for path, v in s.items())]) for s in settings]
    plainly = len(set(found)) == len(found) and all(is_label(name) for name in found)
    return found if plainly else [f"{label}+{at}" for at in range(len(found))]


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class TuningPlan:
    """What is tuned: the experiment without its [tune] table, the axes of each algorithm, both kinds of seeds."""

    def __init__(self, table: Mapping[str, Any], options: TuneOptions) -> None:
        given = {k: v for k, v in table.items() if k != "tune"}
        self.options = options
        self.experiment = Experiment.parse(given)
        self.base = _located({**self.experiment.table, "algorithm": algorithm_tables(given["algorithm"])})
        self.axes = _axes(self.base["algorithm"], table.get("tune", {}))
        self.seeds = sorted({spec.seed for spec in self.experiment.runs})
        first = self.experiment.seed + _SEEDS_APART if options.seed is None else options.seed
        self.tuning = list(range(first, first + options.seeds))
        if both := sorted(set(self.seeds) & set(self.tuning)):
            raise SettingError(f"seed {both[0]} is used for tuning and for evaluation; choose other tuning seeds")
        self._limits = [name for name in ("time", "updates", "versions") if getattr(self.experiment.until, name)]
        if not self._limits and len(self.lengths(options.budget)) > 1:
            raise SettingError("halving shortens runs, and until has no time, updates or versions; set one, or rungs=1")

    def lengths(self, count: int) -> list[float]:
        """The lengths of runs, rung by rung."""
        rungs = min(self.options.rungs or 3, _rungs(count))
        return [float(_KEEP) ** (rung - rungs + 1) for rung in range(rungs)]

    def first(self) -> dict[str, list[Settings]]:
        """One setting of each algorithm."""
        return {label: sampler("latin", axes, 0).ask(1)[:1] for label, axes in self.axes.items()}

    def rung(self, settings: Mapping[str, Sequence[Settings]], length: float) -> dict[str, Any]:
        """All runs of a rung as one sweep: each setting is an algorithm with a label of its own."""
        table = copy.deepcopy({k: v for k, v in self.base.items() if k != "algorithm"})
        until = table.setdefault("until", {"time": 10.0})
        if not (self.options.best or "personal").removeprefix("time:").startswith("personal"):
            table.get("evaluate", {}).pop("personal", None)  # clients' own models are evaluated where they decide
        for name in self._limits:
            value = length * getattr(self.experiment.until, name)
            until[name] = value if name == "time" else max(1, round(value))
        table["algorithm"] = {
            name: self._set(label, each)
            for label, mine in settings.items()
            for name, each in zip(_names(label, mine), mine, strict=True)
        }
        return {**table, "seed": self.tuning[0], "trials": 1, "sweep": {"seed": self.tuning}}

    def _set(self, label: str, settings: Settings) -> dict[str, Any]:
        tables: dict[str, dict[str, dict[str, Any]]] = {
            "algorithm": {label: copy.deepcopy(self.base["algorithm"][label])}
        }
        for path, value in settings.items():
            put(tables, path, value, f"tune.{path}")
        return tables["algorithm"][label]

    def with_settings(self, best: Mapping[str, Settings]) -> dict[str, Any]:
        """The experiment with these settings."""
        algorithms = {label: self._set(label, best[label]) for label in self.base["algorithm"]}
        return {**copy.deepcopy(self.base), "algorithm": algorithms}

    def judging(self, best: Mapping[str, Settings]) -> dict[str, Any]:
        """The runs of these settings on the experiment's seeds, as one sweep."""
        return {**self.with_settings(best), "seed": self.seeds[0], "trials": 1, "sweep": {"seed": self.seeds}}

    def cost(self, runs: Sequence[Result], label: str) -> float:
        """What a setting is judged by in a rung: the mean over its seeds; infinite if it diverged with one."""
        by = ranking.judged_by(runs, self.options.best)
        mine = [run for run in runs if run.algorithm == label]
        return fmean(cost(run, by) for run in mine)

    def edges(self, best: Mapping[str, Settings], trials: Sequence[Trial]) -> dict[str, list[str]]:
        """The keys of each algorithm whose best value is the least or the largest of three or more that were tried."""
        found: dict[str, list[str]] = {}
        for label, settings in best.items():
            for path, value in settings.items():
                tried = {t.settings[path] for t in trials if t.algorithm == label and _number(t.settings[path])}
                if _number(value) and len(tried) > 2 and value in (min(tried), max(tried)):
                    found.setdefault(label, []).append(path)
        return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cost(run: Result, by: str) -> float:
    """What a run costs by a criterion, so that less is better.

    Of one that is too short to reach a value, the distance from it counts: it costs the time it had, and as many times
    that as it lacks of the value. One that ends worse than it began has diverged, though it may have reached the value.
    """
    if run.error is not None or run.time is None:
        return inf
    found = ranking.value(run, by)
    if not by.startswith("time:"):
        higher = by in {m.name for task in run.tasks for m in task.measured if m.higher}
        return inf if found is None or not isfinite(found) else -found if higher else found
    name, target = ranking.aim(by)
    if run.worsened(name or run.own.name):
        return inf
    if found is not None:
        return found
    last = run.overall.get(name or run.own.name)
    if last is None or isnan(last):
        return inf
    return run.time * (1.0 + abs(target - last) / (abs(target) or 1.0))


def _axes(algorithms: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, dict[str, Axis]]:
    """The axes of each algorithm: those that [tune] gives, else its step size, a hundredth to a hundred times as is."""
    found: dict[str, dict[str, Axis]] = {label: {} for label in algorithms}
    for path, values in given.items():
        keys = split_path(path)
        mine = [label for label in algorithms if len(keys) > 2 and keys[1] in ("*", label)]
        if keys[0] != "algorithm" or not mine:
            raise SettingError(f"tune.{path}: name a key of an algorithm, as in algorithm.*.local.sgd.lr")
        for label in mine:
            found[label][path.replace("*", label, 1)] = axis(path, plain(values))
    for label, table in algorithms.items():
        if not found[label]:
            path, value = step_size(label, table)
            found[label] = {path: Values(value / 100.0, value * 100.0)}
    return found


def step_size(label: str, table: Mapping[str, Any]) -> tuple[str, float]:
    """(path, value) of the step size of an algorithm: its local trainer's, else the server's."""
    local = table.get("local")
    for trainer, settings in local.items() if isinstance(local, Mapping) else ():
        if isinstance(settings, Mapping) and _number(settings.get("lr")):
            return f"algorithm.{label}.local.{trainer}.lr", float(settings["lr"])
    if _number(table.get("lr")):
        return f"algorithm.{label}.lr", float(table["lr"])
    raise SettingError(f"algorithm.{label} has no lr to tune; name what to tune in [tune] or with --over")
