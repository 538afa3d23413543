"""Synchronous training of several models: Sync-ST, Sync-UCB-ST and Sync-Bayes-ST (FedAST, §2, §5.2, D.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from offbeat.algorithms.allocate import divide
from offbeat.algorithms.buffer import Buffer
from offbeat.core.errors import Count, NotNegative, Positive, SettingError
from offbeat.core.events import Alarm, Cancel, Job, Send, Stop, Update
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.metric import Goal
from offbeat.core.server import Commands, Model, Stepping, View
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector
from offbeat.local.sgd import SGD


@dataclass
class RoundTask(State):
    """One task in the present round."""

    model: Model
    buffer: Buffer
    active: bool = False
    out: int = 0  # jobs of this round on their way
    done: bool = False  # this round has given what it should
    working: list[int] = field(default_factory=list)  # who has these jobs, if late ones are stopped

    def landed(self, client: int) -> None:
        """A job of this round is not on its way any more."""
        self.out -= 1
        if client in self.working:
            self.working.remove(client)


@dataclass
class SyncState(State):
    tasks: list[RoundTask]
    rounds: int = 0
    began: float = 0.0  # this round


S = TypeVar("S", bound=SyncState)
Parts = dict[int, list[int]]  # the clients of each task
NOISE = 0.1  # variance of a round's cost around what Sync-Bayes-ST's process says, whose own is 1


@dataclass(frozen=True)
class TaskRounds(Stepping[S]):
    """Synchronous rounds of several tasks: idle clients are divided over the tasks, and all tasks step together.

    sampled: clients drawn per round over all tasks.
    first: over-selection: use this many first results of each task (the paper's k = 30) and ignore the rest; by
        default wait for all.
    stop: stop clients whose result would come too late, so that they are free for the next round, as in the authors'
        demonstration; otherwise they finish, and the result is ignored.
    lr: server step size.
    shares: each task's part of the clients, in the order of the tasks; by default equal.
    targets: by task, the goal at which it is done; its clients go to the others.
    """

    sampled: Count = 100
    first: Count | None = None
    stop: bool = False
    lr: Positive = 1.0
    shares: tuple[Positive, ...] = ()
    targets: tuple[Goal | None, ...] = field(default=(), metadata={"setting": False})
    several: ClassVar[bool] = True
    state: ClassVar[type[Any]] = SyncState
    default_local: ClassVar[Local | None] = SGD(lr=0.1, steps=27, batch=32)  # FedAST, C.5

    def assign(self, state: S, clients: Sequence[int], places: Mapping[int, int], view: View) -> Parts:
        """Which of these clients train which task; `places` are the tasks' numbers of clients."""
        raise NotImplementedError

    def learn(self, state: S, update: Update, view: View) -> None:
        """What a result says about its client."""

    def concluded(self, state: S, view: View) -> None:
        """What a finished round says about its assignment."""

    def models(self, state: S) -> Sequence[Model]:
        return [task.model for task in state.tasks]

    def begin(self, models: Sequence[Vector], view: View) -> S:
        for name in ("shares", "targets"):
            given = getattr(self, name)
            if given and len(given) != len(models):
                raise SettingError(f"{name} has {len(given)} values for {len(models)} tasks; give one for each")
        if self.sampled < len(models):
            raise SettingError(f"sampled = {self.sampled} for {len(models)} tasks: each needs at least one client")
        state: S = self.state([RoundTask(Model(model), Buffer()) for model in models])
        return state

    def started(self, state: S, view: View) -> Commands:
        for m in view.tasks:
            state.tasks[m].active = True
        yield from self._round(state, view)

    def arrived(self, state: S, update: Update, view: View) -> Commands:
        task = state.tasks[update.job.task]
        self.learn(state, update, view)
        if task.active and update.job.version == task.model.version:  # otherwise too late for its round
            task.landed(update.job.client)
            if not task.done:
                task.buffer.add(1.0, update["delta"])
                task.done = task.out == 0 or task.buffer.count == self.first
                if task.done:
                    yield from self._dismiss(update.job.task, task)
            yield from self._barrier(state, view)
        else:
            yield from self._wake(state, view)

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        task = state.tasks[job.task]
        if task.active and job.version == task.model.version:
            task.landed(job.client)
            task.done = task.done or task.out == 0
            yield from self._barrier(state, view)
        else:
            yield from self._wake(state, view)

    def joined(self, state: S, client: int, view: View) -> Commands:
        yield from self._wake(state, view)

    def measured(self, state: S, task: int, metrics: Mapping[str, float], view: View) -> Commands:
        target = self.targets[task] if self.targets else None
        if target is not None and state.tasks[task].active and target.reached(metrics):
            yield Stop(task, "target")
            yield from self.closed(state, task, view)

    def opened(self, state: S, task: int, view: View) -> Commands:
        state.tasks[task].active = True  # from the next round on
        yield from self._wake(state, view)

    def closed(self, state: S, task: int, view: View) -> Commands:
        state.tasks[task].active = False
        state.tasks[task].out, state.tasks[task].working = 0, []
        yield from self._barrier(state, view)

    def _barrier(self, state: S, view: View) -> Commands:
        """When every task is done with the round, all step and the next one begins."""
        active = [task for task in state.tasks if task.active]
        if not active or not all(task.done for task in active):
            return
        for task in active:
            if task.buffer.count:
                self.step(task.model, -self.lr, task.buffer.take_mean())
            task.out = 0  # results of this round are no longer waited for
        self.concluded(state, view)
        if self.stop:  # those who are stopped are idle when this is over
            yield Alarm(0.0, "round")
        else:
            yield from self._round(state, view)

    def rang(self, state: S, key: str, view: View) -> Commands:
        yield from self._wake(state, view)

    def _dismiss(self, m: int, task: RoundTask) -> Commands:
        """Stop those who are too late."""
        for client in task.working:
            yield Cancel(client, m)
        task.working = []

    def _wake(self, state: S, view: View) -> Commands:
        """Begin the round for which nobody was there."""
        if not any(task.out for task in state.tasks):
            yield from self._round(state, view)

    def _round(self, state: S, view: View) -> Commands:
        for task in state.tasks:
            task.out = 0  # results of earlier rounds are no longer waited for
        active = [m for m, task in enumerate(state.tasks) if task.active]
        clients = view.idle(self.sampled) if active else []
        if not clients:
            return
        state.rounds, state.began = state.rounds + 1, view.now
        if len(clients) < len(active):  # too few for every task: some sit this round out
            active = sorted(_shuffled(active, view)[: len(clients)])
        places = divide(len(clients), {m: self.shares[m] if self.shares else 1.0 for m in active})
        assigned = self.assign(state, clients, places, view)
        for m, task in enumerate(state.tasks):
            mine = assigned.get(m, [])
            task.out, task.done = len(mine), not mine
            task.working = list(mine) if self.stop else []
            for client in mine:
                yield Send(client, {"model": task.model.vector}, task.model.version, task=m)


@dataclass(frozen=True)
class SyncST(TaskRounds[SyncState]):
    """Synchronous rounds of several tasks, with a random partition of the clients (FedAST, §2)."""

    def assign(self, state: SyncState, clients: Sequence[int], places: Mapping[int, int], view: View) -> Parts:
        return _cut(clients, places)  # they come in random order


def _cut(clients: Sequence[int], places: Mapping[int, int]) -> Parts:
    parts, at = {}, 0
    for m, count in places.items():
        parts[m] = list(clients[at : at + count])
        at += count
    return parts


@dataclass(frozen=True)
class ReportsLoss(Wrapper):
    """Reports besides its result the loss of the model it received, on its first mini-batch."""

    @property
    def sends(self) -> tuple[str, ...]:
        return (*self.inner.sends, "loss")

    @property
    def moves(self) -> Mapping[str, str | None]:
        return self.inner.moves

    def wire(self, dim: int) -> tuple[int, int]:
        down, up = self.inner.wire(dim)
        return down, up + 4

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = self.inner.final(carry, work)
        work.step = 0
        return {**upload, "loss": work.loss(work.payload["model"]).unsqueeze(-1)}, memory


@dataclass
class UCBState(SyncState):
    seen: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # (client, task) -> [times, sum of losses]


@dataclass(frozen=True)
class SyncUCBST(TaskRounds[UCBState]):
    """Sync-ST whose clients go where a bandit expects the largest loss (after Bhuyan and Moharir 2022).

    Client i's score for task m is its mean reported loss there plus explore · sqrt(2 ln(rounds)/times asked); the pairs
    with the highest scores are served first.

    explore: weight of exploration against the losses reported so far.

    Differs from the paper: it names the method without its details; losses of a task are divided by their mean over all
    clients, so that tasks with other losses can be compared.
    """

    explore: NotNegative = 1.0

    state = UCBState
    reads: ClassVar[tuple[str, ...]] = ("delta", "loss")

    def pair(self, local: Local) -> Local:
        if local.by_sample:
            raise SettingError(
                f"{local.label}: sync-ucb-st has clients report their losses, to which no noise is added; use sync-st"
            )
        return ReportsLoss.around(local)

    def learn(self, state: UCBState, update: Update, view: View) -> None:
        pair = (update.job.client, update.job.task)
        times, total = state.seen.get(pair, (0.0, 0.0))
        state.seen[pair] = [times + 1.0, total + float(update["loss"])]

    def dismissed(self, state: UCBState, client: int, view: View) -> Commands:
        state.seen = {pair: seen for pair, seen in state.seen.items() if pair[0] != client}
        yield from ()

    def assign(self, state: UCBState, clients: Sequence[int], places: Mapping[int, int], view: View) -> Parts:
        mean = {m: _mean([s for (_, t), s in state.seen.items() if t == m]) for m in places}
        scores = {(c, m): self._score(state, c, m, mean[m]) for c in clients for m in places}
        order = {pair: at for at, pair in enumerate(scores)}  # clients come in random order: ties are broken by it
        parts: Parts = {m: [] for m in places}
        free = set(clients)
        for client, m in sorted(scores, key=lambda pair: (-scores[pair], order[pair])):
            if client in free and len(parts[m]) < places[m]:
                parts[m].append(client)
                free.remove(client)
        return parts

    def _score(self, state: UCBState, client: int, task: int, mean: float) -> float:
        times, total = state.seen.get((client, task), (0.0, 0.0))
        if not times:
            return math.inf
        return total / times / mean + self.explore * math.sqrt(2.0 * math.log(max(state.rounds, 2)) / times)


def _mean(seen: Sequence[Sequence[float]]) -> float:
    times = sum(s[0] for s in seen)
    return max(sum(s[1] for s in seen) / times, 1e-12) if times else 1.0


@dataclass
class BayesState(SyncState):
    asked: dict[int, float] = field(default_factory=dict)  # client -> when it was given its last job
    durations: dict[int, list[float]] = field(default_factory=dict)  # client -> [times, sum of time per local step]
    counts: dict[int, int] = field(default_factory=dict)  # client -> rounds it took part in
    features: list[list[float]] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    current: list[float] = field(default_factory=list)  # features of the present round


@dataclass(frozen=True)
class SyncBayesST(TaskRounds[BayesState]):
    """Sync-ST whose partition is chosen by Bayesian optimisation of a round's cost (after Zhou et al. 2022).

    Cost = length of the round + fairness · unevenness of participation. Of `candidates` random partitions the one with
    the largest expected improvement is taken, under a Gaussian process fitted to the last `memory` rounds.

    candidates: random partitions to choose from in each round.
    fairness: weight of uneven participation in the cost of a round.
    memory: rounds that the Gaussian process is fitted to.

    Differs from the paper: it names the method without its details; a partition is described to the process by each
    task's mean known time of its clients and their mean participation, not by its members.
    """

    candidates: Count = 32
    fairness: NotNegative = 1.0
    memory: Count = 64

    state = BayesState

    def learn(self, state: BayesState, update: Update, view: View) -> None:
        client = update.job.client
        times, total = state.durations.get(client, (0.0, 0.0))
        took = view.now - state.asked[client]  # a late one has been at it for longer than this round
        state.durations[client] = [times + 1.0, total + took / max(update.job.steps, 1)]
        state.counts[client] = state.counts.get(client, 0) + 1

    def dismissed(self, state: BayesState, client: int, view: View) -> Commands:
        for kept in (state.asked, state.durations, state.counts):
            kept.pop(client, None)
        yield from ()

    def concluded(self, state: BayesState, view: View) -> None:
        counts = list(state.counts.values()) or [0]
        mean = sum(counts) / len(counts)
        uneven = math.sqrt(sum((c - mean) ** 2 for c in counts) / len(counts)) / max(mean, 1e-12)
        state.features = [*state.features, state.current][-self.memory :]
        state.costs = [*state.costs, view.now - state.began + self.fairness * uneven][-self.memory :]

    def assign(self, state: BayesState, clients: Sequence[int], places: Mapping[int, int], view: View) -> Parts:
        options = [_cut(_shuffled(clients, view), places) for _ in range(self.candidates)]
        described = [self._describe(state, option) for option in options]
        best = _improvement(state.features, state.costs, described)
        state.current = described[best]
        state.asked |= dict.fromkeys(clients, view.now)
        return options[best]

    def _describe(self, state: BayesState, parts: Mapping[int, Sequence[int]]) -> list[float]:
        row = [0.0] * (2 * len(state.tasks))
        for m, clients in parts.items():
            known = [state.durations[c][1] / state.durations[c][0] for c in clients if c in state.durations]
            row[2 * m] = sum(known) / len(known) if known else 0.0
            row[2 * m + 1] = sum(state.counts.get(c, 0) for c in clients) / max(len(clients), 1)
        return row


def _improvement(
    features: Sequence[Sequence[float]], costs: Sequence[float], options: Sequence[Sequence[float]]
) -> int:
    """The option with the largest expected improvement over the lowest cost so far; the first while little is known."""
    if len(costs) < 4:
        return 0
    import numpy as np
    from scipy.special import ndtr

    x, y = np.asarray(features), np.asarray(costs)
    centre, spread = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
    mean, deviation = _predicted((x - centre) / spread, y, (np.asarray(options) - centre) / spread)
    gap = (y.min() - mean) / np.maximum(deviation, 1e-12)
    density = np.exp(-gap * gap / 2) / math.sqrt(2 * math.pi)
    return int(np.argmax((y.min() - mean) * ndtr(gap) + deviation * density))


def _predicted(x: Any, y: Any, at: Any) -> tuple[Any, Any]:
    """(mean, deviation) at some points of a Gaussian process through (x, y), with a Gaussian kernel and white noise."""
    import numpy as np
    from scipy.linalg import cho_solve, cholesky, solve_triangular
    from scipy.spatial.distance import cdist

    width, scale = math.sqrt(x.shape[1]), y.std() or 1.0
    x, at = x / width, at / width
    kernel = np.exp(-0.5 * cdist(x, x, "sqeuclidean")) + NOISE * np.eye(len(x)) + 1e-10 * np.eye(len(x))
    across = np.exp(-0.5 * cdist(at, x, "sqeuclidean"))
    lower = cholesky(kernel, lower=True, check_finite=False)
    mean = scale * (across @ cho_solve((lower, True), (y - y.mean()) / scale, check_finite=False)) + y.mean()
    known = solve_triangular(lower, across.T, lower=True, check_finite=False)
    variance = 1.0 + NOISE - np.einsum("ij,ji->i", known.T, known)
    return mean, np.sqrt(np.maximum(variance, 0.0) * scale**2)


def _shuffled(clients: Sequence[int], view: View) -> list[int]:
    items: list[Any] = list(clients)
    for at in range(len(items) - 1, 0, -1):
        other = view.rng.below(at + 1)
        items[at], items[other] = items[other], items[at]
    return items
