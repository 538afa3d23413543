"""The runs of a federation as its operator sees them: listed, stopped, deleted, saved to a file and restored."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from offbeat.core.errors import FolderError, OffbeatError, SettingError
from offbeat.deploy import encoding, identity, wire
from offbeat.deploy.board import Board, change_board, ending, find_run, read_board
from offbeat.deploy.broker import Broker
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.doctor import trouble
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.link import Link
from offbeat.deploy.logs import note, plain
from offbeat.deploy.questions import Asking, ask_server

T = TypeVar("T")
URL = "tls://127.0.0.1:4222"

SOON = 2.0  # seconds after which it is said that something takes longer
PATIENCE = 2.5  # seconds in which a server that leads answers
SURE = 8.0  # seconds in which it answers on a busy machine: before something is done that cannot be undone
STREAMS = ("LOG", "BODY", "IN", "PART", "MIRROR")  # of a run


@dataclass(frozen=True)
class RunStatus:
    """A run on the broker. state: "active", "abandoned" (on the board, but without a server), "restored" (to be served
    again), "stopped", "diverged", "finished", or "over" if the board no longer says how it ended.

    entries: of its log.   bytes: of all its streams.   last: when its log was last written to, or None.
    """

    run: str
    state: str
    entries: int
    bytes: int
    last: str | None


async def list_runs(link: Link) -> list[RunStatus]:
    """What the broker has of all runs, the one with the newest entry last."""
    board, streams = await asyncio.gather(_board(link), _streams(link))
    alive = await served_runs(link, set(board.runs))
    runs = {name.removeprefix("LOG-") for name in streams if name.startswith("LOG-")} | set(board.runs)
    found = []
    for run in runs:
        parts = [streams[f"{kind}-{run}"] for kind in STREAMS if f"{kind}-{run}" in streams]
        log = streams.get(f"LOG-{run}", {})
        state = "active" if run in alive else "abandoned" if run in board.runs else _ended(board.past.get(run, ""))
        last = str(log["last_ts"])[:19] + "Z" if log.get("messages") else None
        size = sum(int(part["bytes"]) for part in parts)
        found.append(RunStatus(run, state, int(log.get("last_seq", 0)), size, last))
    return sorted(found, key=lambda each: (each.last or "", each.run))


def _ended(why: str) -> str:
    return why if why in ("restored", "stopped", "diverged") else "finished" if why else "over"


async def served_runs(link: Link, runs: Collection[str], patience: float | None = None) -> set[str]:
    """Those of these runs that are being served now: their leaders answer, whereas a pulse may be old."""
    answers = await asyncio.gather(*(_answers(link, run, patience or PATIENCE) for run in runs))
    return {run for run, answered in zip(runs, answers, strict=True) if answered}


async def _answers(link: Link, run: str, patience: float) -> bool:
    asking = Asking(link, run)
    await asking.listen()
    try:
        await asking.ask("status", patience=patience)
    except TimeoutError:
        return False
    finally:
        await asking.close()
    return True


async def stop_run(link: Link, run: str) -> str:
    """End a run: its server ends it; one without a server is taken off the board. Gives what was done."""
    if await _is_served(link, run):
        await ask_server(link, run, "append", wire.say(wire.Halted(run, "stopped")))
        return f"{run} is stopped; its server writes the results"
    board = await _board(link)
    if run not in board.runs and (why := board.past.get(run, "")):
        return f"{run} {ending(why)} already, and no server is running it"
    await change_board(link, lambda board: board.without(run, "stopped"))
    return (
        f"{run} is off the board, and sites leave it; nobody served it. `offbeat serve --out` with its folder goes on"
    )


async def delete_run(link: Link, run: str, sure: Callable[[], object] = bool) -> None:
    """Remove everything that the broker has of a run. sure: called once that is possible; may raise."""
    if await _is_served(link, run):
        raise OffbeatError(f"{run} is being served; stop it first: `offbeat runs stop {run}`")
    sure()
    await change_board(link, lambda board: board.without(run, "deleted"))
    await link.delete_run(run)


async def _is_served(link: Link, run: str) -> bool:
    """Whether this run is being served; an error if the broker has none of this name."""
    board, streams = await asyncio.gather(_board(link), _streams(link))
    known = sorted({name.removeprefix("LOG-") for name in streams if name.startswith("LOG-")} | set(board.runs))
    if run not in known:
        raise OffbeatError(f"there is no run {run!r} on the broker; it has {', '.join(known) or 'none'}")
    return run in board.runs and run in await served_runs(link, {run}, SURE)


async def _board(link: Link) -> Board:
    with contextlib.suppress(*FAILURES, RefusedError):
        return await read_board(link) or Board()
    return Board()


async def _streams(link: Link) -> Mapping[str, Mapping[str, Any]]:
    """The state of every stream, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    while True:
        answer = await link.js._api_request("$JS.API.STREAM.LIST", b'{"offset":%d}' % len(found), timeout=5)
        streams = answer.get("streams") or []
        found |= {str(stream["config"]["name"]): stream["state"] for stream in streams}
        if not streams or len(found) >= int(answer["total"]):
            return found


# What an operator calls


def status(keys: Path, url: str = URL) -> dict[str, Any]:
    """How the run of a federation stands, asked of its server."""
    return asyncio.run(_ask(identity.read_creds(keys), url))


def retire(client: str, keys: Path, url: str = URL) -> None:
    """Take a client out of the run for good."""
    creds = server_creds(keys)
    names = [each["name"] for each in asyncio.run(_ask(creds, url))["clients"]]
    if client not in names:
        raise SettingError(f"{client} does not take part in this run, but {', '.join(names)} do")
    asyncio.run(_append(creds, url, "removed", {"client": names.index(client)}))


def runs(keys: Path, url: str = URL) -> list[RunStatus]:
    """The runs that the broker of a federation has."""
    return _administer(keys, url, list_runs)


def stop(run: str, keys: Path, url: str = URL) -> str:
    """End a run; gives what was done."""
    return _administer(keys, url, lambda link: stop_run(link, run))


def delete(run: str, keys: Path, url: str = URL, sure: Callable[[], object] = bool) -> None:
    """Remove everything that the broker has of a run. sure: called once that is possible; may raise."""
    _administer(keys, url, lambda link: delete_run(link, run, sure))


def backup(run: Path, file: Path, keys: Path, url: str = URL) -> int:
    """Write a run, its folder and its log, to a file; gives the number of records."""
    server_creds(keys)
    from offbeat.experiment import backup as backups

    return _administer(keys, url, lambda link: backups.backup(link, run, file))


def restore(file: Path, out: Path, keys: Path, url: str = URL) -> tuple[Path, int]:
    """Put a run back that was written to a file: (its folder, the number of records)."""
    server_creds(keys)
    from offbeat.experiment import backup as backups

    return _administer(keys, url, lambda link: backups.restore(link, file, out))


# With the server's keys


def _administer(keys: Path, url: str, action: Callable[[Link], Awaitable[T]]) -> T:
    """Do this as the server; a broker on this machine that has ended is started for it."""
    creds = server_creds(keys)

    async def act() -> T:
        async with connected(creds, url, stopped_broker(keys, creds, url)) as link:
            with _one_line_errors():
                return await _say_if_slow(action(link), "still at work")

    return asyncio.run(act())


def server_creds(keys: Path) -> identity.Creds:
    """The server's credentials in this file; an error if they are a client's."""
    creds = identity.read_creds(keys)
    if creds.client:
        raise SettingError(f"{keys} are the keys of the client {creds.client}; the server's are in server.creds")
    return creds


def stopped_broker(keys: Path, creds: identity.Creds, url: str) -> Broker | None:
    """The broker of `serve --embedded`, if its store is in the folder of these keys and it is not running."""
    store = keys.parent / "broker"
    return Broker(store, keys.parent) if store.exists() and trouble(creds, url) is not None else None


@contextlib.asynccontextmanager
async def connected(
    creds: identity.Creds, url: str, broker: Broker | None = None, patience: float = 5.0
) -> AsyncIterator[Link]:
    """Within, a link to a federation. broker: one to run meanwhile, whose address is taken."""
    if broker is not None:
        broker.start()
    link = Link(creds, url if broker is None else broker.url)
    try:
        connecting = asyncio.create_task(link.connect(patience))
        if not (await asyncio.wait([connecting], timeout=1.0))[0] and not link.trouble:
            found = await asyncio.to_thread(trouble, creds, link.url)
            note(f"{found.line if found else 'the broker does not answer'}. Trying again", "warning")
        await connecting
        yield link
    finally:
        await link.close()
        if broker is not None:
            broker.stop()


async def _ask(creds: identity.Creds, url: str) -> dict[str, Any]:
    """How the run that is being served stands."""
    async with connected(creds, url) as link:
        with _one_line_errors():
            run = str((await find_run(link))["run"])
            late = f"the server of {run} does not answer yet; waiting"
            found: dict[str, Any] = json.loads(await _say_if_slow(ask_server(link, run), late))
    return found


async def _append(creds: identity.Creds, url: str, kind: str, header: dict[str, Any]) -> None:
    """Have the server that leads the run add an entry to its log."""
    async with connected(creds, url) as link:
        with _one_line_errors():
            run = str((await find_run(link))["run"])
            order = ask_server(link, run, "append", encoding.pack(kind, {"run": run, **header}))
            await _say_if_slow(order, f"the server of {run} does not answer yet; waiting")


async def _say_if_slow(action: Awaitable[T], late: str) -> T:
    """The result of this action, with a message if it takes more than a moment."""
    saying = asyncio.get_running_loop().call_later(SOON, note, late, "warning")
    try:
        return await action
    finally:
        saying.cancel()


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Within, a failure of the broker or the disk is an error of one line."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, OSError) and error.strerror and not isinstance(error, ConnectionError):
            where = f" {error.filename}" if error.filename else ""
            raise FolderError(f"cannot read or write{where} ({error.strerror}); put that right and try again") from None
        said = plain(str(error)) or "it does not answer"
        raise OffbeatError(f"the broker did not do this ({said}); look at its log and try again") from None
