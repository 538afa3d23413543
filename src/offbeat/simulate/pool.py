"""Jobs spread over processes of this machine.

Each process is started afresh, not forked, and gets a problem once: its large arrays lie in memory that all of them
share. It lives as long as its end of a socket is open, so nothing is left behind however the run ends.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import IO, cast

from offbeat.core.problem import Problem
from offbeat.simulate.pack import Blobs, Bytes, pack
from offbeat.simulate.transport import Child
from offbeat.simulate.worker import receive, send
from offbeat.simulate.workers import Answer, DeadError, Ticket, Worker, Workers

_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Shared(Blobs):
    """Arrays in memory that processes share."""

    def __init__(self) -> None:
        super().__init__(_memory)

    def close(self) -> None:
        for _, file in self.kept:
            file.close()
        self.kept.clear()
        self.numbers.clear()


class Process(Worker):
    """A worker that is a process of this machine."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared, self.mapped = shared, 0
        self.child = Child("offbeat.simulate.worker:main", env=_SINGLE)
        self.connection, self.process = self.child.connection, self.child.process

    def learn(self, number: int, problem: Problem) -> None:
        packed = pack(problem, self.shared.put)
        with _alive():
            for blob in range(self.mapped, len(self.shared.kept)):
                array, file = self.shared.kept[blob]
                send(self.connection, ("blob", blob, array.nbytes))
                send_handle(self.connection, file.fileno(), self.process.pid)
            self.mapped = len(self.shared.kept)
            send(self.connection, ("problem", number, packed))

    def give(self, ticket: Ticket) -> None:
        with _alive():
            send(self.connection, ("job", ticket.problem, ticket.wire()))

    def receive(self) -> Answer | BaseException | None:
        """What it has to say."""
        try:
            return cast("Answer | BaseException | None", receive(self.connection))
        except (EOFError, OSError) as error:
            return DeadError(str(error))

    def close(self) -> str:
        return self.child.end(kill=not self.up)


class Pool(Workers):
    """Workers that are processes of this machine.

    workers: how many, by default one a core.   attempts: how often a job may cost a worker its life.

    >>> from offbeat import SGD, FedBuff, Algorithm, Quadratic, Until, run
    >>> from offbeat.timing import Exponential, Times
    >>> fedbuff = Algorithm(FedBuff(size=4), SGD(lr=0.1))
    >>> with Pool(workers=2) as pool:
    ...     done = run(Quadratic(8), fedbuff, Times(Exponential(1.0)), Until(updates=20), executor=pool)
    >>> done.world.tally.updates
    20
    """

    name = "processes"

    def __init__(self, workers: int | None = None, attempts: int = 3, reason: str = "") -> None:
        super().__init__(cores() if workers is None else workers, attempts, reason)
        self.shared = Shared()
        self._end = weakref.finalize(self, _close, self.started, self.shared)  # also when Python ends

    def start_worker(self) -> Process:
        return Process(self.shared)

    def receive(self) -> Iterable[tuple[Worker, Answer | BaseException | None]]:
        speakers = {worker.connection: worker for worker in cast("list[Process]", self.started)}
        for connection in wait(list(speakers)):
            worker = speakers[cast("Connection", connection)]
            yield worker, worker.receive()

    def close(self) -> None:
        super().close()
        self.shared.close()


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _close(workers: list[Worker], shared: Shared) -> None:
    for worker in workers:
        worker.close()
    workers.clear()
    shared.close()


def _memory(array: Bytes) -> IO[bytes]:
    """A file without a name that holds this array, in memory where the system has that."""
    memory = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("offbeat"), "wb") if memory else tempfile.TemporaryFile()  # noqa: SIM115
    file.write(array.data)
    file.flush()
    return file


@contextmanager
def _alive() -> Iterator[None]:
    """Writing to a worker that is gone."""
    try:
        yield
    except OSError as error:
        raise DeadError(str(error)) from None
