"""Where the noise of [privacy] goes: `python -m studies.noise_growth [--seeds N]`.

Eight clients with the same quadratic ½|w − c|² start at its minimum, so that all that moves the model is noise. The
table has the mean square of a coordinate's distance from the minimum after so many releases, in units of the squared
noise of one release's sum; no update is long enough to be clipped. Next to it is what a model without delays predicts,
in which a job of M steps with step size lr goes a share s = 1 − (1 − lr)^M of the way to the minimum:

- FedBuff, K updates in a sum: clients send differences from the model, so they send what noise has done to it back.
  An autoregression, 1/K² · (1 − (1 − s)^(2R)) / (1 − (1 − s)²) after R releases: it levels off.
- AREA, n clients: the model is the mean of what clients have reached plus the sum of all noise / n, which no residual
  takes back. Clients go towards the minimum from the model that they see, and so end where they hold the noise in
  balance, at (sum of all noise)/(n·s): R/(n·s)², which grows with every release.
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

from offbeat.algorithms import AREA, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.privacy.differential import Noise, Privacy
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

CLIENTS, SIZE, DIM, NOISE = 8, 2, 400, 1e-3
LOCAL = SGD(lr=0.2, steps=2)
SHARE = 1 - (1 - LOCAL.lr) ** LOCAL.steps
RELEASES = (50, 100, 200, 400)


def guard(correlated: bool) -> Privacy:
    """Noise of 0.001 in every coordinate of a sum, and clipping at 1, which nothing reaches."""
    noise = Noise(10**6, multiplier=NOISE, correlated=correlated)
    return Privacy(1.0, noise, separation=CLIENTS // SIZE if correlated else 1)


def growth(server: str, releases: int, seed: int, correlated: bool = False) -> float:
    """Mean square distance of a coordinate from the minimum after so many releases, over the noise of one squared."""
    kinds: dict[str, Any] = {"fedbuff": FedBuff, "area": AREA}
    problem = Quadratic(CLIENTS, DIM, convexity=1.0, heterogeneity=0.0, distance=0.0, seed=seed)
    algorithm = Algorithm(kinds[server](size=SIZE, guard=guard(correlated)), LOCAL)
    run = prepare(problem, algorithm, Times(Exponential(1.0)), Until(versions=releases), seed=seed)
    away = run.run().server.model.vector - problem.optimum()
    return float(away.square().mean()) / NOISE**2


def predicted(server: str, releases: int) -> float:
    """The same without delays and with independent noise."""
    if server == "area":
        return releases / (CLIENTS * SHARE) ** 2
    keep = (1 - SHARE) ** 2
    return (1 - keep**releases) / (1 - keep) / SIZE**2


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--seeds", type=int, default=5)
    seeds = range(options.parse_args().seeds)
    print(f"| releases | {' | '.join(map(str, RELEASES))} |\n|---|{'---|' * len(RELEASES)}")
    for server, correlated in (("fedbuff", False), ("area", False), ("area", True)):
        cells = [mean(growth(server, releases, seed, correlated) for seed in seeds) for releases in RELEASES]
        print(f"| {server}{', correlated' if correlated else ''} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
        if not correlated:
            print(f"| predicted | {' | '.join(f'{predicted(server, releases):.2f}' for releases in RELEASES)} |")


if __name__ == "__main__":
    main()
