"""FedCompass (Li et al. 2024): clients get as many local steps as they need to arrive together, in groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, inf

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.flow import OneModel
from offbeat.algorithms.staleness import Polynomial, Staleness
from offbeat.core.errors import Count, Positive, SettingError, Share, ordered
from offbeat.core.events import Alarm, Job, Send, Update
from offbeat.core.server import Commands, Stepping, View
from offbeat.core.state import State
from offbeat.core.vectors import Vector

UPDATE = tuple[int, Vector]  # (version that it started from, delta)


@dataclass
class Group(State):
    """Clients that are to arrive together: those that are awaited, those that have come and what they brought."""

    expected: float  # when it should be complete, T_a
    latest: float  # when it is aggregated without those that are missing, T_max
    awaited: list[int]
    arrived: dict[int, UPDATE] = field(default_factory=dict)


@dataclass
class CompassState(OneModel):
    groups: dict[int, Group] = field(default_factory=dict)
    numbers: int = 0  # of groups that there were
    group: dict[int, int] = field(default_factory=dict)  # client -> its group; none in its first job
    pace: dict[int, float] = field(default_factory=dict)  # client -> time per local step, S_i
    sent: dict[int, float] = field(default_factory=dict)  # client -> when
    late: dict[int, UPDATE] = field(default_factory=dict)  # updates that missed their group


@dataclass(frozen=True)
class FedCompass(Stepping[CompassState]):
    """Groups of clients that arrive together, because each gets as many local steps as it can take by then.

    The server measures every client's time per local step. A client joins the group before whose expected arrival it
    can make most steps, from `least` to `most`; if there is none, it opens a group. When all of a group have arrived,
    or at its latest time, w ← w − lr · (1/n) Σ s(τ_i)·delta_i over the group and over updates that came too late for
    theirs, and the group's clients are assigned anew, the fastest first. A client that is late continues at once from
    the model of that moment. The first update of a client, whose speed is not known before, is applied by itself.

    least: smallest number of local steps, Q_min.
    most: largest number of local steps, Q_max; a client's first job has this many.
    lateness: a group waits until this multiple of the time that it was expected to take, λ ≥ 1.
    newest: weight of the newest measurement of a client's speed, the rest being that of all before.
    lr: server step size; the authors' α.
    weight: staleness weight s(τ) of an update; by default 1/√(1 + τ).

    The rule is that of the authors' scheduler in APPFL. It needs timing in which a job's time grows with its steps, and
    a local trainer that takes steps.
    """

    least: Count = 20
    most: Count = 100
    lateness: Positive = 1.2
    newest: Share = 0.9
    lr: Positive = 1.0
    weight: Staleness = field(default_factory=Polynomial)

    state = CompassState

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered(least=self.least, most=self.most)
        if self.lateness < 1:
            raise SettingError(f"lateness = {self.lateness!r}: must be at least 1")

    def started(self, state: CompassState, view: View) -> Commands:
        for client in view.everyone():
            yield self._send(state, client, self.most, view)

    def arrived(self, state: CompassState, update: Update, view: View) -> Commands:
        job = update.job
        client = job.client
        state.model.received(job)
        self._measure(state, job, view)
        brought = (job.version, update["delta"])
        number = state.group.pop(client, None)
        if number is None:
            self._apply(state, {client: brought}, view)
            yield from self._assign(state, client, view)
            return
        group = state.groups[number]
        group.awaited.remove(client)
        if view.now <= group.latest:
            group.arrived[client] = brought
            yield from self._complete(state, number, view)
        else:
            state.late[client] = brought
            self._clear(state, number)
            yield from self._assign(state, client, view)

    def rang(self, state: CompassState, key: str, view: View) -> Commands:
        number = int(key)
        if number in state.groups and state.groups[number].arrived:
            yield from self._aggregate(state, number, view)

    def lost(self, state: CompassState, job: Job, reason: str, view: View) -> Commands:
        number = state.group.pop(job.client, None)
        if view.present(job.client):
            yield from self._assign(state, job.client, view)
        if number is not None:
            state.groups[number].awaited.remove(job.client)
            yield from self._complete(state, number, view)

    def joined(self, state: CompassState, client: int, view: View) -> Commands:
        if not any(client in group.arrived for group in state.groups.values()):  # else it will be sent work with them
            yield from self._assign(state, client, view)

    def dismissed(self, state: CompassState, client: int, view: View) -> Commands:
        state.pace.pop(client, None)
        state.sent.pop(client, None)
        yield from ()

    def _measure(self, state: CompassState, job: Job, view: View) -> None:
        pace = max(view.now - state.sent[job.client], 0.0) / job.steps  # a real clock may be set back
        before = state.pace.get(job.client, pace)
        state.pace[job.client] = (1.0 - self.newest) * before + self.newest * pace

    def _complete(self, state: CompassState, number: int, view: View) -> Commands:
        """Aggregate a group if nobody of it is awaited any more."""
        group = state.groups[number]
        if not group.awaited and group.arrived:
            yield from self._aggregate(state, number, view)
        else:
            self._clear(state, number)

    def _clear(self, state: CompassState, number: int) -> None:
        if not (state.groups[number].awaited or state.groups[number].arrived):
            del state.groups[number]

    def _aggregate(self, state: CompassState, number: int, view: View) -> Commands:
        group = state.groups[number]
        brought, group.arrived = group.arrived, {}
        self._apply(state, {**state.late, **brought}, view)
        state.late = {}
        group.expected = group.latest = 0.0  # who is awaited still is late, and nobody else joins
        for client in sorted((c for c in brought if view.present(c)), key=lambda c: state.pace[c]):
            yield from self._assign(state, client, view)
        self._clear(state, number)

    def _apply(self, state: CompassState, updates: dict[int, UPDATE], view: View) -> None:
        buffer = Buffer()
        for version, delta in updates.values():
            buffer.add(self.weight(state.model.version - version), delta)
        if buffer.sum is not None:
            self.step(state.model, -self.lr / view.clients, buffer.sum)

    def _assign(self, state: CompassState, client: int, view: View) -> Commands:
        """Work for a client, so that it arrives together with others."""
        if client not in state.pace:
            yield self._send(state, client, self.most, view)
            return
        steps, number = self._fitting(state, client, view)
        if number is None:
            steps, number = self._opened(state, client, view), state.numbers
            state.numbers += 1
            takes = steps * state.pace[client]
            state.groups[number] = Group(view.now + takes, view.now + takes * self.lateness, [])
            yield Alarm(takes * self.lateness, str(number))
        state.groups[number].awaited.append(client)
        state.group[client] = number
        yield self._send(state, client, steps, view)

    def _fitting(self, state: CompassState, client: int, view: View) -> tuple[int, int | None]:
        """(steps, number) of the group before whose arrival a client can make most steps; None if there is none."""
        best: tuple[int, int | None] = (-1, None)
        for number, group in state.groups.items():
            steps = self._steps(state, client, group.expected - view.now)
            if max(self.least, best[0]) <= steps <= self.most:
                best = steps, number
        return best

    def _opened(self, state: CompassState, client: int, view: View) -> int:
        """Steps for the first client of a group, so that the fastest of another one can join when that is done."""
        steps = -1
        for group in state.groups.values():
            if view.now < group.latest:
                fastest = min((state.pace[c] for c in (*group.awaited, *group.arrived) if c in state.pace), default=inf)
                until = group.latest + fastest * self.most - view.now
                made = self._steps(state, client, until)
                steps = max(steps, made if made <= self.most else -1)
        return self.most if steps < 0 else max(steps, self.least)

    def _steps(self, state: CompassState, client: int, time: float) -> int:
        """Local steps that a client makes in this time."""
        made = time / max(state.pace[client], 1e-300)  # jobs may take no time
        return floor(max(-1.0, min(made, self.most + 1.0)))

    def _send(self, state: CompassState, client: int, steps: int, view: View) -> Send:
        state.sent[client] = view.now
        return Send(client, {"model": state.model.vector}, state.model.version, steps)
