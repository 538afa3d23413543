"""One stochastic gradient and nothing else: the local half of asynchronous SGD."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.errors import SettingError
from offbeat.core.local import Carry, Local, Work
from offbeat.core.vectors import Payload


@dataclass(frozen=True)
class Gradient(Local):
    """Sends the gradient at the model it received; there is no local step size.

    batch: mini-batch size, None for all data.
    """

    lr: float = 1.0  # these two stand here so that the half can be copied like any other
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr != 1.0 or self.steps != 1:
            raise SettingError("gradient takes no step of its own: leave lr and steps out, the server's lr is the step")

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
