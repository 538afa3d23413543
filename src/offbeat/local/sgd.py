"""Stochastic gradient descent: the local trainer of most algorithms (FedBuff, algorithm 1, lines 4–9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offbeat.core.errors import NotNegative, Positive
from offbeat.core.local import Carry, Local, Work
from offbeat.core.vectors import Vector, descend, lengths


@dataclass(frozen=True)
class SGD(Local):
    """Stochastic gradient descent: w ← w − lr · g(w), `steps` times.

    Sends delta = received − reached.

    decay: weight decay: adds decay · w to the gradient.
    clip: bound on the length of the gradient, decay not included; by default none.
    """

    decay: NotNegative = 0.0
    clip: Positive | None = None

    def step(self, carry: Carry, work: Work) -> Carry:
        w, pull = carry["w"], self.pull(carry["w"], work)
        if self.clip is None and not self.decay and pull is None:
            return {"w": work.descend(w)}
        g = work.gradient(w)
        if self.clip is not None:
            g = g * (self.clip / torch.clamp(lengths(g), min=self.clip))
        if self.decay:
            g = g + self.decay * w
        return {"w": descend(w, work.lr, g if pull is None else g + pull)}

    def pull(self, w: Vector, work: Work) -> Vector | None:
        """What a step goes against besides the gradient and the decay; None for nothing."""
        return None
