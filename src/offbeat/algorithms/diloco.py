"""Asynchronous DiLoCo: a step of the outer optimiser for every update (Liu et al. 2024, and what followed it)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.staleness import Equal, Staleness
from offbeat.core.errors import Positive, SettingError
from offbeat.core.events import Job, Send, Update
from offbeat.core.optimiser import ServerOptimiser
from offbeat.core.server import Commands, View
from offbeat.core.state import State
from offbeat.core.vectors import Vector


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

    def start(self, state: S) -> Vector:
        """The model that clients start from."""
        model = state.model
        way = self.server.onward(model.memory) if self.ahead and self.server is not None and model.memory else None
        return model.vector if way is None else model.vector + way


@dataclass(frozen=True)
class AsyncDiLoCo(Outer[DiLoCoState]):
    """A step of an outer optimiser for every update.

    w ← w + the step that `server` makes of −lr · s(τ) · delta, the pseudo-gradient with its sign turned.

    Differs from the paper: the speed of a client is not given but measured, all its steps so far over the time from
    sending its jobs to their results, the network included; its first job has all H steps. There is no grace period in
    which the server waits for more updates, and a client trains on its own data instead of the data that were used
    least.
    """

    state = DiLoCoState

    def arrived(self, state: DiLoCoState, update: Update, view: View) -> Commands:
        weight = self.counts(state, update.job, view)
        self.step(state.model, -self.lr * weight, update["delta"])
        yield from self.next(state, update.job.client, view)
