"""Jobs spread over a Ray cluster, or over this machine as one.

The problem is put into Ray's object store once and fetched once a node; a job carries its vectors and nothing else. Ray
is imported when the first job is handed out.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch

from offbeat.core.errors import SettingError, WorkerError, not_installed
from offbeat.core.problem import Problem
from offbeat.simulate.pack import Arrays, Blobs, Bytes, pack, unpack
from offbeat.simulate.pool import cores
from offbeat.simulate.workers import Answer, DeadError, Ticket, Wire, Worker, Workers, work

_PATIENCE = 600.0  # seconds for the first worker: a cluster may have to start a machine


def loaded() -> Any:
    """Ray, imported when it is needed."""
    return import_module("ray")


def _store(array: Bytes) -> Any:
    """Into the object store."""
    return loaded().put(array)


class RayWorker:
    """What runs on the cluster. path: where the run looks for modules, for those that are there too."""

    def __init__(self, path: Sequence[str]) -> None:
        sys.path += [place for place in path if place not in sys.path]
        torch.set_num_threads(1)
        self.problems: dict[int, Any] = {}  # packed until its first job

    def hello(self) -> None:
        """Report for work."""

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def learn(self, number: int, packed: bytes, stored: dict[int, Any]) -> None:
        """A problem, and where its large arrays are."""
        self.problems[number] = packed, stored

    def work(self, number: int, wire: Wire) -> Answer:
        """Do a job."""
        ray = loaded()
        if isinstance(self.problems[number], tuple):
            packed, stored = self.problems[number]
            self.problems[number] = unpack(packed, lambda blob: cast("Bytes", ray.get(stored[blob])))
        return work(self.problems[number], wire)


class Actor(Worker):
    """A worker that is an actor somewhere on the cluster."""

    def __init__(self, actor: Any, stored: Blobs) -> None:
        super().__init__()
        self.actor, self.stored = actor, stored
        self.answers = [actor.hello.remote()]  # in the order in which they will come

    def learn(self, number: int, problem: Problem) -> None:
        packed = pack(problem, self.stored.put)
        self.actor.learn.remote(number, packed, dict(enumerate(where for _, where in self.stored.kept)))

    def give(self, ticket: Ticket) -> None:
        self.answers.append(self.actor.work.remote(ticket.problem, ticket.wire()))

    def receive(self) -> Answer | BaseException | None:
        """Its first answer, which is there."""
        ray = loaded()
        try:
            answer = ray.get(self.answers.pop(0))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
            cause.add_note("on the cluster:\n" + "".join(traceback.format_exception(error)))
            return cause
        except ray.exceptions.RayError as error:
            return DeadError(str(error).strip().splitlines()[0])
        return None if answer is None else (_own(answer[0]), _own(answer[1]))

    def close(self) -> str:
        loaded().kill(self.actor)
        return ""


class Cluster(Workers):
    """Workers that are Ray's actors.

    address: of a cluster; "auto": the one that this process knows or finds, else one on this machine for the time of
    the run.   workers: how many, by default one for every CPU that the cluster has.
    """

    name = "ray"

    def __init__(self, address: str = "auto", workers: int | None = None, attempts: int = 3, reason: str = "") -> None:
        reach(address)
        super().__init__(cores() if workers is None else workers, attempts, reason)
        self.address, self.wanted = address, workers
        self.stored = Blobs(_store)
        self.began = False  # whether Ray was started here
        self.maker: Any = None

    def start_worker(self) -> Worker:
        if self.maker is None:
            self._connect()
        return Actor(self.maker.remote(sys.path), self.stored)

    def receive(self) -> Iterable[tuple[Worker, Answer | BaseException | None]]:
        ray = loaded()
        speakers = {worker.answers[0]: worker for worker in cast("list[Actor]", self.started) if worker.answers}
        up = any(worker.up for worker in self.started)
        ready, _ = ray.wait(list(speakers), num_returns=1, timeout=None if up else _PATIENCE)
        if not ready:
            raise WorkerError(f"ray: no worker was given a CPU within {_PATIENCE:g} s; is the cluster busy?")
        for reference in ready:
            yield speakers[reference], speakers[reference].receive()

    def close(self) -> None:
        super().close()
        self.stored = Blobs(_store)
        self.maker = None
        if self.began:
            loaded().shutdown()
            self.began = False

    def _connect(self) -> None:
        self.began = connect(self.address, self.workers)
        self.maker = loaded().remote(num_cpus=1, max_restarts=0)(RayWorker)
        if self.wanted is None:
            self.resize(max(1, int(loaded().cluster_resources().get("CPU", self.workers))))


def connect(address: str, workers: int | None = None) -> bool:
    """Connect to a cluster, unless this process is; whether Ray was started here.

    address: "auto" is the one that this process finds, else one on this machine with so many CPUs.
    """
    reach(address)
    ray, quiet = loaded(), {"logging_level": logging.ERROR, "log_to_driver": False}
    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address != "auto":
            token = "one that asks for a token answers only if RAY_AUTH_TOKEN is the same here"
            raise SettingError(f"ray = {address!r}: no Ray cluster answers there ({error}); {token}") from None
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    return True


def reach(address: str | None) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes. None: no cluster is wanted."""
    if address is None:
        return
    if find_spec("ray") is None:
        raise not_installed("a Ray cluster needs Ray", "ray")
    if address == "auto":
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise SettingError(f"ray = {address!r}: no Ray cluster answers there ({error}); write HOST:PORT") from None


def _own(given: Arrays) -> Arrays:
    """Copies: what Ray gives lies in its store."""
    return {name: v if isinstance(v, float) else np.array(v) for name, v in given.items()}
