"""SCAFFOLD's local trainer (Karimireddy et al. 2020, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from offbeat.core.local import Carry, Work
from offbeat.core.vectors import Payload, Vector
from offbeat.local.sgd import SGD

Option = Literal[1, 2]


@dataclass(frozen=True)
class Scaffold(SGD):
    """SGD corrected by control variates: each step adds the difference between the average drift and the client's.

    y ← y − lr · (g(y) − c_i + c). Sends the delta x − y and what changed in c_i; keeps c_i.

    option: how the client's control c_i is renewed after K steps from x to y. 1: the gradient of all its data at x,
        which takes another pass and is steadier; 2: the mean of the gradients on the way, which is free:
        c_i − c + (x − y)/(K·lr), unless an optimiser or a schedule makes the steps.
    """

    option: Option = 2

    needs: ClassVar[tuple[str, ...]] = ("model", "control")

    sends: ClassVar[tuple[str, ...]] = ("delta", "control")

    moves: ClassVar[Mapping[str, str | None]] = {"delta": None, "control": "control"}

    def remember(self, model: Vector) -> Payload:
        return {**super().remember(model), "control": model * 0.0}

    def init(self, work: Work) -> Carry:
        carry = super().init(work)
        return {**carry, "sum": carry["w"] * 0.0} if self._summed else carry

    @property
    def _summed(self) -> bool:
        """Whether the steps do not tell the gradients that they were made of."""
        return self.option == 2 and (self.rule is not None or self.schedule is not None)

    def along(self, carry: Carry, gradient: Vector, work: Work, pull: Vector | None = None) -> Carry:
        moved = super().along(carry, gradient, work, pull)
        return {**moved, "sum": carry["sum"] + self.shaped(carry["w"], gradient)} if self._summed else moved

    def pull(self, w: Vector, work: Work) -> Vector:
        return work.payload["control"] - work.memory["control"]

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        x, mine = work.payload["model"], work.memory["control"]
        delta = x - carry["w"]
        if self.option == 1:
            renewed = work.full_gradient(x)
        elif self._summed:
            renewed = carry["sum"] / work.steps
        else:
            renewed = mine - work.payload["control"] + delta / (work.steps * work.lr)
        return {"delta": delta, "control": renewed - mine}, {**self.kept(carry, work), "control": renewed}
