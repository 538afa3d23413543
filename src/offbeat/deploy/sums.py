"""Closed sums in the fold: opened by the helper or by the clients that mask for each other, or lost."""

from __future__ import annotations

from offbeat.core.vectors import Vector
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import APPLIED, read_words
from offbeat.deploy.encoding import Message, RefusedError
from offbeat.deploy.part import FoldPart
from offbeat.deploy.wire import LogEntry


class Sums(FoldPart):
    """The sums that are closed, until they are open."""

    def heard(self, entry: LogEntry, message: Message) -> str:
        """The helper has opened a sum, or says that it will not; once each."""
        ledger, header = self.ledger, wire.heard(message)
        if not isinstance(header, wire.Unmasked):
            raise RefusedError("malformed", "a kind of message that helpers do not send")
        if entry.keys != ledger.helper:
            raise RefusedError("keys", "verified with other keys than the helper has here")
        if header.number not in ledger.closed or ledger.stopped:
            ledger.tally.repeated += 1
            return ""
        cohort = ledger.closed[header.number]
        if header.error:
            self.unopened(header.number, f"the helper refuses: {encoding.writable(header.error)}")
            raise RefusedError("masks", header.error)
        dim = self.plan.initial[cohort.task].numel()
        if (
            message.parts.keys() != {"masks"}
            or message.parts["masks"][0] != "bytes"
            or message.length("masks") != 4 * dim
        ):
            raise RefusedError("length", f"not the masks of {dim} numbers")
        return self.unmasked(header.number, read_words(message, "masks"))

    def unmasked(self, number: int, masks: Vector) -> str:
        """The masks of a sum are known: it is open, if they fit."""
        cohort, secure = self.ledger.closed[number], self.plan.secure
        if secure is None or not cohort.fits(masks, self.fold.server.adds(cohort.task) or 1, secure):
            self.unopened(number, "a client's mask is not the one that it has told of")
            raise RefusedError("masks", "without these masks, the sum is not one of valid updates")
        self.fold.summed(number, masks)
        return APPLIED

    def unopened(self, number: int, why: str) -> None:
        """A sum will never be open: its updates are lost; if clients remember them as sent, the run cannot go on."""
        task = self.ledger.closed[number].task
        self.ledger.unopened, self.ledger.unopened_why = self.ledger.unopened + 1, why
        if self.plan.agrees[task] and task not in self.ledger.finished:
            self.fold.end(f"sum {number} cannot be opened, and its clients have moved on: {why}")
        self.fold.give_up(number)
        self.fold.end_at_updates()
