"""Optimisers: a direction goes in and a step comes out, number by number, so that they work on a vector as on rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from offbeat.core.errors import Checked, NotNegative
from offbeat.core.vectors import Vector, marked

Moments = Mapping[str, Vector]  # what an optimiser keeps from one step to the next, by name


@dataclass(frozen=True)
class Optimiser(Checked):
    """How a local trainer steps along a gradient. Everything is a row [n, d] a client, or a column [n, 1]."""

    counts: ClassVar[bool] = False  # whether its steps depend on how many there were
    decoupled: ClassVar[bool] = False  # whether weight decay shrinks the weights instead of adding to the gradient

    def begin(self, model: Vector) -> Moments:
        """What it keeps before the first step."""
        return {}

    def move(
        self, w: Vector, gradient: Vector, moments: Moments, lr: float | Vector, t: int | Vector
    ) -> tuple[Vector, dict[str, Vector]]:
        """(where a step leads, what it keeps) in step number t, the first being 1."""
        raise NotImplementedError


class _Rated:
    lr: float  # a field of every optimiser, where each wants it


@dataclass(frozen=True)
class ServerOptimiser(_Rated, Checked):
    """What a server makes of the directions that it would step along: x ← x + lr · way.

    threshold: staleness τ_c up to which a step has size lr; if one of its updates was staler, by τ, the size is at most
        1/τ (FADAS). By default it is lr always.
    """

    threshold: NotNegative | None = field(default=None, kw_only=True)

    def begin(self, model: Vector) -> Moments:
        """What it keeps before the first step."""
        return {}

    def way(self, direction: Vector, moments: Moments, t: int) -> tuple[Vector, dict[str, Vector]]:
        """(where to go with step size 1, what it keeps) in step number t, the first being 1."""
        raise NotImplementedError

    def rate(self, staleness: int) -> float:
        """The step size if the stalest update of a step was so many versions old."""
        if self.threshold is None or staleness <= self.threshold:
            return self.lr
        return min(self.lr, 1.0 / staleness)

    def step(self, direction: Vector, moments: Moments, t: int, staleness: int) -> tuple[Vector, dict[str, Vector]]:
        """(the step, what it keeps) in step number t, the stalest update of which was so many versions old."""
        way, kept = self.way(direction, moments, t)
        return self.rate(staleness) * way, kept

    def over(self, blocks: tuple[int, ...]) -> Self:
        """The same for a model whose tensors have these sizes, one after the other."""
        return self

    def onward(self, moments: Moments) -> Vector | None:
        """Where its momentum alone would carry the model next, from where it is; None: it has none."""
        return None


@dataclass(frozen=True)
class Sparing(ServerOptimiser):
    """Another optimiser for all numbers but those from `first` to `last`, which follow their direction all the way.

    Those are running statistics: averages of clients' values, of which no gradient is known.
    """

    inner: ServerOptimiser = field(kw_only=True)
    first: int = 0
    last: int = 0

    @property
    def lr(self) -> float:  # type: ignore[override]
        return self.inner.lr

    def begin(self, model: Vector) -> Moments:
        return {**self.inner.begin(model), "spared": marked(model, self.first, self.last)}

    def step(self, direction: Vector, moments: Moments, t: int, staleness: int) -> tuple[Vector, dict[str, Vector]]:
        spared = moments["spared"]
        others = {name: kept for name, kept in moments.items() if name != "spared"}
        step, kept = self.inner.step(direction, others, t, staleness)
        return step - step * spared + direction * spared, {**kept, "spared": spared}

    def onward(self, moments: Moments) -> Vector | None:
        way = self.inner.onward(moments)
        return None if way is None else way - way * moments["spared"]
