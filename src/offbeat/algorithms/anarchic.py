"""Anarchic federated learning (Yang, Zhang, Khanduri, Liu 2022): AFA-CD and AFA-CS.

Workers choose when they take part and how many local steps they make; what counts of an update is its mean gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.algorithms.fedbuff import Buffered
from offbeat.algorithms.mifa import MifaState, Remembering
from offbeat.core.errors import Positive
from offbeat.core.events import Update
from offbeat.core.vectors import Vector


def mean_gradient(update: Update) -> Vector:
    """G_i = delta/(η_L·K_i), which with plain SGD is the mean of the K_i gradients on the way."""
    return (1.0 / (update.job.lr * update.job.steps)) * update["delta"]


@dataclass(frozen=True)
class AFACD(Buffered):
    """Anarchic averaging across devices: a step along the mean of a few workers' mean gradients.

    w ← w − lr · (1/m) Σ G_i after m updates, where G_i is the mean of the gradients of client i's K_i local steps.

    size: updates per server step, m; or aggregation by the clock.
    lr: server step size, η; with one local step and lr = η_L, an update counts as FedBuff's.

    Not compared with the paper's text.
    """

    lr: Positive = 0.1

    def counts(self, update: Update, staleness: int) -> tuple[float, Vector]:
        return 1.0, mean_gradient(update)


@dataclass(frozen=True)
class AFACS(Remembering[MifaState]):
    """Anarchic averaging across silos: a step along the mean of every worker's newest mean gradient.

    w ← w − lr · (1/n) Σ_i G_i after m updates, where the server remembers each client's newest G_i.

    size: updates per server step, m.
    lr: server step size, η.

    Differs from the paper: a client that has not reported yet counts 0. Not compared with the paper's text.
    """

    lr: Positive = 0.1

    def given(self, update: Update) -> Vector:
        return mean_gradient(update)
