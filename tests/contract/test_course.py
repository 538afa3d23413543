"""The course of events is one: what the rules of `core/course.py` say holds in virtual time and over a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from logs import Log, plan
from worlds import Scenario, Scripted, play, send

from offbeat.core.course import RunState, Until
from offbeat.core.events import Command, Stop
from offbeat.core.server import Server
from offbeat.core.watcher import Row
from offbeat.watch.history import History

LONG = Until(time=100.0)


@dataclass
class Seen:
    """A run as it ended."""

    state: RunState
    rows: Sequence[Row]

    @property
    def events(self) -> list[tuple[str, int, int]]:
        """(event, client, job) of every row."""
        return [(row.event, row.client, row.job) for row in self.rows]


def simulated(server: Server[Any], until: Until = LONG, there: Sequence[int] = (0, 1), leaves: float = 0.0) -> Seen:
    """Two clients whose jobs take 10; those not in `there` are away; client 0 leaves at this time, if any is given."""
    flips = {0: [leaves]} if leaves else {}
    clock = Scripted([[10.0]], flips=flips, away=frozenset({0, 1}.difference(there)))
    simulation, history = play(server, clock, until, clients=2)
    return Seen(simulation.world, history.events)


def deployed(server: Server[Any], until: Until = LONG, there: Sequence[int] = (0, 1), leaves: float = 0.0) -> Seen:
    """The same over a log: clients greet, the run begins, alarms ring, client 0 leaves."""
    history = History(keep_events=True)
    log = Log(plan(server, until=until), history).begin(*("ab"[client] for client in there))
    ledger = log.reducer.ledger
    while not ledger.stopped and (ledger.alarms or leaves):
        number, (when, _) = min(ledger.alarms.items(), key=lambda item: item[1], default=(0, (float("inf"), "")))
        if leaves and leaves <= when:
            log.add("a", "bye", wait=leaves - ledger.now, epoch=1)
            leaves = 0.0
        else:
            log.add("", "rung", wait=when - ledger.now, alarm=number)
    return Seen(ledger, history.events)


IN_BOTH = pytest.mark.parametrize("course", [simulated, deployed])


@IN_BOTH
@pytest.mark.parametrize("stop", [Stop(), Stop(task=0)], ids=["the run", "its only task"])
def test_what_a_handler_says_after_a_stop_is_dropped(course: Any, stop: Command) -> None:
    seen = course(Scenario({0: [send(0), stop, send(1), send(0)]}))
    assert seen.state.jobs == 1
    assert seen.state.stopped == "stopped by the algorithm"
