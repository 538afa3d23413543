"""Tell a running broker and server who may take part now, without restarting either."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from nats.js.errors import NotFoundError

from offbeat.core.errors import OffbeatError
from offbeat.deploy import broker_config, identity
from offbeat.deploy.connection import FAILURES, Connection

BOARD, SUBJECT = "BOARD", "roster"  # the stream and its subject where the server reads the roster
_AT_ONCE = 64


async def push(folder: Path, url: str, clients: Sequence[str] | None = None, system: Path | None = None) -> int:
    """Give accounts to the broker and the roster to the server; gives the number of accounts.

    Clients that were revoked or removed also lose open connections.   clients: which may have changed; None: any.
    system: credentials of the broker's system account, in the format of NATS; None: the folder's own.
    """
    roster = identity.read_roster(folder)
    named = None if clients is None else [roster.client(name).account for name in clients]
    if named is not None and roster.helper is not None:
        named.append(roster.helper.account)
    tokens = broker_config.read_tokens(folder, named)
    ours = identity.read_creds(folder / identity.SERVER)
    coordinator = Connection(identity.read_system(folder, system), url)
    server = Connection(ours, url)
    try:
        await coordinator.connect(2)
        await _each(tokens.values(), lambda token: _update(coordinator, token))
        await server.connect(2)
        await _post(server, roster)
    except (OffbeatError, *FAILURES) as error:
        again = f"`offbeat keys push {folder} --nats {url}` tries again"
        raise OffbeatError(f"{folder} was changed, but the broker does not know it: {error}; {again}") from None
    finally:
        await coordinator.close()
        await server.close()
    return len(tokens)


async def _each(tokens: Iterable[str], action: Callable[[str], Awaitable[None]]) -> None:
    """Do this for all, some at once."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(token: str) -> None:
        async with places:
            await action(token)

    await asyncio.gather(*(one(token) for token in tokens))


async def _update(coordinator: Connection, token: str) -> None:
    """Give one account to the broker, which does nothing if it has this token in use.

    Do not ask it first which one it has: it looks into its folder, and if that is the folder of keys, it finds there
    what it has not heard of yet.
    """
    answer = json.loads((await coordinator.client.request("$SYS.REQ.CLAIMS.UPDATE", token.encode(), timeout=4)).data)
    if answer.get("data", {}).get("code") != 200:
        raise OffbeatError(f"it refuses an account: {answer.get('error', {}).get('description') or answer}")


async def _post(server: Connection, roster: identity.Roster) -> None:
    """Leave the roster where the server reads it. A federation that was never served has no such place yet."""
    try:
        await server.js.stream_info(BOARD)
    except NotFoundError:
        return
    with contextlib.suppress(NotFoundError):
        before = await server.js.get_last_msg(BOARD, SUBJECT)
        if identity.parse_roster(before.data or b"", roster.coordinator).serial > roster.serial:
            raise OffbeatError("it has a newer roster than this folder; make changes where the last one was made")
    await server.js.publish(SUBJECT, roster.to_json())
