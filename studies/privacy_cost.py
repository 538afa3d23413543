"""Accuracy against ε at equal time: `python -m studies.privacy_cost [--data mnist] [--seeds N] [--records FILE]`.

40 clients with Dirichlet(1) classes, softmax, δ = 1e-5, clip 1, participation capped at 20, until time 40, a job takes
1 on average; the final accuracy, mean over seeds. `--figure FILE` draws it, with the seeds' standard deviation.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from studies.attacks import final_accuracy
from studies.records import Records

LOCAL = {"sgd": {"lr": 0.5, "batch": 32, "steps": 5}}
SERVERS: dict[str, dict[str, Any]] = {
    "FedBuff": {"fedbuff": {"size": 10, "local": LOCAL}},
    "AREA": {"area": {"size": 10, "local": LOCAL}},
    "FedAvg": {"fedavg": {"sampled": 10, "local": LOCAL}},
}
EPSILONS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, None)


def accuracy(server: str, epsilon: float | None, seed: int, data: str, correlated: bool = False) -> float:
    """Of one run at its end."""
    table: dict[str, Any] = {
        "problem": {"data": data, "clients": 40, "split": {"dirichlet": 1.0}},
        "timing": {"exponential": {"rate": 1.0}},
        "algorithm": SERVERS[server],
        "until": {"time": 40.0},
        "evaluate": {"every": 40.0},
        "seed": seed,
    }
    if epsilon is not None:
        noise = {"epsilon": epsilon, "delta": 1e-5, "participations": 20, "correlated": correlated}
        table["privacy"] = {"clip": 1.0, "noise": noise, "separation": 4 if correlated else 1}
    return final_accuracy(table)


def draw(path: Path, curves: dict[str, list[list[float]]], data: str) -> None:
    """Accuracy against ε; the accuracies without noise as dotted lines."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "offbeat"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    epsilons = [e for e in EPSILONS if e is not None]
    for number, (name, cells) in enumerate(curves.items()):
        colour = f"C{number // 2}"
        means, errors = [mean(c) for c in cells], [stdev(c) if len(c) > 1 else 0.0 for c in cells]
        style = "--" if "correlated" in name else "-"
        axes.errorbar(epsilons, means[:-1], errors[:-1], color=colour, linestyle=style, label=name, capsize=2)
        if style == "-":
            axes.axhline(means[-1], color=colour, linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="ε of a client, δ = 1e-5", ylabel=f"accuracy on {data}", ylim=(0, 1))
    axes.set_xticks(epsilons, [f"{e:g}" for e in epsilons], minor=False)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--records", type=Path)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    records, curves = Records(chosen.records), {}
    heads = [f"{e:g}" if e is not None else "no privacy" for e in EPSILONS]
    print(f"| server \\ ε | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}", flush=True)
    for name in SERVERS:
        for correlated in (False, True):
            cells = []
            for epsilon in EPSILONS:
                names = {"server": name, "epsilon": epsilon, "data": chosen.data}
                names["correlated"] = correlated and epsilon is not None
                cells.append(records.over(range(chosen.seeds), names, accuracy))
            said = f"{name}, correlated" if correlated else name
            curves[said] = cells
            shown = [f"{100 * mean(c):.1f}" + (f" ± {100 * stdev(c):.1f}" if len(c) > 1 else "") for c in cells]
            print(f"| {said} | {' | '.join(shown)} |", flush=True)
    if chosen.figure is not None:
        draw(chosen.figure, curves, chosen.data)


if __name__ == "__main__":
    main()
