"""ACE and ACED (Chang et al. 2025): every arrival steps along the mean of what all clients sent last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from offbeat.algorithms.mifa import MifaState, Remembering
from offbeat.core.errors import Count
from offbeat.core.events import Job, Send, Update
from offbeat.core.server import Combines, Commands, View
from offbeat.core.vectors import Vector


@dataclass
class AceState(MifaState):
    waiting: list[int] = field(default_factory=list)  # clients whose first update is still awaited


S = TypeVar("S", bound=AceState)


@dataclass(frozen=True)
class ACE(Remembering[S]):
    """All-client engagement: every arrival steps along the mean of every client's newest update.

    u ← u + (1/n)·(delta_i − the last delta of client i), w ← w − lr·u. First every client trains from the initial
    model; when all have reported, w takes its first step and everybody starts from there.

    lr: server step size, η.

    Differs from the paper: only clients that are there at the start are waited for; others count 0 until they report.
    """

    size: Count = field(default=1, init=False, metadata={"setting": False})
    state: ClassVar[type[MifaState]] = AceState

    def started(self, state: S, view: View) -> Commands:
        yield from self._first(state, list(view.everyone()))

    def arrived(self, state: S, update: Update, view: View) -> Commands:
        client = update.job.client
        self.remember(state, update, view)
        if state.waiting:
            yield from self._heard(state, client, view)
        else:
            self.step(state.model, -self.lr, self.direction(state, view))
            yield from self.next(state, client, view)

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        if job.client not in state.waiting:
            yield from super().lost(state, job, reason, view)
        elif view.present(job.client):
            yield self._send(state, job.client)
        else:
            yield from self._heard(state, job.client, view)

    def joined(self, state: S, client: int, view: View) -> Commands:
        if state.waiting:
            yield from self._first(state, [client])
        else:
            yield from super().joined(state, client, view)

    def _first(self, state: S, clients: Sequence[int]) -> Commands:
        state.waiting += clients
        yield from (self._send(state, client) for client in clients)

    def _heard(self, state: S, client: int, view: View) -> Commands:
        """A client's first update is awaited no longer; with the last one, the first step."""
        if client in state.waiting:
            state.waiting.remove(client)
        if not state.waiting:
            if state.last:
                self.step(state.model, -self.lr, self.direction(state, view))
            yield from super().started(state, view)

    def _send(self, state: S, client: int) -> Send:
        return Send(client, {"model": state.model.vector}, state.model.version, lr=self.local_lr(state))


@dataclass
class AcedState(AceState):
    heard: dict[int, int] = field(default_factory=dict)  # version from which a client went on, the oldest first


@dataclass(frozen=True)
class ACED(ACE[AcedState]):
    """ACE that leaves out clients which have been silent for too long.

    w ← w − lr · mean of the newest deltas of the clients that were heard at most `bound` server steps ago. As in the
    authors' code, a client's silence counts from the model that it was sent after its last report.

    bound: server steps after which a silent client is left out, τ_algo; by default the number of clients.
    """

    bound: Count | None = None
    state: ClassVar[type[MifaState]] = AcedState
    combines: ClassVar[Combines] = ""

    def remember(self, state: AcedState, update: Update, view: View) -> None:
        super().remember(state, update, view)
        client = update.job.client
        state.heard.pop(client, None)  # so that it becomes the last
        state.heard[client] = state.model.version + 1

    def direction(self, state: AcedState, view: View) -> Vector:
        bound, step = self.bound or view.clients, state.model.version + 1
        for client in list(state.heard):
            if step - state.heard[client] <= bound:
                break  # those that follow were heard later
            del state.heard[client]
            state.mean = state.mean - (1.0 / view.clients) * state.last.pop(client)
        return (view.clients / len(state.heard)) * state.mean  # those left out count 0 in the mean over all clients

    def dismissed(self, state: AcedState, client: int, view: View) -> Commands:
        state.heard.pop(client, None)
        yield from super().dismissed(state, client, view)
