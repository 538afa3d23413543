"""Runs of a sweep handed out to workers, wherever these are.

A worker asks for the next run when it has room. Nothing is shared but what workers and dispatcher tell each other: what
a worker that dies had in hand is handed out again and goes on from where it was saved last, and what a run computes
does not depend on who has it, so the end is the same. A `WorkerPool` says how workers are started and talked to.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from offbeat.core.errors import FolderError
from offbeat.experiment.grid import Point
from offbeat.experiment.sweep_workers import STOP, Message, Orders
from offbeat.simulate.transport import Child
from offbeat.watch.files import pack_folder, place_of, unpack_folder

ATTEMPTS = 3  # workers that a run may cost, and that may die in a row before they have asked for one
_TURN = 0.2  # seconds until the user is asked again whether to stop


class WorkerPool(Protocol):
    """Workers of one kind, known by their numbers."""

    def start(self, orders: Orders, worker: int) -> None:
        """Start one."""

    def receive(self, seconds: float) -> Iterable[tuple[int, Message]]:
        """What workers have said, after at most so long; ("died", how) of one that is no longer there."""

    def send(self, worker: int, what: Any) -> None:
        """Tell one something; nothing happens if it is no longer there."""

    def remove(self, worker: int) -> None:
        """One that has left or died."""

    def close(self) -> None:
        """End all."""


class Handout:
    """Who has which runs, and which are left: in bundles, each of which goes to one worker."""

    def __init__(self, bundles: Sequence[Sequence[Point]]) -> None:
        self.left = deque(bundles)
        self.given: dict[int, Counter[str]] = {}  # by worker and label
        self.held: dict[int, dict[int, Point]] = {}  # by worker and number
        self.deaths: Counter[int] = Counter()  # by number

    @property
    def busy(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self.left) or any(self.held.values())

    def take(self, worker: int) -> Sequence[Point]:
        """The next bundle for this worker: of the algorithm that it has had least of.

        Some take many times as long as others, and a worker may take all it will ever do at once.
        """
        if not self.left:
            return ()
        given = self.given.setdefault(worker, Counter())
        at = min(range(len(self.left)), key=lambda at: (given[self.left[at][0].label], at))
        bundle = self.left[at]
        del self.left[at]
        given[bundle[0].label] += 1
        self.held.setdefault(worker, {}).update({point.number: point for point in bundle})
        return bundle

    def done(self, worker: int, number: int | None) -> None:
        """A run has ended."""
        if number is not None:
            self.held[worker].pop(number)

    def gone(self, worker: int, again: bool) -> bool:
        """A worker is gone; its runs may be the next ones. False if one of them has cost too many workers."""
        mine = self.held.pop(worker, {})
        if again:
            self.deaths.update(list(mine))
            self.left.extendleft([point] for point in reversed(mine.values()))
        return all(self.deaths[number] < ATTEMPTS for number in mine)


def dispatch(
    pool: WorkerPool, orders: Orders, bundles: Sequence[Sequence[Point]], stop: Callable[[], bool]
) -> Iterator[Message]:
    """Have the runs done, and tell what workers tell."""
    handout, asked, failure, starts = Handout(bundles), False, "", 0
    started = orders.workers
    alive = set(range(started))
    how = f"finished runs are kept, continue with `offbeat resume {orders.folder}`"
    try:
        for worker in alive:
            pool.start(orders, worker)
        while handout.busy:
            if (stop() or failure) and not asked:
                asked = True
                handout.left.clear()
                for worker in alive:
                    pool.send(worker, STOP)
            for worker, (kind, value) in pool.receive(_TURN):
                if kind == "next":
                    starts = 0
                    pool.send(worker, [(point, _files(orders, point)) for point in handout.take(worker)])
                elif kind == "files":
                    number, files = value
                    unpack_folder(place_of(Path(orders.folder), number), files)
                elif kind in ("left", "died"):
                    alive.discard(worker)
                    pool.remove(worker)
                    died = kind == "died"
                    starts += died
                    if not handout.gone(worker, again=not asked) or starts >= ATTEMPTS:
                        failure = failure or f"a worker process died ({value}); {how}"
                    elif not died:
                        failure = failure or value
                    if handout.left and not failure and (died or not alive):
                        pool.start(orders, started)
                        alive.add(started)
                        started += 1
                else:
                    if kind == "done":
                        handout.done(worker, value.number)
                    yield kind, value
        if failure:
            raise FolderError(failure)
    finally:
        pool.close()


def _files(orders: Orders, point: Point) -> dict[str, bytes]:
    return pack_folder(place_of(Path(orders.folder), point.number)) if orders.apart else {}


class Processes:
    """Workers that are processes of this machine, each at the other end of a pipe."""

    def __init__(self) -> None:
        self.children: dict[int, Child] = {}

    def start(self, orders: Orders, worker: int) -> None:
        env = visible(worker, orders.gpus, os.environ) if orders.device == "cuda" else {}
        self.children[worker] = Child("offbeat.experiment.sweep_workers:child", (asdict(orders), worker), env)

    def receive(self, seconds: float) -> Iterator[tuple[int, Message]]:
        speakers = {child.connection: worker for worker, child in self.children.items()}
        for pipe in wait(list(speakers), timeout=seconds):
            worker = speakers[pipe]  # type: ignore[index]
            try:
                yield worker, self.children[worker].connection.recv()
            except (EOFError, OSError):
                yield worker, ("died", self.children[worker].end())

    def send(self, worker: int, what: Any) -> None:
        with suppress(OSError):  # it is gone, which hearing will show
            self.children[worker].connection.send(what)

    def remove(self, worker: int) -> None:
        self.children.pop(worker).end()

    def close(self) -> None:
        for child in self.children.values():
            child.end(kill=True)
        self.children.clear()


def visible(worker: int, gpus: int, env: Mapping[str, str]) -> dict[str, str]:
    """The one GPU that a worker sees, of those that this process sees; they go round.

    >>> visible(3, 2, {}), visible(1, 2, {"CUDA_VISIBLE_DEVICES": "4,6"}), visible(3, 1, {})
    ({'CUDA_VISIBLE_DEVICES': '1'}, {'CUDA_VISIBLE_DEVICES': '6'}, {})
    """
    if gpus < 2:
        return {}
    seen = env.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    return {"CUDA_VISIBLE_DEVICES": seen.split(",")[worker % gpus]}
