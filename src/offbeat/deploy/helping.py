"""What the server asks of the helper: all sums that are not open, in one message that replaces the last."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from offbeat.deploy import encoding, wire
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.plan import Plan
from offbeat.privacy.secure.tickets import MaskContext, MaskTicket, SumRequest, TicketError, context_for, read_request

_ROSTER = "roster"


@dataclass(frozen=True)
class HelpingHeader(wire.RunHeader):
    """position: in the log; the newest counts.   stopped: why the run is over, "" if it is not.

    life: 0, and after a restored backup what it began with: positions begin anew then, at those of the backup.
    """

    position: encoding.Count
    stopped: encoding.Text = ""
    life: encoding.Count = 0


@dataclass(frozen=True)
class Helping:
    """The message as the helper reads it. roster: as the coordinator has signed it.   requests: by number."""

    header: HelpingHeader
    roster: bytes
    requests: dict[int, SumRequest]


def context_of(plan: Plan, task: int) -> MaskContext:
    """What the masks of a task's updates are made for."""
    assert plan.secure is not None
    return context_for(plan.federation, plan.run, task, plan.initial[task].numel(), plan.secure)


def requests_of(plan: Plan, ledger: Ledger) -> list[SumRequest]:
    """For each sum that is closed and not open, in order."""
    found = []
    for number, cohort in sorted(ledger.closed.items()):
        tickets = [
            MaskTicket(name, epoch, seq, bytes.fromhex(seal), bytes.fromhex(once))
            for name, epoch, seq, seal, once in cohort.tickets
        ]
        found.append(SumRequest(number, context_of(plan, cohort.task), tuple(tickets)))
    return found


def write_helping(plan: Plan, ledger: Ledger, roster: bytes) -> bytes:
    """The message as bytes; a function of the ledger and the roster."""
    header = HelpingHeader(plan.run, ledger.position, ledger.stopped, ledger.life)
    asked = {} if ledger.stopped else {str(each.number): each.to_bytes() for each in requests_of(plan, ledger)}
    return encoding.pack("helping", vars(header), {_ROSTER: roster, **asked})


def read_helping(data: bytes) -> Helping:
    """Raises `RefusedError` and nothing else."""
    message = encoding.unpack(data)
    if message.kind != "helping" or any(kind != "bytes" for kind, _ in message.parts.values()):
        raise RefusedError("malformed", "not what a helper is asked")
    raw = {name: bytes(part) for name, (_, part) in message.parts.items()}
    roster = raw.pop(_ROSTER, b"")
    with contextlib.suppress(TicketError):
        requests = [read_request(each) for each in raw.values()]
        if [str(each.number) for each in requests] == [*raw]:
            return Helping(
                encoding.read(HelpingHeader, message.header), roster, {each.number: each for each in requests}
            )
    raise RefusedError("malformed", "not what a helper is asked")
