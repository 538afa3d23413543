"""A broker with servers and clients of one run within this process, for tests of what lies between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from worlds import Line

from offbeat.algorithms import AREA
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.deploy import identity, keys
from offbeat.deploy.admission import Limits
from offbeat.deploy.broker import Broker
from offbeat.deploy.client import Party, RunClient
from offbeat.deploy.link import Link
from offbeat.deploy.plan import Plan
from offbeat.deploy.server import RunServer
from offbeat.local import SGD

PROBLEM = Line([1.0, 2.0, 4.0])
NAMES = ["alice", "bob", "carol"]


async def until(what: Callable[[], Any], patience: float = 60.0, said: object = "it did not happen") -> None:
    end = asyncio.get_running_loop().time() + patience
    while not what():
        assert asyncio.get_running_loop().time() < end, said
        await asyncio.sleep(0.02)


class Served:
    """One federation. The servers' folders and the clients' states stay when they are started again."""

    def __init__(self, folder: Path, names: list[str] | None = None, problem: Any = PROBLEM, **options: Any) -> None:
        self.folder, self.names, self.problem = folder, names or NAMES, problem
        self.roster = keys.init(folder / "fed", self.names, tls=False)
        self.broker = Broker(folder / "broker", folder / "fed", sync=False)
        self.secure = options.pop("secure", None)
        given = options.pop("server", AREA(size=2)), options.pop("local", SGD(lr=0.1))
        self.made = Algorithm(*given, secure=self.secure)
        self.secure = self.made.secure  # with what [privacy] asks of sums
        self.options = {"until": Until(updates=10**6), "limits": Limits(patience=6.0), **options}
        self.links: list[Link] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def plan(self) -> Plan:
        made = self.made
        start, options = self.problem.initial(), {"secure": self.secure, "federation": "fed", **self.options}
        start = start if self.secure is None else self.secure.round(start)
        return Plan("run", self.names, made.server, made.locals(1), [start], **options)

    async def link(self, name: str) -> Link:
        link = Link(identity.read_creds(self.folder / "fed" / f"{name}.creds"), self.broker.url)
        await link.connect(60)
        self.links.append(link)
        return link

    async def serve(
        self, name: str = "one", ready: bool = True, **options: Any
    ) -> tuple[RunServer, asyncio.Task[None]]:
        """Start a server with a folder of this name."""
        link = await self.link("server")
        server = RunServer(self.plan(), link, self.folder / name, {"run": "run"}, self.roster, **{"wait": 1, **options})
        task = asyncio.create_task(server.run())
        self.tasks.append(task)
        if ready:
            await until(lambda: server.ready or task.done())
            if task.done():
                task.result()
        return server, task

    async def join(self, name: str, **options: Any) -> tuple[RunClient, asyncio.Task[str]]:
        link = await self.link(name)
        number = self.names.index(name)
        party = Party("run", name, number, [self.problem], self.made.locals(1), 0, secure=self.secure)
        client = RunClient(party, link, self.folder / "state" / name, beat=0.5, retry=0.5, **options)
        task = asyncio.create_task(client.run())
        self.tasks.append(task)
        return client, task

    async def end(self) -> None:
        await cancel(*self.tasks)
        for link in self.links:
            await link.close()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """More than once: `wait_for` forgets it if what it waits for comes at the same time."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=0.2)


async def kill(server: RunServer, task: asyncio.Task[None]) -> None:
    """As a power failure does: not a word more."""
    await server.link.client.close()
    await cancel(task)


def staged(served: Served, act: Callable[[Served], Awaitable[None]]) -> None:
    """Act with a broker, and clear the stage."""

    async def play() -> None:
        try:
            await act(served)
        finally:
            await served.end()

    served.broker.start()
    try:
        asyncio.run(play())
    finally:
        served.broker.stop()
