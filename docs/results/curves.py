"""Draws the figures of these pages from the curves beside them: `python docs/results/curves.py` (needs matplotlib)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by everybody
plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "offbeat"})


def read(path: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads((HERE / path).read_text())["runs"]
    return runs


def fedast() -> None:
    """Accuracy of the four tasks over time, three seeds each, and the requests that FedAST gave to each of them when
    buffers were rounded to the nearest size."""
    older = [run for run in read("fedast/fig7.json") if run["inputs"] == "standard"]
    curves = {
        "FedAST": [{task["name"]: [(t, a) for t, _, a in task["curve"]] for task in run["tasks"]}
                   for run in read("fedast/fig24.json") if run["algorithm"] == "dynamic"],
        "Sync-ST": [{name: task["curve"] for name, task in run["tasks"].items()}
                    for run in older if run["algorithm"] == "sync-st"],
    }  # fmt: skip
    targets = {"mnist": 0.93, "fashion": 0.82, "cifar10": 0.63, "shakespeare": 0.42}
    figure, axes = plt.subplots(1, 4, figsize=(12, 2.9), constrained_layout=True)
    for axis, (title, found) in zip(axes, curves.items(), strict=False):
        for colour, (name, target) in zip(COLOURS, targets.items(), strict=False):
            for number, curve in enumerate(found):
                label = name if number == 0 else None
                axis.plot(*zip(*curve[name], strict=True), color=colour, lw=0.8, label=label)
            axis.axhline(target, color=colour, lw=0.6, ls=":")
        axis.set(title=title, xlabel="virtual time", ylabel="test accuracy", xlim=(0, 2200), ylim=(0, 1))
    axes[1].legend(frameon=False, loc="lower right")
    for axis, allocation in zip(axes[2:], ("equation 2", "algorithm 4"), strict=True):
        run = next(r for r in older if r.get("allocation") == allocation)
        for colour, task in zip(COLOURS, run["tasks"].values(), strict=False):
            changes = [*task["requests"], [task["finished"], task["requests"][-1][1]]]
            axis.step(*zip(*changes, strict=True), where="post", color=colour, lw=1)
        axis.set(title=f"requests by {allocation}, seed 0", xlabel="virtual time", xlim=(0, 1300), ylim=(0, 305))
    axes[2].set_ylabel("of 300")
    figure.savefig(HERE / "fedast/fig7.png", dpi=160)


PARTS = {  # (title, target, virtual seconds shown, accuracies shown)
    "fashion-iid": ("Fashion-MNIST, IID", 0.9, 500, (0.7, 0.92)),
    "fashion-classes": ("Fashion-MNIST, two classes each", 0.8, 350, (0.5, 0.85)),
    "cifar10-iid": ("CIFAR-10, IID", 0.7, 600, (0.3, 0.75)),
    "cifar10-classes": ("CIFAR-10, two classes each", 0.6, 1600, (0.2, 0.65)),
}
NAMES = {"fedavg": "FedAvg", "defedavg": "DeFedAvg", "asysg": "AsySG", "favano": "FAVANO", "fedbuff": "FedBuff"}


def _style(run: dict[str, Any], part: str) -> str:
    if run["inputs"] == "standard":
        return ":"
    if "normalise" in run:
        return "-."
    return "--" if part.endswith("classes") and "parts" not in run else "-"


def defedavg() -> None:
    """Accuracy over time for each part of the table and each n, as the entry has it; seeds 1 and 2 thin.

    Of the others, seed 0: pixels of variance 1 dotted, equal parts of two classes dashed, FAVANO undivided dash-dotted.
    """
    figure, axes = plt.subplots(4, 4, figsize=(11, 9.5), sharey="row", constrained_layout=True)
    for line, (part, (title, target, end, shown)) in zip(axes, PARTS.items(), strict=True):
        runs = read(f"defedavg/{part}.json")
        for axis, n in zip(line, (10, 20, 40, 80), strict=True):
            for colour, method in zip(COLOURS, NAMES, strict=False):
                for run in (r for r in runs if r["algorithm"] == f"{method}-{n}"):
                    style = _style(run, part)
                    if style == "-" or run["seed"] == 0:
                        width = 1 if run["seed"] == 0 else 0.4
                        axis.plot(*zip(*run["curve"], strict=True), linestyle=style, color=colour, lw=width)
            axis.axhline(target, color="black", lw=0.5)
            axis.set(title=f"n = {n}", xlim=(0, end), ylim=shown)
        line[0].set_ylabel(f"{title}\ntest accuracy")
    for axis in axes[-1]:
        axis.set_xlabel("virtual seconds")
    for colour, name in zip(COLOURS, NAMES.values(), strict=False):
        axes[0][2].plot([], [], color=colour, label=name)
    axes[0][2].legend(frameon=False, loc="lower right")
    figure.savefig(HERE / "defedavg/table1.png", dpi=130)


METHODS = {
    "persafl-me": "PersA-FL-ME", "persafl-maml": "PersA-FL-MAML", "fedasync": "FedAsync", "scaffold": "SCAFFOLD",
    "per-fedavg": "Per-FedAvg", "fedavg": "FedAvg", "fedprox": "FedProx", "pfedme": "pFedMe",
}  # fmt: skip


def personalised() -> None:
    """The clients' own accuracy over time of every method, on the seeds that judge: mean, and lowest to highest."""
    figure, axis = plt.subplots(figsize=(5.5, 3.2), constrained_layout=True)
    every = [run for path in sorted(HERE.glob("persafl/mnist-*.json")) for run in read(str(path))]
    for number, (method, name) in enumerate(METHODS.items()):
        runs = [run["curve"] for run in every if run["algorithm"] == method and run["seed"] < 100]
        rows = list(zip(*runs, strict=True))
        times, columns = [row[0][0] for row in rows], [[each[1] for each in row] for row in rows]
        colour, style = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
        axis.plot(times, [sum(c) / len(c) for c in columns], lw=1, label=name, color=colour, ls=style)
        axis.fill_between(times, [*map(min, columns)], [*map(max, columns)], alpha=0.2, lw=0, fc=colour)
    axis.set(xlabel="virtual time", ylabel="clients' own accuracy, MNIST", ylim=(0, 1))
    axis.legend(frameon=False, ncols=2, loc="lower right")
    figure.savefig(HERE / "persafl/fig2.png", dpi=140)


def over(path: str, experiments: dict[str, str], column: int, label: str) -> None:
    """Accuracy of a record's runs over time (column 0) or rounds (1), a panel for each experiment."""
    figure, axes = plt.subplots(1, len(experiments), figsize=(4 * len(experiments), 2.8), constrained_layout=True)
    for axis, (experiment, title) in zip(axes, experiments.items(), strict=True):
        runs = [run for run in read(f"{path}.json") if run["experiment"] == experiment]
        names = sorted({run["algorithm"] for run in runs}, key=lambda name: int(name.rpartition("-")[2]))
        for run in sorted(runs, key=lambda run: run["seed"]):
            name, rows = run["algorithm"], [(row[column], row[2]) for row in run["tasks"][0]["curve"]]
            said = name.replace("-", " = ") if run["seed"] == 0 else None
            axis.plot(*zip(*rows, strict=True), lw=0.8, color=COLOURS[names.index(name)], label=said)
        axis.set(title=title, xlabel=label)
        axis.legend(frameon=False, loc="lower right")
    axes[0].set_ylabel("test accuracy")
    figure.savefig(HERE / f"{path}.png", dpi=140)


if __name__ == "__main__":
    fedast()
    defedavg()
    personalised()
    parts = {"fashion-iid": "Fashion-MNIST, IID", "fashion-classes": "Fashion-MNIST, two classes each"}
    over("defedavg/fig7", parts, 1, "rounds")
