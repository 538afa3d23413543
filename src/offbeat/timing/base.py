"""What the simulator asks of a timing model.

A `Timing` is a description (a frozen dataclass); `bind` draws what is fixed for a whole run, such as each client's
speed, and gives a `Clock`. A clock holds no state that changes: every answer is a function of its arguments, of the
seed and of a job's (client, number), so the k-th job of a client takes the same time under every algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from offbeat.core.events import Job
from offbeat.core.random import Stream


class Durations(NamedTuple):
    """How long the parts of one job take, and whether its result gets lost on the way back."""

    download: float
    compute: float
    upload: float
    lost: bool = False


class Clock(Protocol):
    """A timing model bound to its clients."""

    @property
    def always(self) -> bool:
        """Whether every client is always present and always takes work: the simulator then asks neither."""

    def durations(self, job: Job, down: int, up: int) -> Durations:
        """The times of one job that moves this many bytes down and up."""

    def available(self, client: int, now: float, stream: Stream) -> bool:
        """Whether the client takes new work at this moment; random models draw from the stream."""

    def present(self, client: int, now: float) -> bool:
        """Whether the client is there at all (a `Joined` without a `Left` since)."""

    def flip(self, client: int, after: float) -> float | None:
        """The first time later than `after` at which the client's presence changes; None: never."""


class Timing(Protocol):
    """A description of how long things take and who is there."""

    def bind(self, clients: int, seed: int, tasks: Sequence[str] = ("",)) -> Clock:
        """Draw what is fixed for a run. `tasks` are the tasks' names, in the order of their numbers."""
