"""What the leading server tells its operator about a run: who comes and goes, what is measured, how it ends.

One line for each change that an operator wants to know of, none for each update. What may come often (failed jobs,
expired leases) is written the first, second, fourth … time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from offbeat.core.watcher import Measurement
from offbeat.deploy import encoding
from offbeat.deploy.intake import rare
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.logs import note
from offbeat.deploy.wire import LogEntry

OFTEN = 10.0  # seconds between two evaluations that are written as information; those between are for debugging
NAMED = 5  # clients that are waited for and named


class Before(NamedTuple):
    """What an entry may change."""

    begun: bool
    stopped: str
    present: bool
    epoch: int
    applied: int
    failed: int
    measured: int
    secure: tuple[int, ...]  # cohorts aborted, sums lost, updates cut, clients left out


class Reporter:
    """Looks at the state before and after an entry, and not at all clients for one entry.

    measurements: of the run so far; grows with it.   there: the clients that are there.
    """

    def __init__(self, measurements: Sequence[Measurement], there: Callable[[], Sequence[int]]) -> None:
        self.measurements, self.there = measurements, there
        self.expired, self.told = 0, float("-inf")

    def before(self, ledger: Ledger, client: int | None) -> Before:
        """To be asked before an entry of this client, or of the server, is folded."""
        own = (False, 0, 0, 0)
        if client is not None:
            record = ledger.clients[client]
            own = record.present, record.epoch, record.applied, record.failed
        return Before(ledger.begun, ledger.stopped, *own, len(self.measurements), _secure(ledger))

    def after(self, ledger: Ledger, client: int | None, entry: LogEntry, was: Before) -> None:
        """Write what the entry has changed."""
        if client is not None:
            self._client(ledger, client, entry, was)
        elif not entry.sender:
            self._own(ledger, *_opened(entry.data))
        if ledger.begun and not was.begun:
            note("begins", clients=len(self.there()))
        for before, now, said in zip(was.secure, _secure(ledger), _SECURE, strict=True):
            if now > before and rare(now):
                who = {"clients": ", ".join(left_out(ledger))} if said is _SECURE[-1] else {}
                why = f": {ledger.unopened_why}" if said is _SECURE[1] else ""
                note(said + why, "warning", so_far=now, **who)
        for measured in self.measurements[was.measured :]:
            self._measured(measured)
        if ledger.stopped and not was.stopped:
            counts = {"time": round(ledger.now, 1), "updates": ledger.tally.updates, "lost": ledger.tally.lost}
            note("ends", "warning" if ledger.diverged else "info", reason=ledger.diverged or ledger.stopped, **counts)

    def waiting(self, ledger: Ledger) -> str:
        """How many clients are there, and who is not, if those are few."""
        there, named = len(self.there()), ""
        if 0 < ledger.members - there <= NAMED:
            missing = [record.name for record in ledger.clients if not (record.present or record.removed)]
            named = f", without {', '.join(missing)}"
        return f"{there} of {ledger.members} clients{named}"

    def _client(self, ledger: Ledger, client: int, entry: LogEntry, was: Before) -> None:
        record = ledger.clients[client]
        if record.present and (not was.present or record.epoch != was.epoch):
            how = "is there again" if was.epoch else "is there"
            if was.epoch not in (0, record.epoch):
                how = "begins anew" if was.epoch == ledger.life else f"{how}, with a new epoch ({record.epoch})"
            note(f"{how}; {self.waiting(ledger)}", client=record.name)
        elif was.present and not record.present:
            note(f"has left; {self.waiting(ledger)}", client=record.name)
        if record.applied and not was.applied:
            note("its first update was applied", client=record.name)
        if record.failed > was.failed and rare(record.failed):
            reason = encoding.unpack(entry.data).header.get("error", "")
            note(f"its job failed: {reason}", "warning", client=record.name, failed=record.failed)

    def _own(self, ledger: Ledger, kind: str, header: Mapping[str, Any]) -> None:
        number = header.get("client")
        known = isinstance(number, int) and number < len(ledger.clients)
        name = ledger.clients[number].name if isinstance(number, int) and known else "?"
        match kind:
            case "gone" if not ledger.clients[int(header["client"])].present:
                silent = f"nothing was heard of it for {ledger.limits.patience:g} s; it counts as gone"
                note(f"{silent}; {self.waiting(ledger)}", "warning", client=name)
            case "expired":
                self.expired += 1
                if rare(self.expired):
                    lease = f"{ledger.limits.lease:g} s"
                    note(f"a job took longer than its lease of {lease} and is lost", "warning", job=header["job"])
            case "enrolled":
                note("was added to the run", client=name)
            case "removed":
                note("was removed from the run", "warning", client=name)
            case "rekeyed":
                note("its keys have changed", client=name)
            case "limited":
                note("other limits are in force", **header["limits"])

    def _measured(self, measured: Measurement) -> None:
        clock = time.monotonic()
        shown = clock - self.told >= OFTEN
        self.told = clock if shown else self.told
        metrics = {name: float(f"{value:.4g}") for name, value in measured.metrics.items()}
        task = {"task": measured.task} if measured.task else {}
        fields = {"time": round(measured.time, 1), "updates": measured.updates, **task, **metrics}
        note("evaluated", "info" if shown else "debug", **fields)


_SECURE = (
    "too few members of a cohort were left; the others come again with fresh keys",
    "a sum cannot be opened, and its updates are lost",
    "numbers of an update were too large, and a part of it is lost; give fewer secure.bits, or clip",
    "a client has kept cohorts from giving a sum again and again, and is left out",
)


def _secure(ledger: Ledger) -> tuple[int, ...]:
    return ledger.aborted, ledger.unopened, ledger.tally.cut, ledger.left_out


def left_out(ledger: Ledger) -> list[str]:
    """The clients that are left out of cohorts, and so of the run."""
    return [record.name for record in ledger.clients if record.left_out]


def _opened(data: bytes) -> tuple[str, Mapping[str, Any]]:
    """(kind, fields) of an entry of the server's own, or of the one that an operator has asked for in it."""
    message = encoding.unpack(data)
    if message.kind == "ordered":
        message = encoding.unpack(bytes(message.parts["entry"][1]))
    return message.kind, message.header
