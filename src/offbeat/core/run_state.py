"""What a run keeps, whatever its runtime: the algorithm's state, jobs in flight, sums and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from offbeat.core.events import Job
from offbeat.core.server import Server
from offbeat.core.state import State
from offbeat.core.sums import Cohort
from offbeat.core.vectors import Vector


@dataclass(slots=True)
class Tally(State):
    """Counts of a run so far."""

    sent: dict[int, int] = field(default_factory=dict)  # task -> jobs
    updates: int = 0
    lost: int = 0
    cancelled: int = 0
    cut: int = 0  # updates of which a part was lost, because its numbers were too large for `secure.bits`
    computed: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    tasks: dict[int, list[int]] = field(default_factory=dict)  # task -> [updates, sum of staleness]
    notes: dict[str, list[float]] = field(default_factory=dict)  # name -> [sum, maximum]
    spent: dict[int, dict[int, int]] = field(default_factory=dict)  # task -> client -> steps of its own budget

    def arrived(self, task: int, staleness: int) -> None:
        self.updates += 1
        self.staleness_sum += staleness
        if staleness > self.staleness_max:
            self.staleness_max = staleness
        mine = self.tasks.get(task)
        if mine is None:
            mine = self.tasks[task] = [0, 0]
        mine[0] += 1
        mine[1] += staleness

    def spend(self, task: int, client: int, steps: int) -> None:
        mine = self.spent.setdefault(task, {})
        mine[client] = mine.get(client, 0) + steps

    def note(self, name: str, value: float) -> None:
        total, most = self.notes.get(name, (0.0, value))
        self.notes[name] = [total + value, max(most, value)]


class InFlight(Protocol):
    """A job between its sending and its end, and when it began and was done or will be.

    base: the model that was sent, where the way from it to the model of later is asked for.
    """

    job: Job
    base: Vector | None

    @property
    def sent(self) -> float: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


@dataclass(slots=True, kw_only=True)
class RunState(State):
    """What every run keeps, whatever its runtime."""

    server: Any = None  # the algorithm's state
    now: float = 0.0
    events: int = 0  # handled so far
    jobs: int = 0  # sent so far
    flights: dict[int, Any] = field(default_factory=dict)  # by job, the runtime's `InFlight`
    tally: Tally = field(default_factory=Tally)
    measured: list[float] = field(default_factory=list)  # per task, time of the last evaluation
    unborn: dict[int, float] = field(default_factory=dict)  # task -> when it opens
    finished: dict[int, str] = field(default_factory=dict)  # task -> reason
    ends: dict[int, float] = field(default_factory=dict)  # task -> when it was finished
    stopped: str = ""  # why the run is over
    spared: dict[int, Vector] = field(default_factory=dict)  # task -> 1 at running statistics that are rebased, else 0
    cohorts: dict[int, Cohort] = field(default_factory=dict)  # task -> the sum that is being made
    closed: dict[int, Cohort] = field(default_factory=dict)  # by number: sums that are full and not open yet
    sums: int = 0  # closed so far
    sealed: bool = False  # whether the server is shown sums only
    complete: bool = False  # whether the sum that the last update has gone into is as it will be opened
    spoken: dict[int, dict[int, int]] = field(default_factory=dict)  # task -> client -> version of its last update
    rested: dict[int, dict[int, int]] = field(default_factory=dict)  # of these, those that were sent nothing since

    def barred(self, client: int, version: int, task: int) -> bool:
        """Whether a sum holds an update of this client that was made of this version of a task's model, or later."""
        return self.sealed and self.spoken.get(task, {}).get(client, -1) >= version

    def waiting_for(self, task: int) -> list[int]:
        """The clients that have waited for the next version of a task's model."""
        return [*self.rested.get(task, ())]

    @property
    def open_tasks(self) -> list[int]:
        """The tasks that are there to be trained now."""
        return [task for task in range(len(self.measured)) if task not in self.finished and task not in self.unborn]


def iterations(server: Server[Any], state: RunState) -> int:
    """Arrived results and server steps of all tasks so far, AREA's k."""
    return state.tally.updates + sum(model.version for model in server.models(state.server))
