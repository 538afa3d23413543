"""MindFlayer SGD (Maranjyan, Omar, Richtárik 2025): minibatch SGD whose clients give up what takes too long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.flow import OneModel
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Alarm, Cancel, Job, Send, Update
from offbeat.core.server import Commands, Stepping, View


@dataclass
class MindFlayerState(OneModel):
    batch: Buffer = field(default_factory=Buffer)
    left: dict[int, int] = field(default_factory=dict)  # by client, trials of this step that are not over
    running: dict[int, int] = field(default_factory=dict)  # by client, the number of the trial that it is at
    trials: int = 0  # begun so far


@dataclass(frozen=True)
class MindFlayer(Stepping[MindFlayerState]):
    """Each client makes a few attempts at a gradient for every server step, and stops one that takes too long.

    For each step, every client has B_i trials, one after the other, each at the newest model and for at most the time
    t. A gradient that is there in time is added to the sum g. When all trials are over, w ← w − lr · g/B, where
    B = Σ p_i·B_i is the number of gradients to be expected, p_i the probability that one of client i is there in time.
    Not compared with the paper's text; its public reviews describe this rule.

    limit: time of a trial, t.
    trials: of each client for one server step, B_i.
    lr: step size, γ.
    expected: gradients to be expected for a server step, B; by default the number of those that have come.

    Differs from the paper: t and B_i are the same for all clients; without `expected`, the step is along the mean of
    what has come, so that p need not be known; the limit holds from sending to arrival, with the transfers; a step for
    which no gradient has come is left out. A client that joins takes part from the next step on.
    """

    limit: Positive
    trials: Count = 1
    lr: Positive = 0.1
    expected: Positive | None = None

    state = MindFlayerState
    reads: ClassVar[tuple[str, ...]] = ("gradient",)

    def started(self, state: MindFlayerState, view: View) -> Commands:
        yield from self._attempt(state, view)

    def joined(self, state: MindFlayerState, client: int, view: View) -> Commands:
        if not state.left:  # nobody was there
            yield from self._attempt(state, view)

    def arrived(self, state: MindFlayerState, update: Update, view: View) -> Commands:
        state.batch.add(1.0, update["gradient"])
        yield from self._over(state, update.job.client, view)

    def lost(self, state: MindFlayerState, job: Job, reason: str, view: View) -> Commands:
        yield from self._over(state, job.client, view)

    def rang(self, state: MindFlayerState, key: str, view: View) -> Commands:
        client, number = map(int, key.split())
        if state.running.get(client) == number:
            yield Cancel(client)
            yield from self._over(state, client, view)

    def _attempt(self, state: MindFlayerState, view: View) -> Commands:
        """The trials of the next step begin."""
        state.left = dict.fromkeys(view.everyone(), self.trials)
        for client in list(state.left):
            yield from self._try(state, client)

    def _try(self, state: MindFlayerState, client: int) -> Commands:
        state.trials += 1
        state.running[client] = state.trials
        yield Send(client, {"model": state.model.vector}, state.model.version)
        yield Alarm(self.limit, f"{client} {state.trials}")

    def _over(self, state: MindFlayerState, client: int, view: View) -> Commands:
        """A trial of this client is over; after the last of all, the server steps."""
        state.running.pop(client, None)
        state.left[client] -= 1
        if not view.present(client) or not state.left[client]:
            del state.left[client]
        else:
            yield from self._try(state, client)
        if not state.left:
            self._step(state)
            yield from self._attempt(state, view)

    def _step(self, state: MindFlayerState) -> None:
        if count := state.batch.count:
            scale = 1.0 if self.expected is None else count / self.expected
            self.step(state.model, -self.lr * scale, state.batch.take_mean())
