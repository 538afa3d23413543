"""What a theorem means for a user: step sizes, how long it takes, what limits it, and what would make it twice as fast.

Each paper's module has an `advise` function that builds on this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from offbeat.core.errors import Checked, Count, SettingError, positive
from offbeat.theory import times
from offbeat.theory.bound import Bound, Halving, halve, horizon

P = TypeVar("P")  # the problem that a theorem is about: a frozen dataclass of its constants

WHOLE = ("steps", "size", "requests", "sampled", "clients")  # parameters that are whole numbers


@dataclass(frozen=True)
class Advice:
    """What a theorem says about given numbers.

    facts: numbers or text by name, in the order to show them.   changes: each of them alone halves the time.
    """

    theorem: str
    facts: Mapping[str, Any]
    changes: Sequence[Halving] = ()
    notes: Sequence[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The advice as text."""
        width = max(len(name) for name in self.facts)
        found = [self.theorem, *(f"  {name:<{width}}  {_text(value)}" for name, value in self.facts.items())]
        if self.changes:
            found.append("  to halve the time, one of")
            wide = max(len(change.name) for change in self.changes)
            to = ["no value of it" if c.to is None else _text(c.to) for c in self.changes]
            found += [f"    {c.name:<{wide}}  {_text(c.now)} → {at}" for c, at in zip(self.changes, to, strict=True)]
        return found + [f"  note: {note}" for note in self.notes]

    def plain(self) -> dict[str, Any]:
        """The advice as data for JSON; what is not finite is None."""
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


def largest_term(bound: Bound) -> str:
    """The dominating term of a bound and its share."""
    share = bound.terms[bound.largest] / bound.total if bound.total else 0.0
    return f"{bound.largest} ({share:.0%} of the bound)"


def changed(problem: P, values: Mapping[str, float], names: Sequence[str]) -> P:
    """The problem with other values of these parameters."""
    new = {name: int(values[name]) if name in WHOLE else values[name] for name in names}
    return replace(problem, **new)  # type: ignore[type-var]


def halvings(time: Callable[[Mapping[str, float]], float], now: Mapping[str, float]) -> list[Halving]:
    """For every parameter the change that halves the time; where the theorem refuses a value, the time is infinite."""

    def allowed(values: Mapping[str, float]) -> float:
        try:
            return time(values)
        except SettingError:
            return math.inf

    return halve(allowed, now, WHOLE)


@dataclass(frozen=True)
class Arrivals(Checked):
    """How often clients report, which turns server steps into time and bounds the staleness.

    rates: results of each client per unit of time, λ_i.   size: updates per server step.
    in_flight: jobs at a time; None: one for each client. More than there are clients wait in queues.
    """

    rates: Sequence[float]
    size: Count = 1
    in_flight: int | None = None

    @property
    def concurrency(self) -> int | None:
        """Clients at work at a time; None: all of them."""
        return None if self.in_flight is None or self.in_flight > len(self.rates) else self.in_flight

    @property
    def step_time(self) -> float:
        """The mean time of a server step."""
        return times.buffer_time(self.rates, self.size, self.concurrency)

    @property
    def mean_staleness(self) -> float:
        """The mean over all updates."""
        return times.staleness(self.in_flight or len(self.rates), self.size)

    @property
    def imbalance(self) -> float:
        """How many times its fair share the most frequent client contributes."""
        return max(times.shares(self.rates, self.concurrency)) * len(self.rates)

    def worst_staleness(self, server_steps: float) -> float:
        """A staleness that no update of so many server steps exceeds, with probability 0.99."""
        most = times.worst_staleness(self.rates, self.size, server_steps * self.size, 0.01, self.concurrency)
        queue = max(1.0, (self.in_flight or 1) / len(self.rates))  # jobs wait behind others
        return math.ceil(most * queue)

    def warnings(self) -> list[str]:
        """A note where arrivals are not uniform, as most theorems assume."""
        if self.imbalance < 1.05:
            return []
        return [
            "the theorem assumes that all clients report equally often; here the most frequent one reports "
            f"{self.imbalance:.2f} times its share, and the limit is biased (offbeat.theory.limits)"
        ]


@dataclass(frozen=True)
class Theorem(Generic[P]):
    """A bound on the mean squared gradient after T server steps.

    least_steps: the fewest for which it holds.   bound: the right-hand side after T steps.
    step_sizes: those that it prescribes for T steps.   parameters: fields of the problem that a user may change.
    with_staleness: the same problem with another largest staleness.
    """

    name: str
    least_steps: Callable[[P], float]
    bound: Callable[[P, float], Bound]
    step_sizes: Callable[[P, float], Mapping[str, float]]
    parameters: Sequence[str]
    with_staleness: Callable[[P, float], P] = lambda problem, staleness: replace(problem, staleness=staleness)  # type: ignore[type-var]

    def steps(self, problem: P, epsilon: float) -> float:
        """The server steps after which the bound is at most ε."""
        return horizon(lambda T: self.bound(problem, T).total, epsilon, self.least_steps(problem))

    def solve(self, problem: P, arrivals: Arrivals, staleness: float | None, epsilon: float) -> tuple[float, float]:
        """(τ, T): the steps for ε, and the largest staleness in so many steps unless it is given."""
        tau = arrivals.mean_staleness if staleness is None else staleness
        needed = self.steps(self.with_staleness(problem, tau), epsilon)
        if staleness is None:
            for _ in range(20):  # τ grows with the logarithm of T
                if not math.isfinite(needed):
                    break
                worse = arrivals.worst_staleness(needed)
                if worse <= tau:
                    break
                tau = worse
                needed = self.steps(self.with_staleness(problem, tau), epsilon)
        return tau, needed

    def advise(
        self,
        problem: P,
        arrivals: Arrivals,
        staleness: float | None,
        epsilon: float,
        notes: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> Advice:
        """The advice for a target ε.   facts: further ones, to be shown after the step sizes."""
        positive(epsilon=epsilon)
        tau, needed = self.solve(problem, arrivals, staleness, epsilon)
        late = self.with_staleness(problem, tau)
        fewest = self.least_steps(late)
        now = {name: float(getattr(problem, name)) for name in self.parameters} | {"staleness": tau, "epsilon": epsilon}

        def time(values: Mapping[str, float]) -> float:
            other = self.with_staleness(changed(problem, values, self.parameters), values["staleness"])
            quicker = replace(arrivals, size=int(values["size"])) if "size" in self.parameters else arrivals
            return self.steps(other, values["epsilon"]) * quicker.step_time

        found: dict[str, Any] = {}
        if math.isfinite(needed):
            found |= self.step_sizes(late, needed)
            at_least = needed <= math.ceil(fewest - 1e-9)
            limit = f"the condition T ≥ {fewest:,.0f}" if at_least else largest_term(self.bound(late, needed))
        else:
            limit = f"{largest_term(self.bound(late, 1e30))}: it does not vanish with T"
        found |= facts or {}
        found |= {
            "mean staleness": arrivals.mean_staleness,
            "largest staleness τ": f"{tau:g}" + ("" if staleness is not None else " (probability 0.99)"),
            "server steps T for ε": needed,
            "at least, by the theorem": max(1.0, fewest),
            "time": needed * arrivals.step_time,
            "what binds": limit,
        }
        return Advice(self.name, found, halvings(time, now), notes)
