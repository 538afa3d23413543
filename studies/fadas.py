"""FADAS against FedBuff on unlike clients, with equal budgets for tuning: `python -m studies.fadas FOLDER`.

Both have 16 pairs of step sizes, which are ranked by the mean final accuracy over two seeds; the best pair of each then
runs with five other seeds. Clients take the same times under both, so seeds are compared in pairs. With `--device cuda`
it is a few minutes; `--updates 60` shows that it works. FOLDER keeps all runs, and a second call goes on with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import offbeat as ob

FILE = Path(__file__).parent.parent / "experiments" / "fadas.toml"
LOCAL = "local.sgd.lr"
GRIDS: dict[str, dict[str, Sequence[float]]] = {
    "fedbuff": {LOCAL: (0.01, 0.03, 0.1, 0.3), "lr": (0.3, 1.0, 2.0, 4.0)},
    "fadas": {LOCAL: (0.01, 0.03, 0.1, 0.3), "lr": (0.0003, 0.001, 0.003, 0.01)},
    "fadas-da": {LOCAL: (0.01, 0.03, 0.1, 0.3), "lr": (0.0003, 0.001, 0.003, 0.01)},
}
TUNING, JUDGING = (100, 2), (1, 5)  # first seed and number of seeds
T95 = 2.776  # quantile of Student's t for five pairs


def load(label: str, seeds: tuple[int, int], overrides: dict[str, Any]) -> ob.Experiment:
    """The file with this algorithm alone."""
    table = dict(ob.load(FILE, overrides).table)
    table["algorithm"] = {label: table["algorithm"][label]}
    return ob.Experiment.parse({**table, "seed": seeds[0], "trials": seeds[1]})


def sweep(experiment: ob.Experiment, label: str, grid: dict[str, Any], out: Path) -> ob.Results:
    """A grid into this folder, unless it is there already."""
    if out.exists():
        return ob.resume(out)
    return experiment.sweep({f"algorithm.{label}.{key}": values for key, values in grid.items()}, out)


def accuracies(label: str, overrides: dict[str, Any], folder: Path) -> list[float]:
    """Of the five seeds that judge, with the pair of step sizes that was best on the others."""
    best = sweep(load(label, TUNING, overrides), label, dict(GRIDS[label]), folder / f"{label}-tuning").best("accuracy")
    chosen = {key: best.settings[f"algorithm.{label}.{key}"] for key in GRIDS[label]}
    print(f"{label}: tuned to {chosen}", flush=True)
    grid = {key: [value] for key, value in chosen.items()}
    runs = sweep(load(label, JUDGING, overrides), label, grid, folder / f"{label}-judging")
    return [run.metrics["accuracy"] for run in sorted(runs, key=lambda run: run.seed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, default=3000)
    given = parser.parse_args()
    overrides = {"until.updates": given.updates, "device": given.device}
    found = {label: accuracies(label, overrides, given.folder) for label in GRIDS}
    for label, values in found.items():
        print(f"{label:10} {mean(values):.3f}  {' '.join(f'{value:.3f}' for value in values)}")
    for label in ("fadas", "fadas-da"):
        gains = [a - b for a, b in zip(found[label], found["fedbuff"], strict=True)]
        half = T95 * stdev(gains) / sqrt(len(gains))
        print(f"{label} − fedbuff: {mean(gains):+.3f} ± {half:.3f} (95 %, five pairs)")


if __name__ == "__main__":
    main()
