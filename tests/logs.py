"""A reducer that is fed by hand, for tests of what a deployed server makes of its log."""

from __future__ import annotations

from typing import Any

import torch
from worlds import Line

from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.deploy import encoding
from offbeat.deploy.admission import Limits
from offbeat.deploy.ledger import ClientRecord
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.wire import LogEntry
from offbeat.local import SGD

PROBLEM = Line([1.0, 2.0])


def plan(server: Server[Any], local: Any = None, **options: Any) -> Plan:
    made = Algorithm(server, local or SGD(lr=0.5))
    models = options.pop("initial", [PROBLEM.initial()])
    given_ = {"until": Until(updates=10**6), "limits": Limits(size=5000, norm=100.0, window=3), **options}
    return Plan("run", ["a", "b"], made.server, made.locals(len(models)), models, **given_)


class Log:
    """A reducer and the entries it is given, one after the other."""

    def __init__(self, made: Plan, *watchers: Any) -> None:
        self.reducer, self.seq, self.now = Reducer(made, None, watchers), 0, 0.0
        self.entries: list[LogEntry] = []

    def add(self, sender: str, kind: str, parts: Any = None, wait: float = 0.1, **header: Any) -> str:
        self.now += wait
        who = {"client": sender} if sender else {}
        if kind in ("hello", "bye") and sender in self.reducer.index:  # it knows its newest assignment
            revision = self.reducer.ledger.clients[self.reducer.index[sender]].revision
            header = {"seen": revision + 1, **header}
        return self.raw(sender, encoding.pack(kind, {"run": "run", **who, **header}, parts))

    def raw(self, sender: str, data: bytes) -> str:
        self.seq += 1
        client = self.reducer.index.get(sender)
        record = ClientRecord() if client is None else self.reducer.ledger.clients[client]
        keys = (record.account, record.sign, record.seal)
        self.entries.append(LogEntry(self.seq, self.now, sender, data, keys))
        return self.reducer.fold(self.entries[-1])

    def begin(self, *names: str) -> Log:
        for name in names or ("a", "b"):
            self.add(name, "hello", epoch=1, nonce=name)
        self.add("", "begun")
        return self

    def result(self, sender: str, seq: int, job: int, value: float = 1.0, **changes: Any) -> str:
        header = {"epoch": 1, "seq": seq, "job": job, "steps": 1, **changes}
        parts = header.pop("parts", {"delta": torch.tensor([value], dtype=torch.float64)})
        return self.add(sender, "trained", parts, **header)

    @property
    def refused(self) -> dict[str, int]:
        return self.reducer.ledger.tally.refused
