"""A client that sends anything: messages that fit the moment, spoiled in their values, structure and bytes."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import torch
from worlds import MEASURED, Line

from offbeat.algorithms import (
    ACED,
    AREA,
    CA2FL,
    MIFA,
    SCAFFOLD,
    AsGrad,
    DeFedAvg,
    Favano,
    FedAST,
    FedBuff,
    FedCompass,
    FedFix,
    QuAFL,
    SyncUCBST,
)
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.wire import LogEntry
from offbeat.local import SGD, Gradient, Scaffold

NAMES = ("a", "b", "c")
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "area": lambda: Algorithm(AREA(size=3), SGD(lr=0.1)),
    "fedbuff": lambda: Algorithm(FedBuff(size=2, concurrency=2), SGD(lr=0.1)),
    "defedavg": lambda: Algorithm(DeFedAvg(sampled=2), SGD(lr=0.1, steps=2)),
    "favano": lambda: Algorithm(Favano(sampled=2, period=0.5), SGD(lr=0.1, steps=3)),
    "quafl": lambda: Algorithm(QuAFL(sampled=2, period=0.5), SGD(lr=0.1, steps=3)),
    "scaffold": lambda: Algorithm(SCAFFOLD(), Scaffold(lr=0.1)),
    "mifa": lambda: Algorithm(MIFA(), SGD(lr=0.1)),
    "ca2fl": lambda: Algorithm(CA2FL(size=2), SGD(lr=0.1)),
    "aced": lambda: Algorithm(ACED(bound=2), SGD(lr=0.1)),
    "fedfix": lambda: Algorithm(FedFix(period=0.5), SGD(lr=0.1)),
    "fedcompass": lambda: Algorithm(FedCompass(least=1, most=4), SGD(lr=0.1)),
    "asgrad": lambda: Algorithm(AsGrad(size=2), Gradient()),
    "fedast": lambda: Algorithm(FedAST(requests=4, size=2, allocation="dynamic", aggregate=AREA(size=2)), SGD(lr=0.1)),
    "sync-ucb-st": lambda: Algorithm(SyncUCBST(sampled=3), SGD(lr=0.1)),
}

SCALARS: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**53 - 1, 2**53, 2**63, 10**399, -(10**399), 0.5, -0.0, 1e-320, 1.7e308,
    -1.7e308, float("inf"), float("nan"), "", "x", "0", "7" * 15, "7" * 400, "\ud800", "a\udfffb", "\x00", "\u2028",
    "é", "🂡" * 20, "\x1b[2J", "n" * 64, "n" * 65, "n" * 1000, "n" * 1001, "n" * 5000, "applied", "delta", "٣",
]  # fmt: skip


def plan(name: str, accuracy: float | None = None, limits: Limits | None = None) -> Plan:
    made = ALGORITHMS[name]()
    tasks = 2 if made.server.several else 1
    first = Line([1.0, 2.0, 3.0]).initial()
    return Plan(
        "run",
        NAMES,
        made.server,
        made.locals(tasks),
        [first] * tasks,
        Until(updates=10**9, accuracy=accuracy),
        limits=limits or Limits(size=1 << 16),
        metrics=[MEASURED] * tasks,
    )


class Fuzzer:
    """Entries for a reducer, one after the other: some that it should take, most of them spoiled."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def entry(self, reducer: Reducer, seq: int, stamp: float) -> LogEntry:
        draw = self.random.random()
        if draw < 0.15 or not reducer.ledger.begun:
            return LogEntry(seq, stamp, "", wire.say(self.own(reducer)))
        name = self.random.choice([*reducer.index])
        if draw < 0.2:
            return LogEntry(seq, stamp, self.random.choice([*NAMES, "mallory", "?", "x" * 99]), self.rubbish())
        kind, header, parts = self.fitting(reducer, name)
        if draw < 0.45:
            header = self.spoiled(header)
        if draw > 0.9:
            parts = self.other_parts(parts)
        return LogEntry(seq, stamp, name, self.packed(kind, header, parts))

    # Messages that fit the moment

    def own(self, reducer: Reducer) -> wire.FromServer:
        ledger, pick = reducer.ledger, self.random.choice
        if not ledger.begun:
            return wire.Begun("run")
        alarms = [*ledger.alarms, *ledger.turns]
        task = self.random.randrange(len(reducer.plan.locals))
        options: list[wire.FromServer] = [
            wire.Asked("run", task),
            wire.Asked("run", task, True),
            wire.Counted("run", task),
            wire.Gone("run", self.random.randrange(3), 1),
        ]
        options += [wire.Rung("run", pick(alarms))] * 4 if alarms else []
        members = [client for client, record in enumerate(ledger.clients) if not record.removed]
        if len(members) < 5:
            number = len(ledger.clients)
            options.append(wire.Enrolled("run", number, f"n{number}", "A", "S", "X"))
        if len(members) > 2 and self.random.random() < 0.3:
            options.append(wire.Removed("run", pick(members)))
        options.append(wire.Limited("run", pick([Limits(size=1 << 16), Limits(size=1 << 16, slot=True)]).plain()))
        options += [wire.Expired("run", pick([*ledger.flights]))] if ledger.flights else []
        return pick(options)

    def fitting(self, reducer: Reducer, name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
        ledger, number = reducer.ledger, reducer.index[name]
        record = ledger.clients[number]
        base = {"run": "run", "client": name, "epoch": record.epoch}
        draw = self.random.random()
        if not record.present or draw < 0.08:
            new = self.random.random() < 0.5 or not record.epoch
            after = {"after_epoch": record.epoch, "after_seq": record.seq}
            nonce = f"n{self.random.random()}" if new else record.nonce
            return "hello", {**base, **after, "epoch": record.epoch + new, "nonce": nonce}, {}
        if draw < 0.12:
            return "bye", base, {}
        if draw < 0.3 and ledger.judging:
            judging = self.random.choice([*ledger.judging.values()])
            total = self.random.choice([0, 1, 50, 2**53 - 1])
            right = self.random.choice([0, total, total // 2])
            loss = self.random.choice([0.0, 1.0, -1e30, 1e30])
            answer = {"number": judging.number, "total": total, "loss": loss}
            answer["sums"] = self.random.choice([{}, {"accuracy": [right, total]}, {"accuracy": [right, 0]}])
            answer["personal"] = self.random.choice([{}, {"accuracy": 0.0}, {"accuracy": 1.0}])
            return "judged", {**base, **answer, "diverged": self.random.random() < 0.02}, {}
        return self.trained(reducer, number, base)

    def trained(
        self, reducer: Reducer, client: int, base: dict[str, Any]
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        ledger = reducer.ledger
        record = ledger.clients[client]
        mine = [*record.queue, *(job for held in record.held.values() for job in held)]
        job = self.random.choice(mine) if mine else 0
        task, steps = (ledger.flights[job].job.task, ledger.flights[job].job.steps) if mine else (0, 1)
        error = self.random.choice(["", "", "", "", f"broken {self.random.random()}", "line\nline\x00\x1b[31m"])
        size = self.random.choice([1.0, 1.0, 1.0, 1e-30, 1e30, 1e300])
        parts = {
            name: torch.full((length,), size * self.random.uniform(-1, 1), dtype=torch.float64)
            for name, length in reducer.expected[task].items()
        }
        times = {"download": 0.01, "wait": 0.0, "compute": self.random.choice([0.1, 0.0, 1e9])}
        others = {str(self.random.randrange(10**6)): 0.5} if self.random.random() < 0.1 else {}
        header = {**base, "seq": record.seq + 1, "job": job, "steps": steps, **times, "error": error, "others": others}
        return "trained", header, parts

    # Spoiling them

    def value(self, depth: int = 0) -> Any:
        draw = self.random.random()
        if depth < 3 and draw < 0.1:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if depth < 3 and draw < 0.2:
            return {str(self.scalar()): self.value(depth + 1) for _ in range(self.random.randrange(4))}
        if draw < 0.22:
            return {str(number): 0.5 for number in range(self.random.choice([200, 300]))}
        return self.scalar()

    def scalar(self) -> Any:
        draw = self.random.random()
        if draw < 0.2:
            return self.random.randrange(-3, 10)
        if draw < 0.3:
            return "".join(chr(self.random.randrange(0x11000)) for _ in range(self.random.randrange(20)))
        return self.random.choice(SCALARS)

    def spoiled(self, header: dict[str, Any]) -> dict[str, Any]:
        changed = dict(header)
        for _ in range(self.random.choice([1, 1, 1, 2, 5])):
            draw, name = self.random.random(), self.random.choice([*header])
            if draw < 0.15:
                changed.pop(name, None)
            elif draw < 0.25:
                changed[self.random.choice(["parts", "digest", "kind", "more", "\ud800", "k" * 300])] = self.value()
            elif draw < 0.3 and isinstance(changed.get("others"), dict):
                changed["others"] = {str(self.scalar()): self.scalar() for _ in range(3)}
            else:
                changed[name] = self.value()
        return changed

    def other_parts(self, parts: dict[str, Any]) -> dict[str, Any]:
        draw = self.random.random()
        numbers = torch.tensor([self.random.choice([float("nan"), float("inf"), 3e38, 1.7e308, 5e-324])])
        if draw < 0.3:
            return {**parts, self.random.choice(["delta", "model", "é", "x" * 300, ""]): numbers.double()}
        if draw < 0.6:
            return {name: numbers.to(torch.float64).expand(len(vector)).clone() for name, vector in parts.items()}
        if draw < 0.8:
            return {
                name: vector.to(self.random.choice([torch.float32, torch.bfloat16])) for name, vector in parts.items()
            }
        return {name: torch.zeros(self.random.choice([0, 2, 100, 9000])) for name in parts}

    def packed(self, kind: str, header: dict[str, Any], parts: dict[str, Any]) -> bytes:
        """As a client that checks nothing would pack it."""
        if "kind" in header and self.random.random() < 0.5:
            kind = header["kind"]
        good = encoding.pack("x", {}, parts)
        (length,) = struct.unpack("<I", good[4:8])
        frame, body = json.loads(good[8 : 8 + length]), good[8 + length :]
        text = json.dumps({**frame, **header, "kind": kind}).encode()
        if self.random.random() < 0.05:
            text = text.replace(b'"epoch"', self.random.choice([b'"epoch":1,"epoch"', b'"\\ud800":1,"epoch"']), 1)
        if self.random.random() < 0.02:
            text = text.replace(
                b"1", self.random.choice([b"1e400", b"-1e999", b"1" * 400, b"1" * 5000, b"[" * 90_000]), 1
            )
        data = encoding.MAGIC + struct.pack("<I", len(text)) + text + body
        return self.flipped(data) if self.random.random() < 0.1 else data

    def flipped(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.random.choice([1, 1, 2, 8])):
            at = self.random.randrange(len(changed) + 1)
            draw = self.random.random()
            if draw < 0.6:
                changed[at : at + 1] = bytes([self.random.randrange(256)])
            elif draw < 0.8:
                del changed[at : at + self.random.randrange(1, 30)]
            else:
                changed[at:at] = self.random.randbytes(self.random.randrange(1, 9))
        return bytes(changed)

    def rubbish(self) -> bytes:
        draw = self.random.random()
        if draw < 0.3:
            return self.random.randbytes(self.random.randrange(200))
        if draw < 0.5:
            return encoding.MAGIC + self.random.randbytes(self.random.randrange(200))
        if draw < 0.7:
            return b"OBT" + self.random.randbytes(self.random.randrange(200))
        text = self.random.choice([b"[" * 100_000, b'{"kind":' * 20_000, b'{"kind":"hello"}', b"9" * 100_000])
        return encoding.MAGIC + struct.pack("<I", len(text)) + text
