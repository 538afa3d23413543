"""`offbeat theory …`: what the papers' theorems say about given numbers."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.core.errors import SettingError, at_least, unknown

if TYPE_CHECKING:
    from offbeat.theory.advice import Advice

theory = typer.Typer(
    help="Compute step sizes, bounds and times from the papers' theorems.", no_args_is_help=True, rich_markup_mode=None
)

Clients = Annotated[int, typer.Option(help="Number of clients, n.")]
Rates = Annotated[
    str, typer.Option(help="Messages per client and unit of time, λ: one number, or n separated by commas.")
]
Smoothness = Annotated[float, typer.Option(help="Largest curvature, L.")]
Steps = Annotated[int, typer.Option(help="Local steps per job.")]
Sigma = Annotated[float, typer.Option(help="Noise of a mini-batch gradient, E|g − ∇f_i|² = σ².")]
Gamma = Annotated[float, typer.Option(help="Heterogeneity, square root of (1/n) Σ|∇f_i − ∇f|².")]
Gap = Annotated[float, typer.Option(help="f(w_0) − f*.")]
Gradient = Annotated[float, typer.Option(help="Largest gradient norm, G.")]
Stale = Annotated[float | None, typer.Option(help="Largest staleness. Default: from the rates, probability 0.99.")]
Epsilon = Annotated[float, typer.Option(help="Target: the mean squared gradient; for AREA the squared distance.")]
Concurrency = Annotated[int | None, typer.Option(help="Clients that work at a time. Default: all, client-driven.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a single JSON object.")]


@theory.command("area")
def area_(
    clients: Clients = 128,
    rates: Rates = "10",
    mu: Annotated[float, typer.Option(help="Smallest curvature, μ.")] = 0.1,
    smoothness: Smoothness = 4.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    zeta: Annotated[float, typer.Option(help="Distance from x* to the farthest client optimum, ζ.")] = 1.0,
    distance: Annotated[float, typer.Option(help="|x_0 − x*|.")] = 1.0,
    server_rate: Annotated[float | None, typer.Option(help="Aggregations per unit of time. Default: λ_s*.")] = None,
    lipschitz: Annotated[
        float | None,
        typer.Option(
            help="Assume convex and B-Lipschitz functions instead of smooth ones: theorem 8. Default: smooth."
        ),
    ] = None,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """AREA: the schedule of theorem 7, or with --lipschitz the constant step of theorem 8."""
    from offbeat.theory import area

    each = _rates(rates, clients)
    problem: area.Smooth | area.Nonsmooth
    if lipschitz is not None:
        problem = area.Nonsmooth(lipschitz, steps, sigma, distance)
    else:
        problem = area.Smooth(mu, smoothness, steps, sigma, zeta, distance)
    _print(area.advise(problem, each, server_rate, epsilon), as_json)


@theory.command("fedbuff")
def fedbuff_(
    clients: Clients = 128,
    rates: Rates = "10",
    size: Annotated[int, typer.Option(help="Updates per server step, K.")] = 10,
    concurrency: Concurrency = None,
    smoothness: Smoothness = 1.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    gamma: Gamma = 1.0,
    gap: Gap = 1.0,
    staleness: Stale = None,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """FedBuff: theorem 1."""
    from offbeat.theory import fedbuff
    from offbeat.theory.advice import Arrivals

    problem = fedbuff.FedBuffProblem(smoothness, steps, staleness or 0.0, clients, sigma, gamma, gap)
    arrivals = Arrivals(_rates(rates, clients), size, _concurrency(concurrency, clients))
    _print(fedbuff.advise(problem, arrivals, staleness, epsilon), as_json)


@theory.command("persafl")
def persafl_(
    option: Annotated[str, typer.Option(help="fedasync (option A), maml (B) or me (C).")] = "fedasync",
    clients: Clients = 128,
    rates: Rates = "10",
    concurrency: Concurrency = None,
    smoothness: Smoothness = 1.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    gamma: Gamma = 1.0,
    gap: Gap = 1.0,
    gradient: Gradient = 1.0,
    alpha: Annotated[float, typer.Option(help="MAML: step size of the personalisation, α.")] = 0.01,
    hessian_sigma: Annotated[float, typer.Option(help="MAML: noise of a mini-batch Hessian, σ_h.")] = 0.0,
    hessian_gamma: Annotated[float, typer.Option(help="MAML: heterogeneity of Hessians, γ_h.")] = 0.0,
    hessian_lipschitz: Annotated[float, typer.Option(help="MAML: Lipschitz constant of Hessians, ρ.")] = 0.0,
    penalty: Annotated[float | None, typer.Option(help="ME: penalty, λ. Default: 10·L.")] = None,
    accuracy: Annotated[float, typer.Option(help="ME: accuracy of the inner problem, ν.")] = 0.01,
    staleness: Stale = None,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """FedAsync, PersA-FL-MAML and PersA-FL-ME: PersA-FL, theorems 1, 2 and 3."""
    from offbeat.theory import persafl
    from offbeat.theory.advice import Arrivals

    base = persafl.FedAsyncProblem(smoothness, steps, staleness or 0.0, sigma, gamma, gap)
    arrivals = Arrivals(_rates(rates, clients), 1, _concurrency(concurrency, clients))
    problem: persafl.FedAsyncProblem | persafl.MamlProblem | persafl.MoreauProblem = base
    if option == "maml":
        problem = persafl.MamlProblem(base, alpha, gradient, gap, hessian_sigma, hessian_gamma, hessian_lipschitz)
    elif option == "me":
        problem = persafl.MoreauProblem(base, 10.0 * smoothness if penalty is None else penalty, accuracy, gap)
    elif option != "fedasync":
        raise unknown("option", option, ("fedasync", "maml", "me"))
    _print(persafl.advise(problem, arrivals, staleness, epsilon), as_json)


@theory.command("fedast")
def fedast_(
    clients: Clients = 128,
    rates: Rates = "10",
    size: Annotated[int, typer.Option(help="Buffer size of the task, b.")] = 4,
    requests: Annotated[int, typer.Option(help="Active requests of the task, R; with --weights, of all tasks.")] = 100,
    smoothness: Smoothness = 1.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    gamma: Annotated[float, typer.Option(help="Largest |∇f_i − ∇f|, σ_g.")] = 1.0,
    gap: Gap = 1.0,
    staleness: Stale = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Only the optimum of (6), given sqrt(η_s·η_c·τ)·σ_g of every task. Default: all of the theorem."
        ),
    ] = None,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """FedAST: theorem 1, corollary 1.1, and the allocation of requests to tasks."""
    from offbeat.theory import fedast
    from offbeat.theory.advice import Arrivals

    if weights is not None:
        _print(fedast.advise_allocation(requests, _numbers("weights", weights)), as_json)
        return
    task = fedast.FedASTTask(smoothness, steps, size, requests, staleness or 0.0, sigma, gamma, gap)
    arrivals = Arrivals(_rates(rates, clients), size, requests)
    _print(fedast.advise(task, arrivals, staleness, epsilon), as_json)


@theory.command("defedavg")
def defedavg_(
    clients: Clients = 100,
    sampled: Annotated[int, typer.Option(help="Clients drawn per round, n.")] = 10,
    smoothness: Smoothness = 1.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    nu: Annotated[float, typer.Option(help="Heterogeneity, ν² ≥ E|∇F_i − ∇F|².")] = 1.0,
    gradient: Gradient = 1.0,
    gap: Gap = 1.0,
    delay: Annotated[float | None, typer.Option(help="Largest delay, λ. Default: the high-probability bound.")] = None,
    failure: Annotated[float, typer.Option(help="Probability that the bound on λ fails, δ.")] = 0.01,
    round_time: Annotated[float, typer.Option(help="Duration of a round.")] = 1.0,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """DeFedAvg: theorem 1 and its bound on the delay."""
    from offbeat.theory import defedavg

    problem = defedavg.DeFedAvgProblem(smoothness, steps, sampled, delay or 1.0, sigma, nu, gradient, gap)
    _print(defedavg.advise(problem, clients, round_time, delay, epsilon, failure), as_json)


@theory.command("ringmaster")
def ringmaster_(
    clients: Clients = 128,
    rates: Rates = "10",
    smoothness: Smoothness = 1.0,
    sigma: Sigma = 1.0,
    gap: Gap = 1.0,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """Ringmaster and Rennala: settings and times if clients always take the same time; the lower bound."""
    from offbeat.theory import ringmaster

    problem = ringmaster.FixedTimes(smoothness, sigma, gap)
    _print(ringmaster.advise(problem, _rates(rates, clients), epsilon), as_json)


def _print(found: Advice, as_json: bool) -> None:
    print(json.dumps(found.plain(), allow_nan=False) if as_json else "\n".join(found.lines()))


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{name} = {text!r}: expected one number, or several separated by commas") from None


def _concurrency(concurrency: int | None, clients: int) -> int | None:
    if concurrency is not None and not 1 <= concurrency <= clients:
        raise SettingError(f"concurrency = {concurrency}: between 1 and the {clients} clients")
    return concurrency


def _rates(text: str, clients: int) -> list[float]:
    at_least(1, clients=clients)
    found = _numbers("rates", text)
    if len(found) not in (1, clients):
        raise SettingError(f"rates holds {len(found)} numbers for {clients} clients; give one, or one for each")
    for rate in found:
        if not (math.isfinite(rate) and rate > 0):
            raise SettingError(f"rates holds {rate:g}: must be a positive number")
    return found * clients if len(found) == 1 else found
