"""What the theorems would choose for a run, next to what it has chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from offbeat.algorithms.area import AREA
from offbeat.algorithms.criteria import MessageCount, Poisson, criterion, optimal_rate
from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.fedast import FedAST
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.schedules import Decay, Schedule
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.until import Until
from offbeat.local.maml import MAML
from offbeat.local.moreau import Moreau
from offbeat.theory import area, defedavg, estimate, fedast, fedbuff, persafl
from offbeat.theory.advice import Arrivals, P, Theorem
from offbeat.theory.bound import Bound
from offbeat.theory.estimate import Constants
from offbeat.theory.schedules import covered, innermost, server_rate, settle
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
    algorithm = settle(algorithm, problems, timing, until, seed)
    local = innermost(algorithm, len(problems))
    clock = timing.bind(problems[0].clients, seed, [each.name for each in problems])
    batch = covered(algorithm, local)
    known = estimate.constants(problems[0], batch, seed=seed) if constants is None else constants
    rates = estimate.rates(clock, problems[0].clients, local.steps, *local.wire(problems[0].dim))
    server = algorithm.server.for_problems(problems).fit(clock)
    for kind, compare in _BY_SERVER.items():
        if isinstance(server, kind):
            return compare(server, local, known, rates, until)
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
        try:
            batch = covered(algorithm, innermost(algorithm, len(problems)))
            if batch not in known:
                known[batch] = estimate.constants(problems[0], batch, seed=seed)
                found += known[batch].lines()
            compared = advise(problems, algorithm, timing, until, seed=seed, constants=known[batch])
        except SettingError as error:
            found.append(f"theory: {label}: {error}")
        else:
            found += [f"theory: {label}: {compared.theorem}", *compared.lines()]
    if len(problems) > 1:
        found.append(f"theory: the constants are those of the first of {len(problems)} tasks, {problems[0].name}")
    return found


def _same(chosen: Schedule | None, wanted: Decay) -> bool:
    """Whether these are the theorem's step sizes, whose constants are estimated."""
    if not isinstance(chosen, Decay):
        return False
    return all(math.isclose(a, b, rel_tol=0.02) for a, b in ((chosen.c, wanted.c), (chosen.d, wanted.d)))


def _area(server: AREA, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    total, rate = sum(rates), server_rate(criterion(server.size), sum(rates))
    events = area.Events.from_rates(rates, rate)
    K = _count(until, events.total, events.total / total, 1.0 / events.server)
    chosen = f"{server.schedule(0) if server.schedule else local.lr:.4g}"
    best = optimal_rate(rates)
    soon = area.rate_within(rates)
    wanted = f"{best:.4g} (λ_s*, best per iteration; {soon:.4g} or more for the time)"
    criteria = Choice("server rate λ_s", f"{rate:.4g}", wanted)
    if c.convexity.value <= 0:
        flat = area.Nonsmooth(c.gradient, local.steps, c.sigma, math.sqrt(c.gap))
        wanted = f"{area.nonsmooth_step(flat, events, K):.4g} per unit of |x_0 − x*|/{flat.distance:.3g}"
        theorem = "AREA: μ ≤ 0, so not theorem 7; theorem 8 if it is convex at least"
        return Comparison(theorem, [Choice("step size α", chosen, wanted), criteria])
    smooth = area.Smooth(c.convexity.value, c.smoothness.value, local.steps, c.sigma, c.zeta, c.distance)
    steps = area.schedule(smooth, events)
    wanted = f"{steps.c:.4g}/(k + {steps.d:.4g}), from {steps(0):.4g} to {steps(K):.4g}"
    bound, (largest, term) = area.leading(smooth, events, K), area.largest_step(smooth)
    notes = [f"p_min = {events.least:.4g}, D = {largest:.4g} ({term})"]
    if isinstance(criterion(server.size), Poisson):
        chose = "" if _same(server.schedule, steps) else ", and not with the step sizes chosen"
        notes.append(
            f"with that schedule{chose}, and exponential times, after {K:,} iterations "
            f"E|x − x*|² ≤ {bound.total:.4g}, mostly {bound.largest}; at first it is {c.distance**2:.4g}"
        )
    else:
        notes.append(
            "no bound: theorem 7 needs server steps at random times that do not depend on the messages, "
            "size = { poisson = { rate = … } }"
        )
    choices = [Choice("step size α", chosen, wanted), criteria]
    return Comparison("AREA, theorem 7, strongly convex and smooth", choices, notes)


def _fedbuff(server: FedBuff, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    when = criterion(server.size)
    if not isinstance(when, MessageCount):
        raise SettingError("the theorem is about a buffer of a fixed size")
    arrivals = Arrivals(rates, when.count, server.concurrency)
    problem = fedbuff.FedBuffProblem(c.smoothness.value, local.steps, 0.0, c.clients, c.sigma, c.gamma, c.gap)
    found = _stale("FedBuff, theorem 1", fedbuff.THEOREM_1, problem, arrivals, local, server, until)
    return replace(found, notes=[*found.notes, *arrivals.warnings()])


def _persafl(server: FedAsync, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    if server.size > 1:
        if isinstance(local, MAML | Moreau):
            raise SettingError(f"size = {server.size}: the theorem is about a step for every update")
        return _fedbuff(server, local, c, rates, until)
    arrivals = Arrivals(rates, 1, server.concurrency)
    base = persafl.FedAsyncProblem(c.smoothness.value, local.steps, 0.0, c.sigma, c.gamma, c.gap)
    run = arrivals, local, server, until
    if isinstance(local, MAML):
        maml = persafl.MamlProblem(base, local.alpha, c.gradient, c.gap)
        found = _stale("PersA-FL, theorem 2, taking ρ = σ_h = γ_h = 0", persafl.THEOREM_2, maml, *run)
    elif isinstance(local, Moreau):
        moreau = persafl.MoreauProblem(base, local.penalty, local.accuracy, c.gap)
        found = _stale("PersA-FL, theorem 3", persafl.THEOREM_3, moreau, *run)
    else:
        found = _stale("PersA-FL, theorem 1", persafl.THEOREM_1, base, *run)
    return replace(found, notes=[*found.notes, *arrivals.warnings()])


def _fedast(server: FedAST, local: Local, c: Constants, rates: Sequence[float], until: Until) -> Comparison:
    server = server.alone(0)
    requests = server.total
    size: int = server.size or max(1, round(requests / server.ratio))  # type: ignore[assignment]
    task = fedast.FedASTTask(c.smoothness.value, local.steps, size, requests, 0.0, c.sigma, c.farthest, c.gap)
    arrivals = Arrivals(rates, size, requests)
    return _stale("FedAST, corollary 1.1", fedast.COROLLARY, task, arrivals, local, server, until)


def _stale(
    name: str,
    theorem: Theorem[P],
    problem: P,
    arrivals: Arrivals,
    local: Local,
    server: FedBuff | FedAsync | FedAST,
    until: Until,
) -> Comparison:
    T, tau = _steps(until, arrivals)
    late = theorem.with_staleness(problem, tau)
    (eta, local_lr), (beta, server_lr), *_ = theorem.step_sizes(late, T).items()
    choices = [
        Choice(eta, f"{local.lr:.4g}", f"{local_lr:.4g}"),
        Choice(beta.partition(" (")[0], f"{server.lr:g}", f"{server_lr:.4g}"),
    ]
    staleness = f"mean staleness {arrivals.mean_staleness:.3g}, largest {tau:g} with probability 0.99"
    notes = _notes(f"T = {T:,} server steps", T, theorem.least_steps(late), "", staleness, theorem.bound(late, T))
    return Comparison(name, choices, notes)


def _defedavg(
    server: DeFedAvg | DeFedAvgIID, local: Local, c: Constants, rates: Sequence[float], until: Until
) -> Comparison:
    if isinstance(server, DeFedAvg):
        # client i is drawn n/N times a round and has λ_i results in a unit of time: no more than N·λ_i/n rounds
        theorem, n = "theorem 1", server.sampled
        T = _count(until, c.clients * min(rates) / n, 1.0 / n, 1.0)
        late, said = defedavg.delay_bound(c.clients, n, T, 0.01), " from the draws; clients that train on are less late"
        eta, eta_bar = defedavg.global_step, defedavg.local_step
        least_rounds = defedavg.least_rounds
        bound: Callable[[defedavg.DeFedAvgProblem, float], Bound] = defedavg.bound
    else:
        theorem, n = "theorem 2", server.size
        T, tau = _steps(until, Arrivals(rates, n))
        late, said = max(1.0, tau), "; the theorem assumes that all clients have equal data"
        eta, eta_bar = defedavg.iid_global_step, defedavg.iid_local_step
        least_rounds, bound = defedavg.iid_least_rounds, defedavg.iid_bound
    L, K = c.smoothness.value, local.steps
    problem = defedavg.DeFedAvgProblem(L, K, n, late, c.sigma, c.farthest, c.gradient, c.gap)
    choices = [
        Choice("global step η", f"{server.lr:g}", f"{eta(problem):.4g}"),
        Choice("local step η̄", f"{local.lr:.4g}", f"{eta_bar(problem, T):.4g}"),
    ]
    delay, (least, why) = f"delay λ ≤ {late:g} with probability 0.99{said}", least_rounds(problem)
    notes = _notes(f"T at most {T:,} rounds", T, least, f" ({why})", delay, bound(problem, T))
    return Comparison(f"DeFedAvg, {theorem}", choices, notes)


_BY_SERVER: Mapping[type, Callable[..., Comparison]] = {
    AREA: _area,
    FedAsync: _persafl,  # before FedBuff, of which it is one kind
    FedBuff: _fedbuff,
    FedAST: _fedast,
    DeFedAvg: _defedavg,
    DeFedAvgIID: _defedavg,
}


def _notes(steps: str, T: int, least: float, why: str, late: str, bound: Bound) -> list[str]:
    applies = "" if least <= T else ": it does not apply"
    return [
        f"{steps}, the theorem asks for at least {least:,.0f}{why}{applies}",
        late,
        f"mean squared gradient ≤ {bound.total:.4g}, mostly {bound.largest}",
    ]


def _steps(until: Until, arrivals: Arrivals) -> tuple[int, float]:
    """(T, τ): server steps until the run ends, and the largest staleness to expect in them."""
    T = _count(until, 1.0 / arrivals.step_time, 1.0 / arrivals.size, 1.0)
    return T, arrivals.worst_staleness(T)


def _count(until: Until, per_time: float, per_update: float, per_version: float) -> int:
    """Iterations until the run ends, given how many there are in a unit of time, an update and a server step."""
    per_iteration = 1.0 / (1.0 / per_update + 1.0 / per_version)
    ends = [(until.time, per_time), (until.updates, per_update)]
    ends += [(until.versions, per_version), (until.iterations, per_iteration)]
    return max(1, round(min(end * each for end, each in ends if end is not None)))
