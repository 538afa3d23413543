"""What the theorems would choose for a run, next to what it has chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offbeat.algorithms.area import AREA
from offbeat.algorithms.criteria import Criterion, MessageCount, Period, Poisson, criterion, optimal_rate
from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.fedast import FedAST
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.course import Until
from offbeat.core.errors import SettingError
from offbeat.core.local import Local, Wrapper
from offbeat.core.problem import Problem
from offbeat.core.server import Algorithm
from offbeat.local.maml import MAML
from offbeat.local.moreau import Moreau
from offbeat.theory import area, defedavg, estimate, fedast, fedbuff, persafl
from offbeat.theory.advice import Arrivals
from offbeat.theory.bound import Bound
from offbeat.theory.estimate import Constants
from offbeat.timing.base import Timing


@dataclass(frozen=True)
class Choice:
    """One setting.   chosen: its value in the run.   wanted: what the theorem asks for."""

    name: str
    chosen: str
    wanted: str


@dataclass(frozen=True)
class Comparison:
    """A run's settings next to those of a theorem about its algorithm.   notes: what its bound says, and conditions."""

    theorem: str
    choices: Sequence[Choice]
    notes: Sequence[str] = ()

    def lines(self) -> list[str]:
        """The comparison as text, without the theorem's name."""
        width = max((len(choice.name) for choice in self.choices), default=0)
        rows = [f"  {c.name:<{width}}  chosen {c.chosen:<24}  theorem {c.wanted}" for c in self.choices]
        return rows + [f"  {note}" for note in self.notes]


def advise(
    problem: Problem | Sequence[Problem],
    algorithm: Algorithm,
    timing: Timing,
    until: Until,
    *,
    seed: int = 0,
    constants: Constants | None = None,
) -> Comparison:
    """What the algorithm's theorem would choose for a run with these arguments (see `offbeat.run`).

    constants: of the problem; None: estimated. Of several tasks, the first one is looked at.

    >>> import offbeat as ob
    >>> algorithm = ob.Algorithm(ob.FedAsync(), ob.SGD(lr=0.1))
    >>> clock = ob.timing.Times(ob.timing.Exponential(1.0))
    >>> advise(ob.Quadratic(4), algorithm, clock, ob.Until(updates=100)).theorem
    'PersA-FL, theorem 1'
    """
    problems = problem if isinstance(problem, Sequence) else [problem]
    local = _innermost(algorithm, len(problems))
    clock = timing.bind(problems[0].clients, seed, [each.name for each in problems])
    known = estimate.constants(problems[0], local.batch, seed=seed) if constants is None else constants
    rates = estimate.rates(clock, problems[0].clients, local.steps, *local.wire(problems[0].dim))
    server = algorithm.server.fit(clock)
    if isinstance(server, AREA):
        return _area(server, local, known, rates, until)
    if isinstance(server, FedBuff):
        return _fedbuff(server, local, known, rates, until)
    if isinstance(server, FedAsync):
        return _persafl(server, local, known, rates, until)
    if isinstance(server, FedAST):
        return _fedast(server, local, known, rates, until)
    if isinstance(server, DeFedAvg):
        return _defedavg(server, local, known, rates, until)
    if isinstance(server, DeFedAvgIID):
        return _defedavg_iid(server, local, known, rates, until)
    raise SettingError("none of the five papers has a theorem about it")


def report(
    problems: Sequence[Problem],
    algorithms: Mapping[str, Algorithm],
    timing: Timing,
    until: Until,
    seed: int = 0,
) -> list[str]:
    """The comparisons of several algorithms as text, with the estimated constants before the first that uses them."""
    found: list[str] = []
    known: dict[int | None, Constants] = {}  # by batch size
    for label, algorithm in algorithms.items():
        batch = _innermost(algorithm, len(problems)).batch
        if batch not in known:
            known[batch] = estimate.constants(problems[0], batch, seed=seed)
            found += known[batch].lines()
        try:
            compared = advise(problems, algorithm, timing, until, seed=seed, constants=known[batch])
        except SettingError as error:
            found.append(f"theory: {label}: {error}")
        else:
            found += [f"theory: {label}: {compared.theorem}", *compared.lines()]
    if len(problems) > 1:
        found.append(f"theory: the constants are those of the first of {len(problems)} tasks, {problems[0].name}")
    return found


def _innermost(algorithm: Algorithm, tasks: int) -> Local:
    """The first task's local trainer without what is wrapped around it."""
    local = algorithm.locals(tasks)[0]
    while isinstance(local, Wrapper):
        local = local.inner
    return local


def _server_rate(when: Criterion, messages: float) -> float:
    """Aggregations per unit of time, given the messages."""
    match when:
        case MessageCount(count):
            return messages / count
        case Period(time):
            return 1.0 / time
        case Poisson(rate) if rate != "optimal":
            return rate
    raise SettingError(f"size = {when!r}: how often it aggregates is not known")


def _area(server: AREA, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    total, rate = sum(rates), _server_rate(criterion(server.size), sum(rates))
    events = area.Events.from_rates(rates, rate)
    K = _count(until, events.total, events.total / total, 1.0 / events.server)
    chosen = f"{server.schedule(0) if server.schedule else local.lr:.4g}"
    best = optimal_rate(rates)
    criteria = Choice("server rate λ_s", f"{rate:.4g}", f"{best:.4g} (λ_s*, every {total / best:.3g} messages)")
    sigma = math.sqrt(c.sigma2.value)
    if c.convexity.value <= 0:
        flat = area.Nonsmooth(c.gradient, local.steps, sigma, math.sqrt(c.gap))
        wanted = f"{area.nonsmooth_step(flat, events, K):.4g} per unit of |x_0 − x*|/{flat.distance:.3g}"
        theorem = "AREA: μ ≤ 0, so not theorem 7; theorem 8 if it is convex at least"
        return Comparison(theorem, [Choice("step size α", chosen, wanted), criteria])
    smooth = area.Smooth(c.convexity.value, c.smoothness.value, local.steps, sigma, c.zeta, c.distance)
    steps = area.schedule(smooth, events)
    wanted = f"{steps.c:.4g}/(k + {steps.d:.4g}), from {steps(0):.4g} to {steps(K):.4g}"
    bound, (largest, term) = area.leading(smooth, events, K), area.largest_step(smooth)
    notes = [
        f"p_min = {events.least:.4g}, D = {largest:.4g} ({term})",
        f"after {K:,} iterations E|x − x*|² ≤ {bound.total:.4g}, mostly {bound.largest}; "
        f"at first it is {c.distance**2:.4g}",
    ]
    choices = [Choice("step size α", chosen, wanted), criteria]
    return Comparison("AREA, theorem 7, strongly convex and smooth", choices, notes)


def _fedbuff(server: FedBuff, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    when = criterion(server.size)
    if not isinstance(when, MessageCount):
        raise SettingError("the theorem is about a buffer of a fixed size")
    arrivals = Arrivals(rates, when.count, server.concurrency)
    T, tau = _steps(until, arrivals)
    problem = fedbuff.FedBuffProblem(
        c.smoothness.value, local.steps, tau, c.clients, math.sqrt(c.sigma2.value), math.sqrt(c.gamma2.value), c.gap
    )
    choices = [
        Choice("local step η", f"{local.lr:.4g}", f"{fedbuff.local_step(problem, T):.4g}"),
        Choice("server lr", f"{server.lr:g}", "1"),
    ]
    notes = _stale(arrivals, T, tau, fedbuff.least_steps(problem), fedbuff.bound(problem, T)) + _uneven(arrivals)
    return Comparison("FedBuff, theorem 1", choices, notes)


def _persafl(server: FedAsync, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    arrivals = Arrivals(rates, 1, server.concurrency)
    T, tau = _steps(until, arrivals)
    sigma, gamma = math.sqrt(c.sigma2.value), math.sqrt(c.gamma2.value)
    base = persafl.FedAsyncProblem(c.smoothness.value, local.steps, tau, sigma, gamma, c.gap)
    theorem, smoothness = "PersA-FL, theorem 1", base.smoothness
    if isinstance(local, MAML):
        maml = persafl.MamlProblem(base, local.alpha, c.gradient, c.gap)
        theorem, smoothness = "PersA-FL, theorem 2, taking ρ = σ_h = γ_h = 0", maml.smoothness
        least, bound = persafl.maml_least_steps(maml), persafl.maml_bound(maml, T)
    elif isinstance(local, Moreau):
        moreau = persafl.MoreauProblem(base, local.penalty, local.accuracy, c.gap)
        theorem, smoothness = "PersA-FL, theorem 3", moreau.smoothness
        least, bound = persafl.moreau_least_steps(moreau, printed=False), persafl.moreau_bound(moreau, T, printed=False)
    else:
        least, bound = persafl.least_steps(base), persafl.bound(base, T)
    choices = [
        Choice("local step η", f"{local.lr:.4g}", f"{persafl.local_step(smoothness, local.steps, T):.4g}"),
        Choice("server lr β", f"{server.lr:g}", "1"),
    ]
    return Comparison(theorem, choices, _stale(arrivals, T, tau, least, bound) + _uneven(arrivals))


def _fedast(server: FedAST, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    size = server.size or max(1, round(server.requests / server.ratio))
    arrivals = Arrivals(rates, size, server.requests)
    T, tau = _steps(until, arrivals)
    task = fedast.FedASTTask(
        c.smoothness.value, local.steps, size, server.requests, tau, math.sqrt(c.sigma2.value), c.farthest, c.gap
    )
    choices = [
        Choice("client step η_c", f"{local.lr:.4g}", f"{fedast.client_step(task, T):.4g}"),
        Choice("server lr η_s", f"{server.lr:g}", f"{fedast.server_step(task):.4g}"),
    ]
    notes = _stale(arrivals, T, tau, fedast.least_steps(task), fedast.corollary_bound(task, T))
    return Comparison("FedAST, corollary 1.1", choices, notes)


def _defedavg(server: DeFedAvg, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    # client i is drawn n/N times a round and has λ_i results in a unit of time: no more than N·λ_i/n rounds
    T = _count(until, c.clients * min(rates) / server.sampled, 1.0 / server.sampled, 1.0)
    late = defedavg.delay_bound(c.clients, server.sampled, T, 0.01)
    problem = _decoupled(c, local, server.sampled, late)
    choices = [
        Choice("global step η", f"{server.lr:g}", f"{defedavg.global_step(problem):.4g}"),
        Choice("local step η̄", f"{local.lr:.4g}", f"{defedavg.local_step(problem, T):.4g}"),
    ]
    delay = f"delay λ ≤ {late:g} with probability 0.99 from the draws; clients that train on are less late"
    notes = _rounds(T, defedavg.least_rounds(problem), delay, defedavg.bound(problem, T))
    return Comparison("DeFedAvg, theorem 1", choices, notes)


def _defedavg_iid(server: DeFedAvgIID, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    T, tau = _steps(until, Arrivals(rates, server.size))
    late = max(1.0, tau)
    problem = _decoupled(c, local, server.size, late)
    choices = [
        Choice("global step η", f"{server.lr:g}", f"{defedavg.iid_global_step(problem):.4g}"),
        Choice("local step η̄", f"{local.lr:.4g}", f"{defedavg.iid_local_step(problem, T):.4g}"),
    ]
    delay = f"delay λ ≤ {late:g} with probability 0.99; the theorem assumes that all clients have equal data"
    notes = _rounds(T, defedavg.iid_least_rounds(problem), delay, defedavg.iid_bound(problem, T))
    return Comparison("DeFedAvg, theorem 2", choices, notes)


def _decoupled(c: Constants, local: Local, sampled: int, delay: float) -> defedavg.DeFedAvgProblem:
    sigma = math.sqrt(c.sigma2.value)
    L, K = c.smoothness.value, local.steps
    return defedavg.DeFedAvgProblem(L, K, sampled, delay, sigma, c.farthest, c.gradient, c.gap)


def _stale(arrivals: Arrivals, T: int, tau: float, least: float, bound: Bound) -> list[str]:
    return [
        f"T = {T:,} server steps, the theorem asks for at least {least:,.0f}"
        + ("" if least <= T else ": it does not apply"),
        f"mean staleness {arrivals.mean_staleness:.3g}, largest {tau:g} with probability 0.99",
        f"mean squared gradient ≤ {bound.total:.4g}, mostly {bound.largest}",
    ]


def _uneven(arrivals: Arrivals) -> list[str]:
    most = arrivals.imbalance
    if most <= 1.05:
        return []
    return [f"the theorem assumes uniform arrivals; the most frequent client has {most:.2f} times its share"]


def _rounds(T: int, least: tuple[float, str], delay: str, bound: Bound) -> list[str]:
    return [
        f"T at most {T:,} rounds, the theorem asks for at least {least[0]:,.0f} ({least[1]})"
        + ("" if least[0] <= T else ": it does not apply"),
        delay,
        f"mean squared gradient ≤ {bound.total:.4g}, mostly {bound.largest}",
    ]


def _steps(until: Until, arrivals: Arrivals) -> tuple[int, float]:
    """(T, τ): server steps until the run ends, and the largest staleness to expect in them."""
    T = _count(until, 1.0 / arrivals.step_time, 1.0 / arrivals.size, 1.0)
    return T, arrivals.worst_staleness(T)


def _count(until: Until, per_time: float, per_update: float, per_version: float) -> int:
    """Iterations until the run ends, given how many there are in a unit of time, an update and a server step."""
    ends = [(until.time, per_time), (until.updates, per_update), (until.versions, per_version)]
    return max(1, round(min(end * each for end, each in ends if end is not None)))
