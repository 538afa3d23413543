"""Anarchic federated learning (Yang, Zhang, Khanduri, Liu 2022): AFA-CD and AFA-CS.

Workers choose when they take part and how many local steps they make; what counts of an update is its mean gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.fedbuff import BuffState
from offbeat.algorithms.flow import Flow
from offbeat.algorithms.mifa import MifaState, Remembering
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Update
from offbeat.core.server import Commands, View
from offbeat.core.vectors import Vector


def mean_gradient(update: Update) -> Vector:
    """G_i = delta/(η_L·K_i), which with plain SGD is the mean of the K_i gradients on the way."""
    return (1.0 / (update.job.lr * update.job.steps)) * update["delta"]


@dataclass(frozen=True)
class AFACD(Flow[BuffState]):
    """Anarchic averaging across devices: a step along the mean of a few workers' mean gradients.

    w ← w − lr · (1/m) Σ G_i after m updates, where G_i is the mean of the gradients of client i's K_i local steps.

    size: updates per server step, m.
    lr: server step size, η; with one local step and lr = η_L, an update counts as FedBuff's.

    Not compared with the paper's own listing, which was not at hand.
    """

    size: Count = 10
    lr: Positive = 0.1

    state: ClassVar[type[BuffState]] = BuffState

    def arrived(self, state: BuffState, update: Update, view: View) -> Commands:
        state.model.received(update.job)
        state.buffer.add(1.0, mean_gradient(update))
        if state.buffer.count == self.size:
            self.step(state.model, -self.lr, state.buffer.take_mean())
        yield from self.next(state, update.job.client, view)


@dataclass(frozen=True)
class AFACS(Remembering[MifaState]):
    """Anarchic averaging across silos: a step along the mean of every worker's newest mean gradient.

    w ← w − lr · (1/n) Σ_i G_i after m updates, where the server remembers each client's newest G_i.

    size: updates per server step, m.
    lr: server step size, η.

    Differs from the paper: a client that has not reported yet counts 0. Not compared with the paper's own listing,
    which was not at hand.
    """

    lr: Positive = 0.1

    def given(self, update: Update) -> Vector:
        return mean_gradient(update)
