"""One stochastic gradient and nothing else: the local trainer of asynchronous SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from offbeat.core.errors import SettingError
from offbeat.core.local import Carry, Local, Work
from offbeat.core.vectors import Payload


@dataclass(frozen=True)
class Gradient(Local):
    """One gradient at the model that was received, and no local step."""

    lr: float = field(default=1.0, metadata={"setting": False})
    steps: int = field(default=1, metadata={"setting": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr != 1.0 or self.steps != 1 or self.epochs is not None:
            raise SettingError(
                "gradient makes no local steps: leave out lr and steps; the server's lr is the step size"
            )

    sends: ClassVar[tuple[str, ...]] = ("gradient",)

    moves: ClassVar[Mapping[str, str | None]] = {"gradient": None}

    trains: ClassVar[bool] = False

    def step(self, carry: Carry, work: Work) -> Carry:
        return {"g": work.gradient(work.payload["model"])}

    def init(self, work: Work) -> Carry:
        return {"g": work.payload["model"] * 0.0}

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        return {"gradient": carry["g"]}, work.memory
