"""The server of an algorithm: frozen settings, an explicit state, handlers that yield commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from offbeat.core.errors import Checked
from offbeat.core.events import (
    Admitted,
    Closed,
    Command,
    Dismissed,
    Event,
    Job,
    Joined,
    Left,
    Lost,
    Measured,
    Opened,
    Rang,
    Sealed,
    Started,
    Summed,
    Update,
)
from offbeat.core.guard import Contributions, Guard
from offbeat.core.local import Local
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.problem import Problem
from offbeat.core.random import Stream
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector

Commands: TypeAlias = Iterator[Command]
# where a server has a client's update before it, or says that a client is in a sum
SEEING = ("arrived", "absorb", "aggregate", "collect", "mean", "sealed", "charge")
SPENT = "privacy budget"  # why a run is over in which too few clients may still contribute
Combines: TypeAlias = Literal["", "buffer", "table"]


@dataclass
class Model(State):
    """A task's model at the server and the number of steps it has taken.

    memory: what an optimiser keeps from one step to the next.   stale: the largest staleness of what was received since
    the last step.   contributions: who has contributed how often, where that is limited.
    """

    vector: Vector
    version: int = 0
    memory: dict[str, Vector] = field(default_factory=dict)
    stale: int = 0
    contributions: Contributions | None = None

    def received(self, job: Job) -> int:
        """The staleness of what has just arrived: server steps since its model was sent."""
        staleness = self.version - job.version
        self.stale = max(self.stale, staleness)
        return staleness

    def step(self, lr: float, direction: Vector) -> None:
        """x ← x + lr · direction, as a new vector: the old one, which clients may have been sent, is unchanged."""
        self.replace(self.vector + lr * direction)

    def replace(self, vector: Vector) -> None:
        """x ← vector, as one server step."""
        self.vector = vector
        self.version += 1
        self.stale = 0

    def optimise(self, optimiser: ServerOptimiser, direction: Vector) -> None:
        """One server step that an optimiser makes of this direction."""
        memory = self.memory or optimiser.begin(self.vector)
        step, kept = optimiser.step(direction, memory, self.version + 1, self.stale)
        self.memory = dict(kept)  # a new one, always: that is how a step without the optimiser is found out
        self.replace(self.vector + step)


class View(Protocol):
    """What a handler may see besides its state. Reading it changes nothing."""

    @property
    def now(self) -> float:
        """Time of the event being handled."""

    @property
    def rng(self) -> Stream:
        """Random numbers keyed by the event being handled."""

    @property
    def clients(self) -> int:
        """Number of clients on the roster, present or not."""

    @property
    def tasks(self) -> Sequence[int]:
        """The tasks that are there to be trained now."""

    @property
    def flying(self) -> int:
        """Number of jobs in flight without the one that has just arrived; held work of a client and task is one."""

    @property
    def sealed(self) -> bool:
        """Whether the server is shown sums only: secure aggregation."""

    @property
    def complete(self) -> bool:
        """Under secure aggregation, whether the update that has just come is the last one of its sum."""

    def barred(self, client: int, version: int, task: int = 0) -> bool:
        """Whether this client is not to be sent this version of a task's model.

        So under secure aggregation, if a sum holds an update that it has made of this version or a later one.
        """

    def waiting(self, task: int = 0) -> Sequence[int]:
        """Under secure aggregation, the clients that wait for the next version of a task's model."""

    def present(self, client: int) -> bool:
        """Whether this client is there."""

    def everyone(self) -> Iterable[int]:
        """All clients that are there, in order."""

    def idle(self, count: int) -> list[int]:
        """Up to `count` different clients, uniformly among those that are there, take work now and have none.

        Nobody is asked twice for one answer, except that if everybody refuses all are asked again.
        """

    def normal(self, about: Vector, number: int) -> Vector:
        """Standard normal numbers for noise that hides this vector, as many as it has, in double precision.

        number: of the release, another one for each task. In a simulation they are a function of it, the run's seed and
        the event; in a real run of a secret that only servers have, and of the vector, so that no two vectors are
        hidden by the same numbers.
        """

    def available(self, count: int) -> list[int]:
        """`count` draws, uniformly among the clients that are there and take work, busy or not."""


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Server(Checked, Generic[S]):
    """Base of servers. A complete algorithm, as small as it gets:

    >>> from dataclasses import dataclass
    >>> from offbeat.core.events import Send
    >>> @dataclass
    ... class OneModel(State):
    ...     model: Model
    >>> @dataclass(frozen=True)
    ... class Vanilla(Server[OneModel]):
    ...     lr: float = 1.0
    ...     def begin(self, models, view):
    ...         return OneModel(Model(models[0]))
    ...     def started(self, state, view):
    ...         for client in view.everyone():
    ...             yield Send(client, {"model": state.model.vector}, state.model.version)
    ...     def arrived(self, state, update, view):
    ...         state.model.step(-self.lr, update["delta"])
    ...         yield Send(update.job.client, {"model": state.model.vector}, state.model.version)

    Handlers change the fields of `state`, never a tensor in place; they do no I/O, read no clock but `view.now`, draw
    from no generator but `view.rng`.

    Its fields are its settings, the lines `name: meaning` of its docstring their texts; a field with
    `metadata={"setting": False}` cannot be set in an experiment file. What it reads and sends, if that is constant, is
    a class variable: `reads = ("gradient",)`.
    """

    several: ClassVar[bool] = False  # whether it trains several tasks
    holds: ClassVar[bool] = False  # whether it sends work with `hold`, and recalls it
    default_local: ClassVar[Local | None] = None  # the local trainer where none is given
    state: ClassVar[type[Any]]  # the class of its state, unless it has a `begin` of its own

    @property
    def reads(self) -> tuple[str, ...]:
        """What it reads of an update."""
        return ("delta",)

    @property
    def sends(self) -> tuple[str, ...]:
        """What its payloads hold."""
        return ("model",)

    @property
    def rebases(self) -> bool:
        """Whether "delta" may lead running statistics from where the model is when an update arrives.

        Not if the server adds the same delta again later, or reads where the client began.
        """
        return "delta" in self.reads

    def begin(self, models: Sequence[Vector], view: View) -> S:
        """The state before the first event, given every task's initial model; by default `state` of the first."""
        state: S = self.state(Model(models[0]))
        return state

    def models(self, state: S) -> Sequence[Model]:
        """Every task's model, in the order of the tasks."""
        model: Any = state.model  # type: ignore[attr-defined]
        return (model,)

    def pair(self, local: Local) -> Local:
        """The local trainer as this server needs it; a server that wants another message wraps it here."""
        return local

    def for_tasks(self, names: Sequence[str]) -> Self:
        """This server for tasks of these names: settings that are given by name are put in their order."""
        return self

    def for_problems(self, problems: Sequence[Problem]) -> Self:
        """This server for these problems, before the first event."""
        return self.for_tasks([problem.name for problem in problems])

    def at_once(self) -> Mapping[str, int | None]:
        """Settings that say how many different clients have work at the same time; no more than there are may."""
        return {"concurrency": getattr(self, "concurrency", None)}

    def fit(self, clock: Any) -> Self:
        """This server for the clients of a clock, before the first event: settings that have a `fit` are fitted."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        fitted = {name: value.fit(clock) for name, value in settings.items() if hasattr(value, "fit")}
        return replace(self, **fitted) if fitted else self

    def started(self, state: S, view: View) -> Commands:
        """The run begins."""
        yield from ()

    def arrived(self, state: S, update: Update, view: View) -> Commands:
        """A client's result is here."""
        yield from ()

    def adds(self, task: int = 0) -> int | None:
        """How many updates it takes for a step of a task, if it makes nothing of them but their sum; None: it does.

        Those that add up can be run under secure aggregation: they have `sealed` and `summed`, too. One whose settings
        stand in the way raises `SettingError`.
        """
        return None

    def sealed(self, state: S, job: Job, view: View) -> Commands:
        """A client's result is here, and not for the server to see."""
        yield from ()

    def summed(self, state: S, task: int, total: Vector, count: int, view: View) -> Commands:
        """The sum of what so many clients have sent; 0: it is lost. Those who have waited (`view.waiting`) get work."""
        yield from ()

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        """A job will never arrive."""
        yield from ()

    def rang(self, state: S, key: str, view: View) -> Commands:
        """An alarm went off."""
        yield from ()

    def joined(self, state: S, client: int, view: View) -> Commands:
        """A client is there."""
        yield from ()

    def left(self, state: S, client: int, view: View) -> Commands:
        """A client is gone."""
        yield from ()

    def admitted(self, state: S, client: int, models: Sequence[Vector], view: View) -> Commands:
        """The roster has one client more, `view.clients`, whose memory begins with these initial models of the tasks.

        A server that divides by the number of clients corrects its sums here and in `dismissed`.
        """
        yield from ()

    def dismissed(self, state: S, client: int, view: View) -> Commands:
        """The roster has one client less, `view.clients`; it has left before and will not come back."""
        yield from ()

    def measured(self, state: S, task: int, metrics: Mapping[str, float], view: View) -> Commands:
        """A task's model was evaluated."""
        yield from ()

    def opened(self, state: S, task: int, view: View) -> Commands:
        """A task is there to be trained from now on."""
        yield from ()

    def closed(self, state: S, task: int, view: View) -> Commands:
        """A task is to be trained no longer."""
        yield from ()

    def track(self, state: S, models: Sequence[Vector], view: View) -> None:
        """Keep from now on what `dismissed` needs: called before the first event of a real run.

        models: every task's initial model.
        """

    def remembered(self, state: S, task: int, client: int) -> Payload | None:
        """A client's memory as this state has it, for a real run that is restored from a backup: its clients are ahead.

        Asked for tasks whose clients have one that is not all `Local.private`. {}: they keep what they have; None: it
        is not known.
        """
        return None

    def resize(self, state: S, clients: int) -> None:
        """Raise `SettingError` if the roster cannot have so many clients; asked before one is admitted or dismissed."""

    def outputs(self, state: S) -> Mapping[str, Vector]:
        """What a run of one task gives besides its model, by name: further models, which are evaluated at its end."""
        return {}

    def report(self, state: S) -> Mapping[str, Any]:
        """What the record of a run should keep of its state: numbers, strings, lists and mappings."""
        return {}


@dataclass(frozen=True)
class Stepping(Server[S]):
    """A server that steps along a direction, by itself or through an optimiser.

    server: optimiser of the server's steps, such as { adam = { lr = 0.01 } }; the algorithm's own step size then scales
        the direction that goes into it. By default the direction is the step.

    guard: what becomes of updates before they count, by default nothing. combines: what a robust rule can work on, the
    updates in a "buffer" or a "table" of one vector a client. releases: whether each update goes into one sum that is
    released, which differential privacy needs.
    """

    server: ServerOptimiser | None = field(default=None, kw_only=True)
    guard: Guard | None = field(default=None, kw_only=True, repr=False, metadata={"setting": False})

    combines: ClassVar[Combines] = ""
    releases: ClassVar[bool] = False

    @property
    def optimiser(self) -> ServerOptimiser | None:
        """What makes the steps of its models."""
        return self.server

    def optimised(self, optimiser: ServerOptimiser) -> Self:
        """The same with another optimiser."""
        return replace(self, server=optimiser)

    def step(self, model: Model, lr: float, direction: Vector) -> None:
        """x ← x + lr · direction, or what the optimiser makes of lr · direction."""
        if self.server is None:
            model.step(lr, direction)
        else:
            model.optimise(self.server, lr * direction)

    def collect(self, state: Any, client: int, weight: float, vector: Vector) -> None:
        """One more update, times its weight, in the buffer of a state."""
        if self.guard is None:
            state.buffer.add(weight, vector)
        else:
            self.guard.collect(state.model, state.buffer, client, vector if weight == 1.0 else weight * vector)

    def mean(self, state: Any, view: View, size: int | None = None) -> Vector:
        """What the buffer of a state comes to; it is empty afterwards. size: of a buffer that is always as full."""
        if self.guard is None:
            found: Vector = state.buffer.take_mean()
            return found
        return self.guard.mean(state.model, state.buffer, size, view)

    def report(self, state: S) -> Mapping[str, Any]:
        return {} if self.guard is None else self.guard.report(self.models(state))

    def charge(self, state: Any, client: int, view: View) -> None:
        """A client is in the next sum, and no more is seen of its update."""
        if self.guard is not None and self.guard.limits:
            self.guard.charge(state.model, state.buffer, client, view.complete)

    def idle(self, state: Any, count: int, view: View) -> list[int]:
        """Up to so many idle clients, drawn uniformly among those that may contribute."""
        limited = self.guard is not None and self.guard.limits
        if not limited and not view.sealed:
            return view.idle(count)
        return [client for client in view.idle(view.clients) if self.admits(state, client, view)][: max(count, 0)]

    def admits(self, state: Any, client: int, view: View) -> bool:
        """Whether this client may be sent the model as it is now."""
        if view.barred(client, state.model.version):
            return False
        return self.guard is None or self.guard.admits(state.model, client)

    def spent(self, state: Any, view: View, wanted: int) -> bool:
        """Whether too few clients may still contribute for so many updates more, and no sum waits to be opened."""
        past = state.model.contributions
        if past is not None and past.closed:
            return False
        return self.guard is not None and self.guard.exhausted(state.model, view.clients, wanted)

    def move(self, model: Model, vector: Vector) -> None:
        """x ← vector, or what the optimiser makes of the direction vector − x."""
        if self.server is None:
            model.replace(vector)
        else:
            model.optimise(self.server, vector - model.vector)


def releasing(server: Stepping[Any]) -> bool:
    """Whether each update goes into one sum that is released, and into nothing else.

    The class must say so itself that makes something of updates: what it has inherited was said of another.
    """
    order = type(server).__mro__

    def depth(what: str) -> int:
        return next((n for n, each in enumerate(order) if what in vars(each)), len(order))

    return server.releases and depth("releases") <= min(map(depth, SEEING))


def answers(server: Server[Any], state: Any, event: Event, view: View) -> Commands:
    """What the server has to say about an event."""
    match event:
        case Update():
            return server.arrived(state, event, view)
        case Sealed(job):
            return server.sealed(state, job, view)
        case Summed(task, total, count):
            return server.summed(state, task, total, count, view)
        case Rang(name):
            return server.rang(state, name, view)
        case Lost(job, reason):
            return server.lost(state, job, reason, view)
        case Measured(task, metrics):
            return server.measured(state, task, metrics, view)
        case Joined(client):
            return server.joined(state, client, view)
        case Left(client):
            return server.left(state, client, view)
        case Started():
            return server.started(state, view)
        case Admitted(client, models):
            return server.admitted(state, client, models, view)
        case Dismissed(client):
            return server.dismissed(state, client, view)
        case Opened(task):
            return server.opened(state, task, view)
        case Closed(task):
            return server.closed(state, task, view)
