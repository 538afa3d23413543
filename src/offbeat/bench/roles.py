"""The processes of `offbeat bench deploy`: a server and clients that compute nothing, and an echo to compare them with.

    python -m offbeat.bench.roles ROLE JSON

Each prints one JSON object when it is done: what it did between the first and the last update, and its CPU time then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import torch

from offbeat.algorithms import FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.metric import Metric
from offbeat.core.until import Until
from offbeat.deploy import envelope, identity
from offbeat.deploy.admission import Limits
from offbeat.deploy.client import Party, RunClient
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.link import Kept, Link, as_json
from offbeat.deploy.plan import Plan
from offbeat.deploy.server import RunServer
from offbeat.deploy.streams import Inbox
from offbeat.local import SGD

RUN, ECHO = "bench", "echo"
T = TypeVar("T")
PATIENCE = 60.0  # seconds to connect, to begin and to end


@dataclass(frozen=True)
class Role:
    """What a role is to do. names: the clients of this process.   bytes: of an update and of a model.

    at_once: clients that have work at a time, of all processes together.
    """

    url: str
    fed: str
    folder: str
    clients: int
    names: list[str]
    bytes: int
    seconds: float
    at_once: int


@dataclass(frozen=True)
class Nothing:
    """A problem whose gradients cost nothing."""

    clients: int
    dim: int
    name: str = "nothing"
    stacks: bool = False
    metrics: Sequence[Metric] = ()

    def initial(self) -> torch.Tensor:
        return torch.ones(self.dim)  # not zeros: every update makes another model, which has to be sent

    def oracle(self, clients: Any, keys: Any, steps: int, batch: int | None, shuffle: bool) -> Any:
        return self

    def gradient(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        return w

    def measure(self, models: torch.Tensor) -> list[Mapping[str, float]]:
        return [{"loss": 0.0} for _ in models]


class Sealing:
    """CPU seconds of this process inside the functions that sign, verify, seal and open."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for owner in (envelope.Channel, envelope.ModelSeal, envelope.PrivateSeal):
            for name in ("seal", "seal_and_digest", "open"):
                if hasattr(owner, name):
                    setattr(owner, name, self._timed(getattr(owner, name)))
        for name in ("sign", "verify", "digest_of"):
            self._replace(name, self._timed(getattr(envelope, name)))

    def _replace(self, name: str, timed: Callable[..., Any]) -> None:
        before = getattr(envelope, name)
        for module in [*sys.modules.values()]:
            if getattr(module, "__name__", "").startswith("offbeat.") and getattr(module, name, None) is before:
                setattr(module, name, timed)

    def _timed(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return action(*args, **options)
            finally:
                self.seconds += time.thread_time() - began

        return timed


class Meter:
    """CPU time between two moments."""

    def __init__(self) -> None:
        self.sealing = Sealing()
        self.start()

    def start(self) -> None:
        self.cpu, self.sealed, self.clock = time.process_time(), self.sealing.seconds, time.monotonic()

    def read(self) -> dict[str, float]:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "cpu": time.process_time() - self.cpu,
            "sealing": self.sealing.seconds - self.sealed,
            "wall": time.monotonic() - self.clock,
            "memory_mb": most / (1 << 20 if sys.platform == "darwin" else 1 << 10),
        }


async def connected(job: Role, creds: str) -> Link:
    """A link to the benchmark's broker with these credentials."""
    link = Link(identity.read_creds(Path(job.fed) / creds), job.url)
    await link.connect(PATIENCE)
    return link


# offbeat


def algorithm(job: Role) -> Algorithm:
    """The algorithm that is served: it takes every update at once."""
    some = job.at_once if job.at_once < job.clients else None
    return Algorithm(FedAsync(lr=0.1, concurrency=some), SGD(lr=0.1))


async def server(job: Role) -> dict[str, Any]:
    """Serves a run; the clock starts with the run."""
    made, problem, meter = algorithm(job), Nothing(job.clients, job.bytes // 4), Meter()
    roster = identity.read_roster(Path(job.fed))
    limits = Limits(patience=PATIENCE, lease=1e6)
    plan = Plan(
        RUN,
        list(roster.clients),
        made.server,
        made.locals(1),
        [problem.initial()],
        Until(time=job.seconds),
        limits=limits,
    )
    pa.table({"": [0]})  # the first one imports pandas, which takes as long as a thousand updates
    began = list[bool]()

    def tick(served: RunServer) -> None:
        if served.ledger.begun and not began:
            began.append(True)
            meter.start()

    link = await connected(job, identity.SERVER)
    served = RunServer(plan, link, Path(job.folder) / "run", {"run": RUN, "beat": 2.0}, roster, tick=tick)
    await served.run()
    await link.close()
    tally = served.ledger.tally
    return {"updates": tally.updates, "refused": tally.refused, "lost": tally.lost, **meter.read()}


async def clients(job: Role) -> dict[str, Any]:
    """Clients of a run; the clock starts with the first job."""
    meter, problem = Meter(), Nothing(job.clients, job.bytes // 4)
    links = [await connected(job, f"{name}.creds") for name in job.names]
    made, crew = algorithm(job).locals(1), list[RunClient]()
    for name, link in zip(job.names, links, strict=True):
        party = Party(RUN, name, int(name[1:]), [problem], made, 0)
        crew.append(RunClient(party, link, Path(job.folder) / "state" / name))
    running = asyncio.gather(*(client.run() for client in crew))
    while not running.done() and not any(client.applied for client in crew):
        meter.start()
        await asyncio.sleep(0.05)
    await running
    for link in links:
        await link.close()
    return {"applied": sum(client.applied for client in crew), **meter.read()}


# The same bytes through the same broker, and nothing else


async def echo_server(job: Role) -> dict[str, Any]:
    """Takes every update from the inbox and answers with a model: no log, no state, no signature."""
    meter, model = Meter(), os.urandom(job.bytes)
    link = await connected(job, identity.SERVER)
    pieces = link.pieces(model)
    await link.make_streams(ECHO, len(pieces) + 2, 1)
    tasks, done = set[asyncio.Task[None]](), [0]

    async def answer(message: Any) -> None:
        account = message.subject.split(".")[1]
        numbers = json.loads(message.data) if message.data[:1] == b"[" else []

        async def part(number: int) -> Kept | None:
            return await link.kept(f"PART-{ECHO}", numbers[number])

        if numbers:
            await again(partial(link.collect, part, len(numbers)))
            await again(lambda: link.put(pieces, lambda n: f"model.{ECHO}.{account}.{n}"))
        await message.ack()
        await link.say(f"desk.{account}.{ECHO}", b"" if numbers else model)
        done[0] += 1

    async def take(message: Any) -> None:
        task = asyncio.create_task(answer(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    inbox = Inbox(link, ECHO, take, 16 * job.clients)
    await inbox.start()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while not await loop.run_in_executor(None, sys.stdin.readline):
        pass
    await inbox.stop()
    await link.close()
    return {"updates": done[0], **meter.read()}


async def again(action: Callable[[], Awaitable[T]]) -> T:
    """Do this, until the broker has room for it."""
    while True:
        with contextlib.suppress(*FAILURES):
            return await action()
        await asyncio.sleep(0.05)


async def echo_clients(job: Role) -> dict[str, Any]:
    """Send an update, wait for the answer, and again."""
    links = {name: await connected(job, f"{name}.creds") for name in job.names}
    meter = Meter()
    until, update = time.monotonic() + job.seconds, bytes(job.bytes)
    working = asyncio.Semaphore(max(1, job.at_once * len(job.names) // job.clients))

    async def ping(link: Link) -> int:
        heard, count = asyncio.Queue[None](), 0
        pieces, place = link.pieces(update), f"get.model.{ECHO}.{link.creds.account}"

        async def hear(_: str, __: bytes) -> None:
            heard.put_nowait(None)

        async def piece(number: int) -> Kept | None:
            return await link.get(f"{place}.{number}")

        await link.listen(f"desk.{ECHO}", hear)
        while True:
            async with working:
                if time.monotonic() >= until:
                    return count
                word = update
                if len(pieces) > 1:
                    word = as_json(await again(partial(link.put, pieces, lambda _: f"part.{ECHO}", dict[int, int]())))
                await again(partial(link.store, f"up.{ECHO}", word))
                await asyncio.wait_for(heard.get(), PATIENCE)
                if len(pieces) > 1:
                    await again(partial(link.collect, piece, len(pieces)))
                count += 1

    counts = await asyncio.gather(*map(ping, links.values()))
    found = meter.read()
    for link in links.values():
        await link.close()
    return {"updates": sum(counts), **found}


ROLES = {"server": server, "clients": clients, "echo_server": echo_server, "echo_clients": echo_clients}


def main() -> None:
    """Play the role that the command line names, and print what it found."""
    torch.set_num_threads(1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(ROLES[sys.argv[1]](Role(**json.loads(sys.argv[2]))))), flush=True)


if __name__ == "__main__":
    main()
