"""Every client by itself: the baseline without federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.errors import SettingError
from offbeat.core.events import Update
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.server import Commands, View
from offbeat.core.vectors import Payload, Vector


@dataclass(frozen=True)
class Apart(Wrapper):
    """Goes on from the client's own model; needs nothing of the server's and sends nothing."""

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in self.inner.needs if name != "model")

    @property
    def sends(self) -> tuple[str, ...]:
        return self.notes

    def remember(self, model: Vector) -> Payload:
        return {**self.inner.remember(model), "own": model}

    def init(self, work: Work) -> Carry:
        return self.inner.init(work.sent(work.memory["own"]))

    def step(self, carry: Carry, work: Work) -> Carry:
        return self.inner.step(carry, work.sent(work.memory["own"]))

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        notes, memory = self.noted(carry, work)
        return notes, {**memory, "own": carry["w"]}

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        """What the client has trained; there is nothing of the server's in it."""
        return work.memory["own"]


@dataclass(frozen=True)
class LocalOnly(Flow[OneModel]):
    """Every client trains its own model; nothing is shared.

    The server's model stays the initial one: evaluate it personalised.
    """

    reads: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server is not None:
            raise SettingError("server: this algorithm takes no server step for an optimiser; leave it out")

    def pair(self, local: Local) -> Local:
        return Apart.around(local)

    def remembered(self, state: OneModel, task: int, client: int) -> Payload:
        return {}  # its own model, which is nobody else's affair

    def arrived(self, state: OneModel, update: Update, view: View) -> Commands:
        yield from self.next(state, update.job.client, view)
