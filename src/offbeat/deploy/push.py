"""Tell a running broker and server who may take part now, without restarting either."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from nats.js.errors import NotFoundError

from offbeat.core.errors import OffbeatError
from offbeat.deploy import keys
from offbeat.deploy.connection import FAILURES, Connection

BOARD, SUBJECT = "BOARD", "roster"  # the stream and its subject where the server reads the roster
_AT_ONCE = 64


async def push(folder: Path, url: str, clients: Sequence[str] | None = None, system: Path | None = None) -> int:
    """Give accounts that have changed to the broker and the roster to the server; gives the number of accounts.

    Whoever was revoked or removed loses open connections, too.   clients: which may have changed; None: any.
    system: credentials of the broker's system account, in the format of NATS; None: the folder's own.
    """
    roster = keys.read_roster(folder)
    named = None if clients is None else [roster.client(name).account for name in clients]
    if named is not None and roster.helper is not None:
        named.append(roster.helper.account)
    tokens = keys.read_tokens(folder, named)
    ours = keys.read_creds(folder / keys.SERVER)
    coordinator = Connection(keys.read_system(folder, system), url)
    server = Connection(ours, url)
    try:
        await coordinator.connect(2)
        pushed = await _each(tokens, lambda account: _update(coordinator, account, tokens[account]))
        await server.connect(2)
        await _post(server, roster)
    except (OffbeatError, *FAILURES) as error:
        again = f"`offbeat keys push {folder} --nats {url}` tries again"
        raise OffbeatError(f"{folder} was changed, but the broker does not know it: {error}; {again}") from None
    finally:
        await coordinator.close()
        await server.close()
    return sum(pushed)


async def _each(accounts: Iterable[str], action: Callable[[str], Awaitable[bool]]) -> list[bool]:
    """Do this for all, some at once."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(account: str) -> bool:
        async with places:
            return await action(account)

    return await asyncio.gather(*(one(account) for account in accounts))


async def _update(coordinator: Connection, account: str, token: str) -> bool:
    """Give one account to the broker, unless it has this token; whether it was given."""
    ask = coordinator.client.request
    if (await ask(f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP", b"", timeout=4)).data.decode() == token:
        return False
    answer = json.loads((await ask("$SYS.REQ.CLAIMS.UPDATE", token.encode(), timeout=4)).data)
    if answer.get("data", {}).get("code") != 200:
        raise OffbeatError(f"it refuses an account: {answer.get('error', {}).get('description') or answer}")
    return True


async def _post(server: Connection, roster: keys.Roster) -> None:
    """Leave the roster where the server reads it. A federation that was never served has no such place yet."""
    try:
        await server.js.stream_info(BOARD)
    except NotFoundError:
        return
    with contextlib.suppress(NotFoundError):
        before = await server.js.get_last_msg(BOARD, SUBJECT)
        if keys.parse_roster(before.data or b"", roster.coordinator).serial > roster.serial:
            raise OffbeatError("it has a newer roster than this folder; make changes where the last one was made")
    await server.js.publish(SUBJECT, roster.to_json())
