"""AREA's step sizes by its theorems, named in place of numbers: `schedule = "theorem7"`.

They need more than a server knows: the problem's constants, the clients' rates, the number of local steps and, for
theorem 8, the number of iterations. `settle` puts the numbers in their place before a run begins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from offbeat.algorithms.area import AREA
from offbeat.algorithms.criteria import Criterion, MessageCount, Period, Poisson, criterion
from offbeat.algorithms.schedules import Schedule, Steady
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import Checked, NotNegative, Positive, SettingError
from offbeat.core.local import Local, Wrapper
from offbeat.core.problem import Problem
from offbeat.core.server import Stepping
from offbeat.core.until import Until
from offbeat.local.descent import Descent
from offbeat.theory import area, estimate
from offbeat.timing.base import Timing


@dataclass(frozen=True)
class TheoremSchedule(Checked):
    """Step sizes by a theorem. Settings that are None are the problem's, which must know them then."""

    @abstractmethod
    def settled(self, steps: int, events: area.Events, until: Until) -> Schedule:
        """The step sizes in numbers.   steps: M."""

    def __call__(self, k: int, /) -> float:
        raise SettingError(f"schedule = {self!r}: it has no numbers before a run of AREA with one task begins")

    def of(self, problem: Problem) -> Self:
        """With the constants of this problem in place of those that are not given."""
        missing = [field.name for field in fields(self) if getattr(self, field.name) is None]
        found = {name: getattr(problem, name, None) for name in missing}
        unknown = [name for name, value in found.items() if not isinstance(value, float | int)]
        if unknown:
            raise SettingError(
                f"schedule: {problem.name} does not know its {' and '.join(unknown)}; give them, as in schedule = "
                f"{{ {type(self).__name__.lower()} = {{ {', '.join(f'{name} = 1.0' for name in unknown)} }} }}"
                " (`offbeat run --theory` estimates some)"
            )
        return replace(self, **found)


@dataclass(frozen=True)
class Theorem7(TheoremSchedule):
    """AREA's theorem 7, for smooth and strongly convex functions: α_k = 1/(p_min·M·γ·k/48 + 1/D).

    smoothness: L; by default what the problem says, as a quadratic does.
    convexity: μ, of every client's function; likewise.
    """

    smoothness: Positive | None = None
    convexity: Positive | None = None

    def settled(self, steps: int, events: area.Events, until: Until) -> Schedule:
        assert self.smoothness is not None
        assert self.convexity is not None
        return area.schedule(area.Smooth(self.convexity, self.smoothness, steps), events)


@dataclass(frozen=True)
class Theorem8(TheoremSchedule):
    """AREA's theorem 8, for convex and Lipschitz functions: α = sqrt((1/p_s + 2q̄)·|x_0 − x*|²/((σ² + (M+1)B²/2)·M·K)).

    K is `until.iterations`. The bound is for the mean of the models, `average = true`.

    lipschitz: B, of every client's function; by default what the problem says, as `absolute` does.
    noise: σ, E|g − ∇f_i|² ≤ σ²; likewise.
    distance: |x_0 − x*|; likewise.
    """

    lipschitz: Positive | None = None
    noise: NotNegative | None = None
    distance: Positive | None = None

    def settled(self, steps: int, events: area.Events, until: Until) -> Schedule:
        assert self.lipschitz is not None
        assert self.noise is not None
        assert self.distance is not None
        if until.iterations is None:
            raise SettingError("schedule = theorem8: its step size depends on K; set until.iterations")
        problem = area.Nonsmooth(self.lipschitz, steps, self.noise, self.distance)
        return Steady(area.nonsmooth_step(problem, events, until.iterations))


def settle(algorithm: Algorithm, problems: Sequence[Problem], timing: Timing, until: Until, seed: int) -> Algorithm:
    """The algorithm with numbers in place of a theorem's name; one without such a name is given back as it is."""
    server = algorithm.server
    if not (isinstance(server, AREA) and isinstance(server.schedule, TheoremSchedule)):
        return algorithm
    problem, local = problems[0], innermost(algorithm, len(problems))
    covered(algorithm, local)
    clock = timing.bind(problem.clients, seed, [each.name for each in problems])
    rates = estimate.rates(clock, problem.clients, local.steps, *local.wire(problem.dim))
    fitted: Any = server.fit(clock)
    events = area.Events.from_rates(rates, server_rate(criterion(fitted.size), sum(rates)))
    schedule = server.schedule.of(problem).settled(local.steps, events, until)
    return replace(algorithm, server=replace(server, schedule=schedule))


def covered(algorithm: Algorithm, local: Local) -> int | None:
    """The mini-batch size of steps that the theorems are about; anything else is refused."""
    if isinstance(algorithm.server, Stepping) and algorithm.server.server is not None:
        raise SettingError("the theorems are about a server's own steps, not about those of an optimiser")
    if isinstance(local, Descent) and (local.rule is not None or local.schedule is not None):
        raise SettingError("the theorems are about plain local steps of one size, without optimiser and schedule")
    if local.epochs is not None or local.accumulate > 1 or not isinstance(local.batch, int | None):
        raise SettingError("the theorems are about one number of local steps and one batch size for all clients")
    if local.compress is not None:
        raise SettingError("the theorems are about whole messages, not about compressed ones")
    return local.batch


def innermost(algorithm: Algorithm, tasks: int) -> Local:
    """The first task's local trainer without what is wrapped around it."""
    local = algorithm.locals(tasks)[0]
    while isinstance(local, Wrapper):
        local = local.inner
    return local


def server_rate(when: Criterion, messages: float) -> float:
    """Aggregations per unit of time, given the messages."""
    match when:
        case MessageCount(count):
            return messages / count
        case Period(time):
            return 1.0 / time
        case Poisson(rate) if rate != "optimal":
            return rate
    raise SettingError(f"size = {when!r}: how often it aggregates is not known")
