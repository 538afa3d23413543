"""Servers that can stop clients whose work has become too old, and restart them from the newest model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from offbeat.algorithms.flow import Flow, OneModel
from offbeat.core.events import Cancel, Command, Job, Send
from offbeat.core.server import Commands, View


@dataclass
class AtWork(OneModel):
    """One model, and who works from which version of it, the oldest first."""

    at_work: dict[int, int] = field(default_factory=dict)  # client -> version


S = TypeVar("S", bound=AtWork)


@dataclass(frozen=True)
class Restarting(Flow[S]):
    """A flow of clients that may be stopped in the middle of a job.

    stop: stop clients whose result would not be used, and restart them from the newest model; otherwise they finish,
        and the result is ignored.
    """

    stop: bool = field(default=False, kw_only=True)
    reads: ClassVar[tuple[str, ...]] = ("gradient",)
    state: ClassVar[type[Any]] = AtWork

    def started(self, state: S, view: View) -> Commands:
        yield from self._noted(state, super().started(state, view))

    def next(self, state: S, client: int, view: View) -> Commands:
        state.at_work.pop(client, None)
        yield from self._noted(state, super().next(state, client, view))

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        state.at_work.pop(job.client, None)
        yield from super().lost(state, job, reason, view)

    def restart(self, state: S, oldest: int) -> Commands:
        """With `stop`, clients that work from a version before `oldest` are stopped and begin again with the newest."""
        model = state.model
        while self.stop and state.at_work:
            client, version = next(iter(state.at_work.items()))
            if version >= oldest:
                break
            del state.at_work[client]
            state.at_work[client] = model.version
            yield Cancel(client)
            yield Send(client, {"model": model.vector}, model.version)

    def _noted(self, state: S, commands: Iterable[Command]) -> Commands:
        for command in commands:
            if self.stop and isinstance(command, Send):
                state.at_work.pop(command.client, None)
                state.at_work[command.client] = command.version
            yield command
