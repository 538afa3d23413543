"""What everybody in a federation may read: the signed list of its active runs, and the leading server's pulse.

The board has a serial number that only goes up. A client keeps the highest that it has seen on its disk and refuses an
older board, so that the broker cannot bring back what is over.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nats.errors import NoRespondersError
from nats.js.errors import APIError

from offbeat.core.errors import OffbeatError
from offbeat.deploy import envelope
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.identity import Creds
from offbeat.deploy.link import Link, as_json
from offbeat.watch.files import OWNER

LATE = 4.0  # seconds
PAST = 100  # runs that are over whose end the board tells
WRONG_LAST = 10071  # the broker's code: another writer was first


@dataclass(frozen=True)
class Board:
    """The active runs with their charters, the newest last. closed: the federation has nothing more to do.

    past: how the last runs ended: "stopped", "deleted", "diverged", or which limit was reached; "restored": it is to be
    served again.
    """

    serial: int = 0
    runs: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    closed: bool = False
    past: Mapping[str, str] = field(default_factory=dict)

    def with_run(self, run: str, charter: Mapping[str, Any]) -> Board:
        past = {name: why for name, why in self.past.items() if name != run}
        return replace(self.without(run), runs={**self.without(run).runs, run: dict(charter)}, closed=False, past=past)

    def term(self, run: str) -> int:
        """The last term in which this run had a leader, as far as the board says."""
        return int(self.runs.get(run, {}).get("term", 0))

    def without(self, run: str, why: str = "") -> Board:
        """why: how it ended."""
        runs = {name: known for name, known in self.runs.items() if name != run}
        past = {name: known for name, known in self.past.items() if name != run} | ({run: why} if why else {})
        return replace(self, runs=runs, past=dict(list(past.items())[-PAST:]))


def write_board(creds: Creds, board: Board) -> bytes:
    """A board, signed by the server."""
    return envelope.sign(creds.sign, ("board", creds.federation), as_json(vars(board)))


def parse_board(creds: Creds, data: bytes, at_least: int = 0) -> Board:
    """A board that the server has signed, not older than this; raises `RefusedError` and nothing else."""
    content = envelope.verify(creds.server_sign, ("board", creds.federation), data)
    try:
        found = json.loads(content)
        runs = {str(k): dict(v) for k, v in found["runs"].items()}
        past = {str(k): str(v) for k, v in found["past"].items()}
        board = Board(int(found["serial"]), runs, bool(found["closed"]), past)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RefusedError("malformed", "not a board of this version") from None
    if board.serial < at_least:
        raise RefusedError(
            "old", f"the broker's board has number {board.serial}, but number {at_least} was seen before"
        )
    return board


class BoardSerial:
    """The highest serial number of a server's boards that was seen, on disk.

    folder: None: only as long as this process lives.   server: its public key: a site may be in two federations that
    have the same name, and what the one shows says nothing about the other.
    """

    def __init__(self, folder: Path | None = None, server: bytes = b"") -> None:
        self.path = None if folder is None else folder / f"board-{server[:8].hex()}.serial"
        self.highest = 0
        if self.path is not None:
            with contextlib.suppress(OSError, ValueError):
                self.highest = int(self.path.read_text(encoding="ascii"))

    def see(self, serial: int) -> None:
        if serial <= self.highest:
            return
        self.highest = serial
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=OWNER)
            part = self.path.with_suffix(".part")
            part.write_text(str(serial), encoding="ascii")
            part.replace(self.path)


async def read_board(link: Link, seen: BoardSerial | None = None) -> Board | None:
    """The board, if there is one; raises `RefusedError` for one that is not the server's, or an old one."""
    subject = "get.board" if link.creds.client else "$JS.API.DIRECT.GET.BOARD.board"
    found = await link.get(subject)
    if found is None:
        return None
    board = parse_board(link.creds, found.data, seen.highest if seen else 0)
    if seen is not None:
        seen.see(board.serial)
    return board


async def change_board(link: Link, change: Callable[[Board], Board]) -> Board:
    """Post a changed board, as the server; others may change it meanwhile."""
    while True:
        found = await link.last("BOARD", "board")
        before = Board()
        if found is not None:
            with contextlib.suppress(RefusedError):  # what is not ours is replaced
                before = parse_board(link.creds, found.data)
        # Milliseconds, so that the number goes up even if the broker has lost the board.
        board = replace(change(before), serial=max(before.serial + 1, int(1000 * time.time())))
        expect = {"Nats-Expected-Last-Subject-Sequence": str(found.number if found else 0)}
        try:
            await link.store("board", write_board(link.creds, board), expect)
        except APIError as error:
            if error.err_code != WRONG_LAST:
                raise
        else:
            return board


def ending(why: str) -> str:
    """How a run ended, for a sentence that begins with its name."""
    said = {"stopped": "was stopped by its operator", "deleted": "was deleted", "diverged": "has diverged"}
    return said.get(why, f"is finished ({why})" if why else "is over")


# The pulse


@dataclass(frozen=True)
class Pulse:
    """What the leading server says every second. leaving: it stops, and another may lead at once.

    number: goes up with every pulse of a term.   time: the log's.
    """

    term: int
    leader: str
    position: int
    number: int
    time: float
    leaving: bool = False


class Pulses:
    """Tells a run's pulses from those that the broker says again, or says long after it has got them.

    Each one has a later term or number than those before. In a term, the log's time goes on as any clock does: a pulse
    counts if it comes at most `LATE` seconds later than the pulse of its term that came fastest.
    """

    def __init__(self) -> None:
        self.last = (0, 0)
        self.ahead = float("-inf")  # of the log's time before our clock, at most

    def fresh(self, pulse: Pulse, clock: float) -> bool:
        """Whether the server was alive when this pulse came. clock: our own seconds, from anywhere."""
        mark, ahead = (pulse.term, pulse.number), pulse.time - clock
        if mark <= self.last:
            return False
        self.ahead = max(self.ahead, ahead) if pulse.term == self.last[0] else ahead
        self.last = mark
        return ahead >= self.ahead - LATE

    def written(self, term: int, stamp: float, clock: float) -> float:
        """When, by our own clock, a record of this term was written that we read now, as far as pulses tell: brokers
        that have to choose one that leads may keep it for a while, and its server may be dead by then."""
        return min(clock, stamp - self.ahead) if term == self.last[0] else clock


def write_pulse(creds: Creds, run: str, pulse: Pulse) -> bytes:
    """A pulse, signed by the server."""
    return envelope.sign(creds.sign, ("pulse", creds.federation, run), as_json(vars(pulse)))


def parse_pulse(creds: Creds, run: str, data: bytes) -> Pulse:
    """A pulse that the server has signed; raises `RefusedError` and nothing else."""
    content = envelope.verify(creds.server_sign, ("pulse", creds.federation, run), data)
    try:
        found = json.loads(content)
        numbers = (int(found["term"]), str(found["leader"]), int(found["position"]), int(found["number"]))
        return Pulse(*numbers, float(found["time"]), bool(found["leaving"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RefusedError("malformed", "not a pulse of this version") from None


async def find_run(link: Link, run: str = "") -> dict[str, Any]:
    """The charter of an active run: of this one, or of the newest."""
    board = None
    with contextlib.suppress(NoRespondersError):  # a broker on which nothing was ever served has no board
        board = await read_board(link)
    runs = {} if board is None else board.runs
    if run and run not in runs:
        raise OffbeatError(f"{run} is not an active run of this federation; it has {', '.join(runs) or 'none'}")
    if not runs:
        raise OffbeatError("this federation has no active run")
    return runs[run or list(runs)[-1]]
