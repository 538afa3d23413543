"""A federation within one process: a broker, runs that are served, and sites whose every line can be waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from offbeat.deploy import identity
from offbeat.deploy.broker import Broker
from offbeat.deploy.link import Link
from offbeat.deploy.logs import logged
from offbeat.deploy.server import RunServer
from offbeat.experiment.experiment import load
from offbeat.experiment.joining import Participant
from offbeat.experiment.partner import Partner
from offbeat.experiment.real import DeployOptions, charter_of, plan_of
from offbeat.experiment.session import Session

SOON = 2.0  # seconds within which a client says what is wrong
TURN = 0.02  # seconds between two looks; a turn that took longer, because others had the processor, counts as five


class Stopwatch:
    """Seconds, without those in which others had the processor."""

    seconds = 0.0

    async def __aenter__(self) -> Stopwatch:
        self.task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()

    async def _count(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(TURN)
            self.seconds, last = self.seconds + min(time.monotonic() - last, 5 * TURN), time.monotonic()


class Site:
    """A client that joins within this process; what it says can be waited for."""

    def __init__(self, creds: Path, url: str, folder: Path, data: str = "", models: Sequence[str] = ()) -> None:
        self.log = folder / "join.log"
        self.log.touch()
        self.leaving = asyncio.Event()
        self.member = Participant(creds, url, Partner(data, models), folder / "state", False, False, self.leaving)

    async def __aenter__(self) -> Site:
        self.task = asyncio.create_task(self.member.take_part())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leaving.set()
        assert await asyncio.wait_for(self.task, 60) == ""

    async def says(self, text: str, patience: float = SOON) -> None:
        async with Stopwatch() as watch:
            while text not in self.log.read_text():
                assert watch.seconds < patience, self.log.read_text()
                assert not self.task.done(), self.task.result()
                await asyncio.sleep(TURN)


@contextmanager
def site(folder: Path, creds: Path, url: str, data: str = "") -> Iterator[Site]:
    made = Site(creds, url, folder, data)
    with logged(made.log):
        yield made


@contextmanager
def running(broker: Broker) -> Iterator[None]:
    broker.start()
    try:
        yield
    finally:
        broker.stop()


RUN = """
until = { updates = 40 }

[problem]
data = "digits"
clients = 2

[algorithm.fedasync]
local = { sgd = { lr = 0.1, batch = 8 } }
"""


@asynccontextmanager
async def served(
    folder: Path, url: str, run: str, updates: int, names: Sequence[str] = (), text: str = RUN, **charter: Any
) -> AsyncIterator[tuple[RunServer, asyncio.Task[None]]]:
    """Within, this run is served. One client is enough for it. names: of those who may take part; by default all."""
    (folder / "run.toml").write_text(text)
    roster = identity.read_roster(folder / "fed")
    roster = replace(roster, clients={name: roster.client(name) for name in names or roster.clients})
    experiment = load(folder / "run.toml", {"until.updates": updates, "problem.clients": len(roster.clients)})
    options, spec = DeployOptions(), experiment.runs[0]
    plan = plan_of(Session(experiment), spec, run, list(roster.clients), options)
    link = Link(identity.read_creds(folder / "fed" / "server.creds"), url)
    await link.connect(60)
    said = {**charter_of(experiment, spec, plan, options, False), **charter}
    server = RunServer(
        plan, link, folder / run, said, roster, wait=1, every=experiment.evaluate.every if "own" in text else None
    )
    task = asyncio.create_task(server.run())
    try:
        yield server, task
    finally:
        server.leave()
        try:
            await task
        finally:
            await link.close()
