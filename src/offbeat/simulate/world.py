"""Everything that changes during a simulated run, as one value that can be written down.

Times are worked out when work is sent: a client does its jobs in the order in which they were sent, so the start, end
and arrival of a job are known at once and one entry in the heap is enough for it. Only a recall, a replacement or a
departure changes them afterwards; the stale heap entry is then skipped, because a flight knows its own arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.core.events import Job
from offbeat.core.random import Stream
from offbeat.core.run_state import RunState
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector
from offbeat.privacy.attack import Plot

# Kinds of heap entries, in the order in which entries of the same moment are handled: who is there, which tasks are,
# what arrives, what rings, and only then what is measured.
FLIP, TURN, ARRIVE, RING, MEASURE = range(5)

Entry = tuple[float, int, int, int | str]  # (time, kind, counter, client | job | key | task)

made = tuple.__new__  # a named tuple without its constructor: there are some for every job


@dataclass(slots=True)
class Flight(State):
    """A job between its sending and its end. `after` is the job whose memory it builds on, if that is in flight."""

    job: Job
    payload: Payload | None  # None once computed
    sent: float
    ready: float  # downloaded
    free: float  # when the client would be free without this job
    start: float
    end: float
    arrive: float
    upload: float  # duration
    lost: str = ""  # the reason, if it will never arrive
    held: bool = False  # sent with hold and not recalled
    after: int | None = None
    result: tuple[Payload, Payload] | None = None  # (upload, memory)
    base: Vector | None = None  # the model that was sent, if it is needed on arrival


@dataclass(slots=True)
class ClientSet(State):
    """A set of clients from which one can draw in constant time.

    >>> pool = ClientSet.of([4, 7, 9], 10)
    >>> pool.remove(4); pool.add(2); pool.remove(4); sorted(pool.items)
    [2, 7, 9]
    """

    items: list[int]
    where: list[int]  # position in items, −1 for those outside

    @classmethod
    def of(cls, clients: list[int], total: int) -> ClientSet:
        pool = cls([], [-1] * total)
        for client in clients:
            pool.add(client)
        return pool

    def add(self, client: int) -> None:
        if self.where[client] < 0:
            self.where[client] = len(self.items)
            self.items.append(client)

    def remove(self, client: int) -> None:
        at = self.where[client]
        if at >= 0:
            last = self.items.pop()
            if last != client:
                self.items[at] = last
                self.where[last] = at
            self.where[client] = -1

    def draw(self, rng: Stream) -> int:
        return self.items[rng.below(len(self.items))]


@dataclass
class PendingEvaluation(State):
    """A model waiting to be evaluated: evaluations are put off until several can be done in one pass."""

    task: int
    time: float
    updates: int
    version: int
    vector: Vector
    each: list[float] = field(default_factory=list)  # clients' own accuracies, judged at once


@dataclass(slots=True, kw_only=True)
class World(RunState):
    """State of the server, of the clients and of what is between them; `events` keys view.rng."""

    present: ClientSet
    idle: ClientSet  # present and without work
    free: list[float]  # when each client has done all it was sent
    numbers: list[int]  # jobs sent to each client so far
    counter: int = 0  # of heap entries, the tie-breaker
    heap: list[Entry] = field(default_factory=list)
    flights: dict[int, Flight] = field(default_factory=dict)
    flying: dict[int, list[int]] = field(default_factory=dict)  # client -> its jobs in flight, in order of sending
    surplus: int = 0  # jobs in flight sent with hold, beyond one for each client and task
    todo: dict[int, None] = field(default_factory=dict)  # jobs sure to arrive that nobody has computed yet
    memories: dict[tuple[int, int], tuple[int, Payload]] = field(
        default_factory=dict
    )  # (client, task) -> (job number, …)
    pending: list[PendingEvaluation] = field(default_factory=list)
    plots: dict[int, Plot] = field(default_factory=dict)  # task -> what attackers know and have done
    executor: str = ""  # what it began with: another one would round differently
    compiled: bool | None = None  # whether local steps are, if that was weighed
