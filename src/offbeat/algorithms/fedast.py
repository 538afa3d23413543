"""FedAST: several models at once over one pool of clients (algorithms 2–4 and appendix A of its paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, sqrt
from typing import Any, ClassVar, Literal, Self

from offbeat.algorithms.allocate import divide, divide_in, spread, variance
from offbeat.algorithms.area import AREA
from offbeat.algorithms.criteria import MessageCount
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.flow import Flow
from offbeat.algorithms.restart import Restarting
from offbeat.algorithms.rounds import SentRounds
from offbeat.core.errors import Count, Positive, SettingError, at_least, unknown
from offbeat.core.events import Alarm, Command, Job, Send, Stop, Update
from offbeat.core.guard import Contributions, Guard
from offbeat.core.local import Local
from offbeat.core.metric import Goal
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.problem import Problem
from offbeat.core.server import SPENT, Combines, Commands, Model, Stepping, View, releasing
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector
from offbeat.local.sgd import SGD

Allocation = Literal["static", "dynamic", "variance", "demonstration"]
Counts = Count | tuple[Count, ...] | Mapping[str, Count]  # for all tasks, in their order, or by their names
Steps = Positive | tuple[Positive, ...] | Mapping[str, Positive]

_BY_TASK = ("requests", "size", "lr", "versions")  # settings that a task can have for itself


@dataclass
class TaskState(State):
    """One task: its own server's state, and what it has been given of the clients."""

    inner: Any
    requests: int = 0  # R_m, wanted
    size: int = 1  # b_m of the present round
    coming: int = 1  # b_m from the next round on
    gathered: int = 0  # updates of the present round
    flying: int = 0  # requests on their way
    working: list[int] = field(default_factory=list)  # the clients that have them, where each may have one
    active: bool = False
    recent: list[Vector] = field(default_factory=list)  # the last V updates
    scale: float = 1.0  # of the variance: η_c · η_s · τ of the last update, if it counts
    spreads: Vector | None = None  # sum of the variances of this period, where their mean counts
    spread_count: int = 0
    rounds: SentRounds | None = None  # where updates are weighed by them

    def landed(self, client: int) -> None:
        """A request is not on its way any more."""
        self.flying -= 1
        if client in self.working:
            self.working.remove(client)


@dataclass
class FedASTState(State):
    tasks: list[TaskState]
    arrivals: int = 0  # c, over all tasks
    allocated: int = 0  # arrivals until the last allocation
    decisions: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class FedAST(Stepping[FedASTState]):
    """Several tasks over one pool of clients: each task has its own buffer and a number of requests under way.

    Task m has R_m requests under way and a buffer of b_m; every arrival sends K_m ∈ {0, 1, 2} new ones. They go to
    clients drawn uniformly among all available ones, busy or not: a busy client queues them. When b_m updates have
    come, x_m ← x_m − lr · mean of the deltas, which is the paper's η_s η_c τ · mean(Δ).

    Requests, size, lr and versions can be each task's own: { mnist = 40, cifar10 = 60 }, or a list in the order of the
    tasks.

    requests: requests under way over all tasks, ΣR, at first in equal parts; or those of each task at first, R_m⁰.
    ratio: requests per update of a task's buffer, R_m / b_m, at most: b_m is rounded up, as in the authors' code. The
        paper has ratios up to 37.
    size: updates per server step of a task, b_m, instead of the ratio; 1 is FedAST-NoBuffer.
    lr: server step size, η_s.
    versions: server steps after which a task is done, T_m; by default its target or the end of the run decides.
    allocation: "static": R_m stays; "dynamic": every `period`·M·ΣR arrivals R_m ∝ σ̂_m with σ̂²_m = η_c η_s τ times the
        normalised variance of the task's last `window` updates, b_m in proportion; K_m moves gradually there, and
        the new b_m counts from the task's next round on; "variance": the same with the variance alone (equation 2), for
        tasks whose step sizes are of different orders; "demonstration": as in the authors' public code, see below.
    weights: "buffer": a step takes the mean of the buffer; "sent": each update counts 1/|A|, where A are the task's
        requests that were sent in the same round (remark 7). With it, theorem 2 does not need its assumption 5.
    window: updates of a task over which the variance is taken, V.
    period: how often requests are reallocated, in multiples of M·ΣR arrivals.
    targets: by task, the goal at which it is done; its requests go to the others at once.
    aggregate: server of each task, by default FedBuff. The size of its buffer becomes b_m; the sizes of AREA and
        AS-FedAvg and criteria by the clock stay.

    Differs from the paper: the requests of a finished task are dropped wherever they are, queued ones included.

    The code of the authors' demonstration (github.com/askinb/FedAST) has another rule than the paper, "demonstration":
    R_m ∝ the mean over the period of η_s η_c · σ̃² / (η_c τ)² / 2, without a root. σ̃² is taken after every update and
    leaves out biases; of a full window the oldest update is dropped first, so that it is the variance of `window` − 1.
    Requests move in packets of `ratio`, and each task keeps one packet. Nothing moves before every task has made more
    than `window` steps. Differs from that code: b_m follows R_m, not the number of requests under way, of which there
    may be more than ΣR while requests move, and requests of a finished task go to the others at once.
    """

    requests: Counts = 100
    ratio: Positive = 37.0
    size: Counts | None = None
    lr: Steps = 0.1
    versions: Counts | None = None
    allocation: Allocation = "static"
    weights: Literal["buffer", "sent"] = "buffer"
    window: int = 8
    period: Positive = 0.75
    targets: tuple[Goal | None, ...] = field(default=(), metadata={"setting": False})
    biases: tuple[tuple[tuple[int, int], ...], ...] = field(default=(), metadata={"setting": False})  # by task
    aggregate: Flow[Any] | None = None
    several: ClassVar[bool] = True
    default_local: ClassVar[Local | None] = SGD(lr=0.1, steps=27, batch=32)  # FedAST, C.5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(3 if self.allocation == "demonstration" else 2, window=self.window)
        if self.allocation == "demonstration" and self.ratio != int(self.ratio):
            raise SettingError(f"ratio = {self.ratio}: requests move in packets of so many; give a whole number")
        if self.weights == "sent" and (self.aggregate is not None or self.guard is not None):
            raise SettingError(
                'weights = "sent": FedAST weighs updates itself; leave out aggregate, [robust], [privacy]'
            )
        if self.aggregate is not None and self.server is not None:
            raise SettingError("server: each task has its own server, aggregate; set the optimiser there")
        if self.aggregate is not None and self.aggregate.concurrency is not None:
            raise SettingError(
                f"aggregate.concurrency = {self.aggregate.concurrency}: requests say how many clients work"
            )
        if isinstance(self.aggregate, AREA) and self.aggregate.average:
            raise SettingError("aggregate.average: FedAST only returns the models of its tasks; leave it out")
        if isinstance(self.aggregate, Restarting) and self.aggregate.stop:
            raise SettingError("aggregate.stop: FedAST queues jobs at clients and stops none; leave it out")

    # The tasks' own settings and servers

    def for_tasks(self, names: Sequence[str]) -> Self:
        given = {name: getattr(self, name) for name in _BY_TASK}
        named: dict[str, Any] = {k: _ordered(k, v, names) for k, v in given.items() if isinstance(v, Mapping)}
        return replace(self, **named) if named else self

    def for_problems(self, problems: Sequence[Problem]) -> Self:
        made = super().for_problems(problems)
        if made.allocation != "demonstration":
            return made
        return replace(made, biases=tuple(tuple(getattr(problem, "biases", ())) for problem in problems))

    def alone(self, m: int) -> Self:
        """With task m's settings for all."""
        return replace(self, **{name: _of(getattr(self, name), m) for name in _BY_TASK})

    @property
    def total(self) -> int:
        """ΣR."""
        if isinstance(self.requests, int):
            return self.requests
        return sum(self.requests.values() if isinstance(self.requests, Mapping) else self.requests)

    @property
    def optimiser(self) -> ServerOptimiser | None:
        return self.server if self.aggregate is None else self.aggregate.optimiser

    def optimised(self, optimiser: ServerOptimiser) -> Self:
        if self.aggregate is None:
            return replace(self, server=optimiser)
        return replace(self, aggregate=self.aggregate.optimised(optimiser))

    def inner(self, m: int, size: int = 1) -> Flow[Any]:
        """The server of task m with this buffer size."""
        return _sized(self.aggregate or FedBuff(lr=_of(self.lr, m), server=self.server), size, self.guard)

    @property
    def combines(self) -> Combines:  # type: ignore[override]
        return self.inner(0).combines

    @property
    def releases(self) -> bool:  # type: ignore[override]
        return self.allocation == "static" and releasing(self.inner(0))

    @property
    def reads(self) -> tuple[str, ...]:
        return self.inner(0).reads

    @property
    def sends(self) -> tuple[str, ...]:
        return self.inner(0).sends

    @property
    def rebases(self) -> bool:
        return self.inner(0).rebases

    def pair(self, local: Local) -> Local:
        return self.inner(0).pair(local)

    def models(self, state: FedASTState) -> Sequence[Model]:
        return [task.inner.model for task in state.tasks]

    # Events

    def begin(self, models: Sequence[Vector], view: View) -> FedASTState:
        for name in _BY_TASK:
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != len(models):
                raise SettingError(f"{name} has {len(given)} values for {len(models)} tasks; give one for each")
        if self.total < len(models):
            raise SettingError(f"requests = {self.requests} for {len(models)} tasks: each needs at least one")
        if self.targets and len(self.targets) != len(models):
            raise SettingError(f"{len(self.targets)} targets for {len(models)} tasks: give one for each")
        tasks = [TaskState(self.inner(m).begin([model], view)) for m, model in enumerate(models)]
        for m, task in enumerate(tasks):
            task.rounds = SentRounds() if self.weights == "sent" else None
            if self.guard is not None and self.guard.limits:
                task.inner.model.contributions = Contributions(task=m)
        return FedASTState(tasks)

    def started(self, state: FedASTState, view: View) -> Commands:
        for m in view.tasks:
            state.tasks[m].active = True
        yield from self._share(state, self.first(state), "the beginning", view)
        for m in view.tasks:
            yield from self._alarms(state, m, view)

    def arrived(self, state: FedASTState, update: Update, view: View) -> Commands:
        m = update.job.task
        task = state.tasks[m]
        task.landed(update.job.client)
        if self.allocation != "static":
            self._note(task, update)
        version = task.inner.model.version
        said = self._aggregate(m, task, update, view)  # lines 7 and 9–11
        yield from self._own(m, said)
        self._gather(task, version, 1)
        state.arrivals += 1
        if self.allocation != "static" and self._due(state):
            self._reallocate(state, view)  # line 8
        yield from self._horizon(state, m, view)
        yield from self._follow(state, m, said, view)  # line 13

    def adds(self, task: int = 0) -> int | None:
        if self.allocation != "static":
            raise SettingError(f'allocation = "{self.allocation}": it needs single updates, which [secure] hides')
        if self.weights == "sent":
            raise SettingError('weights = "sent": [secure] shows sums only, in which no update can be weighed')
        if self.size is None:
            raise SettingError("size: [secure] needs one that stays; give each task its size instead of a ratio")
        return self.inner(task, _of(self.size, task)).adds()

    def sealed(self, state: FedASTState, job: Job, view: View) -> Commands:
        m, task = job.task, state.tasks[job.task]
        task.landed(job.client)
        said = list(self.inner(m, task.size).sealed(task.inner, job, view))
        yield from self._own(m, said)
        self._gather(task, task.inner.model.version, 1)
        state.arrivals += 1
        yield from self._follow(state, m, said, view)

    def summed(self, state: FedASTState, task: int, total: Vector, count: int, view: View) -> Commands:
        mine = state.tasks[task]
        version = mine.inner.model.version
        yield from self._own(task, self.inner(task, mine.size).summed(mine.inner, 0, total, count, view))
        self._gather(mine, version, 0)
        yield from self._horizon(state, task, view)
        yield from self._refill(state, task, view)

    def _refill(self, state: FedASTState, m: int, view: View) -> Commands:
        """The requests of a task that nobody was there to take."""
        task = state.tasks[m]
        if task.active:
            yield from self._send(state, m, task.requests - task.flying, None, view)

    def lost(self, state: FedASTState, job: Job, reason: str, view: View) -> Commands:
        task = state.tasks[job.task]
        task.landed(job.client)
        if task.rounds is not None:
            task.rounds.lose(job.version)
        yield from self._follow(state, job.task, [], view)

    def rang(self, state: FedASTState, key: str, view: View) -> Commands:
        m, _, own = key.partition(":")
        task = state.tasks[int(m)]
        if task.active:
            version = task.inner.model.version
            yield from self._own(int(m), self.inner(int(m), task.size).rang(task.inner, own, view))
            self._gather(task, version, 0)
            yield from self._horizon(state, int(m), view)

    def joined(self, state: FedASTState, client: int, view: View) -> Commands:
        for m, task in enumerate(state.tasks):  # nobody was there to take the requests
            if task.flying == 0 or view.sealed:
                yield from self._refill(state, m, view)

    def track(self, state: FedASTState, models: Sequence[Vector], view: View) -> None:
        for m, task in enumerate(state.tasks):
            self.inner(m).track(task.inner, [models[m]], view)

    def remembered(self, state: FedASTState, task: int, client: int) -> Payload | None:
        return self.inner(task).remembered(state.tasks[task].inner, 0, client)

    def resize(self, state: FedASTState, clients: int) -> None:
        for m, task in enumerate(state.tasks):
            self.inner(m).resize(task.inner, clients)

    def admitted(self, state: FedASTState, client: int, models: Sequence[Vector], view: View) -> Commands:
        for m, task in enumerate(state.tasks):
            yield from self._own(m, self.inner(m, task.size).admitted(task.inner, client, [models[m]], view))

    def dismissed(self, state: FedASTState, client: int, view: View) -> Commands:
        for m, task in enumerate(state.tasks):
            yield from self._own(m, self.inner(m, task.size).dismissed(task.inner, client, view))

    def measured(self, state: FedASTState, task: int, metrics: Mapping[str, float], view: View) -> Commands:
        target = self.targets[task] if self.targets else None
        if target is not None and state.tasks[task].active and target.reached(metrics):
            yield Stop(task, "target")
            yield from self._drop(state, task, view)

    def opened(self, state: FedASTState, task: int, view: View) -> Commands:
        state.tasks[task].active = True
        yield from self._share(state, self.first(state), f"task {task} is there", view)
        yield from self._alarms(state, task, view)

    def closed(self, state: FedASTState, task: int, view: View) -> Commands:
        yield from self._drop(state, task, view)

    def report(self, state: FedASTState) -> Mapping[str, Any]:
        return {
            **super().report(state),
            "tasks": [
                {
                    "requests": t.requests,
                    "size": t.size,
                    "in_flight": t.flying,
                    "history": _changes([(d["time"], d["requests"][m], d["sizes"][m]) for d in state.decisions]),
                }
                for m, t in enumerate(state.tasks)
            ],
            "decisions": state.decisions,
        }

    # Who gets how much

    def first(self, state: FedASTState) -> Mapping[int, float]:
        """Tasks that may be trained now, and their shares before anything is known about them."""
        own = isinstance(self.requests, tuple)
        return {m: float(_of(self.requests, m)) if own else 1.0 for m, task in enumerate(state.tasks) if task.active}

    def _note(self, task: TaskState, update: Update) -> None:
        """Keep an update for the variance and, in the demonstration, take the variance of the last ones."""
        job, eta_s = update.job, _of(self.lr, update.job.task)
        kept = self.window if self.allocation != "demonstration" else self.window - 1
        full = len(task.recent) == kept
        task.recent = [*task.recent, self._moved(task, update)][-kept:]
        if self.allocation == "dynamic":
            task.scale = job.lr * eta_s * job.steps
        if self.allocation == "demonstration" and full:
            scale = eta_s * job.lr / (job.lr * job.steps) ** 2 / 2  # "** 1/2" in Python is a half
            found = scale * spread(task.recent, self.biases[job.task] if self.biases else ())
            task.spreads = found if task.spreads is None else task.spreads + found
            task.spread_count += 1

    def _due(self, state: FedASTState) -> bool:
        every = max(1, round(self.period * sum(task.active for task in state.tasks) * self.total))
        if self.allocation != "demonstration":
            return state.arrivals % every == 0
        return state.arrivals - state.allocated >= every

    def _reallocate(self, state: FedASTState, view: View) -> None:
        """Algorithm 3: R_m ∝ σ̂_m, once every task has a full window."""
        active = {m: t for m, t in enumerate(state.tasks) if t.active and t.requests}
        if len(active) < 2:
            return
        if self.allocation == "demonstration":
            found = {m: t.spreads / t.spread_count for m, t in active.items() if t.spreads is not None}
            if len(found) < len(active) or any(t.inner.model.version <= self.window for t in active.values()):
                return
            weights = {m: float(mean) for m, mean in found.items()}
            state.allocated = state.arrivals
            for task in state.tasks:
                task.spreads, task.spread_count = None, 0
        elif any(len(t.recent) < self.window for t in active.values()):
            return
        else:
            weights = {m: sqrt(t.scale * variance(t.recent)) for m, t in active.items()}
        self._decide(state, weights, "variance of updates", view)

    def _decide(self, state: FedASTState, weights: Mapping[int, float], why: str, view: View) -> None:
        packets = self.allocation == "demonstration" and why == "variance of updates"
        parts = divide_in(self.total, weights, int(self.ratio)) if packets else divide(self.total, weights)
        for m, task in enumerate(state.tasks):
            task.requests = parts.get(m, 0)
            if m in parts:
                task.coming = _of(self.size, m) or max(1, ceil(task.requests / self.ratio - 1e-9))
            if not task.gathered:
                task.size = task.coming
        state.decisions.append(
            {
                "time": view.now,
                "why": why,
                "weights": {str(m): w for m, w in weights.items()},
                "requests": [t.requests for t in state.tasks],
                "sizes": [t.coming for t in state.tasks],
            }
        )

    def _share(self, state: FedASTState, weights: Mapping[int, float], why: str, view: View) -> Commands:
        """A new division that takes effect at once: what is lacking is sent now."""
        if not weights:
            return
        self._decide(state, weights, why, view)
        for m, task in enumerate(state.tasks):
            yield from self._send(state, m, task.requests - task.flying, None, view)

    def _horizon(self, state: FedASTState, m: int, view: View) -> Commands:
        """Line 5: a task that has made its T_m steps is over."""
        task, last = state.tasks[m], _of(self.versions, m)
        if last is not None and task.active and task.inner.model.version >= last:
            yield Stop(m, "versions")
            yield from self._drop(state, m, view)

    def _drop(self, state: FedASTState, m: int, view: View) -> Commands:
        """The task is over; its requests go to the others in proportion to what they have."""
        gone = state.tasks[m]
        gone.active, gone.flying, gone.working, gone.recent = False, 0, [], []
        gone.rounds = gone.rounds and SentRounds()
        first = self.first(state)
        weights = {k: float(state.tasks[k].requests or share) for k, share in first.items()}
        yield from self._share(state, weights, f"task {m} is done", view)

    def _follow(self, state: FedASTState, m: int, said: Sequence[Command], view: View) -> Commands:
        """K_m new requests after one has come back: one, or none or two while R_m is being approached."""
        task = state.tasks[m]
        if not task.active:
            return
        had = task.flying + 1
        k = 1 if had == task.requests else 0 if had > task.requests else 2
        template = next((c for c in said if isinstance(c, Send)), None)
        yield from self._send(state, m, k, template, view)

    def _send(self, state: FedASTState, m: int, count: int, template: Send | None, view: View) -> Commands:
        task = state.tasks[m]
        if template is None:
            model = task.inner.model
            template = Send(-1, {"model": model.vector}, model.version, lr=self.inner(m).local_lr(task.inner))
        limited = self.guard is not None and self.guard.limits
        chosen = self._admitted(m, task, count, view) if limited or view.sealed else view.available(max(count, 0))
        for client in chosen:
            task.flying += 1
            if task.rounds is not None:
                task.rounds.send(template.version)
            yield template._replace(client=client, task=m)
        if limited and task.active and not task.flying and self._spent(m, task, view):
            yield Stop(m, SPENT)
            yield from self._drop(state, m, view)

    def _admitted(self, m: int, task: TaskState, count: int, view: View) -> Sequence[int]:
        """Up to so many clients that may contribute to a task and do not work for it, drawn uniformly."""
        model, busy = task.inner.model, set(task.working)
        free = [c for c in view.everyone() if c not in busy and not view.barred(c, model.version, m)]
        if self.guard is not None:
            free = [c for c in free if self.guard.admits(model, c)]
        chosen = view.rng.sample(free, max(count, 0))
        task.working = [*task.working, *chosen]
        return chosen

    def _spent(self, m: int, task: TaskState, view: View) -> bool:
        """Whether too few clients may still contribute to a task."""
        inner = self.inner(m, task.size)
        return inner.spent(task.inner, view, inner.lacking(task.inner))

    # A task's own server

    def _aggregate(self, m: int, task: TaskState, update: Update, view: View) -> list[Command]:
        """What a task's own server says to an update, or, where rounds weigh, to what a whole round comes to."""
        if task.rounds is None:
            return list(self.inner(m, task.size).arrived(task.inner, update, view))
        task.rounds.add(update.job.version, update["delta"])
        if task.gathered + 1 < task.size:
            task.inner.model.received(update.job)
            return []
        whole = Update(update.job, {"delta": task.rounds.take()})
        return list(self.inner(m).arrived(task.inner, whole, view))

    def _moved(self, task: TaskState, update: Update) -> Vector:
        """What the variance is of: the update; for a server that reads whole models, how far they are from its own."""
        name = self.reads[0]
        moved: Vector = task.inner.model.vector - update[name] if name == "model" else update[name]
        return moved

    def _gather(self, task: TaskState, version: int, more: int) -> None:
        """Count the round's updates; when it has ended, the new b_m begins."""
        task.gathered = task.gathered + more if task.inner.model.version == version else 0
        if not task.gathered:
            task.size = task.coming

    def _alarms(self, state: FedASTState, m: int, view: View) -> Commands:
        yield from self._own(m, self.inner(m).started(state.tasks[m].inner, view))

    def _own(self, m: int, said: Any) -> Commands:
        """Alarms of a task's own server, under its own name."""
        for command in said:
            if isinstance(command, Alarm):
                yield command._replace(key=f"{m}:{command.key}")


@dataclass(frozen=True)
class OneByOne(FedAST):
    """Several tasks one after the other, each with all requests until it is done (FedAST, §1)."""

    def first(self, state: FedASTState) -> Mapping[int, float]:
        return dict([(m, 1.0) for m, task in enumerate(state.tasks) if task.active][:1])


def _of(value: Any, m: int) -> Any:
    """Task m's own of a setting that is one for all or one for each."""
    return value[m] if isinstance(value, tuple) else value


def _ordered(setting: str, given: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """What is given by name, in the order of the tasks."""
    for name in given:
        if name not in names:
            raise unknown(f"task in {setting}:", name, names)
    for name in names:
        if name not in given:
            raise SettingError(f"{setting} has nothing for the task {name!r}; give each task its own, or one for all")
    return tuple(given[name] for name in names)


@lru_cache(maxsize=256)
def _sized(server: Flow[Any], size: int, guard: Guard | None) -> Flow[Any]:
    own = None if server.own_size else getattr(server, "size", None)
    sized = replace(server, size=size) if isinstance(own, int | MessageCount) else server  # type: ignore[call-arg]
    return sized if guard is None else replace(sized, guard=guard)


def _changes(given: Sequence[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """(time, R_m, b_m), only where one of the two is new."""
    return [now for before, now in zip([None, *given], given, strict=False) if before is None or before[1:] != now[1:]]
