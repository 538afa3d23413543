"""The proximal local half of FedProx (Li et al. 2020), and of FedAsync as Xie et al. 2019 train it."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.errors import SettingError
from offbeat.core.local import Work
from offbeat.core.vectors import Vector
from offbeat.local.sgd import SGD


@dataclass(frozen=True)
class Prox(SGD):
    """SGD on f_i(w) + mu/2·|w − w_received|²: clients stay near what they were sent.

    mu: proximal weight, μ (ρ in FedAsync); 0 is plain SGD.   The rest as for SGD.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise SettingError(f"mu = {self.mu}: must not be negative")

    def pull(self, w: Vector, work: Work) -> Vector:
        return self.mu * (w - work.payload["model"])
