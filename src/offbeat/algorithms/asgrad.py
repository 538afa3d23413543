"""AsGrad's orders (Islamov, Safaryan, Alistarh 2024): asynchronous SGD in which the server chooses who works next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import hand_out
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Job, Update
from offbeat.core.server import Commands, Stepping, View


@dataclass
class AsGradState(BuffState):
    reported: list[int] = field(default_factory=list)  # whose gradients are in the buffer
    line: list[int] = field(default_factory=list)  # the rest of the permutation, the next one last


@dataclass(frozen=True)
class AsGrad(Stepping[AsGradState]):
    """Asynchronous SGD: after a step, as many new jobs as gradients, for clients in a chosen order.

    At first every client computes a gradient. After `size` gradients w ← w − lr · their mean, and so many clients
    receive the new model: those that have just reported, or others whether they are busy or not. A busy client does its
    jobs one after the other.

    order: who works next: "pure": the clients that have reported; "random": clients drawn uniformly; "shuffled": the
        next ones of a permutation of the clients, redrawn when all have had their turn.
    size: gradients per step, for which the server waits, b.
    lr: step size of their mean; that of a single gradient, γ, is lr/b.

    The orders are those of the authors' code, which steps for every gradient; waiting for b of them was not compared
    with the paper's text.
    """

    order: Literal["pure", "random", "shuffled"] = "shuffled"
    size: Count = 1
    lr: Positive = 0.1

    state = AsGradState
    reads: ClassVar[tuple[str, ...]] = ("gradient",)

    def started(self, state: AsGradState, view: View) -> Commands:
        yield from hand_out(state.model, view.everyone())

    def arrived(self, state: AsGradState, update: Update, view: View) -> Commands:
        state.model.received(update.job)
        state.buffer.add(1.0, update["gradient"])
        state.reported.append(update.job.client)
        if state.buffer.count == self.size:
            self.step(state.model, -self.lr, state.buffer.take_mean())
            yield from self._release(state, view)
        elif not view.flying:  # no job in flight can fill the buffer
            yield from self._release(state, view)

    def lost(self, state: AsGradState, job: Job, reason: str, view: View) -> Commands:
        instead = [job.client] if view.present(job.client) else self._next(state, job.client, view)
        yield from hand_out(state.model, instead)
        if not instead and not view.flying:
            yield from self._release(state, view)

    def joined(self, state: AsGradState, client: int, view: View) -> Commands:
        if view.flying + len(state.reported) < view.clients:
            yield from hand_out(state.model, self._next(state, client, view))

    def _release(self, state: AsGradState, view: View) -> Commands:
        reported, state.reported = state.reported, []
        for client in reported:
            yield from hand_out(state.model, self._next(state, client, view))

    def _next(self, state: AsGradState, client: int, view: View) -> list[int]:
        """Who gets the job that follows one of this client."""
        if self.order == "pure":
            return [client] if view.present(client) else []
        if self.order == "random":
            return view.available(1)
        while True:
            if not state.line:
                everyone = list(view.everyone())
                if not everyone:
                    return []
                state.line = view.rng.sample(everyone, len(everyone))
            following = state.line.pop()
            if view.present(following):
                return [following]
