"""A client's masks: what it sends of a result when the server may see sums only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np

from offbeat.core.errors import FolderError
from offbeat.core.sums import Secure, words
from offbeat.core.vectors import Payload
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import ONCE
from offbeat.deploy.assignment import CohortCall
from offbeat.deploy.identity import ACTIVE, Roster, parse_roster
from offbeat.privacy.secure.calls import SEALED, cut, read_call
from offbeat.privacy.secure.masks import Masker
from offbeat.privacy.secure.member import CohortMember, begin, read_member
from offbeat.privacy.secure.streams import Words
from offbeat.privacy.secure.tickets import TicketError, context_for


class Masking:
    """Masks the messages of one client in one run, each with a key of its own. secret, helper: as `Masker` has them."""

    def __init__(self, federation: str, run: str, secure: Secure, secret: bytes, helper: bytes) -> None:
        self.federation, self.run, self.secure, self.masker = federation, run, secure, Masker(secret, helper)

    def __call__(self, header: wire.Trained, task: int, upload: Payload) -> encoding.Parts:
        (name,), numbers = upload, _numbers(upload, self.secure)
        context = context_for(self.federation, self.run, task, len(numbers), self.secure)
        masked, ticket = self.masker.mask(context, header.client, header.epoch, header.seq, numbers)
        return {name: masked.astype("<u4").tobytes(), ONCE: ticket.once}


class PairMasking:
    """One client of one run in which clients mask for each other. sign: its Ed25519 secret.

    coordinator: who signs rosters.   draw: where secrets come from.
    """

    def __init__(
        self,
        federation: str,
        run: str,
        secure: Secure,
        sign: bytes,
        coordinator: bytes,
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.federation, self.run, self.secure, self.sign = federation, run, secure, sign
        self.coordinator, self.draw = coordinator, draw
        self.roster: Roster | None = None

    def words(self, upload: Payload) -> bytes:
        """The numbers of a result that are to be masked."""
        return _numbers(upload, self.secure).astype("<u4").tobytes()

    def begin(self, header: wire.Trained, task: int, words: bytes) -> CohortMember:
        """ReadyKeys, with fresh keys."""
        context = context_for(self.federation, self.run, task, len(words) // 4, self.secure)
        numbers = (header.epoch, header.seq, header.attempt)
        return begin(context, header.client, numbers, self.sign, self.draw)

    def join(self, data: bytes, called: CohortCall, last: int, serial: int = 0) -> CohortMember:
        """A member as it is after this call. last: number of the last cohort before.   Raises `TicketError`.

        serial: of the newest roster that this client has seen.
        """
        member, call = read_member(data), read_call(called.call)
        if call.number != called.number:
            raise TicketError("malformed", "a call of another number")
        joined = member.join(call, self.signers(called.roster, serial), self.secure.cohort, last)
        return joined if not called.sharers else joined.hear(_dealt(member, called))

    def suspects(self, data: bytes, called: CohortCall) -> list[int]:
        """The places of those whose shares this member cannot open."""
        member = read_member(data)
        return member.suspects(_dealt(member, called))

    def signers(self, roster: bytes, serial: int = 0) -> Mapping[str, bytes]:
        """By name, the key with which each client of the federation signs; raises `TicketError`."""
        try:
            found = parse_roster(roster, self.coordinator)
        except FolderError as error:
            raise TicketError("roster", str(error)) from None
        if found.federation != self.federation:
            raise TicketError("roster", f"of another federation, {found.federation!r}")
        if self.roster is None or found.serial > self.roster.serial:
            self.roster = found
        if self.roster.serial < serial:
            raise TicketError("roster", f"number {self.roster.serial}, but number {serial} was seen before")
        return {name: member.sign for name, member in self.roster.clients.items() if member.state == ACTIVE}


def _dealt(member: CohortMember, called: CohortCall) -> dict[int, bytes]:
    """What the others have sealed for a member, by their places; raises `TicketError`."""
    call = read_call(called.call)
    others = [place for place in called.sharers if place != call.place(member.own.client)]
    return dict(zip(others, cut(called.shares, SEALED, len(others)), strict=True))


def _numbers(upload: Payload, secure: Secure) -> Words:
    """The numbers of a message that has one vector."""
    (vector,) = upload.values()
    return words(vector.cpu(), secure.unit).numpy().view(np.uint32)
