"""A run under attack, with a real broker: its server, honest clients, a thief with a client's keys, and whoever
administers the broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from served import cancel, until
from worlds import MEASURED, Line

from offbeat.algorithms import FedAsync
from offbeat.core.algorithm import Algorithm
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.deploy import encoding, identity, keys
from offbeat.deploy.admission import Limits
from offbeat.deploy.broker import Broker
from offbeat.deploy.client import Party, RunClient
from offbeat.deploy.link import Link
from offbeat.deploy.plan import Plan
from offbeat.deploy.questions import channel_of
from offbeat.deploy.refold import fingerprint, refold
from offbeat.deploy.server import RunServer
from offbeat.local import SGD

PROBLEM = Line([1.0, 2.0, 4.0])
NAMES = ["alice", "bob", "mallory"]


class Place:
    """A broker and the keys of a federation."""

    def __init__(self, folder: Path, helper: bool = False) -> None:
        self.folder, self.numbers = folder, count()
        self.roster = keys.init(folder / "fed", NAMES, tls=False)
        if helper:
            self.roster = keys.add_helper(folder / "fed")
        self.broker = Broker(folder / "broker", folder / "fed", sync=False)

    def play(self, act: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
        """A run of its own for this act."""

        async def played() -> None:
            scene = Scene(self, f"r{next(self.numbers)}", **options)
            try:
                await scene.begin()
                await act(scene)
            finally:
                await scene.end()

        asyncio.run(asyncio.wait_for(played(), 300))


class Scene:
    """A run: its server, its honest clients, a thief with mallory's keys, and whoever administers the broker."""

    def __init__(
        self,
        place: Place,
        run: str,
        server: Server[Any] | None = None,
        until: Until | None = None,
        every: float | None = None,
        local: Local | None = None,
        secure: Secure | None = None,
        **limits: Any,
    ) -> None:
        self.place, self.run, self.folder = place, run, place.folder / run
        self.made, self.secure = Algorithm(server or FedAsync(lr=0.1), local or SGD(lr=0.1), secure=secure), secure
        self.limits = Limits(**{"size": 1 << 22, "patience": 6.0, **limits})
        self.until, self.every = until or Until(updates=10**6), every
        self.links: list[Link] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.clients: dict[str, RunClient] = {}

    async def link(self, name: str) -> Link:
        link = Link(identity.read_creds(self.place.folder / "fed" / f"{name}.creds"), self.place.broker.url)
        await link.connect(60)
        self.links.append(link)
        return link

    async def begin(self) -> None:
        await self.serve()
        self.thief = await self.link("mallory")
        self.admin = await self.link("server")  # may do everything on the broker; no test uses its other keys
        self.account = self.thief.creds.account
        self.alice = self.place.roster.client("alice").account

    def plan(self) -> Plan:
        made, start = self.made, PROBLEM.initial()
        return Plan(
            self.run,
            NAMES,
            made.server,
            made.locals(1),
            [start if self.secure is None else self.secure.round(start)],
            self.until,
            limits=self.limits,
            metrics=[MEASURED],
            secure=self.secure,
            federation="fed",
        )

    async def serve(self, **options: Any) -> None:
        link = await self.link("server")
        options = {"wait": 1, "every": self.every, **options}
        self.server = RunServer(self.plan(), link, self.folder, {"run": self.run}, self.place.roster, **options)
        self.serving = asyncio.create_task(self.server.run())
        self.tasks.append(self.serving)
        await until(lambda: self.server.ready or self.serving.done())
        if self.serving.done():
            self.serving.result()

    async def join(self, name: str, state: str = "", judge: Any = None) -> RunClient:
        numbered = (self.run, name, NAMES.index(name), [PROBLEM], self.made.locals(1), 0)
        party = Party(*numbered, judge, secure=self.secure)
        folder = self.folder / (state or f"state-{name}")
        client = self.clients[name] = RunClient(party, await self.link(name), folder, beat=0.5, retry=0.5)
        task = asyncio.create_task(client.run())
        self.tasks.append(task)
        self.ends = task
        return client

    async def goes_on(self, updates: int = 5) -> None:
        """An honest client's work is applied, and the log folded again gives the state of the server."""
        if not {"alice", "bob"} & set(self.clients):
            await self.join("alice")
        before, tally = self.server.ledger.tally.updates, self.server.ledger
        await until(lambda: self.serving.done() or self.server.ledger.tally.updates >= before + updates)
        assert not self.serving.done()
        assert not tally.stopped
        await self.stop()
        again = await refold(self.admin, self.plan(), self.server.ledger.position)
        assert fingerprint(again) == fingerprint(self.server.ledger)

    async def stop(self) -> None:
        """The server leaves."""
        self.server.leave()
        await asyncio.wait_for(self.serving, 60)

    async def end(self) -> None:
        await cancel(*self.tasks)
        for link in self.links:
            await link.close()

    def sealed(self, data: bytes, kind: Any = "entry") -> bytes:
        """As the thief can seal it."""
        return channel_of(self.thief.creds, self.run).seal(kind, data)

    def says(self, kind: str, parts: Any = None, **header: Any) -> bytes:
        return self.sealed(encoding.pack(kind, {"run": self.run, "client": "mallory", **header}, parts))

    def entry(self, kind: str, header: dict[str, Any]) -> bytes:
        """A message without any of the checks that a client makes."""
        text = json.dumps({"kind": kind, "run": self.run, **header}).encode()
        return self.sealed(encoding.MAGIC + struct.pack("<I", len(text)) + text)

    async def up(self, *envelopes: bytes, **options: Any) -> None:
        """Send to the log, and wait until the server has taken it."""
        for data in envelopes:
            await self.thief.store(f"up.{self.run}", data, **options)
        await self.taken()

    async def taken(self) -> None:
        """Wait until the server has taken all that clients have sent so far."""
        last = await self.admin.end(f"IN-{self.run}")
        for _ in range(2500):
            info = await self.admin.js.stream_info(f"IN-{self.run}")
            if not info.state.messages or info.state.first_seq > last:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the server does not take what clients send")


@contextlib.contextmanager
def opened(folder: Path, helper: bool = False) -> Iterator[Place]:
    """A place whose broker runs within. helper: its federation has one."""
    made = Place(folder, helper)
    made.broker.start()
    try:
        yield made
    finally:
        made.broker.stop()


class Heard(list[Any]):
    """Messages on a subject, in the order in which they arrived; it grows."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    async def hear(self, message: Any) -> None:
        self.append(message)

    async def listen(self, subject: str) -> None:
        self.subscription = await self.link.client.subscribe(subject, cb=self.hear)
        await self.link.client.flush()

    async def so_far(self) -> Heard:
        """Itself, once all is in it that the broker has passed on by now: others may be told sooner."""
        await self.link.client.flush()
        await until(lambda: not self.subscription.pending_msgs)
        return self


async def heard(link: Link, subject: str) -> Heard:
    """Messages on this subject from now on."""
    found = Heard(link)
    await found.listen(subject)
    return found
