"""What a theorem says to a user: step sizes, how long, what binds, what to turn to be twice as fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from offbeat.core.errors import SettingError
from offbeat.theory import area, defedavg, fedast, fedbuff, persafl, times
from offbeat.theory.bound import Bound, Change, Knob, check, check_whole, halve, horizon


@dataclass(frozen=True)
class Advice:
    """theorem: which.   facts: name → number or text, in order.   changes: each alone halves the time.   notes."""

    theorem: str
    facts: Mapping[str, Any]
    changes: Sequence[Change] = ()
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """As text, a line each."""
        width = max(len(name) for name in self.facts)
        found = [self.theorem, *(f"  {name:<{width}}  {_text(value)}" for name, value in self.facts.items())]
        if self.changes:
            found.append("  to halve the time, one of")
            wide = max(len(change.name) for change in self.changes)
            found += [f"    {c.name:<{wide}}  {_text(c.now)} → {_turned(c)}" for c in self.changes]
        return found + [f"  note: {note}" for note in self.notes]

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        finite = {name: _finite(value) for name, value in self.facts.items()}
        changes = [{"name": c.name, "now": _finite(c.now), "to": c.to} for c in self.changes]
        return {"theorem": self.theorem, **finite, "halve": changes, "notes": list(self.notes)}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "never"
    return f"{value:,.0f}" if value == round(value) and 1 <= abs(value) < 1e15 else f"{value:.4g}"


def _turned(change: Change) -> str:
    return "no value of it" if change.to is None else _text(change.to)


def _binding(bound: Bound) -> str:
    share = bound.terms[bound.largest] / bound.total if bound.total else 0.0
    return f"{bound.largest} ({share:.0%} of the bound)"


WHOLE = ("steps", "size", "requests", "sampled", "clients")


def _changed(problem: Any, values: Mapping[str, float], numbers: Sequence[str]) -> Any:
    """The problem with these of its numbers."""
    return replace(problem, **{n: int(values[n]) if n in WHOLE else values[n] for n in numbers})


def _halved(time: Callable[[Mapping[str, float]], float], now: Mapping[str, float], knobs: Sequence[Knob]) -> Any:
    """Changes, where a setting that the theorem refuses takes for ever."""

    def safe(values: Mapping[str, float]) -> float:
        try:
            return time(values)
        except SettingError:
            return math.inf

    return halve(safe, now, knobs)


def _lowest(height: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is lowest, by golden section on a logarithmic scale."""
    a, b, part = math.log(low), math.log(high), (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(60):
        c, d = b - part * (b - a), a + part * (b - a)
        if height(math.exp(c)) <= height(math.exp(d)):
            b = d
        else:
            a = c
    return math.exp((a + b) / 2.0)


# AREA


def area_smooth(
    problem: area.Smooth, rates: Sequence[float], server: float | None = None, epsilon: float = 0.01
) -> Advice:
    """Theorem 7.   server: λ_s; None: λ_s* of theorem 8."""
    check(epsilon=epsilon)
    best = area.optimal_rate(rates)
    rate = best if server is None else server
    events = area.Events.from_rates(rates, rate)
    steps = area.schedule(problem, events)
    largest, term = area.largest_step(problem)

    def iterations(p: area.Smooth, e: area.Events, goal: float) -> float:
        return horizon(lambda K: area.leading(p, e, K).total, goal)

    needed = iterations(problem, events, epsilon)
    numbers = ("mu", "smoothness", "steps", "sigma", "zeta", "distance")
    now = {name: float(getattr(problem, name)) for name in numbers}
    now |= {"server rate": rate, "slowest rate": min(rates), "epsilon": epsilon}

    def time(values: Mapping[str, float]) -> float:
        changed = _changed(problem, values, numbers)
        quicker = [max(r, values["slowest rate"]) if r == min(rates) else r for r in rates]
        turned = area.Events.from_rates(quicker, values["server rate"])
        return iterations(changed, turned, values["epsilon"]) / turned.total

    bound = area.leading(problem, events, needed) if math.isfinite(needed) else None
    beta = area.contraction(steps(0), problem, events)
    facts = {
        "p_min": f"{events.least:.4g} ({'the server' if events.server == events.least else 'the slowest client'})",
        "step size α_k": f"{steps.c:.4g} / (k + {steps.d:.4g})",
        "largest step D": largest,
        "which is": term,
        "contraction at first (lemma 10)": f"1 − {1 - beta:.3g} an iteration",
        "server rate λ_s": rate,
        "best for this bound": _lowest(lambda r: time({**now, "server rate": r}), min(rates) / 100, 100 * sum(rates)),
        "best for theorem 8, λ_s*": best,
        "iterations K for ε": needed,
        "server steps": needed * events.server,
        "time": needed / events.total,
        "binding term": _binding(bound) if bound else "none",
    }
    knobs = [
        *(Knob(n, whole=n == "steps") for n in numbers),
        Knob("server rate"),
        Knob("slowest rate"),
        Knob("epsilon"),
    ]
    notes = [
        "K comes from the leading terms of the proof, constants included; runs on quadratics end up hundreds to "
        "thousands of times below them (docs/theory.md), so read it as an order of magnitude at most",
    ]
    theorem = "AREA, theorem 7 (strongly convex, smooth): E|x_K − x*|² ≤ ε"
    return Advice(theorem, facts, _halved(time, now, knobs), notes)


def area_nonsmooth(
    problem: area.Nonsmooth, rates: Sequence[float], server: float | None = None, epsilon: float = 0.01
) -> Advice:
    """Theorem 8.   server: λ_s; None: λ_s*."""
    check(epsilon=epsilon)
    best = area.optimal_rate(rates)
    rate = best if server is None else server
    events = area.Events.from_rates(rates, rate)
    printed = problem.steps == 1

    def iterations(p: area.Nonsmooth, e: area.Events, goal: float) -> float:
        return horizon(lambda K: area.nonsmooth_bound(p, e, K, printed=p.steps == 1).total, goal)

    needed = iterations(problem, events, epsilon)
    numbers = ("lipschitz", "steps", "sigma", "distance")
    now = {name: float(getattr(problem, name)) for name in numbers}
    now |= {"server rate": rate, "slowest rate": min(rates), "epsilon": epsilon}

    def time(values: Mapping[str, float]) -> float:
        changed = _changed(problem, values, numbers)
        quicker = [max(r, values["slowest rate"]) if r == min(rates) else r for r in rates]
        turned = area.Events.from_rates(quicker, values["server rate"])
        return iterations(changed, turned, values["epsilon"]) / turned.total

    late = {"the server's rate": 1.0 / events.server, "the clients' rates": 2.0 * events.mean_inverse}
    facts = {
        "step size α": area.nonsmooth_step(problem, events, needed, printed),
        "best server rate λ_s*": best,
        "iterations K for ε": needed,
        "server steps": needed * events.server,
        "time": needed / events.total,
        "binding term": _binding(Bound(late)),
    }
    knobs = [
        *(Knob(n, whole=n == "steps") for n in numbers),
        Knob("server rate"),
        Knob("slowest rate"),
        Knob("epsilon"),
    ]
    notes = [] if printed else ["for M > 1 the proof supports M·B² where the theorem prints (M+1)B²/2; M·B² is used"]
    return Advice("AREA, theorem 8 (convex, Lipschitz): E f(x̄_K) − f* ≤ ε", facts, _halved(time, now, knobs), notes)


# The theorems about gradients


@dataclass(frozen=True)
class Traffic:
    """Who reports how often: what turns server steps into time and bounds the staleness.

    rates: λ_i.   size: updates a server step.   in_flight: jobs at once; None: one for each client.
    """

    rates: Sequence[float]
    size: int = 1
    in_flight: int | None = None

    def __post_init__(self) -> None:
        check_whole(size=self.size)

    @property
    def step_time(self) -> float:
        n = len(self.rates)
        if self.in_flight is None or self.in_flight <= n:
            return times.buffer_time(self.rates, self.size, self.in_flight)
        return times.buffer_time(self.rates, self.size)  # more requests than clients: everybody is busy

    @property
    def mean_staleness(self) -> float:
        return times.staleness(self.in_flight or len(self.rates), self.size)

    def worst(self, server_steps: float) -> float:
        """τ in so many server steps, with probability 0.99."""
        at_once = None if self.in_flight is None or self.in_flight > len(self.rates) else self.in_flight
        most = times.worst_staleness(self.rates, self.size, server_steps * self.size, 0.01, at_once)
        queue = max(1.0, (self.in_flight or 1) / len(self.rates))  # jobs wait behind others
        return math.ceil(most * queue)


@dataclass(frozen=True)
class _Theorem:
    """A bound on the mean squared gradient after T server steps, for problems of its own kind.

    least: the fewest steps that it holds for.   right: the bound after T steps.   step: the step sizes that it names.
    numbers: what of a problem a user may turn.   late: the same problem with another staleness.
    """

    name: str
    least: Callable[[Any], float]
    right: Callable[[Any, float], Bound]
    step: Callable[[Any, float], Mapping[str, float]]
    numbers: Sequence[str]
    late: Callable[[Any, float], Any] = lambda problem, staleness: replace(problem, staleness=staleness)

    def steps(self, problem: Any, epsilon: float) -> float:
        """The server steps for ε."""
        return horizon(lambda T: self.right(problem, T).total, epsilon, self.least(problem))


def _settle(
    theorem: _Theorem, problem: Any, traffic: Traffic, staleness: float | None, epsilon: float
) -> tuple[float, float]:
    """(τ, T): the steps for ε, with the staleness that so many steps must be expected to see."""
    tau = traffic.mean_staleness if staleness is None else staleness
    needed = theorem.steps(theorem.late(problem, tau), epsilon)
    if staleness is None:
        for _ in range(20):  # τ grows with the logarithm of T
            if not math.isfinite(needed):
                break
            worse = traffic.worst(needed)
            if worse <= tau:
                break
            tau = worse
            needed = theorem.steps(theorem.late(problem, tau), epsilon)
    return tau, needed


def _advise(
    theorem: _Theorem,
    problem: Any,
    traffic: Traffic,
    staleness: float | None,
    epsilon: float,
    notes: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
) -> Advice:
    check(epsilon=epsilon)
    numbers = theorem.numbers
    tau, needed = _settle(theorem, problem, traffic, staleness, epsilon)
    settled = theorem.late(problem, tau)
    fewest = theorem.least(settled)
    now = {name: float(getattr(problem, name)) for name in numbers} | {"staleness": tau, "epsilon": epsilon}

    def time(values: Mapping[str, float]) -> float:
        changed = theorem.late(_changed(problem, values, numbers), values["staleness"])
        quick = replace(traffic, size=int(values["size"])) if "size" in numbers else traffic
        return theorem.steps(changed, values["epsilon"]) * quick.step_time

    found: dict[str, Any] = {}
    if math.isfinite(needed):
        bound = theorem.right(settled, needed)
        found |= theorem.step(settled, needed)
        binds = f"the condition T ≥ {fewest:,.0f}" if needed <= math.ceil(fewest - 1e-9) else _binding(bound)
    else:
        binds = f"{_binding(theorem.right(settled, 1e30))}: it does not vanish with T"
    found |= dict(facts or {})
    found |= {
        "mean staleness": traffic.mean_staleness,
        "largest staleness τ": f"{tau:g}" + ("" if staleness is not None else " (probability 0.99)"),
        "server steps T for ε": needed,
        "at least, by the theorem": max(1.0, fewest),
        "time": needed * traffic.step_time,
        "what binds": binds,
    }
    knobs = [Knob(name, whole=name in WHOLE) for name in now]
    return Advice(theorem.name, found, _halved(time, now, knobs), notes)


def _uneven(traffic: Traffic) -> list[str]:
    n = len(traffic.rates)
    at_once = traffic.in_flight if traffic.in_flight and traffic.in_flight <= n else None
    most = max(times.shares(traffic.rates, at_once)) * n
    if most < 1.05:
        return []
    return [
        f"the theorem assumes that all clients report equally often; here the most frequent one reports {most:.2f} "
        "times its share, and the limit is biased (offbeat.theory.limits)"
    ]


def _of_base(problem: Any, staleness: float) -> Any:
    return replace(problem, base=replace(problem.base, staleness=staleness))


def _personal_step(smoothness: str) -> Callable[[Any, float], Mapping[str, float]]:
    """The step sizes of PersA-FL's theorems 2 and 3, which differ in what they call the smoothness."""
    return lambda p, T: {
        "local step η": persafl.local_step(p.smoothness, p.base.steps, T),
        "server lr β": 1.0,
        smoothness: p.smoothness,
    }


_BUFFERED = _Theorem(
    "FedBuff, theorem 1 (smooth): (1/T) Σ E|∇f|² ≤ ε",
    fedbuff.least_steps,
    fedbuff.bound,
    lambda p, T: {"local step η": fedbuff.local_step(p, T), "server lr (β·K)": 1.0},
    ("smoothness", "steps", "sigma", "gamma", "gap"),
)
_STALE = _Theorem(
    "PersA-FL, theorem 1 for FedAsync (smooth): (1/T) Σ E|∇f|² ≤ ε",
    persafl.least_steps,
    persafl.bound,
    lambda p, T: {"local step η": persafl.local_step(p.smoothness, p.steps, T), "server lr β": 1.0},
    ("smoothness", "steps", "sigma", "gamma", "gap"),
)
_MAML = _Theorem(
    "PersA-FL, theorem 2 for MAML (smooth): (1/T) Σ E|∇F|² ≤ ε",
    persafl.maml_least_steps,
    persafl.maml_bound,
    _personal_step("smoothness L_b"),
    ("alpha", "gradient", "gap"),
    _of_base,
)
_MOREAU = _Theorem(
    "PersA-FL, theorem 3 for ME (smooth): (1/T) Σ E|∇F|² ≤ ε",
    lambda p: persafl.moreau_least_steps(p, printed=False),
    lambda p, T: persafl.moreau_bound(p, T, printed=False),
    _personal_step("smoothness L_c"),
    ("penalty", "accuracy", "gap"),
    _of_base,
)
_SIMULTANEOUS = _Theorem(
    "FedAST, corollary 1.1 (smooth): (1/T) Σ E|∇f|² ≤ ε",
    fedast.least_steps,
    fedast.corollary_bound,
    lambda p, T: {"client step η_c": fedast.client_step(p, T), "server lr η_s": fedast.server_step(p)},
    ("smoothness", "steps", "size", "sigma", "gamma", "gap"),
)


def buffered(
    problem: fedbuff.Buffered, traffic: Traffic, staleness: float | None = None, epsilon: float = 0.01
) -> Advice:
    """FedBuff, theorem 1."""
    return _advise(_BUFFERED, problem, traffic, staleness, epsilon, _uneven(traffic))


def stale(problem: persafl.Stale, traffic: Traffic, staleness: float | None = None, epsilon: float = 0.01) -> Advice:
    """PersA-FL, theorem 1."""
    return _advise(_STALE, problem, traffic, staleness, epsilon, _uneven(traffic))


def maml(problem: persafl.Maml, traffic: Traffic, staleness: float | None = None, epsilon: float = 0.01) -> Advice:
    """PersA-FL, theorem 2."""
    facts = {
        "bias that stays": 4.0 * problem.base.steps * problem.bias**2,
        "batches larger by (corollary 1)": persafl.maml_batch(problem, epsilon),
    }
    return _advise(_MAML, problem, traffic, staleness, epsilon, _uneven(traffic), facts)


def moreau(problem: persafl.Moreau, traffic: Traffic, staleness: float | None = None, epsilon: float = 0.01) -> Advice:
    """PersA-FL, theorem 3, with the proof's condition on T and its third term."""
    notes = [*_uneven(traffic), "the condition on T has (τ+1)³ and the third term γ_c², as the proof has them"]
    facts = {
        "bias that stays": 4.0 * problem.base.steps * problem.bias**2,
        "inner accuracy ν at most (corollary 3)": persafl.moreau_accuracy(problem, epsilon),
    }
    return _advise(_MOREAU, problem, traffic, staleness, epsilon, notes, facts)


def simultaneous(task: fedast.Task, traffic: Traffic, staleness: float | None = None, epsilon: float = 0.01) -> Advice:
    """FedAST, corollary 1.1 with the proof's constants."""
    notes = ["the paper states this bound in O(·); the constants are those of its appendix E.3.1"]
    return _advise(_SIMULTANEOUS, task, traffic, staleness, epsilon, notes)


def decoupled(
    problem: defedavg.Decoupled,
    clients: int,
    step_time: float,
    delay: float | None = None,
    epsilon: float = 0.01,
    failure: float = 0.01,
) -> Advice:
    """DeFedAvg, theorem 1.   delay: λ; None: the high-probability bound.   step_time: of a round."""
    check(epsilon=epsilon)
    check_whole(clients=clients)

    def late(rounds: float) -> float:
        return defedavg.delay_bound(clients, problem.sampled, rounds, failure) if delay is None else delay

    def needed_for(p: defedavg.Decoupled, goal: float) -> float:
        return horizon(lambda T: defedavg.bound(p, T).total, goal, defedavg.least_rounds(p)[0])

    settled = replace(problem, delay=late(1.0))
    needed = needed_for(settled, epsilon)
    for _ in range(20):
        worse = late(needed)
        if worse <= settled.delay:
            break
        settled = replace(problem, delay=worse)
        needed = needed_for(settled, epsilon)
    fewest, condition = defedavg.least_rounds(settled)
    numbers = ("smoothness", "steps", "sampled", "sigma", "nu", "gradient", "gap", "delay")
    now = {name: float(getattr(settled, name)) for name in numbers} | {"epsilon": epsilon}

    def time(values: Mapping[str, float]) -> float:
        changed: defedavg.Decoupled = _changed(settled, values, numbers)
        return needed_for(changed, values["epsilon"]) * step_time

    bound = defedavg.bound(settled, needed)
    at_limit = needed <= math.ceil(fewest - 1e-9)
    free = replace(settled, delay=1.0)
    facts = {
        "global step η": defedavg.global_step(settled),
        "local step η̄": defedavg.local_step(settled, needed),
        "delay λ": f"{settled.delay:g}" + (f" (probability {1 - failure:g})" if delay is None else ""),
        "drawn in a round, p": defedavg.drawn(clients, problem.sampled),
        "rounds T for ε": needed,
        "at least, by (11)": fewest,
        "of that for λ = 1": defedavg.least_rounds(free)[0],
        "time": needed * step_time,
        "what binds": f"(11): {condition}" if at_limit else _binding(bound),
    }
    knobs = [Knob(name, whole=name in WHOLE) for name in now]
    notes = ["(11) grows as n·K·λ⁴: with λ from sampling alone it is far beyond what anybody runs"] if at_limit else []
    return Advice("DeFedAvg, theorem 1 (smooth): (1/T) Σ E|∇F|² ≤ ε", facts, _halved(time, now, knobs), notes)
