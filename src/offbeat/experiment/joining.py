"""Taking part in real runs: one client after the other, from one run to the next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from offbeat.core import names
from offbeat.core.errors import OffbeatError, SettingError, positive
from offbeat.deploy import doctor
from offbeat.deploy.board import Board, BoardSerial, Pulses, ending, parse_board, parse_pulse
from offbeat.deploy.connection import FAILURES, REFUSED, removed
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.identity import Creds, read_creds
from offbeat.deploy.link import Link
from offbeat.deploy.logs import Level, Style, logged, note
from offbeat.experiment.admin import URL
from offbeat.experiment.partner import Partner, state_folder

if TYPE_CHECKING:  # which needs PyTorch
    from offbeat.deploy.client import RunClient
    from offbeat.deploy.helper import RunHelper

SOON = 0.8  # seconds after which a client that has no connection and no error looks for the reason
SILENT = 5.0  # seconds without a sign of a run's server after which that is said
GONE = 15.0  # seconds after which another run that is served comes first
LOOK = 30.0  # seconds after which the board is looked at although nothing was posted
AGAIN = 60.0  # seconds after which it says so again
T = TypeVar("T")


def join(
    keys: Sequence[Path],
    *,
    url: str = URL,
    data: str = "",
    holdout: float = 0.2,
    models: Sequence[str] = (),
    device: str = "",
    state: Path | None = None,
    once: bool = False,
    cohort: int | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    until_closed: bool = False,
    level: Level = "info",
    style: Style = "text",
) -> None:
    """Take part in the runs of a federation with these identities, until there is nothing more to do.

    data: `package.module:function` that gives this client's own samples.   holdout: share kept for evaluation.
    models: names outside offbeat that the server may ask for; nothing else is imported at its word.
    state: folder for the clients' state, which must be kept.   once: leave when a run is over.
    cohort: take part only in runs whose server sees sums of at least so many clients.
    epsilon, delta: take part only in runs that train with dp-sgd and spend at most this on one sample.
    """
    creds = [read_creds(path) for path in keys]
    if not all(each.client for each in creds):
        raise SettingError("these are the server's keys; a client has its own file")
    for each in url.split(","):
        if isinstance(wrong := doctor.address(each), doctor.Finding):
            raise SettingError(wrong.line)
    names.search(os.getcwd())  # a site's own loader lies where it is started
    if epsilon is not None:
        positive(epsilon=epsilon, delta=delta)
    budget = None if epsilon is None else (epsilon, delta)
    with logged(None, level, style):
        if data:
            note(f"imports {data}")  # which may take seconds, as PyTorch does
            threading.Thread(target=_look_ahead, args=(creds, url), daemon=True).start()
        partner = Partner(data, models, device, holdout, cohort, budget)
        error = asyncio.run(take_part(keys, url, partner, state or state_folder(), once, until_closed))
    if error:
        raise OffbeatError(error)


def _look_ahead(creds: Sequence[Creds], url: str) -> None:
    """Say meanwhile what is wrong on the way to the broker."""
    if (found := doctor.trouble(creds[0], url)) is not None:
        note(found.line, "warning", client=creds[0].client)


async def take_part(
    keys: Sequence[Path], url: str, partner: Partner, state: Path, once: bool, until_closed: bool
) -> str:
    """Take part with these identities until there is nothing more to do; gives what went wrong, or nothing."""
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leaving.set)
    members = [Participant(path, url, partner, state, once, until_closed, leaving) for path in keys]
    found = await asyncio.gather(*(_alone(member, len(members) > 1) for member in members))
    return "; ".join(error for error in found if error)


async def _alone(member: Participant, others: bool) -> str:
    """Take part with one identity; what goes wrong with it does not end the others, who may go on for long.

    But for `offbeat up`, whose run would wait for it for ever: nobody puts it right.
    """
    try:
        error = await member.take_part()
    except OffbeatError as failed:
        error = f"{member.creds.client}: {failed}"
    if error and others:
        note(error, "error")
        if member.until_closed:
            member.leaving.set()
    return error


class Bulletin:
    """What the broker shows of a federation's runs: the board whenever it changes, and which runs have a pulse."""

    def __init__(self, link: Link, seen: BoardSerial) -> None:
        self.link, self.seen = link, seen
        self.board: Board | None = None
        self.changed = asyncio.Event()
        self.heard: dict[str, float] = {}  # run -> when its server was last heard, or the run first seen
        self.pulses: dict[str, Pulses] = defaultdict(Pulses)

    async def open(self) -> None:
        """Listen from now on, and read what is already there."""
        await self.link.listen("board", self._posted)
        await self.link.listen("pulse.*", self._pulse)
        self.link.reconnected.append(self.look)
        await self.look()

    async def look(self) -> None:
        """Read the board as it is."""
        with contextlib.suppress(*FAILURES):
            if (found := await self.link.get("get.board")) is not None:
                await self._posted("", found.data)

    def silent(self, run: str) -> float:
        """Seconds since the server of this run was heard, or since the run was first seen."""
        now = time.monotonic()
        return now - self.heard.get(run, now)

    async def _posted(self, _: str, data: bytes) -> None:
        try:
            self.board = parse_board(self.link.creds, data, self.seen.highest)
        except RefusedError as error:
            note(f"what the broker shows as the board does not count ({error})", "warning")
            return
        self.seen.see(self.board.serial)
        self.heard = {run: self.heard.get(run, time.monotonic()) for run in self.board.runs}
        self.changed.set()

    async def _pulse(self, subject: str, data: bytes) -> None:
        run = subject.rsplit(".", 1)[-1]
        with contextlib.suppress(RefusedError):
            pulse = parse_pulse(self.link.creds, run, data)
            if run not in self.heard or not self.pulses[run].fresh(pulse, time.monotonic()):
                return
            if self.silent(run) > GONE:
                self.changed.set()
            if not pulse.leaving:
                self.heard[run] = time.monotonic()


class Participant:
    """One client, from one run to the next. leaving: set when it is to go."""

    def __init__(
        self,
        keys: Path,
        url: str,
        partner: Partner,
        state: Path,
        once: bool,
        until_closed: bool,
        leaving: asyncio.Event,
    ) -> None:
        self.keys, self.url, self.partner = keys, url, partner
        self.once, self.until_closed, self.leaving = once, until_closed, leaving
        self.creds = read_creds(keys)
        self.state = state / self.creds.federation / self.creds.client
        self.done: set[tuple[str, int]] = set()  # runs, and how often they were restored, that are over for us
        self.once_done = False  # one of them is, or was taken off the board, and may come back
        self.seen = BoardSerial(self.state, self.creds.server_sign)
        self.said, self.said_at = "", 0.0

    async def take_part(self) -> str:
        """Until there is nothing more to do; gives what went wrong, or nothing."""
        while (link := await self._connect()) is not None:
            try:
                error = await self._runs(link)
            finally:
                await link.close()
            if error is not None:
                return f"{self.creds.client}: {error}" if error else ""
        return ""

    # The broker

    async def _connect(self) -> Link | None:
        """A link, however long it takes; None if we are to leave."""
        while not self.leaving.is_set():
            with contextlib.suppress(OffbeatError):  # while it is being replaced
                self.creds = read_creds(self.keys)
            link = Link(self.creds, self.url)
            connecting = asyncio.create_task(link.connect())
            try:
                while not await self._within(connecting, SOON):
                    if self.leaving.is_set():
                        return None
                    if not link.trouble and (found := await asyncio.to_thread(doctor.trouble, self.creds, self.url)):
                        self._once(f"{found.line}. Trying again", "warning")
                connecting.result()
            except OffbeatError as error:  # waiting alone will not help, but an operator may
                self._once(f"{await self._reason(link, error)}. Trying again", "warning")
                await self._within(self.leaving.wait(), 2.0)
                continue
            finally:
                connecting.cancel()
            self._say(f"connected to {self.url}")
            return link
        return None

    async def _reason(self, link: Link, error: OffbeatError) -> str:
        """Why the broker cannot be used as it is."""
        if REFUSED in link.trouble:
            name = self.creds.client
            if (gone := removed(self.creds)) in link.trouble:
                return f"the broker takes no connection from {name}: {gone}"
            why = "they were rotated or revoked, or not pushed to it yet"
            newest = f"put the newest {name}.creds from the coordinator at {self.keys}, if there is one"
            return f"the broker refuses the keys of {name}: {why}; {newest}"
        found = await asyncio.to_thread(doctor.trouble, self.creds, self.url)
        return found.line if found else str(error)

    # Runs

    async def _runs(self, link: Link) -> str | None:
        """One run after the other; None: the broker accepts our keys no longer, and others are needed."""
        bulletin = Bulletin(link, self.seen)
        await bulletin.open()
        while not self.leaving.is_set():
            if link.refused.is_set():
                return None
            bulletin.changed.clear()
            run, why = self._choose(bulletin)
            if self.until_closed and bulletin.board is not None and bulletin.board.closed and not run:
                return ""
            if not run:
                self._once(f"{why}. Waiting")
                if not await self._within(_either(bulletin.changed, link.refused), LOOK):
                    await bulletin.look()
                continue
            error = await self._run(link, bulletin, run)
            if not link.refused.is_set() and (error or (self.once and self.once_done)):
                return error
        return ""

    def _choose(self, bulletin: Bulletin) -> tuple[str, str]:
        """(the run to take part in, or why there is none): the newest that is served, else the newest."""
        runs = {} if bulletin.board is None else bulletin.board.runs
        left = {run: charter for run, charter in runs.items() if _life(run, charter) not in self.done}
        if not left:
            return "", "there is no other run yet" if self.once_done else "this federation has no active run"
        against = {run: self.partner.objection(charter, self.creds.client) for run, charter in left.items()}
        fit = [run for run in left if not against[run]]
        if not fit:
            return "", "; ".join(against.values())
        return max(fit, key=lambda run: (bulletin.silent(run) < GONE, fit.index(run))), ""

    async def _run(self, link: Link, bulletin: Bulletin, run: str) -> str:
        """One run, to its end or until another one needs us more; gives what went wrong, or nothing."""
        assert bulletin.board is not None
        charter, self.said = bulletin.board.runs[run], ""
        self._say(f"takes part in {run}")
        client = await self._client(link, charter)
        watch = asyncio.create_task(self._watch(client, link, bulletin, charter))
        try:
            error = await client.run()
        finally:
            watch.cancel()
        if not client.leaving:
            self.done.add(_life(run, charter))
            self.once_done = True
            self._say(f"{run} {ending(client.stopped) if not error else 'is over for this client'}; {client.tally}")
        return error

    async def _client(self, link: Link, charter: Mapping[str, Any]) -> RunClient | RunHelper:
        """Who takes part in a run."""
        party = await asyncio.to_thread(self.partner.party, charter, self.creds.client)
        from offbeat.deploy.client import RunClient  # imported by now

        return RunClient(party, link, self.state, beat=float(charter["beat"]))

    async def _watch(
        self, client: RunClient | RunHelper, link: Link, bulletin: Bulletin, charter: Mapping[str, Any]
    ) -> None:
        """Look after a client at work: say what it does and what stands in its way; leave when there is reason to."""
        run, shown, room, gone = str(charter["run"]), time.monotonic(), 0.0, 0.0
        while not await self._within(self.leaving.wait(), 0.5) and not link.refused.is_set():
            now, silent = time.monotonic(), bulletin.silent(run)
            if link.client.is_connected and silent > SILENT:
                since = f"the server of {run} has been silent for {silent:.0f} s"
                self._once(f"{since}. Waiting until it is served again", "warning", about=f"silent {run}")
            elif self.said and run in bulletin.heard:
                self._say(f"the server of {run} is there again")
                self.said = ""
            if silent > GONE and self._choose(bulletin)[0] not in ("", run):
                self._say(f"leaves {run}, which no server is running, for another run", "warning")
                break
            gone = 0.0 if bulletin.board is None or run in bulletin.board.runs else gone or now
            if gone and now - gone > GONE:
                self.once_done = True
                why = "" if bulletin.board is None else bulletin.board.past.get(run, "")
                self._say(f"leaves {run}, which {ending(why)}; {client.tally}", "warning")
                break
            if now - room > 10:
                room, found = now, doctor.disk(self.state)
                if found.level != "ok":
                    self._say(found.line, "warning")
            if sys.stderr.isatty() and now - shown > 5:
                shown = now
                self._say(client.doing)
        if self.leaving.is_set():
            self._say(f"leaves {run}; {client.tally}")
        client.leave()

    # Talking

    def _say(self, line: str, level: Level = "info") -> None:
        note(line, level, client=self.creds.client)

    def _once(self, line: str, level: Level = "info", about: str = "") -> None:
        """Say this, unless the last thing said like this was about the same, less than a minute ago."""
        now, about = time.monotonic(), about or line
        if about != self.said or now - self.said_at > AGAIN:
            self.said, self.said_at = about, now
            self._say(line, level)

    async def _within(self, action: Awaitable[T], seconds: float) -> bool:
        """Whether this is done within this time, and before we are asked to leave; a task goes on if it is not."""
        doing = asyncio.ensure_future(action)
        asked = asyncio.create_task(self.leaving.wait())
        await asyncio.wait([doing, asked], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not doing.done() and not isinstance(action, asyncio.Task):
            doing.cancel()
        return doing.done()


async def _either(*events: asyncio.Event) -> None:
    """Wait for one of these."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _life(run: str, charter: Mapping[str, Any]) -> tuple[str, int]:
    """A run, and since which restore: one that was over for us may be put back to an earlier state."""
    return run, int(charter.get("life", 0))
