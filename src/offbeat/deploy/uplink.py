"""How a client or a helper adds to the log: one envelope, or a large one in pieces, again until it is heard."""

from __future__ import annotations

import time

from offbeat.deploy import encoding
from offbeat.deploy.envelope import OVERHEAD, Channel
from offbeat.deploy.gate import PARTED, write_parts
from offbeat.deploy.link import Link

LONG = 30.0  # seconds after which anything is sent again, and what is large not before: a server with many clients may
# take seconds until it comes to a message, and its pieces, sent again, would push out those that it is about to read


class Uplink:
    """Sends messages to the server of a run. retry: seconds after which one is sent again, at first."""

    def __init__(self, link: Link, channel: Channel, run: str, retry: float) -> None:
        self.link, self.channel, self.run, self.retry = link, channel, run, retry
        # name of a large message, digest of another -> how often the broker has taken it, when
        self.told: dict[str, tuple[int, float]] = {}
        # the last large message: its name, its envelope, the digest of that, and the pieces that the broker has
        self.large: tuple[str, bytes, str, dict[int, int]] = ("", b"", "", {})

    async def tell(self, data: bytes, name: str) -> None:
        """Add to the log; not again while the broker has it and nothing was heard since, unless that takes long."""
        large, now, run = len(data) + OVERHEAD > self.link.piece, time.monotonic(), self.run
        key = name if large else encoding.digest(data)
        times, when = self.told.get(key, (0, float("-inf")))
        if now - when < (LONG if large else min(LONG, self.retry * 2**times)):
            return
        if large:
            if self.large[0] != key:
                self.large = key, *self.channel.seal_and_digest("entry", data), {}
            _, sealed, digest, done = self.large  # after a broken connection the same, with the pieces that are missing
            numbers = await self.link.put(self.link.pieces(sealed), lambda _: f"part.{run}", done)
            word = PARTED + self.channel.seal("parts", write_parts(numbers, len(sealed), digest))
            done.clear()  # if there is no verdict, the server may have found some of them gone
        else:
            word = self.channel.seal("entry", data)
        await self.link.store(f"up.{run}", word)
        self.told[key] = times + 1, time.monotonic()
