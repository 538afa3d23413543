"""What algorithms written anew in numpy have in common: a clock, clients' times, local steps, and the comparison."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from quartics import Array, Quartics, gradient
from worlds import Scripted

from offbeat.algorithms import FedAST
from offbeat.core.algorithm import Algorithm
from offbeat.core.events import Send
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing.base import Durations

CLIENTS, STEPS, LR, EVENTS = 5, 3, 0.03, 150
Look = Callable[[World], Sequence[Any]]  # vectors of the server
Trail = list[tuple[float, list[Array]]]  # (time, vectors) after every event


@dataclass
class Clock:
    """What happens, in the order of time."""

    heap: list[Any] = field(default_factory=list)
    order: Iterator[int] = field(default_factory=count)
    now: float = 0.0

    def at(self, time: float, *what: Any) -> None:
        heapq.heappush(self.heap, (time, next(self.order), what))

    def pop(self) -> Any:
        self.now, _, what = heapq.heappop(self.heap)
        return what


@dataclass
class Times:
    """How long jobs take.

    network: whether messages take time.   alike: a client's jobs all take as long.   flips: when clients leave and
    come back.
    """

    seed: int
    network: bool = True
    alike: bool = False
    clients: int = CLIENTS
    flips: dict[int, list[float]] = field(default_factory=dict)
    jobs: dict[int, int] = field(default_factory=dict)

    def table(self) -> list[list[Durations]]:
        draw = random.Random(self.seed)
        up = [draw.uniform(0, 0.4 * self.network) for _ in range(self.clients)]
        speeds = [draw.uniform(0.3, 3) for _ in range(self.clients)]
        down = 0.0 if self.alike or not self.network else 0.1
        each = 1 if self.alike else 7
        return [[Durations(down, s * draw.uniform(0.5, 1.5), u) for _ in range(each)] for s, u in zip(speeds, up)]  # noqa: B905

    def next(self, client: int) -> Durations:
        mine = self.table()[client]
        self.jobs[client] = self.jobs.get(client, -1) + 1
        return mine[self.jobs[client] % len(mine)]


def descend(w: Array, client: int, lr: float = LR, task: int = 0) -> Array:
    for step in range(STEPS):
        w = w - lr * gradient(task, client, w, step)
    return w


def trail(server: Server[Any], local: Local, times: Times, look: Look, tasks: int = 1) -> Trail:
    problems = [Quartics(times.clients, task) for task in range(tasks)]
    timing = Scripted(times.table(), times.flips)
    simulation = prepare(problems, Algorithm(server, local), timing, Until(updates=EVENTS))
    return [(world.now, [materialise(v).numpy().copy() for v in look(world)]) for world in simulation.steps()]


def model(world: World) -> Sequence[Any]:
    return [world.server.model.vector]


def moved(found: Trail) -> Trail:
    """Where something has changed."""
    at = [
        i
        for i, (_, vectors) in enumerate(found)
        if i == 0 or any((a != b).any() for a, b in zip(vectors, found[i - 1][1], strict=True))
    ]
    return [found[i] for i in at]


def agree(found: Trail, wanted: Trail, least: int = EVENTS) -> None:
    assert len(found) == len(wanted) >= least
    for (time, vectors), (moment, expected) in zip(found, wanted, strict=True):
        assert time == pytest.approx(moment, rel=1e-12)
        for a, b in zip(vectors, expected, strict=True):
            assert a == pytest.approx(b, rel=1e-12, abs=1e-12)


def sent_by_fedast(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clients that FedAST gives work to from now on, in its order."""
    clients: list[int] = []
    plain = FedAST._send

    def send(*given: Any) -> Iterator[Any]:
        for command in plain(*given):  # type: ignore[misc]
            if isinstance(command, Send):
                clients.append(command.client)
            yield command

    monkeypatch.setattr(FedAST, "_send", send)
    return clients
