"""Servers whose clients keep working, and who works next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from offbeat.core.errors import Count
from offbeat.core.events import Job, Send, Stop
from offbeat.core.server import SPENT, Commands, Model, Stepping, View
from offbeat.core.state import State


@dataclass
class OneModel(State):
    """The state of a server with one model; algorithms add their own fields."""

    model: Model


S = TypeVar("S", bound=OneModel)


def hand_out(model: Model, clients: Iterable[int], lr: float | None = None, hold: bool = False) -> Iterator[Send]:
    """Send the model to these clients.   hold: what they make of it is theirs until it is asked for."""
    payload = {"model": model.vector}
    for client in clients:
        yield Send(client, payload, model.version, lr=lr, hold=hold)


@dataclass(frozen=True)
class Flow(Stepping[S]):
    """A server whose clients keep working: each one that reports, fails or joins is followed by the next.

    concurrency: clients that work at a time, the next drawn uniformly among the idle ones; by default all of them, and
        a client that has reported gets the next model at once.
    """

    concurrency: Count | None = field(default=None, kw_only=True)
    state: ClassVar[type[Any]] = OneModel
    own_size: ClassVar[bool] = False  # under FedAST: keep `size` as it is instead of taking the task's b_m

    def started(self, state: S, view: View) -> Commands:
        yield from self.hand(state, view.everyone() if self.concurrency is None else view.idle(self.concurrency), view)

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        yield from self.next(state, job.client, view)

    def joined(self, state: S, client: int, view: View) -> Commands:
        yield from self.next(state, client, view)

    def next(self, state: S, client: int, view: View) -> Commands:
        """Work for the client that follows this one: itself, or idle clients until enough are busy."""
        if self.guard is not None and self.guard.limits:
            yield from self.refill(state, client, view)
        elif self.concurrency is not None:
            yield from self.hand(state, self.idle(state, self.concurrency - view.flying, view), view)
        elif view.present(client) and not view.barred(client, state.model.version):
            yield from self.hand(state, (client,), view)

    def refill(self, state: S, client: int, view: View) -> Commands:
        """Work for clients that may contribute: this one, and when a sum was released all that have waited for it."""
        past = state.model.contributions
        if past is not None and past.refilled == past.releases and self.concurrency is None:
            chosen = [client] if view.present(client) and self.admits(state, client, view) else []
        else:
            chosen = self.idle(state, (self.concurrency or view.clients) - view.flying, view)
        if past is not None:
            past.refilled = past.releases
        yield from self.hand(state, chosen, view)
        if not chosen:
            yield from self.rest(state, view)

    def rest(self, state: S, view: View) -> Commands:
        """The run is over if nobody works, and too few clients may still contribute."""
        if not view.flying and self.spent(state, view, self.lacking(state)):
            yield Stop(reason=SPENT)

    def opened_sum(self, state: S, view: View) -> Commands:
        """Under secure aggregation, a sum that had closed is open, or was given up: work for those who have waited."""
        past = state.model.contributions
        if past is not None and past.closed:
            past.closed -= 1
        if self.concurrency is not None or (self.guard is not None and self.guard.limits):
            chosen = self.idle(state, (self.concurrency or view.clients) - view.flying, view)
        else:
            chosen = [c for c in view.waiting() if view.present(c) and not view.barred(c, state.model.version)]
        yield from self.hand(state, chosen, view)
        if past is not None and not chosen:
            yield from self.rest(state, view)

    def lacking(self, state: S) -> int:
        """Updates that the next server step still needs."""
        return 1

    def hand(self, state: S, clients: Iterable[int], view: View) -> Commands:
        """Work for these clients: the model as it is now."""
        return hand_out(state.model, clients, self.local_lr(state))

    def local_lr(self, state: S) -> float | None:
        """The step size that goes with the model; None: the local trainer's own."""
        return None
