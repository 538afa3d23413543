"""AREA: asynchronous exact averaging (algorithms 1 and 2 of its paper, see docs/papers.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import Buffer, fits
from offbeat.algorithms.criteria import AGGREGATE, Criterion, alarm, criterion, message_count
from offbeat.algorithms.flow import Flow, OneModel
from offbeat.algorithms.schedules import Schedule
from offbeat.core.errors import Count, SettingError
from offbeat.core.events import Job, Update
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.server import Combines, Commands, Model, View
from offbeat.core.vectors import Payload, Vector


@dataclass(frozen=True)
class Residual(Wrapper):
    """Algorithm 2: send `x_M − y`, then `y ← x_M`; y is the client's last result, at first the initial model."""

    @property
    def sends(self) -> tuple[str, ...]:
        return ("residual", *self.notes)

    @property
    def moves(self) -> Mapping[str, str | None]:
        return {"residual": "y"}

    def remember(self, model: Vector) -> Payload:
        return {**self.inner.remember(model), "y": model}

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        notes, memory = self.noted(carry, work)
        return {"residual": carry["w"] - work.memory["y"], **notes}, {**memory, "y": carry["w"]}


@dataclass
class AreaState(OneModel):
    u: Vector  # the aggregator u_s; `model` is x_s
    k: int = 0  # client messages and server steps
    messages: int = 0  # since the last step
    first: Vector | None = None  # the initial model, where every y_i begins, if the y_i are tracked
    tracked: dict[int, Vector] = field(default_factory=dict)  # y_i of those that have sent a message
    coming: dict[int, Vector] = field(default_factory=dict)  # y_i of new clients, which count from their first message
    frozen: int = 0  # clients that were removed and whose y_i, not being tracked, stay in the mean
    mean: Vector | None = None  # of x_{s,0} … x_{s,averaged−1}
    averaged: int = 0
    began: int = 0  # clients at the beginning
    buffer: Buffer = field(default_factory=Buffer)  # residuals, where their sum is noised before it counts


@dataclass(frozen=True)
class AREA(Flow[AreaState]):
    """Clients send what changed since their last message, so that fast clients do not count more.

    AREA, algorithm 1. On a message m_i: u ← u + m_i/n, and the client gets the model of *before* any aggregation that
    its message triggers. When the criterion fires: x ← x + u, u ← 0. The invariant mean(y_i) = x + u holds after every
    event.

    A server optimiser makes its step of u, and what it leaves of u stays: u ← u − (x_new − x). So the invariant holds
    with it, too, and u is always the way to the mean of the clients' models.

    In a real run, a client that is enrolled later counts from its first message on, n ← n + 1, and one that is removed
    is taken out of the mean, n ← n − 1: u changes so that the invariant holds over those that count. For this the
    server tracks the y_i, as long as they take no more than 4 GB; beyond it, what a removed client has contributed
    stays.

    A robust rule works on the table of the y_i − x, and x moves by what it comes to; so a client counts once, however
    often it reports. With differential privacy, x moves by the noised sum of the clipped residuals since the last step,
    over n; clients that are removed stay in the mean, and none can be enrolled later.

    size: messages per server step, Δ; or aggregation by the clock, in periods or as a Poisson process.
    schedule: local step size α_k by iteration k, which counts client messages and server steps; by default the local
        trainer's own.
    average: also report the mean of the server's models over the iterations, x̄_K = (1/K) Σ x_k for k < K, which
        theorem 8 is about.
    """

    size: Count | Criterion = 1
    schedule: Schedule | None = None
    average: bool = False

    reads: ClassVar[tuple[str, ...]] = ("residual",)
    own_size: ClassVar[bool] = True
    combines: ClassVar[Combines] = "table"
    releases: ClassVar[bool] = True

    def pair(self, local: Local) -> Local:
        paired = Residual.around(local)
        return paired if self.guard is None else self.guard.pair(paired)

    def begin(self, models: Sequence[Vector], view: View) -> AreaState:
        tabled = self.guard is not None and not self.guard.limits
        first = 1.0 * models[0] if tabled else None
        mean = models[0] if self.average else None
        return AreaState(Model(models[0]), u=models[0] * 0.0, first=first, mean=mean, began=view.clients)

    def started(self, state: AreaState, view: View) -> Commands:
        yield from super().started(state, view)
        yield from alarm(criterion(self.size), view)

    def arrived(self, state: AreaState, update: Update, view: View) -> Commands:
        state.k += 1
        state.messages += 1
        state.model.received(update.job)
        self._add(state, update.job.client, update["residual"], view)
        due = criterion(self.size).due(state.messages)
        if not (due and self._limited):  # then those that have waited are sent work, once the sum is released
            yield from self.next(state, update.job.client, view)  # carries x_{s,k−1}: before the aggregation below
        if due:
            yield from self._aggregate(state, view)

    def adds(self, task: int = 0) -> int:
        return message_count(self.size)

    def sealed(self, state: AreaState, job: Job, view: View) -> Commands:
        state.k += 1
        state.messages += 1
        state.model.received(job)
        if job.client in state.coming:  # it counts with its first model until its message is open
            self._add(state, job.client, state.u * 0.0, view)
        self.charge(state, job.client, view)
        yield from self.next(state, job.client, view)

    def summed(self, state: AreaState, task: int, total: Vector, count: int, view: View) -> Commands:
        step = (1.0 / self._counted(state, view)) * total
        if self._limited:  # noised already
            yield from self._aggregate(state, view, step)
        else:
            state.u = state.u + step
            yield from self._aggregate(state, view)
        yield from self.opened_sum(state, view)

    def rang(self, state: AreaState, key: str, view: View) -> Commands:
        if key == AGGREGATE:
            yield from self._aggregate(state, view)
            yield from alarm(criterion(self.size), view)

    def _add(self, state: AreaState, client: int, residual: Vector, view: View) -> None:
        """y_i ← y_i + m_i in the mean x + u."""
        if self._limited:
            self.collect(state, client, 1.0, residual)
            return
        if state.first is not None:
            before = state.tracked.get(client, state.coming.get(client, state.first))
            state.tracked[client] = before + residual
        if client in state.coming:
            n, y = self._counted(state, view), state.coming.pop(client) + residual
            state.u = (n / (n + 1)) * state.u + (1.0 / (n + 1)) * (y - state.model.vector)
        else:
            state.u = state.u + (1.0 / self._counted(state, view)) * residual

    def _counted(self, state: AreaState, view: View) -> int:
        """n: clients whose y_i are in the mean."""
        return view.clients - len(state.coming) + state.frozen

    @property
    def _limited(self) -> bool:
        return self.guard is not None and self.guard.limits

    def track(self, state: AreaState, models: Sequence[Vector], view: View) -> None:
        tracks = not self._limited and (self.guard is not None or fits(models[0], view.clients))
        state.first = 1.0 * models[0] if tracks else None

    def resize(self, state: AreaState, clients: int) -> None:
        if self._limited and clients + state.frozen > state.began:
            raise SettingError("with [privacy], AREA averages over the clients that it began with")

    def remembered(self, state: AreaState, task: int, client: int) -> Payload | None:
        if state.first is None:
            return None
        return {"y": state.tracked.get(client, state.coming.get(client, state.first))}

    def admitted(self, state: AreaState, client: int, models: Sequence[Vector], view: View) -> Commands:
        state.coming[client] = 1.0 * models[0]  # of its own: a state that was saved and loaded has no other
        yield from ()

    def dismissed(self, state: AreaState, client: int, view: View) -> Commands:
        if client in state.coming:
            del state.coming[client]
        elif state.first is None:
            state.frozen += 1
        else:
            n, y = self._counted(state, view), state.tracked.pop(client, state.first)
            if n:
                state.u = ((n + 1) / n) * state.u + (1.0 / n) * (state.model.vector - y)
        yield from ()

    def outputs(self, state: AreaState) -> Mapping[str, Vector]:
        return {} if state.mean is None else {"average": self._mean(state, state.k)}

    def _mean(self, state: AreaState, k: int) -> Vector:
        """(1/k) Σ x_j for j < k: the model has been the same since the last server step."""
        assert state.mean is not None
        share = (k - state.averaged) / k if k else 0.0
        return state.mean + share * (state.model.vector - state.mean)

    def _aggregate(self, state: AreaState, view: View, noised: Vector | None = None) -> Commands:
        """A server step. noised: where it goes, if that is released already."""
        state.k += 1
        if state.mean is not None:
            state.mean, state.averaged = self._mean(state, state.k), state.k
        state.messages = 0
        if noised is not None:
            self.step(state.model, 1.0, noised)
            return
        if self._limited and not state.buffer.count:
            return
        before = state.model.vector
        self.step(state.model, 1.0, self._along(state, view))
        if self._limited:
            yield from self.refill(state, -1, view)
        else:
            plain = self.server is None and self.guard is None
            state.u = state.u * 0.0 if plain else before + state.u - state.model.vector

    def _along(self, state: AreaState, view: View) -> Vector:
        """Where a step goes: to the mean of the y_i, or where a guard says."""
        if self.guard is None:
            return state.u
        if self._limited:
            return self.mean(state, view, self._counted(state, view))
        assert state.first is not None
        silent = [state.first] * (self._counted(state, view) - len(state.tracked))
        return self.guard.combine([y - state.model.vector for y in (*state.tracked.values(), *silent)])

    def local_lr(self, state: AreaState) -> float | None:
        return None if self.schedule is None else self.schedule(state.k)
