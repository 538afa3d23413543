"""PersA-FL's figure 2 on a small scale: personalised accuracy of eight methods at equal virtual time.

    .venv/bin/python tests/papers/test_personalised.py [RECORD.json]

prints the tables, and writes what they are made of. Digits, 30 clients with 5 classes each, upload 4–6 times the
download and no compute time (§5), an MLP with 64 hidden units, Q = 10 local steps on mini-batches of 20, one horizon
for all. Every method's settings are the best of a grid of 8 to 24 by its accuracy after 10 fine-tuning gradients on
seeds 100 and 101; the table is over seeds 0 to 4. What a client may spend on its own model is a number of gradients,
the same for all (PersA-FL, §5: "we consider same amount of fine-tuning budget for the three non-personalized methods").
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch

from offbeat.algorithms import SCAFFOLD, FedAsync, FedAvg, LocalOnly
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.data.readers import digits
from offbeat.data.splits import Classes
from offbeat.experiment.run import run
from offbeat.local import MAML, SGD, Moreau, Prox, Scaffold
from offbeat.problems.supervised import Supervised
from offbeat.simulate.personal import Personal
from offbeat.simulate.run import Evaluate
from offbeat.timing import Delays, Times

TIMES = Times(network=Delays(download=1.0, ratio=(4.0, 6.0)))
HORIZON = 100.0
EVERY = 25.0
BUDGETS = (0, 1, 3, 10)
Q: dict[str, Any] = {"steps": 10, "batch": 20}

METHODS = {
    "FedAsync": Algorithm(FedAsync(lr=0.1), SGD(lr=0.4, **Q)),
    "PersA-FL-MAML": Algorithm(FedAsync(lr=0.3), MAML(lr=0.1, alpha=0.1, **Q)),
    "PersA-FL-ME": Algorithm(FedAsync(lr=0.1), Moreau(lr=10.0, penalty=0.1, inner=10, inner_lr=0.4, **Q)),
    "FedAvg": Algorithm(FedAvg(sampled=10), SGD(lr=0.4, **Q)),
    "FedProx": Algorithm(FedAvg(sampled=10), Prox(lr=0.4, mu=0.01, **Q)),
    "SCAFFOLD": Algorithm(SCAFFOLD(sampled=5), Scaffold(lr=0.4, option=1, **Q)),
    "Per-FedAvg": Algorithm(FedAvg(sampled=10), MAML(lr=0.8, alpha=0.1, **Q)),
    "pFedMe": Algorithm(FedAvg(sampled=10), Moreau(lr=50.0, penalty=0.02, inner=10, inner_lr=0.4, **Q)),
    "local only": Algorithm(LocalOnly(), SGD(lr=0.2, **Q)),
}
# PersA-FL's appendix D to the letter: η = 0.01 for all, β = 1, α = 0.01, λ = 25 and K = 10 inner steps.
PRINTED = {
    "FedAsync": Algorithm(FedAsync(lr=1.0), SGD(lr=0.01, **Q)),
    "PersA-FL-MAML": Algorithm(FedAsync(lr=1.0), MAML(lr=0.01, alpha=0.01, **Q)),
    "PersA-FL-ME": Algorithm(FedAsync(lr=1.0), Moreau(lr=0.01, penalty=25.0, inner=10, **Q)),
    "FedAvg": Algorithm(FedAvg(sampled=10), SGD(lr=0.01, **Q)),
    "local only": Algorithm(LocalOnly(), SGD(lr=0.01, **Q)),
}


def accuracies(algorithm: Algorithm, seed: int) -> dict[str, float]:
    """Mean personalised accuracy over the clients: at the end by budget, and with a budget of 10 over time."""
    problem = Supervised.split(digits(), 30, Classes(5), "mlp", seed, {"hidden": [64]})
    options: dict[str, Any] = {"seed": seed, "evaluate": Evaluate(EVERY, personal=Personal(steps=10))}
    result = run(problem, algorithm, TIMES, Until(time=HORIZON), executor="batched", **options)
    found = {f"t={m.time:g}": m.metrics["personal"] for m in result.history if 0 < m.time < HORIZON}
    for budget in BUDGETS:
        ((clients, models),) = result.simulation.personal(0, result.model, range(30), budget)
        found[f"b={budget}"] = mean(problem.judge(models, clients))
    return found


def table(methods: dict[str, Algorithm], seeds: Sequence[int]) -> dict[str, list[dict[str, float]]]:
    """The accuracies of every method and seed; prints mean ± standard deviation as it goes."""
    found: dict[str, list[dict[str, float]]] = {}
    for name, algorithm in methods.items():
        found[name] = [accuracies(algorithm, seed) for seed in seeds]
        columns = {k: [one[k] for one in found[name]] for k in found[name][0]}
        cells = (f"{k} {mean(v):.4f} ± {stdev(v) if len(v) > 1 else 0:.4f}" for k, v in columns.items())
        print(f"{name:14s}", " | ".join(cells), flush=True)
    return found


@pytest.mark.slow
def test_personalised_methods_beat_fedavg_and_local_training_and_are_level_with_a_tuned_fedasync() -> None:
    """PersA-FL, §5: "our methods outperform the other methods within a fixed communication time".

    Here that holds against FedAvg and local training. It does not hold against FedAsync when that is tuned on the same
    grid and fine-tuned with the same budget: the three are within each other's spread.
    """
    names = ("FedAsync", "PersA-FL-MAML", "PersA-FL-ME", "FedAvg", "local only")
    found = table({name: METHODS[name] for name in names}, range(5))
    at_end = {name: [one["b=10"] for one in found[name]] for name in names}
    for personal in ("PersA-FL-MAML", "PersA-FL-ME"):
        for other in ("FedAvg", "local only"):
            assert mean(at_end[personal]) > mean(at_end[other]) + 0.005
        assert mean(at_end[personal]) == pytest.approx(mean(at_end["FedAsync"]), abs=0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("settings tuned for each method")
    found = {"tuned": table(METHODS, range(5))}
    print("settings of PersA-FL's appendix D")
    found["printed"] = table(PRINTED, range(5))
    if len(sys.argv) > 1:  # by method and seed, what docs/results/personalised.md has
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
