"""Accuracy against ε at equal time: `python -m studies.privacy_cost [--data digits] [--seeds N]`.

40 clients, δ = 1e-5, clip 1, participation capped at 20; the final accuracy, mean over seeds.
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

from studies.attacks import final_accuracy

LOCAL = {"sgd": {"lr": 0.5, "batch": 32, "steps": 5}}
SERVERS: dict[str, dict[str, Any]] = {
    "FedBuff": {"fedbuff": {"size": 10, "local": LOCAL}},
    "AREA": {"area": {"size": 10, "local": LOCAL}},
    "FedAvg": {"fedavg": {"sampled": 10, "local": LOCAL}},
}
EPSILONS = (4.0, 8.0, 16.0, 64.0, None)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", default="digits")
    chosen = parser.parse_args()
    heads = [f"{e:g}" if e is not None else "no privacy" for e in EPSILONS]
    print(f"| server | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}", flush=True)
    for name in SERVERS:
        for correlated in (False, True):
            seeds = range(chosen.seeds)
            cells = [mean(accuracy(name, e, seed, chosen.data, correlated) for seed in seeds) for e in EPSILONS]
            said = f"{name}, correlated" if correlated else name
            print(f"| {said} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
