"""A client's part in cohorts, step by step: what it has to write down, and what it then says.

Each step follows from the client's state and the newest assignment, and gives the same bytes whenever it is asked for.
What a client refuses is decided in `privacy.secure.member`; here it stays silent, and `refused` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from offbeat.core.vectors import Payload
from offbeat.deploy import effects, encoding, wire
from offbeat.deploy.assignment import Assignment, CohortCall
from offbeat.deploy.client_state import ClientState, PendingResult
from offbeat.deploy.masking import PairMasking
from offbeat.privacy.secure.member import CohortMember, read_member
from offbeat.privacy.secure.tickets import TicketError


class TakingPart:
    """One client of a run in which clients mask for each other."""

    def __init__(self, pairing: PairMasking) -> None:
        self.pairing = pairing
        self.refused = ""  # why it has not done what it was asked for, the last time
        self.said: tuple[str, bytes] = ("", b"")  # the last step that was told: making it takes a while

    def ready(self, header: wire.Trained, pending: PendingResult, upload: Payload) -> PendingResult:
        """A result that waits for others. header: of its message."""
        return self._with_keys(header, replace(pending, words=self.pairing.words(upload)))

    def _with_keys(self, header: wire.Trained, pending: PendingResult) -> PendingResult:
        member = self.pairing.begin(header, pending.task, pending.words)
        message = wire.say(header, {"keys": member.own.keys})
        return replace(
            pending, message=message, attempt=header.attempt, member=member.to_bytes(), cohort=0, heard=False
        )

    # What is written down

    def after(self, state: ClientState, assignment: Assignment) -> ClientState:
        """The state with what the assignment asks for."""
        pending, call = state.pending, assignment.call
        if pending is not None and pending.member:
            if assignment.attempt > pending.attempt:
                header = replace(wire.heard(encoding.unpack(pending.message)), attempt=assignment.attempt)
                state = replace(state, pending=self._with_keys(header, pending))
            elif call is not None and assignment.waits == pending.digest:
                state = self._called(state, pending, call)
        return self._answered(state, assignment)

    def _called(self, state: ClientState, pending: PendingResult, call: CohortCall) -> ClientState:
        try:
            member = self.pairing.join(pending.member, call, state.cohort, state.roster)
        except TicketError as error:
            self.refused = f"cohort {call.number}: {error}"
            return state
        heard = bool(member.shares)
        pending = replace(pending, member=member.to_bytes(), cohort=call.number, heard=heard)
        pending = replace(pending, shown=pending.shown or heard)
        serial = self.pairing.roster.serial if self.pairing.roster is not None else 0
        seen = max(state.roster, serial)
        return replace(state, pending=pending, cohort=max(state.cohort, call.number), roster=seen)

    def _answered(self, state: ClientState, assignment: Assignment) -> ClientState:
        """With what it gives away; parts in sums that nobody asks for any more are forgotten."""
        members, answers = {}, state.answers
        for number, survivors, dropped in assignment.reveal:
            if number in state.members:
                members[number] = state.members[number]
                try:
                    members[number] = read_member(members[number]).answer(survivors, dropped)[0].to_bytes()
                    answers += members[number] != state.members[number]
                except TicketError as error:
                    self.refused = f"sum {number}: {error}"
        return state if members == state.members else replace(state, members=members, answers=answers)

    # What is said

    def tell(self, state: ClientState, assignment: Assignment) -> list[effects.Effect]:
        """What the server has not heard yet."""
        return [effects.Tell(data, f"{state.nonce}.{name}") for name, data in self._untold(state, assignment)]

    def _untold(self, state: ClientState, assignment: Assignment) -> Iterator[tuple[str, bytes]]:
        pending, call = state.pending, assignment.call
        if pending is not None:
            if not pending.member or assignment.waits != pending.digest:
                yield f"{pending.seq}.{pending.attempt}", pending.message
            elif call is not None and call.number == pending.cohort:
                yield from self._step(pending, call)
        for number, survivors, dropped in assignment.reveal:
            member = read_member(state.members[number]) if number in state.members else None
            if member is not None and member.survivors == tuple(sorted(survivors)):
                shares = member.answer(survivors, dropped)[1]
                header = wire.Revealed(self.pairing.run, member.own.client, number)
                yield f"revealed.{number}", wire.say(header, {"shares": shares})

    def _step(self, pending: PendingResult, call: CohortCall) -> Iterator[tuple[str, bytes]]:
        """The step of a cohort that is asked for."""
        name = f"{call.phase}.{call.number}"
        if self.said[0] != name:
            member = read_member(pending.member)
            if call.sharers and not member.shares:
                yield from self._accuse(pending, call)  # otherwise it has refused
                return
            self.said = name, self._message(member, pending, call)
        yield self.said

    def _accuse(self, pending: PendingResult, call: CohortCall) -> Iterator[tuple[str, bytes]]:
        """Say whose shares cannot be opened, if that is why it does not go on."""
        member = read_member(pending.member)
        if member.call is None or member.call.number != call.number:
            return
        try:
            suspects = self.pairing.suspects(pending.member, call)
        except TicketError:
            return
        if suspects:
            marks = bytes(place in suspects for place in range(len(member.call.members)))
            header = wire.Accused(self.pairing.run, member.own.client, call.number)
            yield f"accused.{call.number}", wire.say(header, {"accused": marks})

    def _message(self, member: CohortMember, pending: PendingResult, call: CohortCall) -> bytes:
        run, client = self.pairing.run, member.own.client
        if not call.sharers:
            return wire.say(wire.Dealt(run, client, call.number), {"shares": member.sealed_shares()})
        masked = member.masked(np.frombuffer(pending.words, dtype="<u4"))
        return wire.say(wire.Masked(run, client, call.number), {"words": masked.astype("<u4").tobytes()})
