"""The figures of studies/diloco.py: loss against time and against updates, and what staleness alone does to it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from offbeat.experiment.intervals import estimate
from studies.diloco import AT_ONCE, COMPARED, CONTROLLED, METHODS, PARTS, TIME, UPDATES, Part, loss, tried, tuned

Runs = Sequence[Mapping[str, Any]]
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by everybody
plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})


def draw(parts: Mapping[str, Runs], small: Mapping[str, Runs], folder: Path) -> None:
    """Write tuning.png and, where parts have been judged, curves.png and staleness.png, of the small model too."""
    _tuning(parts, folder / "tuning.png")
    for runs, name in ((parts, "staleness.png"), (small, "staleness-small.png")):
        if any(tuned(runs.get("staleness-1", ()), PARTS["staleness-1"])):
            _staleness(runs, folder / name)
    compared = [part for part in COMPARED if any(tuned(parts.get(part.name, ()), part))]
    if not compared:
        return
    figure, axes = plt.subplots(2, len(compared), figsize=(3 * len(compared), 5), sharey=True, squeeze=False)
    for column, part in zip(axes.T, compared, strict=True):
        _curves(column, parts[part.name], part)
    for line, label in zip(axes, ("virtual seconds", "updates"), strict=True):
        line[0].set_ylabel("test loss")
        for axis in line:
            axis.set_xlabel(label)
    axes[0][-1].legend(frameon=False, fontsize=6)
    figure.tight_layout()
    figure.savefig(folder / "curves.png", dpi=130)


def _tuning(parts: Mapping[str, Runs], path: Path) -> None:
    shown = [part for part in PARTS.values() if parts.get(part.name)]
    figure, axes = plt.subplots(1, len(shown), figsize=(3 * len(shown), 2.8), sharey=True, squeeze=False)
    colours = dict(zip(METHODS, COLOURS, strict=True))
    for axis, part in zip(axes[0], shown, strict=True):
        for method, losses in tried(parts[part.name]).items():
            axis.plot([*losses], [*losses.values()], color=colours[method], lw=1, marker=".", label=method)
        axis.set(title=part.name, xscale="log", ylim=(1.6, 2.9), xlabel="outer step size")
    axes[0][0].set_ylabel("test loss at the end, one seed")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)


def _curves(axes: Any, runs: Runs, part: Part) -> None:
    """The mean of the seeds, which are evaluated at the same times; by updates, at the same times, too."""
    colours = dict(zip(METHODS, COLOURS, strict=True))
    for method, _, mine in tuned(runs, part):
        curves = zip(*(run["curve"] for run in mine), strict=False)
        mean = [[statistics.fmean(each) for each in zip(*rows, strict=True)] for rows in curves]
        for axis, column, most in ((axes[0], 0, TIME), (axes[1], 1, UPDATES)):
            shown = [row for row in mean if row[column] <= most * 1.02]
            axis.plot([r[column] for r in shown], [r[2] for r in shown], color=colours[method], lw=1, label=method)
    axes[0].set_title(part.text.replace(", 0.75, 1.51 and", " to"))
    axes[0].set_ylim(1.7, 2.8)


def _staleness(parts: Mapping[str, Runs], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(3.6, 2.8))
    for colour, method in zip(COLOURS[1:], CONTROLLED, strict=False):
        points = []
        for n in AT_ONCE:
            part = PARTS[f"staleness-{n}"]
            found = {name: mine for name, _, mine in tuned(parts.get(part.name, ()), part)}.get(method)
            if found is not None:
                points.append((n - 1, estimate([loss(run) for run in found])))
        if points:
            means, halves = [e.mean for _, e in points], [e.half or 0.0 for _, e in points]
            axis.errorbar([n for n, _ in points], means, halves, color=colour, lw=1, capsize=2, label=method)
    axis.set(xlabel="staleness of every update", ylabel="test loss at the end")
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
