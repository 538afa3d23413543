"""The record of a run in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.core.watcher import EventRow, Measurement


@dataclass
class History:
    """A watcher that keeps evaluations and, on request, events in memory."""

    keep_events: bool = False
    measurements: list[Measurement] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)

    def event(self, row: EventRow) -> None:
        if self.keep_events:
            self.events.append(row)

    def measured(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)
