"""Federated training with natural clients against a linear model of the pooled data, on the sets that need no download.

python -m studies.embedded            # the table of docs/experiments.md, 3 seeds; a few minutes
python -m studies.embedded grunfeld   # one set
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean

import torch

import offbeat as ob
from offbeat import data, timing
from offbeat.data import Dataset, Dirichlet, Owners, Split

CLOCK = timing.Times(timing.Exponential(rate=timing.Normal(10, 5, 0.5)))


@dataclass(frozen=True)
class Case:
    """How a set is trained on. area, fedbuff: their step sizes over the number of clients.   split: None: owners."""

    clients: int
    area: float
    fedbuff: float
    updates: int = 1000
    split: Split | None = None


CASES: Mapping[str, Case] = {
    "diabetes": Case(10, 0.1, 0.02),
    "breast-cancer": Case(10, 1.0, 0.1, split=Dirichlet(0.3)),
    "randhie": Case(70, 0.3, 0.02, 4000),
    "grunfeld": Case(11, 0.1, 0.02, 2000),
    "employment": Case(15, 0.03, 0.01, 2000),
}


def metric(found: Dataset) -> str:
    return "r2" if found.classes is None else "auroc"


def pooled(found: Dataset) -> float:
    """R² or AUROC of scikit-learn's linear model of all training samples, on the test samples."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.metrics import r2_score, roc_auc_score

    x, y, to, right = (part.column(name) for part in (found.train, found.test) for name in ("x", "y"))
    if found.classes is None:
        return float(r2_score(right, LinearRegression().fit(x, y).predict(to)))
    return float(roc_auc_score(right, LogisticRegression(max_iter=1000).fit(x, y).decision_function(to)))


def federated(name: str, algorithm: str, seed: int = 0, updates: int | None = None) -> float:
    """The same number of a linear model that an asynchronous algorithm trained, with every sample counting the same."""
    found, case = data.load(name), CASES[name]
    problem = ob.Supervised.split(
        found, case.clients, case.split or Owners(), "linear", seed, metrics=[metric(found)], weighted=True
    )
    server: ob.AREA | ob.FedBuff = ob.AREA(size=4) if algorithm == "area" else ob.FedBuff(size=4)
    lr = case.clients * (case.area if algorithm == "area" else case.fedbuff)  # a client's gradient is its share
    trained = ob.Algorithm(server, ob.SGD(lr=lr, steps=5, batch=32))
    until = ob.Until(updates=updates or case.updates)
    result = ob.run(problem, trained, CLOCK, until, evaluate=1e9, seed=seed)
    return result.metrics[metric(found)]


def main() -> None:
    torch.set_num_threads(1)
    print("| set | clients | | AREA | FedBuff | pooled |\n|---|---|---|---|---|---|")
    for name in sys.argv[1:] or CASES:
        found = data.load(name)
        ours = [f"{mean(federated(name, each, seed) for seed in range(3)):.3f}" for each in ("area", "fedbuff")]
        measure = {"r2": "R²", "auroc": "AUROC"}[metric(found)]
        row = (f"`{name}`", CASES[name].clients, measure, *ours, f"{pooled(found):.3f}")
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
