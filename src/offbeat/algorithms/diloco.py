"""Asynchronous DiLoCo: a step of the outer optimiser for every update (Liu et al. 2024, and what followed it)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.staleness import Equal, Staleness
from offbeat.core.errors import NotNegative, Positive, SettingError
from offbeat.core.events import Alarm, Job, Send, Update
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.server import Commands, View
from offbeat.core.state import State
from offbeat.core.vectors import Vector

GRACE = "grace"


@dataclass
class Pace(State):
    """What a client's jobs have shown: the steps of its first, H; all its steps; and the time that they took."""

    whole: int
    steps: int = 0
    time: float = 0.0

    @property
    def speed(self) -> float:
        """Steps per unit of time."""
        return self.steps / self.time


@dataclass
class DiLoCoState(OneModel):
    sent: dict[int, float] = field(default_factory=dict)  # when each client was last sent work
    paces: dict[int, Pace] = field(default_factory=dict)  # of those whose jobs have taken any time
    waiting: list[int] = field(default_factory=list)  # clients that have reported and get the model later


S = TypeVar("S", bound=DiLoCoState)


@dataclass(frozen=True)
class Outer(Flow[S]):
    """A server with an outer optimiser, whose clients train long before they report.

    lr: scale of the pseudo-gradients; the outer step size is that of `server`.
    weight: staleness weight s(τ), 1 for a fresh update.
    dynamic: dynamic local updates (DyLU): a client with speed v makes H·v/max(v) of its H local steps, rounded down, at
        least 1. By default all clients make H.
    ahead: send the model moved on along the momentum, w + η·β·m; needs `server` with a momentum.
    """

    lr: Positive = 1.0
    weight: Staleness = field(default_factory=Equal)
    dynamic: bool = False
    ahead: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ahead and (self.server is None or type(self.server).onward is ServerOptimiser.onward):
            raise SettingError("ahead = true: there is no momentum; give a server such as { nesterov = 0.9 }")

    def counts(self, state: S, job: Job, view: View) -> float:
        """s(τ) of a job that is done, whose time shows how fast its client is."""
        if self.dynamic and (time := view.now - state.sent[job.client]) > 0:
            pace = state.paces.setdefault(job.client, Pace(job.steps))
            pace.steps, pace.time = pace.steps + job.steps, pace.time + time
        return self.weight(state.model.received(job))

    def hand(self, state: S, clients: Iterable[int], view: View) -> Commands:
        payload, version = {"model": self.start(state)}, state.model.version
        most = max((pace.speed for pace in state.paces.values()), default=0.0)
        for client in clients:
            pace, steps = state.paces.get(client), None
            if self.dynamic:
                state.sent[client] = view.now
                steps = None if pace is None else max(1, int(pace.whole * (pace.speed / most) + 1e-9))
            yield Send(client, payload, version, steps)

    def joined(self, state: S, client: int, view: View) -> Commands:
        if client not in state.waiting:
            yield from self.next(state, client, view)

    def release(self, state: S, view: View) -> Commands:
        """Work for the clients that wait."""
        ready, state.waiting = state.waiting, []
        for client in ready:
            yield from self.next(state, client, view)

    def start(self, state: S) -> Vector:
        """The model that clients start from."""
        model = state.model
        way = self.server.onward(model.memory) if self.ahead and self.server is not None and model.memory else None
        return model.vector if way is None else model.vector + way


@dataclass
class GraceState(DiLoCoState):
    opened: int = 0  # version of the model when the first of the waiting had reported: the name of its grace period


@dataclass(frozen=True)
class AsyncDiLoCo(Outer[GraceState]):
    """A step of an outer optimiser for every update.

    w ← w + the step that `server` makes of −lr · s(τ) · delta, the pseudo-gradient with its sign turned.

    grace: time for which a client that has reported waits for others, each of which makes its own step; all of them
        then receive the same model (algorithm 2). 0: those that report in the same instant do. By default nobody waits.

    Differs from the paper: by default there is no grace period, and one lasts its full time unless all clients have
    reported, where the paper's server knows beforehand who comes in time. The speed of a client is not given but
    measured, all its steps so far over the time from sending its jobs to their results, the network included; its first
    job has all H steps. A client trains on its own data instead of the shard that was used least.
    """

    grace: NotNegative | None = None

    state = GraceState

    def arrived(self, state: GraceState, update: Update, view: View) -> Commands:
        weight = self.counts(state, update.job, view)
        self.step(state.model, -self.lr * weight, update["delta"])
        state.waiting.append(update.job.client)
        if self.grace is None or not view.flying:
            yield from self.release(state, view)
        elif len(state.waiting) == 1:
            state.opened = state.model.version
            yield Alarm(self.grace, f"{GRACE} {state.opened}")

    def rang(self, state: GraceState, key: str, view: View) -> Commands:
        if key == f"{GRACE} {state.opened}":
            yield from self.release(state, view)
