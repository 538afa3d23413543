"""The helper: a second party that takes masks off sums, and off nothing else.

The rules, before the code:

1. A sum is opened if it has `cohort` different clients, and no fewer than the helper itself asks for (`least`).
2. Clients are those of the roster that the coordinator has signed, with the keys it gives them or gave them before.
3. Each message is in one sum: the numbers (epoch, seq) of a client go up from sum to sum of a task, and within one.
4. Sums come in the order of their numbers. One that was opened may be asked for again in the same words, because an
   answer may be lost; its answer is the same. Any other repetition is refused.
5. What was opened is written down before the answer goes out (`OpenedSum.state` before `OpenedSum.masks`).
6. A helper that has lost its state opens nothing in a run that has begun: number 1, or the first after a restored
   backup (`LIFE`), is where it can begin. That a backup was restored is the server's word, which it cannot check.

7. A sum that is refused for good is over: the next one may follow, and the refused number is never opened.
8. In a run with noise a client is in a sum once, and in no more sums of a task than `participations`. The noise of a
   sum follows from the helper's secret and the request, so an answer that is given again has the same. Such a run is
   never restored from a backup, so a server that says so is not believed.

It never sees a masked number: these are sealed for the server. The server never sees a mask. Both together see all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from offbeat.privacy.secure.masks import Unmasker
from offbeat.privacy.secure.streams import Words
from offbeat.privacy.secure.tickets import LIFE, MaskTicket, SumRequest, TicketError


@dataclass(frozen=True)
class HelperState:
    """What was opened in one run.

    last: number of the last sum.   digests: of the requests for the last ones, by number, which may be asked again.
    opened: by client and task, the (epoch, seq) up to which.   spent: the same, sums with noise that it was in.
    """

    last: int = 0
    digests: Mapping[int, str] = field(default_factory=dict)
    opened: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    spent: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        rows = [[*who, *number, self.spent.get(who, 0)] for who, number in sorted(self.opened.items())]
        plain = {"last": self.last, "digests": [*self.digests.items()], "opened": rows}
        return json.dumps(plain, separators=(",", ":")).encode()

    def refused(self, number: int) -> HelperState:
        """This sum will never be opened; the one after it may be."""
        if not self.follows(number):
            return self
        return replace(self, last=number, digests={**self.digests, number: ""})

    def follows(self, number: int) -> bool:
        """Whether it is the next sum, or the first after a restored backup."""
        return number == self.last + 1 or (number % LIFE == 1 and number > self.last)

    def without(self, number: int) -> HelperState:
        """Sums before this number will not be asked for again."""
        return replace(self, digests={n: digest for n, digest in self.digests.items() if n >= number})


def read_state(data: bytes) -> HelperState:
    """From the disk."""
    found = json.loads(data)
    rows = {(str(row[0]), int(row[1])): (int(row[2]), int(row[3])) for row in found["opened"]}
    spent = {(str(row[0]), int(row[1])): int(row[4]) for row in found["opened"] if row[4:] not in ([], [0])}
    digests = {int(number): str(digest) for number, digest in found["digests"]}
    return HelperState(int(found["last"]), digests, rows, spent)


@dataclass(frozen=True)
class OpenedSum:
    """A sum was opened: write the state down, then send the masks."""

    number: int
    state: HelperState
    masks: Words


@dataclass(frozen=True)
class Helper:
    """The helper of one run. members: by client, the public keys that it has or had.   least: cohort at least."""

    federation: str
    run: str
    unmasker: Unmasker
    members: Mapping[str, frozenset[bytes]]
    least: int = 2

    def open(self, state: HelperState, request: SumRequest) -> OpenedSum:
        """The sum of the masks; raises `TicketError`."""
        context = request.context
        if (context.federation, context.run) != (self.federation, self.run):
            raise TicketError("run", f"about {context.run!r} of {context.federation!r}")
        after = self._after(state, request)
        masks = self.unmasker.total(context, request.tickets)
        return OpenedSum(request.number, after, masks - self.unmasker.noise(request) if context.deviation else masks)

    def _after(self, state: HelperState, request: SumRequest) -> HelperState:
        cohort = max(self.least, request.context.cohort)
        clients = {ticket.client for ticket in request.tickets}
        if len(clients) < cohort:
            whose = "" if cohort == request.context.cohort else " that this helper opens (its --cohort)"
            raise TicketError("cohort", f"a sum of {len(clients)} clients, and {cohort} is the least{whose}")
        for ticket in request.tickets:
            if ticket.seal not in self.members.get(ticket.client, ()):
                raise TicketError("identity", f"{ticket.client!r} is not on the roster with this key")
        if request.number in state.digests:
            if request.digest != state.digests[request.number]:
                raise TicketError("repeated", f"sum {request.number} was refused, or opened with other messages")
            return state
        if not state.follows(request.number) or (request.context.deviation and request.number != state.last + 1):
            raise TicketError("order", f"sum {request.number} after {state.last}")
        opened = dict(state.opened)
        for ticket in request.tickets:
            opened[ticket.client, request.context.task] = self._once(opened, ticket, request.context.task)
        digests = {**state.digests, request.number: request.digest}
        return HelperState(request.number, digests, opened, self._spend(state, request, clients))

    def _spend(self, state: HelperState, request: SumRequest, clients: set[str]) -> Mapping[tuple[str, int], int]:
        """Who has been in how many sums with noise after this one."""
        context, spent = request.context, dict(state.spent)
        if not context.deviation:
            return spent
        if len(clients) < len(request.tickets):
            raise TicketError("budget", "a client is in a sum twice, and its noise hides one message of each")
        for client in clients:
            spent[client, context.task] = 1 + spent.get((client, context.task), 0)
            if spent[client, context.task] > context.participations:
                raise TicketError("budget", f"{client!r} has been in {context.participations} sums, which is the most")
        return spent

    def _once(
        self, opened: Mapping[tuple[str, int], tuple[int, int]], ticket: MaskTicket, task: int
    ) -> tuple[int, int]:
        number = (ticket.epoch, ticket.seq)
        if number <= opened.get((ticket.client, task), (0, 0)):
            raise TicketError("repeated", f"message {number} of {ticket.client!r} was opened before")
        return number
