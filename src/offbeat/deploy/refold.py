"""The log of a run, read: records opened, copies of damaged ones, and all of it folded again."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence

import torch

from offbeat.core.errors import FolderError
from offbeat.core.state import Tensors, dump
from offbeat.core.watcher import Watcher
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.journal import BrokenLogError, Chain, LogAudit, Record, Scribe, body_of
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import Link
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.streams import StreamReader
from offbeat.deploy.wire import LogEntry


def entry_of(scribe: Scribe, record: Record, body: bytes | None) -> LogEntry:
    """What a record says; raises `BrokenLogError` if that cannot be read any more."""
    try:
        return scribe.entry(record, body)
    except RefusedError as error:
        raise BrokenLogError(
            f"record {record.seq} of the log of {scribe.run} cannot be opened ({error}): restore the broker's store "
            f"from a backup, or begin another run"
        ) from None


async def read_body(link: Link, run: str, record: Record) -> bytes | None:
    """The large envelope of a record, if it has one."""
    body = record.body
    if body is None:
        return None
    place = body_of(run, record.term, body.number)

    async def read() -> bytes | None:
        return await link.collect(lambda n: link.last(f"BODY-{run}", f"{place}.{n}"), body.pieces)

    for wait in (0.2, 1.0, 0.0):  # of a cluster's brokers, one that lags behind may answer
        found = await link.insist(read)
        if found is not None:
            return found
        await asyncio.sleep(wait)
    return None


def copy_of(run: str, seq: int) -> str:
    """The subject of a record's copy beside the log."""
    return f"body.{run}.record.{seq}"


async def mended(link: Link, run: str, seq: int) -> bytes | None:
    """The copy of a record that a server has stored beside a damaged log."""
    found = await link.insist(lambda: link.last(f"BODY-{run}", copy_of(run, seq)))
    return None if found is None else found.data


async def refold(link: Link, plan: Plan, end: int | None = None, watchers: Sequence[Watcher] = ()) -> Ledger:
    """The log of a run verified and folded again, from its first entry up to this position."""
    run, entries = plan.run, asyncio.Queue[tuple[int, bytes]]()
    reducer, scribe = Reducer(plan, None, watchers), Scribe(link.creds.federation, run, link.ours)
    info = await link.js.stream_info(f"LOG-{run}")
    if info.state.first_seq > 1 and await mended(link, run, 1) is None:
        raise FolderError(f"the log of {run} begins at {info.state.first_seq}: its first entries were removed")
    audit = LogAudit(scribe, Chain(), lambda seq: mended(link, run, seq))
    reader = StreamReader(link, f"LOG-{run}", lambda n, _, raw: entries.put_nowait((n, raw)))
    await reader.start(0)
    last = info.state.last_seq if end is None else min(end, info.state.last_seq)
    while reducer.ledger.position < last:
        seq, raw = await entries.get()
        for record, _ in await audit.take(seq, raw):
            if record.seq <= last:
                reducer.fold(entry_of(scribe, record, await read_body(link, run, record)))
    await reader.stop()
    return reducer.ledger


def fingerprint(ledger: Ledger) -> str:
    """A digest of the whole state, to the last bit."""
    tensors = Tensors()
    digest = hashlib.sha256(json.dumps(dump(ledger, tensors), sort_keys=True).encode())
    for name in sorted(tensors.table):
        digest.update(tensors.table[name].detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
