"""Stochastic gradient descent: the local trainer of most algorithms (FedBuff, algorithm 1, lines 4–9)."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.core.errors import Fraction, SettingError
from offbeat.core.optimiser import Optimiser
from offbeat.local.descent import Descent
from offbeat.local.optimisers import Momentum


@dataclass(frozen=True)
class SGD(Descent):
    """Stochastic gradient descent: w ← w − lr · g(w), `steps` times.

    Sends delta = received − reached.

    momentum: weight of the past: m ← momentum·m + g, w ← w − lr·m.
    nesterov: momentum that looks ahead: w ← w − lr·(g + momentum·m).
    """

    momentum: Fraction = field(default=0.0, kw_only=True)
    nesterov: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise SettingError("nesterov = true: it needs a momentum, such as momentum = 0.9")
        if self.momentum and self.optimiser is not None:
            raise SettingError(f"momentum = {self.momentum:g}: the optimiser makes the steps; keep one")

    @property
    def rule(self) -> Optimiser | None:
        return Momentum(self.momentum, self.nesterov) if self.momentum else self.optimiser
