"""Workers of a sweep on a Ray cluster.

A worker is an actor with a thread that does the runs; the dispatcher asks it what there is to tell. Machines share no
folder: saved runs and event logs travel to the folder of the sweep, and with a run to the next worker that has it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from offbeat.core.errors import WorkerError
from offbeat.data.folder import VARIABLE
from offbeat.experiment.sweep_workers import Message, Orders, serve
from offbeat.simulate.ray import connect, loaded

_LISTEN = 5.0  # seconds after which an actor answers that there is nothing to tell
_PATIENCE = 600.0  # seconds for the first worker: a cluster may have to start a machine
_SHARED = 8  # workers of a GPU, unless the cluster has fewer CPUs


class Mailbox:
    """A `Pipe` whose other end is the actor."""

    def __init__(self) -> None:
        self.letters: queue.Queue[Any] = queue.Queue()
        self.said: queue.Queue[Message] = queue.Queue()

    def send(self, what: Message, /) -> None:
        self.said.put(what)

    def recv(self) -> Any:
        return self.letters.get()

    def poll(self) -> bool:
        return not self.letters.empty()


class WorkerActor:
    """What runs on the cluster. path: where to look for modules.   data: the data folder, where none is named."""

    def __init__(self, path: Sequence[str], data: str | None, orders: Mapping[str, Any], worker: int) -> None:
        sys.path += [place for place in path if place not in sys.path]
        if data is not None:
            os.environ.setdefault(VARIABLE, data)
        self.box = Mailbox()
        threading.Thread(target=serve, args=(self.box, orders, worker), daemon=True).start()

    def listen(self) -> list[Message]:
        """What there is to tell, as soon as there is something."""
        try:
            found = [self.box.said.get(timeout=_LISTEN)]
        except queue.Empty:
            return []
        while not self.box.said.empty():
            found.append(self.box.said.get())
        return found

    def receive(self, what: Any) -> None:
        """Something for the worker."""
        self.box.letters.put(what)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()


class Actors:
    """A `WorkerPool` of Ray's actors.

    address: of a cluster, HOST:PORT, or "auto".   workers: how many there is room for.
    """

    def __init__(self, address: str, device: str) -> None:
        self.began = connect(address)
        has = loaded().cluster_resources()
        cpus, self.gpus = int(has.get("CPU", 1)), int(has.get("GPU", 0))
        each: dict[str, float] = {"num_cpus": 1}
        self.workers = max(1, cpus)
        if device.startswith("cuda"):
            if not self.gpus:
                raise WorkerError(f"device = {device!r}: the Ray cluster has no GPU; use 'cpu'")
            beside = max(1, min(_SHARED, cpus // self.gpus // 2))
            self.workers, each = beside * self.gpus, {"num_cpus": 1, "num_gpus": 1 / beside}
        self.maker: Any = loaded().remote(max_restarts=0, max_concurrency=4, **each)(WorkerActor)
        self.actors: dict[int, Any] = {}
        self.asked: dict[Any, int] = {}  # by what will be answered, the worker
        self.heard = time.monotonic()
        self.up = False

    def start(self, orders: Orders, worker: int) -> None:
        self.actors[worker] = self.maker.remote(sys.path, os.environ.get(VARIABLE), asdict(orders), worker)
        self._ask(worker)

    def _ask(self, worker: int) -> None:
        self.asked[self.actors[worker].listen.remote()] = worker

    def receive(self, seconds: float) -> Iterator[tuple[int, Message]]:
        ready, _ = loaded().wait(list(self.asked), num_returns=1, timeout=seconds)
        if not ready and not self.up and time.monotonic() - self.heard > _PATIENCE:
            raise WorkerError(f"ray: no worker was given room within {_PATIENCE:g} s; is the cluster busy?")
        for reference in ready:
            worker = self.asked.pop(reference)
            try:
                said = loaded().get(reference)
            except loaded().exceptions.RayError as error:
                yield worker, ("died", str(error).strip().splitlines()[0])
                continue
            self.up = True
            self._ask(worker)
            for message in said:
                yield worker, message

    def send(self, worker: int, what: Any) -> None:
        if worker in self.actors:
            self.actors[worker].receive.remote(what)

    def remove(self, worker: int) -> None:
        self.asked = {reference: who for reference, who in self.asked.items() if who != worker}
        loaded().kill(self.actors.pop(worker))

    def close(self) -> None:
        for worker in list(self.actors):
            self.remove(worker)
        if self.began:
            loaded().shutdown()
            self.began = False
