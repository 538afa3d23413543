"""A client's part in a cohort: its keys, the shares it deals and keeps, its masks, and what it refuses.

The rules, before the code:

1. Keys are made for one attempt: a key pair with which shares are sealed, one with which masks are made, and a seed.
2. What is sent is q + PRG(seed) + Σ PRG(pair) over later members − Σ PRG(pair) over earlier ones, modulo 2^32. Pairs
   cancel in the sum of all. The seed's mask stays on, so that a message that comes after its sender was given up, and
   its pairs with it, shows nothing.
3. Seed and mask key are shared out among the members (`shamir`), sealed for each. A member gives away its share of a
   survivor's seed, or of a drop-out's mask key, once, and never both of one member.
4. A cohort is taken part in if all of its members have signed with keys of the roster, each is there once, it is as
   large as the run and this client ask for, its number is larger than any before, and this client's entry is its own.
5. What was accepted is fixed: another call, other sharers or other survivors for the same attempt are refused. What
   was accepted before gives the same answer again, byte for byte, because an answer may be lost.

`CohortMember` is a value. Its holder writes it down before it sends what follows from it. Nothing of a server's process
imports this module: tests/privacy/secure/test_closed.py.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from offbeat.privacy.secure.calls import Call, ReadyKeys, commitment, read_call
from offbeat.privacy.secure.shamir import PRIME, SHARE, split
from offbeat.privacy.secure.streams import Words, derive, stream
from offbeat.privacy.secure.tickets import MaskContext, TicketError, framed

_WIDE = 48  # bytes of which a number below the prime is made, so that no value is likelier than others
_NONCE = bytes(12)  # every key seals one message


@dataclass(frozen=True)
class CohortMember:
    """A client in one attempt. own: what it has said about itself.   call: the cohort that it is in.

    seal, mask, seed, deal: its secrets, of 32 bytes each; `deal` is what its polynomials are drawn from.
    shares: by place, the shares (of the seed, of the mask key) that each sharer has sealed for it, its own among them.
    survivors: for whom it has answered.
    """

    context: MaskContext
    own: ReadyKeys
    seal: bytes
    mask: bytes
    seed: bytes
    deal: bytes
    call: Call | None = None
    shares: Mapping[int, tuple[bytes, bytes]] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()

    def __repr__(self) -> str:  # a secret must not reach a log
        return f"CohortMember({self.own.client!r}, …)"

    # Taking part

    def join(self, call: Call, signers: Mapping[str, bytes], least: int = 2, last: int = 0) -> CohortMember:
        """With this cohort. signers: the roster's keys by name.   last: number of the last cohort before.

        Raises `TicketError` for whatever rule 4 refuses.
        """
        if self.call is not None:
            if call.digest != self.call.digest:
                raise TicketError("repeated", f"called to cohort {call.number} with keys of cohort {self.call.number}")
            return self
        self._check(call, max(least, call.context.cohort), last)
        for each in call.members:
            if each.client not in signers or not each.verify(call.context, signers[each.client]):
                raise TicketError("signer", f"the keys of {each.client!r} are not signed by a client of the roster")
        return replace(self, call=call)

    def _check(self, call: Call, least: int, last: int) -> None:
        if call.context != self.context:
            raise TicketError("context", f"called on other terms than those of this run: {call.context}")
        if call.number <= last:
            raise TicketError("replayed", f"called to cohort {call.number} after cohort {last}")
        if len(call.members) < least:
            raise TicketError("cohort", f"a cohort of {len(call.members)} clients, and {least} is the least")
        if call.members[call.place(self.own.client)] != self.own:
            raise TicketError("own", "what this client has said of itself was changed")
        named = [what for each in call.members for what in (each.client.encode(), each.seal, each.mask, each.seed)]
        if len({*named}) != len(named):
            raise TicketError("members", "a duplicate name or key")

    # Sharing

    def sealed_shares(self) -> bytes:
        """For every other member in order, sealed: its shares of this one's seed and mask key."""
        call, me = self._called()
        dealt = list(self._dealt(call))
        return b"".join(
            self._cipher(other, me, other).encrypt(_NONCE, b"".join(dealt[other]), self._about(me, other))
            for other in range(len(call.members))
            if other != me
        )

    def hear(self, sealed: Mapping[int, bytes]) -> CohortMember:
        """With the shares of those who have shared, by place: this client's own is not among them."""
        call, me = self._called()
        if self.shares:
            if {*sealed, me} != {*self.shares}:
                raise TicketError("repeated", "others have shared than it said before")
            return self
        if not all(0 <= place < len(call.members) for place in sealed) or me in sealed:
            raise TicketError("members", "shares of a client that is not in the cohort")
        if len(sealed) + 1 < max(call.threshold, call.context.cohort):
            raise TicketError("cohort", f"only {len(sealed) + 1} have shared")
        opened = {place: self._opened(place, each) for place, each in sorted(sealed.items())}
        own = list(self._dealt(call))[me]
        return replace(self, shares=dict(sorted({**opened, me: own}.items())))

    def suspects(self, sealed: Mapping[int, bytes]) -> list[int]:
        """The places of those whose shares cannot be opened."""
        found = []
        for place, each in sealed.items():
            try:
                self._opened(place, each)
            except TicketError:
                found.append(place)
        return found

    def _opened(self, place: int, sealed: bytes) -> tuple[bytes, bytes]:
        _, me = self._called()
        try:
            found = self._cipher(place, place, me).decrypt(_NONCE, sealed, self._about(place, me))
        except InvalidTag:
            raise TicketError("sealed", f"the shares of member {place} are not what that has sealed") from None
        if len(found) != 2 * SHARE:
            raise TicketError("length", f"member {place} has sealed {len(found)} bytes")
        return found[:SHARE], found[SHARE:]

    def _dealt(self, call: Call) -> Iterator[tuple[bytes, bytes]]:
        """By place, the shares of the seed and of the mask key."""
        count, both = len(call.members), []
        for name, secret in ((b"seed", self.seed), (b"mask", self.mask)):
            raw = stream(derive(self.deal, framed(name, call.digest)), _WIDE * (call.threshold - 1))
            drawn = [int.from_bytes(raw[at : at + _WIDE], "big") % PRIME for at in range(0, len(raw), _WIDE)]
            both.append([share.to_bytes(SHARE, "big") for share in split(secret, drawn, count)])
        return zip(*both, strict=True)

    def _cipher(self, other: int, sender: int, receiver: int) -> ChaCha20Poly1305:
        call, _ = self._called()
        shared = _exchange(self.seal, call.members[other].seal)
        return ChaCha20Poly1305(call.seal_key(shared, sender, receiver))

    def _about(self, sender: int, receiver: int) -> bytes:
        call, _ = self._called()
        return call.digest + struct.pack(">II", sender, receiver)

    # Masking

    def masked(self, words: Words) -> Words:
        """The words with all masks on."""
        call, me = self._called()
        if not self.shares:
            raise TicketError("order", "no shares have been dealt yet")
        total = words.astype(np.uint32)
        call.add_own(total, self.seed)
        for other in self.shares:
            if other != me:
                call.add_pair(total, _exchange(self.mask, call.members[other].mask), me, other)
        return total

    # Unmasking

    def answer(self, survivors: Sequence[int], dropped: Sequence[int]) -> tuple[CohortMember, bytes]:
        """Shares of the survivors' seeds and of the others' mask keys, in the order of places; once."""
        call, me = self._called()
        if len({*survivors, *dropped}) != len(survivors) + len(dropped):
            raise TicketError("both", "a member is listed twice, or both as survivor and as drop-out")
        if {*survivors, *dropped} != {*self.shares}:
            raise TicketError("members", "survivors and drop-outs are not those who have shared")
        if me not in survivors or len(survivors) < max(call.threshold, call.context.cohort):
            raise TicketError("cohort", f"{len(survivors)} survivors are too few, or do not include this client")
        if self.survivors and self.survivors != tuple(sorted(survivors)):
            raise TicketError("repeated", "it has answered for other survivors before")
        found = [seed if place in survivors else mask for place, (seed, mask) in self.shares.items()]
        return replace(self, survivors=tuple(sorted(survivors))), b"".join(found)

    def _called(self) -> tuple[Call, int]:
        if self.call is None:
            raise TicketError("order", "not called to a cohort yet")
        return self.call, self.call.place(self.own.client)

    # Writing it down

    def to_bytes(self) -> bytes:
        """For this client's disk alone."""
        secrets = [each.hex() for each in (self.seal, self.mask, self.seed, self.deal)]
        shares = [[place, *map(bytes.hex, both)] for place, both in self.shares.items()]
        alone = Call(1, self.context, (self.own,)).to_bytes().hex()
        call = "" if self.call is None else self.call.to_bytes().hex()
        return json.dumps([alone, secrets, call, shares, self.survivors]).encode()


def read_member(data: bytes) -> CohortMember:
    """From the disk; raises `TicketError`."""
    try:
        alone, secrets, call, shares, survivors = json.loads(data)
        said = read_call(bytes.fromhex(alone))
        held = {int(place): (bytes.fromhex(both[0]), bytes.fromhex(both[1])) for place, *both in shares}
        seal, mask, seed, deal = map(bytes.fromhex, secrets)
        called = read_call(bytes.fromhex(call)) if call else None
        kept = (seal, mask, seed, deal, called, held, tuple(map(int, survivors)))
        return CohortMember(said.context, said.members[0], *kept)
    except (ValueError, TypeError, IndexError):
        raise TicketError("malformed", "not a member's state") from None


def begin(
    context: MaskContext,
    client: str,
    numbers: tuple[int, int, int],
    sign: bytes,
    draw: Callable[[int], bytes] = os.urandom,
) -> CohortMember:
    """A client that takes part, with fresh keys. numbers: (epoch, seq, attempt).   sign: its Ed25519 secret."""
    seal, mask, seed, deal = (draw(32) for _ in range(4))
    own = ReadyKeys(client, *numbers, _public(seal), _public(mask), commitment(seed))
    return CohortMember(context, replace(own, signature=own.sign(context, sign)), seal, mask, seed, deal)


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _exchange(secret: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
