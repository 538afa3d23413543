"""AsyncCommSGD (Avdiukhin, Kasiviswanathan 2021): local SGD whose clients talk to the server when they like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.errors import Count, Positive, SettingError
from offbeat.core.events import Alarm, Send, Update
from offbeat.core.server import Commands, View

REPLY = "reply"


@dataclass
class CommState(OneModel):
    waiting: list[int] = field(default_factory=list)  # clients that have reported in this instant


@dataclass(frozen=True)
class AsyncCommSGD(Flow[CommState]):
    """Local SGD in which each client contacts the server after any number of steps.

    A client that makes contact sends the sum of its steps since the last contact, w ← w − lr · delta/n, and goes on
    from w. Clients that make contact in the same instant all receive the same w. How many local steps there are between
    two contacts is drawn for each job, uniformly from `least` to `most`.

    least: the fewest local steps between two contacts.
    most: the most.
    lr: factor of the updates, 1 in the paper.

    All clients count the same if they make their steps equally fast, which the paper has by a clock that server and
    clients share; then a client that makes contact rarely sends more at once. Not compared with the paper's text, but
    with what AREA's authors say of it. Differs from the paper: step sizes do not fall by the shared clock.
    """

    least: Count = 1
    most: Count = 10
    lr: Positive = 1.0

    state = CommState

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise SettingError(f"least = {self.least}: must not exceed most = {self.most}")

    def arrived(self, state: CommState, update: Update, view: View) -> Commands:
        state.model.received(update.job)
        self.step(state.model, -self.lr / view.clients, update["delta"])
        if not state.waiting:
            yield Alarm(0.0, REPLY)  # after all arrivals of this instant
        state.waiting.append(update.job.client)

    def rang(self, state: CommState, key: str, view: View) -> Commands:
        if key == REPLY:
            ready, state.waiting = state.waiting, []
            for client in ready:
                yield from self.next(state, client, view)

    def joined(self, state: CommState, client: int, view: View) -> Commands:
        if client not in state.waiting:
            yield from super().joined(state, client, view)

    def hand(self, state: CommState, clients: Iterable[int], view: View) -> Commands:
        payload, version = {"model": state.model.vector}, state.model.version
        for client in clients:
            yield Send(client, payload, version, self.least + view.rng.below(self.most - self.least + 1))
