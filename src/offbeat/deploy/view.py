"""The read-only view of a real run that handlers get: its time is the log's, its random numbers the log position's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offbeat.core.random import SERVER, Stream, key
from offbeat.deploy.ledger import Ledger


class LedgerView:
    """One object for a whole run; `renew` gives it the random numbers of the next event."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self._ledger, self._seed = ledger, seed
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
        return len(self._ledger.clients)

    @property
    def tasks(self) -> Sequence[int]:
        return self._ledger.open_tasks

    @property
    def flying(self) -> int:
        return sum(len(record.queue) + len(record.held) for record in self._ledger.clients)

    def present(self, client: int) -> bool:
        return self._ledger.clients[client].present

    def everyone(self) -> Iterable[int]:
        return [client for client, record in enumerate(self._ledger.clients) if record.present]

    def idle(self, count: int) -> list[int]:
        free = [client for client, record in enumerate(self._ledger.clients) if record.present and not record.busy]
        return self._rng.sample(free, count)

    def available(self, count: int) -> list[int]:
        there = list(self.everyone())
        return [there[self._rng.below(len(there))] for _ in range(count)] if there else []
