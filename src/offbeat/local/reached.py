"""The local trainer of servers that average models."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.local import Carry, Work, Wrapper
from offbeat.core.vectors import Payload


@dataclass(frozen=True)
class Reached(Wrapper):
    """Trains as the one inside does and sends the model it reached."""

    @property
    def sends(self) -> tuple[str, ...]:
        return ("model", *self.notes)

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        notes, memory = self.noted(carry, work)
        return {"model": carry["w"], **notes}, memory
