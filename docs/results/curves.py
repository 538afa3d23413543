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
    """Accuracy of the four tasks over time, and the requests that FedAST gives to each."""
    runs = read("fedast/fig7.json")
    targets = {"mnist": 0.93, "fashion": 0.82, "cifar10": 0.63, "shakespeare": 0.42}
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), constrained_layout=True)
    for axis, run in zip(axes, runs, strict=False):
        for colour, (name, task) in zip(COLOURS, run["tasks"].items(), strict=False):
            end = task["finished"] or float("inf")
            curve = [(t, a) for t, a in task["curve"] if t <= end]
            axis.plot(*zip(*curve, strict=True), color=colour, lw=1, label=name)
            axis.axhline(targets[name], color=colour, lw=0.6, ls=":")
        axis.set(title={"fedast": "FedAST", "sync-st": "Sync-ST"}[run["algorithm"]], xlabel="virtual time",
                 ylabel="test accuracy", xlim=(0, 3000), ylim=(0, 1))  # fmt: skip
    axes[0].legend(frameon=False)
    for colour, (name, task) in zip(COLOURS, runs[0]["tasks"].items(), strict=False):
        times, requests = zip(*task["requests"], strict=True)
        axes[2].step([*times, 2395], [*requests, requests[-1]], where="post", color=colour, lw=1, label=name)
    axes[2].set(title="FedAST's requests", xlabel="virtual time", ylabel="of 300", xlim=(0, 3000))
    figure.savefig(HERE / "fedast/fig7.png", dpi=160)


def defedavg() -> None:
    """Accuracy over time for each n."""
    runs = read("defedavg/fashion-iid.json")
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.8), sharey=True, constrained_layout=True)
    methods = ("fedavg", "defedavg", "asysg", "favano")
    for axis, n in zip(axes, (10, 20, 40, 80), strict=True):
        for colour, method in zip(COLOURS, methods, strict=False):
            for run in (r for r in runs if r["algorithm"] == f"{method}-{n}"):
                style = {"plain": ":", "normalised": "--", "exact": "-"}[run["how"]]
                axis.plot(*zip(*run["curve"], strict=True), style, color=colour, lw=1)
        axis.axhline(0.9, color="black", lw=0.5)
        axis.set(title=f"n = {n}", xlabel="virtual seconds", xlim=(0, 300), ylim=(0.7, 0.92))
    axes[0].set_ylabel("test accuracy")
    names = {"fedavg": "FedAvg", "defedavg": "DeFedAvg-IID", "asysg": "AsySG", "favano": "FAVANO"}
    for colour, method in zip(COLOURS, methods, strict=False):
        axes[0].plot([], [], color=colour, label=names[method])
    axes[0].legend(frameon=False, loc="lower right")
    figure.savefig(HERE / "defedavg/fashion-iid.png", dpi=160)


if __name__ == "__main__":
    fedast()
    defedavg()
