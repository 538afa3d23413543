"""What a run tells those who watch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

ARRIVED = "Arrived"  # what a row calls the event of an update
CANCELLED = "Cancelled"  # and the end of a job that the server has cancelled, which is no event to it
FAILED = ("Lost", CANCELLED)  # jobs that ended without arriving


class EventRow(NamedTuple):
    """One line of the event log. Fields that an event has no use for are −1 or nan.

    A job that the server has cancelled has a line, too, after the line of the event that cancelled it and with its
    number.
    """

    number: int
    time: float
    event: str
    client: int
    task: int
    job: int
    version: int  # of the server's model after the event
    staleness: int
    sent: float
    started: float
    finished: float
    reason: str  # why a job has not arrived


class Measurement(NamedTuple):
    """A task's metrics at a moment."""

    task: int
    time: float
    updates: int
    version: int
    metrics: Mapping[str, float]
    # the own metric of the own models of client 0, 1, …, where those are judged; None: it has not said
    each: Sequence[float | None] = ()


class Watcher(Protocol):
    """Sees every event and evaluation, and changes nothing."""

    def event(self, row: EventRow) -> None:
        """An event was handled."""

    def measured(self, measurement: Measurement) -> None:
        """A model was evaluated; may come later than the time it is about."""
