"""The read-only view of a real run that handlers get: its time is the log's, its random numbers the log position's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from offbeat.core.random import SERVER, Stream, key
from offbeat.core.vectors import Vector
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.noise import secret_normal


class Census:
    """Who is there, who is idle and how much is in flight, kept up client by client instead of counted for each event.

    It follows from the ledger. `renew` is to be called for a client whose record has changed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.present: list[int] = []  # in ascending order
        self.idle: list[int] = []  # present and without work, in ascending order
        self.loads: dict[int, int] = {}  # client -> its jobs in flight, held work once for each task
        self.flying = 0
        for client in range(len(ledger.clients)):
            self.renew(client)

    def renew(self, client: int) -> None:
        """Look at this client again."""
        record = self.ledger.clients[client]
        load = len(record.queue) + len(record.held)
        self.flying += load - self.loads.get(client, 0)
        self.loads[client] = load
        _keep(self.present, client, record.present)
        _keep(self.idle, client, record.present and not load)


def _keep(ordered: list[int], client: int, inside: bool) -> None:
    """The client is in the list, or is not."""
    at = bisect_left(ordered, client)
    found = at < len(ordered) and ordered[at] == client
    if inside and not found:
        ordered.insert(at, client)
    elif found and not inside:
        del ordered[at]


class LedgerView:
    """One object for a whole run; `renew` gives it the random numbers of the next event."""

    def __init__(self, ledger: Ledger, seed: int, census: Census) -> None:
        self._ledger, self._seed, self._census = ledger, seed, census
        self._rng = Stream(0)

    def renew(self, within: int) -> None:
        """The next event, number `within` of its log entry."""
        self._rng = Stream(key(self._seed, SERVER, self._ledger.position, within))

    @property
    def now(self) -> float:
        return self._ledger.now

    @property
    def rng(self) -> Stream:
        return self._rng

    @property
    def clients(self) -> int:
        return self._ledger.members

    @property
    def tasks(self) -> Sequence[int]:
        return self._ledger.open_tasks

    @property
    def flying(self) -> int:
        return self._census.flying

    @property
    def sealed(self) -> bool:
        return self._ledger.sealed

    @property
    def complete(self) -> bool:
        return self._ledger.complete

    def barred(self, client: int, version: int, task: int = 0) -> bool:
        return self._ledger.barred(client, version, task)

    def waiting(self, task: int = 0) -> Sequence[int]:
        return self._ledger.waiting_for(task)

    def present(self, client: int) -> bool:
        return self._ledger.clients[client].present

    def everyone(self) -> Iterable[int]:
        return list(self._census.present)

    def idle(self, count: int) -> list[int]:
        return self._rng.sample(self._census.idle, count)

    def normal(self, about: Vector, number: int) -> Vector:
        return secret_normal(self._ledger.secret, about, number)

    def available(self, count: int) -> list[int]:
        there = self._census.present
        return [there[self._rng.below(len(there))] for _ in range(count)] if there else []
