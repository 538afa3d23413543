"""Stochastic gradient descent: the local half of most algorithms (FedBuff, algorithm 1, lines 4–9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offbeat.core.errors import SettingError, positive
from offbeat.core.local import Carry, Local, Work
from offbeat.core.vectors import Vector, descend, lengths


@dataclass(frozen=True)
class SGD(Local):
    """w ← w − lr · g(w), `steps` times; sends delta = received − reached.

    lr: local step size, η.   steps: local steps, Q (M in AREA).   batch: mini-batch size, None for all data.
    decay: weight decay, adds decay · w to the gradient.   clip: bound on the gradient's length, decay not included.
    """

    decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(clip=self.clip)
        if self.decay < 0:
            raise SettingError(f"decay = {self.decay}: must not be negative")

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
