"""What a server sends: assignments sealed for their clients, models before they are named, questions to the helper."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from offbeat.deploy.connection import FAILURES
from offbeat.deploy.helping import write_helping
from offbeat.deploy.journal import MemberKeys, Scribe
from offbeat.deploy.link import Link
from offbeat.deploy.logs import log
from offbeat.deploy.roll import Roll, keys_of
from offbeat.deploy.server_core import Append, Consult, Drop, Effect, Post, Put, ServerCore
from offbeat.deploy.shelf import Shelf


class Posting:
    """Does what the core of a server wants, in the order in which that was decided.

    models: bytes of large models that the broker keeps although no assignment names them any more.
    append: adds an entry of the server's own to the log, if it leads.
    """

    def __init__(
        self,
        link: Link,
        scribe: Scribe,
        core: ServerCore,
        roll: Roll,
        models: int,
        append: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self.link, self.scribe, self.core, self.roll, self.append = link, scribe, core, roll, append
        self.shelf = Shelf(link, scribe.run, models)
        self.order = asyncio.Lock()

    async def obey(self, effects: Sequence[Effect]) -> None:
        """Do this, after what was to be done before."""
        if not effects:
            return
        async with self.order:
            for effect in effects:
                try:
                    await self._do(effect)
                except FAILURES as error:  # assignments are sent again when they are missed
                    log.warning("not sent: %s", error)

    async def _do(self, effect: Effect) -> None:
        ledger = self.core.ledger
        match effect:
            case Append(data):
                await self.append(data)
            case Post(client, data):
                await self._post(keys_of(ledger.clients[client]), self.shelf.seal.key + data)
            case Consult():
                if (helper := MemberKeys(*ledger.helper)).account:
                    await self._post(helper, write_helping(self.core.plan, ledger, self.roll.roster.to_json()))
            case Put(digest, data):
                # a large model is stored before an assignment names it, whatever happens to the broker
                await self.shelf.put(digest, data)
            case Drop(digest):
                await self.shelf.drop(digest)

    async def _post(self, keys: MemberKeys, data: bytes) -> None:
        if keys.account:
            sealed = self.scribe.channel(keys).seal("desk", data)
            await self.link.say(f"desk.{keys.account}.{self.scribe.run}", sealed)

    def renew(self) -> bool:
        """Seal models with another key if clients were removed or given other keys: who had the old ones knows the one
        so far. Whether it is new."""
        ledger = self.core.ledger
        new = self.shelf.renew(len(ledger.clients) - ledger.members + ledger.rekeyed)
        if new:
            self.core.put.clear()
        return new

    async def post_all(self) -> None:
        """Send every client that is there its assignment, with the models under the present key."""
        clock = time.monotonic()
        for client in [*self.core.reducer.traffic.census.present]:
            await self.obey(self.core.post(client, clock))
