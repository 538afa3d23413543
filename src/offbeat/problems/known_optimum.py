"""What problems have in common whose functions are formulas of a few numbers a client."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch

from offbeat.core.errors import Checked
from offbeat.core.metric import LOSS, Metric
from offbeat.core.vectors import Vector


class KnownOptimum(Checked):
    """Functions f_i with a known optimum of their mean f, given by a row per client of each table in `tables`."""

    tables: ClassVar[tuple[str, ...]] = ()
    clients: int
    label: str

    @property
    def name(self) -> str:
        return self.label or type(self).__name__.lower()

    @property
    def stacks(self) -> bool:
        return True

    @property
    def metrics(self) -> Sequence[Metric]:
        return (LOSS, Metric("gap"), Metric("distance"))

    def optimum(self) -> Vector:
        """x*, where f is smallest."""
        raise NotImplementedError

    def value(self, w: Vector) -> float:
        """f(w)."""
        raise NotImplementedError

    def union(self, problems: Sequence[Self]) -> Self:
        """One problem with the clients of all these, which are of equal kin; for oracles, not for measuring."""
        joint = copy.copy(self)
        object.__setattr__(joint, "clients", sum(problem.clients for problem in problems))
        for name in self.tables:
            object.__setattr__(joint, name, torch.cat([getattr(problem, name) for problem in problems]))
        return joint

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        best = self.optimum()
        least = self.value(best)
        return [
            {"loss": (f := self.value(w)), "gap": f - least, "distance": float(torch.linalg.vector_norm(w - best))}
            for w in models
        ]
