"""The helper of a run on its network and disk: does what its `HelperCore` wants, in that order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

from offbeat.deploy import effects
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.disk import Disk
from offbeat.deploy.effects import Effect
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.helper_core import HelperCore
from offbeat.deploy.link import Link
from offbeat.deploy.logs import note
from offbeat.deploy.questions import channel_of
from offbeat.deploy.uplink import Uplink

LOOK = 2.0  # seconds between polls of the broker


class RunHelper:
    """The helper of one run. least: clients of a sum at least."""

    def __init__(self, link: Link, run: str, folder: Path, least: int, retry: float = 2.0) -> None:
        creds = link.creds
        self.link, self.run_name = link, run
        self.channel = channel_of(creds, run)
        self.uplink = Uplink(link, self.channel, run, retry)
        self.disk = Disk(folder, run)
        self.core = HelperCore(creds.federation, run, creds.seal, creds.coordinator, least, retry)
        self.desk = b""
        self.waiting = asyncio.Event()
        self.leaving = False
        self.looked, self.said = 0.0, ""

    @property
    def stopped(self) -> str:
        """Why the run is over, "" if it is not."""
        return self.core.stopped

    @property
    def tally(self) -> str:
        return f"{self.core.sums:,} sums opened"

    @property
    def doing(self) -> str:
        """What it has done, in one line."""
        return self.tally

    def leave(self) -> None:
        """Go."""
        self.leaving = True
        self.waiting.set()

    async def run(self) -> str:
        """Open sums until the run is over; gives an error, or nothing if all went well."""
        heard: list[Any] = []
        try:
            self.core.start(self.disk.read())
            heard.append(await self.link.listen(f"desk.{self.run_name}", self._asked))
            self.link.reconnected.append(self._look)
            while not self.leaving and not self.stopped:
                if time.monotonic() - self.looked > LOOK:
                    await self._look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.waiting.wait(), 0.2)
                self.waiting.clear()
                await self._do(self.core.tick(time.monotonic()))
            return ""
        finally:
            if self._look in self.link.reconnected:
                self.link.reconnected.remove(self._look)
            for subscription in heard:
                with contextlib.suppress(*FAILURES):
                    await subscription.unsubscribe()
            self.disk.close()

    async def _look(self) -> None:
        """Read what the broker has: what was asked while we were away."""
        self.looked = time.monotonic()
        self.uplink.told.clear()
        with contextlib.suppress(*FAILURES):
            found = await self.link.get(f"get.desk.{self.run_name}")
            if found is not None:
                await self._asked("", found.data)

    async def _asked(self, _: str, data: bytes) -> None:
        try:
            opened = self.channel.open("desk", data)
        except RefusedError as error:
            note(f"what came as a question is not the server's ({error})", "warning", run=self.run_name)
            return
        wants = self.core.hear(opened, time.monotonic())
        if self.core.trouble and self.core.trouble != self.said:
            self.said = self.core.trouble
            note(self.said, "warning", run=self.run_name)
        if opened != self.desk or not wants:
            self.desk = opened
            await self._do(wants)
        self.waiting.set()

    async def _do(self, wants: list[Effect]) -> None:
        for effect in wants:
            match effect:
                case effects.Save(data):
                    self.disk.save(data)
                case effects.Tell(data, name):
                    with contextlib.suppress(*FAILURES):  # it is said again
                        await self.uplink.tell(data, name)
