"""What the members of a cohort and the server say to each other: plain values of bounded size, and no secret.

A client that has trained says so with keys made for this attempt (`ReadyKeys`). The server calls a cohort (`Call`):
from then on its members are fixed, in this order. All that is derived from keys is derived for that call's digest.

Decoding is total: any bytes give a message or a `TicketError`.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from offbeat.privacy.secure.shamir import SHARE
from offbeat.privacy.secure.streams import Words, add_keystream, derive
from offbeat.privacy.secure.tickets import KEY, MaskContext, TicketError, agrees, framed, parts, read_context, read_name

MEMBERS = 1 << 10  # of a cohort at most: everybody shares a secret with everybody
SIGNATURE = 64
SEALED = 2 * SHARE + 16  # bytes of the two shares that one member seals for another
KEYS = 3 * KEY + SIGNATURE  # bytes of what a client adds to its message
_COUNTS = 1 << 53
_CALL, _READY, _SEED = b"offbeat/cohort/1", b"offbeat/ready/1", b"offbeat/seed/1"


def threshold(members: int) -> int:
    """How many have to answer before a sum of so many can be opened, and so how many must not work together."""
    return 2 * members // 3 + 1


def commitment(seed: bytes) -> bytes:
    """What a client says about the seed of its own mask before anybody knows it."""
    return hashlib.sha256(_SEED + seed).digest()


@dataclass(frozen=True)
class ReadyKeys:
    """A client has a result and takes part in a sum. epoch, seq: of the result.   attempt: each has keys of its own.

    seal, mask: public X25519 keys, with which shares are sealed and masks made.   seed: its `commitment`.
    """

    client: str
    epoch: int
    seq: int
    attempt: int
    seal: bytes
    mask: bytes
    seed: bytes
    signature: bytes = b""

    def signed_bytes(self, context: MaskContext) -> bytes:
        """What the client signs: these keys are for this result, in this run and on these terms."""
        numbers = struct.pack(">QQQ", self.epoch, self.seq, self.attempt)
        return framed(_READY, context.to_bytes(), self.client.encode(), numbers, self.seal, self.mask, self.seed)

    def sign(self, context: MaskContext, secret: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(secret).sign(self.signed_bytes(context))

    def verify(self, context: MaskContext, public: bytes) -> bool:
        """Whether the owner of this key has signed it."""
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(self.signature, self.signed_bytes(context))
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def keys(self) -> bytes:
        """What it says besides its numbers."""
        return self.seal + self.mask + self.seed + self.signature

    def to_bytes(self) -> bytes:
        return framed(self.client.encode(), struct.pack(">QQQ", self.epoch, self.seq, self.attempt), self.keys)


def read_ready(client: str, numbers: tuple[int, int, int], keys: bytes) -> ReadyKeys:
    """From its (epoch, seq, attempt) and `ReadyKeys.keys`; raises `TicketError` and nothing else."""
    if len(keys) != KEYS:
        raise TicketError("length", f"{len(keys)} bytes of keys, expected {KEYS}")
    if not all(0 <= number < _COUNTS for number in numbers):
        raise TicketError("malformed", "a number beyond its bound")
    seal, mask, seed = (keys[at : at + KEY] for at in (0, KEY, 2 * KEY))
    if not (agrees(seal) and agrees(mask)):
        raise TicketError("key", f"{client!r} has sent a key with which nothing can be shared")
    return ReadyKeys(client, *numbers, seal, mask, seed, keys[3 * KEY :])


@dataclass(frozen=True)
class Call:
    """These are the members of a cohort. number: of the sum; it goes up.   members: each counts by its place here."""

    number: int
    context: MaskContext
    members: tuple[ReadyKeys, ...]

    def to_bytes(self) -> bytes:
        head = struct.pack(">QI", self.number, len(self.members))
        return framed(_CALL, head, self.context.to_bytes(), *(each.to_bytes() for each in self.members))

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def threshold(self) -> int:
        return threshold(len(self.members))

    def place(self, client: str) -> int:
        """Where a client stands among the members; raises `TicketError` unless it is there once."""
        found = [place for place, each in enumerate(self.members) if each.client == client]
        if len(found) != 1:
            raise TicketError("members", f"{client!r} is {len(found)} times among the members")
        return found[0]

    def seal_key(self, shared: bytes, sender: int, receiver: int) -> bytes:
        """The key under which one member's shares are sealed for another; it is used once."""
        return derive(shared, framed(b"seal", self.digest, struct.pack(">II", sender, receiver)))

    def add_pair(self, total: Words, shared: bytes, one: int, other: int) -> None:
        """Put on the mask that `one` shares with `other`: who has the smaller place adds it, the other takes it off."""
        info = framed(b"pair", self.digest, struct.pack(">II", min(one, other), max(one, other)))
        add_keystream(total, derive(shared, info), 1 if one < other else -1)

    def add_own(self, total: Words, seed: bytes) -> None:
        """Put on the mask of a member's own."""
        add_keystream(total, derive(seed, framed(b"self", self.digest)))


def read_call(data: bytes) -> Call:
    """Raises `TicketError` and nothing else."""
    try:
        kind, head, context, *each = parts(data, MEMBERS + 3)
        number, count = struct.unpack(">QI", head)
        if kind != _CALL or count != len(each) or not 0 < number < _COUNTS:
            raise ValueError("not the call of a cohort")
        return Call(number, read_context(context), tuple(map(_member, each)))
    except (ValueError, struct.error) as error:
        raise TicketError("malformed", str(error)[:80]) from None


def _member(data: bytes) -> ReadyKeys:
    client, numbers, keys = parts(data, 3)
    return read_ready(read_name(client), struct.unpack(">QQQ", numbers), keys)


def cut(data: bytes, size: int, count: int) -> list[bytes]:
    """So many pieces of this size; raises `TicketError` if it is not that many."""
    if len(data) != size * count:
        raise TicketError("length", f"{len(data)} bytes, expected {size} for each of {count} members")
    return [data[at : at + size] for at in range(0, len(data), size)]
