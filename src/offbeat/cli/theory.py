"""`offbeat theory …`: what the papers' theorems say about given numbers; `--theory`: about an experiment."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from offbeat.algorithms.area import AREA
from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.fedast import FedAST
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.parts import Every, Period, criterion, optimal_rate
from offbeat.core.errors import SettingError, unknown
from offbeat.core.local import Local, Wrapper
from offbeat.experiment.experiment import Experiment
from offbeat.local.maml import MAML
from offbeat.local.moreau import Moreau
from offbeat.simulate.loop import Until
from offbeat.theory import advice, area, defedavg, estimate, fedast, fedbuff, persafl, times
from offbeat.theory.bound import Bound, check_whole

theory = typer.Typer(
    help="Step sizes, bounds and times that the papers' theorems give for your numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Clients = Annotated[int, typer.Option(help="Number of clients, n.")]
Rates = Annotated[str, typer.Option(help="Messages of a client in a unit of time, λ: one number, or n with commas.")]
Smoothness = Annotated[float, typer.Option(help="Largest curvature, L.")]
Steps = Annotated[int, typer.Option(help="Local steps of a job.")]
Sigma = Annotated[float, typer.Option(help="Noise of a mini-batch's gradient, E|g − ∇f_i|² = σ².")]
Gamma = Annotated[float, typer.Option(help="Heterogeneity, root of (1/n) Σ|∇f_i − ∇f|².")]
Gap = Annotated[float, typer.Option(help="f(w_0) − f*.")]
Gradient = Annotated[float, typer.Option(help="Largest gradient, G.")]
Stale = Annotated[float | None, typer.Option(help="Largest staleness; default: from the rates, probability 0.99.")]
Epsilon = Annotated[float, typer.Option(help="Target: squared distance, or for most the mean squared gradient.")]
Concurrency = Annotated[int | None, typer.Option(help="Clients at work at once; default: all, client-driven.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@theory.command("area")
def area_(
    clients: Clients = 128,
    rates: Rates = "10",
    mu: Annotated[float, typer.Option(help="Smallest curvature, μ.")] = 0.1,
    smoothness: Smoothness = 4.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    zeta: Annotated[float, typer.Option(help="Distance from x* to the farthest client's own optimum, ζ.")] = 1.0,
    distance: Annotated[float, typer.Option(help="|x_0 − x*|.")] = 1.0,
    server_rate: Annotated[float | None, typer.Option(help="Aggregations in a unit of time; default: λ_s*.")] = None,
    lipschitz: Annotated[
        float | None, typer.Option(help="Convex and B-Lipschitz instead of smooth: theorem 8.")
    ] = None,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """AREA: theorem 7's schedule, or with --lipschitz theorem 8's constant step."""
    each = _rates(rates, clients)
    if lipschitz is not None:
        flat = area.Nonsmooth(lipschitz, steps, sigma, distance)
        _say(advice.area_nonsmooth(flat, each, server_rate, epsilon), as_json)
    else:
        smooth = area.Smooth(mu, smoothness, steps, sigma, zeta, distance)
        _say(advice.area_smooth(smooth, each, server_rate, epsilon), as_json)


@theory.command("fedbuff")
def fedbuff_(
    clients: Clients = 128,
    rates: Rates = "10",
    size: Annotated[int, typer.Option(help="Updates a server step, K.")] = 10,
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
    """FedBuff, theorem 1."""
    problem = fedbuff.Buffered(smoothness, steps, staleness or 0.0, clients, sigma, gamma, gap)
    traffic = advice.Traffic(_rates(rates, clients), size, _at_once(concurrency, clients))
    _say(advice.buffered(problem, traffic, staleness, epsilon), as_json)


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
    alpha: Annotated[float, typer.Option(help="MAML's personalising step, α.")] = 0.01,
    hessian_sigma: Annotated[float, typer.Option(help="MAML: noise of a mini-batch's Hessian, σ_h.")] = 0.0,
    hessian_gamma: Annotated[float, typer.Option(help="MAML: heterogeneity of Hessians, γ_h.")] = 0.0,
    hessian_lipschitz: Annotated[float, typer.Option(help="MAML: Lipschitz constant of Hessians, ρ.")] = 0.0,
    penalty: Annotated[float | None, typer.Option(help="ME: λ; default 10·L.")] = None,
    accuracy: Annotated[float, typer.Option(help="ME: accuracy of the inner problem, ν.")] = 0.01,
    staleness: Stale = None,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """FedAsync, PersA-FL-MAML and PersA-FL-ME: PersA-FL, theorems 1, 2 and 3."""
    base = persafl.Stale(smoothness, steps, staleness or 0.0, sigma, gamma, gap)
    traffic = advice.Traffic(_rates(rates, clients), 1, _at_once(concurrency, clients))
    if option == "fedasync":
        _say(advice.stale(base, traffic, staleness, epsilon), as_json)
    elif option == "maml":
        problem = persafl.Maml(base, alpha, gradient, gap, hessian_sigma, hessian_gamma, hessian_lipschitz)
        _say(advice.maml(problem, traffic, staleness, epsilon), as_json)
    elif option == "me":
        moreau = persafl.Moreau(base, 10.0 * smoothness if penalty is None else penalty, accuracy, gap)
        _say(advice.moreau(moreau, traffic, staleness, epsilon), as_json)
    else:
        raise unknown("option", option, ("fedasync", "maml", "me"))


@theory.command("fedast")
def fedast_(
    clients: Clients = 128,
    rates: Rates = "10",
    size: Annotated[int, typer.Option(help="Buffer of the task, b.")] = 4,
    requests: Annotated[int, typer.Option(help="Active requests of the task, R; with --weights of all tasks.")] = 100,
    smoothness: Smoothness = 1.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    gamma: Annotated[float, typer.Option(help="Largest |∇f_i − ∇f|, σ_g.")] = 1.0,
    gap: Gap = 1.0,
    staleness: Stale = None,
    weights: Annotated[
        str | None, typer.Option(help="sqrt(η_s·η_c·τ)·σ_g of every task with commas: the optimum of (6) and no more.")
    ] = None,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """FedAST, theorem 1 and corollary 1.1, and the division of requests among tasks."""
    if weights is not None:
        _say(_division(requests, _numbers("weights", weights)), as_json)
        return
    task = fedast.Task(smoothness, steps, size, requests, staleness or 0.0, sigma, gamma, gap)
    traffic = advice.Traffic(_rates(rates, clients), size, requests)
    _say(advice.simultaneous(task, traffic, staleness, epsilon), as_json)


@theory.command("defedavg")
def defedavg_(
    clients: Clients = 100,
    sampled: Annotated[int, typer.Option(help="Draws a round, n.")] = 10,
    smoothness: Smoothness = 1.0,
    steps: Steps = 1,
    sigma: Sigma = 1.0,
    nu: Annotated[float, typer.Option(help="Heterogeneity, ν² ≥ E|∇F_i − ∇F|².")] = 1.0,
    gradient: Gradient = 1.0,
    gap: Gap = 1.0,
    delay: Annotated[float | None, typer.Option(help="Largest delay λ; default: the high-probability bound.")] = None,
    failure: Annotated[float, typer.Option(help="Probability that the bound on λ fails, δ.")] = 0.01,
    round_time: Annotated[float, typer.Option(help="Time of a round.")] = 1.0,
    epsilon: Epsilon = 0.01,
    as_json: AsJson = False,
) -> None:
    """DeFedAvg, theorem 1 and its bound on the delay."""
    problem = defedavg.Decoupled(smoothness, steps, sampled, delay or 1.0, sigma, nu, gradient, gap)
    _say(advice.decoupled(problem, clients, round_time, delay, epsilon, failure), as_json)


def _division(requests: int, weights: Sequence[float]) -> advice.Advice:
    exact, whole = fedast.allocation(requests, weights), fedast.whole_allocation(requests, weights)
    equal = [requests / len(weights)] * len(weights)
    facts = {
        "requests R_m": ", ".join(f"{r:.4g}" for r in exact),
        "in whole numbers": ", ".join(map(str, whole)),
        "(6) at the optimum": fedast.objective(exact, weights),
        "(6) with equal parts": fedast.objective(equal, weights),
    }
    return advice.Advice("FedAST, equation (6): requests in proportion to sqrt(η_s·η_c·τ)·σ_g", facts)


def _say(found: advice.Advice, as_json: bool) -> None:
    print(json.dumps(found.plain(), allow_nan=False) if as_json else "\n".join(found.lines()))


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{name} = {text!r}: one number, or several with commas between them") from None


def _at_once(concurrency: int | None, clients: int) -> int | None:
    if concurrency is not None and not 1 <= concurrency <= clients:
        raise SettingError(f"concurrency = {concurrency}: between 1 and the {clients} clients")
    return concurrency


def _rates(text: str, clients: int) -> list[float]:
    check_whole(clients=clients)
    found = _numbers("rates", text)
    if len(found) not in (1, clients):
        raise SettingError(f"rates holds {len(found)} numbers for {clients} clients; give one, or one for each")
    for rate in found:
        if not (math.isfinite(rate) and rate > 0):
            raise SettingError(f"rates holds {rate:g}: must be a positive number")
    return found * clients if len(found) == 1 else found


# About an experiment


def suggestions(experiment: Experiment) -> list[str]:
    """What the theorems would choose, next to what the experiment has chosen, for every algorithm in it."""
    seed = experiment.top.seed
    problems = experiment.problems(seed)
    clock = experiment.timing.bind(problems[0].clients, seed, [task.name for task in experiment.tasks])
    found: list[str] = []
    known: dict[int | None, estimate.Constants] = {}
    for index, label in enumerate(experiment.labels):
        algorithm = experiment.algorithm(index, seed)
        local = algorithm.locals(len(problems))[0]
        while isinstance(local, Wrapper):
            local = local.inner
        if local.batch not in known:
            known[local.batch] = estimate.constants(problems[0], local.batch, seed=seed)
            found += _constants(known[local.batch], local.batch)
        try:
            each = estimate.rates(clock, problems[0].clients, local.steps, *local.wire(problems[0].dim))
            rows = _compare(algorithm.server, local, known[local.batch], each, experiment.top.until)
        except SettingError as error:
            found.append(f"theory: {label}: {error}")
            continue
        found.append(f"theory: {label}: {rows[0]}")
        width = max((len(name) for name, _, _ in rows[1]), default=0)
        found += [f"  {name:<{width}}  chosen {chosen:<24}  theorem {wanted}" for name, chosen, wanted in rows[1]]
        found += [f"  {line}" for line in rows[2]]
    if len(problems) > 1:
        found.append(f"theory: the constants are those of the first of {len(problems)} tasks, {problems[0].name}")
    return found


def _constants(c: estimate.Constants, batch: int | None) -> list[str]:
    who = "all clients" if c.asked == c.clients else f"{c.asked} of {c.clients} clients"
    return [
        f"theory: estimated at the initial model from {who}, batch {batch or 'all data'}:",
        f"  L = {c.smoothness}, μ = {c.convexity}, σ² = {c.sigma2}, (1/n) Σ|∇f_i − ∇f|² = {c.gamma2}",
        f"  largest |∇f_i| = {c.gradient:.4g}, f(w_0) − f* ≤ {c.gap:.4g}, |w_0 − x*| ≤ {c.distance:.4g}, "
        f"ζ ≤ {c.zeta:.4g}",
    ]


Rows = tuple[str, list[tuple[str, str, str]], list[str]]


def _compare(server: Any, local: Local, c: estimate.Constants, rates: Sequence[float], until: Until) -> Rows:
    if isinstance(server, AREA):
        return _compare_area(server, local, c, rates, until)
    if isinstance(server, DeFedAvg):
        return _compare_defedavg(server, local, c, rates, until)
    if isinstance(server, DeFedAvgIID):
        return _compare_defedavg_iid(server, local, c, rates, until)
    if isinstance(server, FedBuff | FedAsync | FedAST):
        return _compare_stale(server, local, c, rates, until)
    raise SettingError("none of the five papers has a theorem about it")


def _compare_area(server: AREA, local: Local, c: estimate.Constants, rates: Sequence[float], until: Until) -> Rows:
    every, total = criterion(server.every), sum(rates)
    if isinstance(every, Every):
        rate = total / every.count
    else:
        rate = 1.0 / every.time if isinstance(every, Period) else every.rate
    events = area.Events.from_rates(rates, rate)
    K = _count(until, events.total, events.total / total, 1.0 / events.server)
    chosen = server.schedule(0) if server.schedule else local.lr
    best = optimal_rate(rates)
    rows = [("server rate λ_s", f"{rate:.4g}", f"{best:.4g} (λ_s*, every {total / best:.3g} messages)")]
    sigma = math.sqrt(c.sigma2.value)
    if c.convexity.value > 0:
        smooth = area.Smooth(c.convexity.value, c.smoothness.value, local.steps, sigma, c.zeta, c.distance)
        steps = area.schedule(smooth, events)
        wanted = f"{steps.c:.4g}/(k + {steps.d:.4g}), from {steps(0):.4g} to {steps(K):.4g}"
        rows.insert(0, ("step size α", f"{chosen:.4g}", wanted))
        bound, largest = area.leading(smooth, events, K), area.largest_step(smooth)
        notes = [
            f"p_min = {events.least:.4g}, D = {largest[0]:.4g} ({largest[1]})",
            f"after {K:,} iterations E|x − x*|² ≤ {bound.total:.4g}, mostly {bound.largest}; "
            f"at first it is {c.distance**2:.4g}",
        ]
        return "theorem 7, strongly convex and smooth", rows, notes
    flat = area.Nonsmooth(c.gradient, local.steps, sigma, math.sqrt(c.gap))
    wanted = f"{area.nonsmooth_step(flat, events, K):.4g} per unit of |x_0 − x*|/{flat.distance:.3g}"
    rows.insert(0, ("step size α", f"{chosen:.4g}", wanted))
    return "μ ≤ 0, so not theorem 7; theorem 8 if it is convex at least", rows, []


def _compare_stale(server: Any, local: Local, c: estimate.Constants, rates: Sequence[float], until: Until) -> Rows:
    n, L, Q = c.clients, c.smoothness.value, local.steps
    sigma, gamma = math.sqrt(c.sigma2.value), math.sqrt(c.gamma2.value)
    size, at_once = 1, None
    if isinstance(server, FedBuff):
        when = criterion(server.size)
        if not isinstance(when, Every):
            raise SettingError("the theorem is about a buffer of a fixed size")
        size, at_once = when.count, server.concurrency
    elif isinstance(server, FedAST):
        size, at_once = server.size or max(1, round(server.requests / server.ratio)), server.requests
    else:
        at_once = server.concurrency
    traffic = advice.Traffic(rates, size, at_once)
    T = _count(until, 1.0 / traffic.step_time, 1.0 / size, 1.0)
    tau = traffic.worst(T)
    lr = "local step η"
    if isinstance(server, FedBuff):
        buffered = fedbuff.Buffered(L, Q, tau, n, sigma, gamma, c.gap)
        name, least, bound = "FedBuff, theorem 1", fedbuff.least_steps(buffered), fedbuff.bound(buffered, T)
        rows = [(lr, f"{local.lr:.4g}", f"{fedbuff.local_step(buffered, T):.4g}"), ("server lr", f"{server.lr:g}", "1")]
    elif isinstance(server, FedAST):
        task = fedast.Task(L, Q, size, server.requests, tau, sigma, c.farthest, c.gap)
        name, least, bound = "FedAST, corollary 1.1", fedast.least_steps(task), fedast.corollary_bound(task, max(T, 1))
        rows = [
            ("client step η_c", f"{local.lr:.4g}", f"{fedast.client_step(task, T):.4g}"),
            ("server lr η_s", f"{server.lr:g}", f"{fedast.server_step(task):.4g}"),
        ]
    else:
        base = persafl.Stale(L, Q, tau, sigma, gamma, c.gap)
        smooth, least, bound, name = L, persafl.least_steps(base), persafl.bound(base, T), "PersA-FL, theorem 1"
        if isinstance(local, MAML):
            adapted = persafl.Maml(base, local.alpha, c.gradient, c.gap)
            smooth, least = adapted.smoothness, persafl.maml_least_steps(adapted)
            bound, name = persafl.maml_bound(adapted, T), "PersA-FL, theorem 2, taking ρ = σ_h = γ_h = 0"
        elif isinstance(local, Moreau):
            moreau = persafl.Moreau(base, local.penalty, local.accuracy, c.gap)
            smooth, least = moreau.smoothness, persafl.moreau_least_steps(moreau, printed=False)
            bound, name = persafl.moreau_bound(moreau, T, printed=False), "PersA-FL, theorem 3"
        rows = [
            (lr, f"{local.lr:.4g}", f"{persafl.local_step(smooth, Q, T):.4g}"),
            ("server lr β", f"{server.lr:g}", "1"),
        ]
    notes = [
        f"T = {T:,} server steps, the theorem asks for at least {least:,.0f}"
        + ("" if least <= T else ": it does not apply"),
        f"mean staleness {traffic.mean_staleness:.3g}, largest {tau:g} with probability 0.99",
        f"mean squared gradient ≤ {bound.total:.4g}, mostly {bound.largest}",
    ]
    spread = max(times.shares(rates, at_once if at_once and at_once <= n else None)) * n
    if spread > 1.05 and not isinstance(server, FedAST):
        notes.append(f"the theorem assumes uniform arrivals; the most frequent client has {spread:.2f} times its share")
    return name, rows, notes


def _compare_defedavg(
    server: DeFedAvg, local: Local, c: estimate.Constants, rates: Sequence[float], until: Until
) -> Rows:
    # client i is drawn n/N times a round and has λ_i results in a unit of time: no more than N·λ_i/n rounds
    T = _count(until, c.clients * min(rates) / server.sampled, 1.0 / server.sampled, 1.0)
    late = defedavg.delay_bound(c.clients, server.sampled, T, 0.01)
    problem = _decoupled(c, local, server.sampled, late)
    rows = [
        ("global step η", f"{server.lr:g}", f"{defedavg.global_step(problem):.4g}"),
        ("local step η̄", f"{local.lr:.4g}", f"{defedavg.local_step(problem, T):.4g}"),
    ]
    notes = _rounds(T, defedavg.least_rounds(problem), defedavg.bound(problem, T))
    notes.insert(1, f"delay λ ≤ {late:g} with probability 0.99 from the draws; clients that train on are less late")
    return "DeFedAvg, theorem 1", rows, notes


def _compare_defedavg_iid(
    server: DeFedAvgIID, local: Local, c: estimate.Constants, rates: Sequence[float], until: Until
) -> Rows:
    traffic = advice.Traffic(rates, server.size)
    T = _count(until, 1.0 / traffic.step_time, 1.0 / server.size, 1.0)
    late = max(1.0, traffic.worst(T))
    problem = _decoupled(c, local, server.size, late)
    rows = [
        ("global step η", f"{server.lr:g}", f"{defedavg.iid_global_step(problem):.4g}"),
        ("local step η̄", f"{local.lr:.4g}", f"{defedavg.iid_local_step(problem, T):.4g}"),
    ]
    notes = _rounds(T, defedavg.iid_least_rounds(problem), defedavg.iid_bound(problem, T))
    notes.insert(1, f"delay λ ≤ {late:g} with probability 0.99; the theorem assumes that all clients have equal data")
    return "DeFedAvg, theorem 2", rows, notes


def _decoupled(c: estimate.Constants, local: Local, sampled: int, late: float) -> defedavg.Decoupled:
    sigma = math.sqrt(c.sigma2.value)
    return defedavg.Decoupled(c.smoothness.value, local.steps, sampled, late, sigma, c.farthest, c.gradient, c.gap)


def _rounds(T: int, least: tuple[float, str], bound: Bound) -> list[str]:
    return [
        f"T at most {T:,} rounds, the theorem asks for at least {least[0]:,.0f} ({least[1]})"
        + ("" if least[0] <= T else ": it does not apply"),
        f"mean squared gradient ≤ {bound.total:.4g}, mostly {bound.largest}",
    ]


def _count(until: Until, per_time: float, per_update: float, per_version: float) -> int:
    """Iterations until the run ends, given how many go into a unit of time, an update and a server step."""
    ends = [
        (until.time, per_time),
        (until.updates, per_update),
        (until.versions, per_version),
    ]
    return max(1, round(min(end * each for end, each in ends if end is not None)))
