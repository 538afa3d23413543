"""Every client-driven method of the catalogue on one task, with equal tuning budgets, under four clocks.

python -m studies.contest runs/contest              # what is not done yet, then the tables: four minutes of one core
python -m studies.contest runs/contest equal slow   # these clocks only; what is missing is left out of the tables
python -m studies.contest runs/contest --file mine.toml --page contest.md

Each method has one step size, which is tuned: seven values, on two seeds that are used for nothing else. Its other
settings are those of experiments/contest.toml. Then it runs with the best value on five other seeds. Stopped with
Ctrl-C, it goes on where it was. The phones' speeds need $OFFBEAT_DATA/traces.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import offbeat as ob

ROOT = Path(__file__).parent.parent
TUNING, TRIALS = {"seed": 1000, "trials": 2}, {"seed": 0, "trials": 5}
STEPS = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
ADAPTIVE = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3]  # of methods that divide by the size of their gradients
STUDENT = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    8: 2.365,
    10: 2.262,
}  # 97.5 % of t with so many trials less one
JITTER = {"low": 0.08, "high": 0.12, "per": "step"}
SLOWER = 20.0
BASELINE = "m-sync"


class Clock(NamedTuple):
    """A [timing] table. without: methods that have no sense under it."""

    text: str
    table: Mapping[str, Any]
    without: tuple[str, ...] = ()


def clocks(clients: int) -> dict[str, Clock]:
    slow = [SLOWER] + [1.0] * (clients - 1)
    return {
        "equal": Clock("Equal speeds: a local step takes U(0.08, 0.12)", {"uniform": JITTER}),
        "exponential": Clock(
            "Exponential times with rates N(10, 5), at least 0.5: a job's time does not depend on its steps",
            {"exponential": {"rate": {"normal": [10, 5], "min": 0.5}}},
            ("fedcompass",),  # it would get several steps for the time of one
        ),
        "phones": Clock("Phones: U(0.08, 0.12), times a phone's latency", {"uniform": JITTER, "speeds": "phones"}),
        "slow": Clock(
            f"One site {SLOWER:g} times slower: U(0.08, 0.12), the first client's times {SLOWER:g}",
            {"uniform": JITTER, "speeds": {"factors": {"values": slow}}},
        ),
    }


def axis(label: str, table: Mapping[str, Any]) -> tuple[str, list[float]]:
    """The step size of a method that is tuned, and its values."""
    name = table.get("name", label)
    if name == "fadas":
        return f"algorithm.{label}.lr", ADAPTIVE
    if "gradient" in table["local"]:
        return f"algorithm.{label}.lr", STEPS
    (trainer,) = table["local"]
    return f"algorithm.{label}.local.{trainer}.lr", STEPS


def swept(experiment: ob.Experiment, axes: Mapping[str, Any], folder: Path) -> ob.Results:
    """A sweep into a folder, or what is left of it to do."""
    return ob.resume(folder) if folder.exists() else experiment.sweep(axes, folder, workers=1)


class Line(NamedTuple):
    """A method's results in the five trials."""

    label: str
    step: float
    edge: bool  # whether the best step size was the smallest or the largest that was tried
    runs: list[Any]


def contest(table: Mapping[str, Any], folder: Path, clock: Clock) -> list[Line]:
    """Tune every method, then let it run with its best step size."""
    methods = {k: v for k, v in table["algorithm"].items() if v.get("name", k) not in clock.without}
    base = {**table, "timing": clock.table, "algorithm": methods}
    axes = dict(axis(label, method) for label, method in methods.items())
    tuned = swept(ob.Experiment.parse({**base, **TUNING}), axes, folder / "tuning")
    best = {label: _best(tuned, label, *axis(label, method)) for label, method in methods.items()}
    chosen = {axis(label, method)[0]: [best[label]] for label, method in methods.items()}
    found = swept(ob.Experiment.parse({**base, **TRIALS}), chosen, folder / "trials")
    return [
        Line(
            label, best[label], best[label] in (axes[key][0], axes[key][-1]), [r for r in found if r.algorithm == label]
        )
        for label, method in methods.items()
        for key in [axis(label, method)[0]]
    ]


def _best(tuned: ob.Results, label: str, key: str, values: Sequence[float]) -> float:
    """The value with the smallest mean loss; one that diverged with a seed is out."""
    losses = {
        value: [r.metrics["loss"] if r.error is None else float("inf") for r in tuned if _is(r, label, key, value)]
        for value in values
    }
    return min(values, key=lambda value: statistics.fmean(losses[value]))


def _is(result: Any, label: str, key: str, value: float) -> bool:
    return bool(result.algorithm == label and result.settings[key] == value)


def interval(values: Sequence[float], digits: int, scale: float = 1.0, sign: str = "") -> str:
    """Mean ± half of its 95 % interval by Student's t."""
    half = STUDENT[len(values)] * statistics.stdev(values) / sqrt(len(values))
    return f"{scale * statistics.fmean(values):{sign}.{digits}f} ± {scale * half:.{digits}f}"


def rows(lines: Iterable[Line], goal: float) -> Iterable[str]:
    yield f"| method | loss | less that of `{BASELINE}` | accuracy, % | time to {100 * goal:g} % | updates | step |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    lines = sorted(lines, key=lambda line: statistics.fmean(_last(r, "loss") for r in line.runs))
    (base,) = (line for line in lines if line.label == BASELINE)
    for line in lines:
        ok = [r for r in line.runs if r.error is None]
        if len(ok) < len(line.runs):
            lost = len(line.runs) - len(ok)
            yield f"| `{line.label}` | diverged in {lost} of {len(line.runs)} | | | | | {line.step:g} |"
            continue
        times = [r.time_to("accuracy", goal) for r in ok]
        reached = [t for t in times if t is not None]
        when = interval(reached, 1) if len(reached) == len(ok) else f"{len(reached)} of {len(ok)} reached it"
        losses = [r.metrics["loss"] for r in ok]
        less = [r.metrics["loss"] - _last(b, "loss") for r, b in zip(ok, base.runs, strict=True)]  # of the same seeds
        yield (
            f"| `{line.label}` | {interval(losses, 3)} | {'' if line is base else interval(less, 3, sign='+')} | "
            f"{interval([r.metrics['accuracy'] for r in ok], 1, 100.0)} | {when} | "
            f"{statistics.fmean(r.updates for r in ok):.0f} | {line.step:g}{' (edge)' if line.edge else ''} |"
        )


def _last(result: Any, metric: str) -> float:
    return float("inf") if result.error is not None else float(result.metrics[metric])


def sections(
    table: Mapping[str, Any], folder: Path, wanted: Sequence[str], reference: list[Line], goal: float
) -> Iterable[str]:
    for name, clock in clocks(table["problem"]["clients"]).items():
        if name in wanted or (folder / name / "trials" / "summary.json").exists():
            yield f"\n## {clock.text}\n"
            yield from rows([*contest(table, folder / name, clock), *reference], goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("clocks", nargs="*", default=["equal", "exponential", "phones", "slow"])
    parser.add_argument("--file", type=Path, default=ROOT / "experiments" / "contest.toml")
    parser.add_argument("--page", type=Path, help="write the tables here, too")
    given = parser.parse_args()
    table = {k: v for k, v in ob.load(given.file).table.items() if k not in ("seed", "trials")}
    pooled = {k: v for k, v in table["algorithm"].items() if v.get("name", k) == "centralised"}
    others = {k: v for k, v in table["algorithm"].items() if k not in pooled}
    goal = table["evaluate"]["targets"][0]
    equal = clocks(table["problem"]["clients"])["equal"]  # one machine has no stragglers
    reference = contest({**table, "algorithm": pooled}, given.folder / "centralised", equal)
    text = "\n".join(sections({**table, "algorithm": others}, given.folder, given.clocks, reference, goal))
    print(text)
    if given.page:
        given.page.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
