"""One stochastic gradient and nothing else: the local half of asynchronous SGD."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.core.local import Carry, Local, Work
from offbeat.core.vectors import Payload


@dataclass(frozen=True)
class Gradient(Local):
    """Sends the gradient at the model it received; there is no local step size.

    batch: mini-batch size, None for all data.
    """

    lr: float = field(default=1.0, init=False)
    steps: int = field(default=1, init=False)

    @property
    def sends(self) -> tuple[str, ...]:
        return ("gradient",)

    @property
    def trains(self) -> bool:
        return False

    def step(self, carry: Carry, work: Work) -> Carry:
        return {"g": work.gradient(work.payload["model"])}

    def init(self, work: Work) -> Carry:
        return {"g": work.payload["model"] * 0.0}

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        return {"gradient": carry["g"]}, work.memory
