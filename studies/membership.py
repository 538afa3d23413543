"""Can whoever has the model tell who it was trained on? `python -m studies.membership [--seeds N]`.

Ten clients with 20 digits each train a network of two layers with FedBuff, for long. The attacker has
the model, 200 samples that were trained on and 200 that were not, and says that those with a small loss were (Yeom et
al. 2018). The score is the area under its ROC curve: 0.5 is guessing, 1 is certainty. Next to plain SGD are dp-sgd at
several ε (δ = 1e-5, every sample drawn with probability 1/4), each with the noise that so many steps take.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import mean

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from offbeat.algorithms import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.local import Local
from offbeat.core.until import Until
from offbeat.data.readers import load
from offbeat.local import SGD
from offbeat.privacy.accounting import sampled_epsilon
from offbeat.privacy.dp_sgd import DPSGD, LocalNoise
from offbeat.problems.supervised import Supervised
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Times
from studies.inversion import interval

CLIENTS, MEMBERS, BATCH, STEPS, JOBS = 10, 200, 5, 5, 60  # a client does so many jobs of so many steps
EPSILONS = (None, 64.0, 8.0, 1.0)
DELTA = 1e-5


def multiplier(epsilon: float) -> float:
    """The noise with which all steps of a client spend ε."""
    low, high = 0.1, 100.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        spent = sampled_epsilon(BATCH / (MEMBERS // CLIENTS), middle, STEPS * JOBS, DELTA)
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return high


def trainer(epsilon: float | None) -> Local:
    if epsilon is None:
        return SGD(lr=0.5, steps=STEPS, batch=BATCH)
    noise = LocalNoise(multiplier(epsilon), epsilon * (1 + 1e-6), DELTA)
    return DPSGD(lr=0.5, steps=STEPS, batch=BATCH, clip=1.0, noise=noise)


def trained(epsilon: float | None, seed: int) -> tuple[Tensor, Tensor, float]:
    """(losses of the samples that were trained on, of others, accuracy on all others)."""
    data = load("digits")
    x, y = (data.train.take(torch.arange(len(data.train)))[name] for name in (data.inputs[0], data.target))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    x, y = (x.flatten(1) / x.max()).float()[order], y[order]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    columns = {"x": x[:MEMBERS].numpy(), "y": y[:MEMBERS].numpy()}
    others = {"x": x[MEMBERS:].numpy(), "y": y[MEMBERS:].numpy()}
    problem = Supervised.split(columns, CLIENTS, model=model, seed=seed, target="y", test=others)
    algorithm = Algorithm(FedBuff(size=CLIENTS), trainer(epsilon))
    run = prepare(problem, algorithm, Times(Constant(1.0)), Until(updates=CLIENTS * JOBS), seed=seed)
    vector = run.run().server.model.vector
    losses = problem.flat.apply(vector, problem.objective.values, x, y).detach()
    accuracy = problem.measure(vector.unsqueeze(0))[0]["accuracy"]
    return losses[:MEMBERS], losses[MEMBERS : 2 * MEMBERS], float(accuracy)


def area(members: Tensor, others: Tensor) -> float:
    """Under the ROC curve of the attacker who goes by small losses."""
    ranks = rankdata(torch.cat([others, members]).numpy())
    above = ranks[: len(others)].sum() - len(others) * (len(others) + 1) / 2
    return float(above / (len(members) * len(others)))


def attack(epsilon: float | None, seeds: Sequence[int]) -> tuple[list[float], float]:
    """(areas under the curve, mean accuracy in per cent)."""
    runs = [trained(epsilon, seed) for seed in seeds]
    return [area(members, others) for members, others, _ in runs], 100 * mean(accuracy for _, _, accuracy in runs)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--seeds", type=int, default=5)
    seeds = range(options.parse_args().seeds)
    print("| local trainer | area under the curve | accuracy on other samples, % |\n|---|---|---|")
    for epsilon in EPSILONS:
        found, accuracy = attack(epsilon, seeds)
        said = "sgd" if epsilon is None else f"dp-sgd, ε = {epsilon:g}"
        print(f"| {said} | {interval(found, 3)} | {accuracy:.1f} |", flush=True)


if __name__ == "__main__":
    main()
