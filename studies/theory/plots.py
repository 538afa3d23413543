"""The figures of docs/theory.md: `python -m studies.theory.plots docs/figures`, or `make theory`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.algorithms import AREA, FedBuff, Steady
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.theory import area, limits, times
from offbeat.timing import Exponential, Times
from studies.theory import trials

SEEDS = range(20)


def main(folder: Path) -> None:
    """All of them; three to five minutes on one core."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "offbeat", "font.size": 9, "svg.fonttype": "none"})
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (smooth, nonsmooth, gradients, bias, speed_up):
        figure = _axes(draw)
        figure.savefig(folder / f"{draw.__name__}.svg", metadata={"Date": None})
        print(f"{folder / draw.__name__}.svg", flush=True)


def _axes(draw: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    draw(figure.subplots())
    return figure


def smooth(axes: Any) -> None:
    """AREA, theorem 7: mean of 20 runs, the lemmas' recursion, the theorem's closed form."""
    K = 4000
    squares, problem, events = trials.area_smooth([1.0] * 3, 1.0, K, SEEDS, dim=4)
    k = np.unique(np.geomspace(1, K, 200).astype(int))
    axes.loglog(k, area.trajectory(problem, events, K)[k], label="bound: the lemmas, iterated")
    axes.loglog(
        k, [area.leading(problem, events, int(x)).total for x in k], "--", label="bound: theorem 7, closed form"
    )
    mean = squares.mean(axis=0)
    axes.loglog(k, mean[k], label="measured, mean of 20 runs")
    late = [x for x in k if x > 1000]
    slope = trials.slope(late, [float(mean[x]) for x in late])
    _name(axes, "iterations k", "E|x − x*|²", f"AREA, strongly convex: slope {slope:.2f} for k > 1000")


def nonsmooth(axes: Any) -> None:
    """AREA, theorem 8: a run of its own for every K."""
    ks, found, bounds = [125, 250, 500, 1000, 2000, 4000], [], []
    for K in ks:
        gaps, problem, events = trials.area_nonsmooth([1.0] * 3, 1.2, K, SEEDS, noise=1.0, distance=1.0, spread=2.0)
        found.append(trials.summed(gaps))
        bounds.append(area.nonsmooth_bound(problem, events, K).total)
    mean = [m for m, _ in found]
    axes.loglog(ks, bounds, label="bound: theorem 8")
    axes.errorbar(ks, mean, yerr=[2 * e for _, e in found], marker="o", label="measured, mean of 20 runs")
    _name(axes, "iterations K", "E f(x̄) − f*", f"AREA, sums of absolute values: slope {trials.slope(ks, mean):.2f}")


def gradients(axes: Any) -> None:
    """The seven theorems about mean squared gradients, each at the fewest steps that it allows."""
    found = [
        trial(SEEDS)
        for trial in (
            trials.fedbuff_trial,
            trials.fedasync_trial,
            trials.maml_trial,
            trials.moreau_trial,
            trials.fedast_trial,
            trials.defedavg_trial,
            trials.defedavg_iid_trial,
        )
    ]
    places = np.arange(len(found))
    axes.bar(places - 0.2, [t.bound for t in found], 0.4, label="bound")
    axes.bar(places + 0.2, [t.measured for t in found], 0.4, yerr=[2 * t.error for t in found], label="measured")
    axes.set_yscale("log")
    names = [f"{t.theorem.replace(', theorem', '')}\nT = {t.steps}" for t in found]
    axes.set_xticks(places, names, rotation=30, fontsize=7)
    for t in found:
        print(f"  {t.theorem}: T = {t.steps}, measured {t.measured:.3g} ± {t.error:.1g}, bound {t.bound:.3g}")
    _name(axes, "", "(1/T) Σ E|∇f|²", "Mean squared gradients, 20 runs each")


def bias(axes: Any) -> None:
    """One client 100 times slower than four others: AREA's way to the optimum, FedBuff's to its own limit."""
    rates = (1.0, 1.0, 1.0, 1.0, 0.01)
    problem = Quadratic(5, dim=4, smoothness=1.0, convexity=0.3, heterogeneity=2.0, distance=1.0, dtype=torch.float64)
    best = problem.optimum()
    servers: list[tuple[str, Any]] = [
        ("AREA", Algorithm(AREA(size=2, schedule=Steady(0.5)), SGD(lr=0.5))),
        ("FedBuff", Algorithm(FedBuff(size=4, lr=0.3), SGD(lr=0.05))),
    ]
    for name, algorithm in servers:
        simulation = prepare(problem, algorithm, Times(Exponential(rates)), Until(updates=16_000))
        points = [
            (w.now, float((simulation.server.models(w.server)[0].vector - best).norm())) for w in simulation.steps()
        ]
        some = points[1:200] + points[200::40]
        axes.loglog([t for t, _ in some], [d for _, d in some], label=name, linewidth=1)
    predicted = limits.bias(problem.h.numpy(), problem.c.numpy(), times.shares(rates), lr=0.05)
    axes.axhline(predicted, color="black", linestyle=":", label="FedBuff's limit, predicted")
    _name(axes, "time", "|x − x*|", "One client of five is 100 times slower")


def speed_up(axes: Any) -> None:
    """DeFedAvg, theorem 1: rounds to a fixed gradient norm."""
    draws = [1, 2, 4, 8, 16]
    epsilon = trials.defedavg_trial(range(6), trials.MANY, 1, 4, 560, late=20).measured
    rounds = [trials.rounds_to(epsilon, n, range(6)) for n in draws]
    axes.loglog(draws, rounds, "o-", label="measured")
    axes.loglog(draws, [rounds[0] / n for n in draws], ":", color="black", label="slope −1")
    _name(axes, "clients drawn a round, n", "rounds", f"DeFedAvg: slope {trials.slope(draws, rounds):.2f}")


def _name(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)


def _arguments(given: Sequence[str]) -> Path:
    return Path(given[0]) if given else Path("docs/figures")


if __name__ == "__main__":
    main(_arguments(sys.argv[1:]))
