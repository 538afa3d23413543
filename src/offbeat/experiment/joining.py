"""Taking part in real runs: one client after the other, from one run to the next."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from offbeat.deploy.client import RunClient, read_charter
from offbeat.deploy.keys import Creds
from offbeat.deploy.link import Link
from offbeat.experiment.real import Partner


async def take_part(
    creds: Sequence[Creds], url: str, partner: Partner, state: Path, once: bool, until_closed: bool
) -> str:
    """Take part with these identities until there is nothing more to do; gives what went wrong, or nothing."""
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leaving.set)
    members = [_take_part(each, url, partner, state, once, until_closed, leaving) for each in creds]
    found = await asyncio.gather(*members)
    return "; ".join(error for error in found if error)


async def _take_part(
    creds: Creds, url: str, partner: Partner, state: Path, once: bool, until_closed: bool, leaving: asyncio.Event
) -> str:
    """One client, from one run to the next."""

    link = Link(creds, url)
    done: set[str] = set()
    if not await _unless(leaving, link.connect()):
        return ""
    try:
        while not leaving.is_set():
            charter = await read_charter(link)
            if charter is not None and charter.get("closed") and until_closed:
                return ""
            if charter is None or "run" not in charter or charter["run"] in done:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(leaving.wait(), 0.3)
                continue
            run = str(charter["run"])
            _say(f"{creds.client}: takes part in {run}")
            party = partner.party(charter, creds.client)
            client = RunClient(party, link, state / creds.federation / creds.client, beat=float(charter["beat"]))
            watch = asyncio.create_task(_watch(client, leaving))
            try:
                error = await client.run()
            finally:
                watch.cancel()
            done.add(run)
            _say(f"{creds.client}: {run} is over; {client.applied} updates applied, {client.refused} refused")
            if error or once:
                return f"{creds.client}: {error}" if error else ""
        return ""
    finally:
        await link.close()


async def _unless(leaving: asyncio.Event, action: Coroutine[Any, Any, None]) -> bool:
    """Do this unless we are asked to leave first."""
    doing, asked = asyncio.create_task(action), asyncio.create_task(leaving.wait())
    await asyncio.wait([doing, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if doing.done():
        doing.result()
        return True
    doing.cancel()
    return False


async def _watch(client: RunClient, leaving: asyncio.Event) -> None:
    """A line about this client now and then on a terminal; leave when asked."""
    shown = time.monotonic()
    while not leaving.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(leaving.wait(), 0.5)
        if sys.stderr.isatty() and time.monotonic() - shown > 5:
            shown = time.monotonic()
            job = client.core.current
            doing = f"job {job.id}, {job.steps} steps from version {job.version}" if job else "waiting for work"
            _say(f"{client.party.client}: {client.applied} updates applied, {client.refused} refused; {doing}")
    client.leave()


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
