"""The proximal local trainer of FedProx (Li et al. 2020), and of FedAsync as Xie et al. 2019 train it."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.errors import NotNegative
from offbeat.core.local import Work
from offbeat.core.vectors import Vector
from offbeat.local.sgd import SGD


@dataclass(frozen=True)
class Prox(SGD):
    """SGD that stays near the model it was sent: steps on f_i(w) + mu/2·|w − w_received|².

    mu: weight of the proximal term, μ (ρ in FedAsync); 0 is plain SGD.
    """

    mu: NotNegative = 0.01

    def pull(self, w: Vector, work: Work) -> Vector:
        return self.mu * (w - work.payload["model"])
