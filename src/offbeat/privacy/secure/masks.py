"""Masks: what a client adds to its numbers so that they look like noise to anyone who cannot remove it.

The rules, before the code:

1. A mask is the keystream of AES-256 in counter mode, as words of 32 bits, added modulo 2^32: whatever the numbers are,
   the masked ones are uniform. A key is used for one mask, and a mask for one message.
2. The key is that of one message of one client for one helper: HKDF-SHA256 over two X25519 secrets, of the client's key
   and of a key that is made for this message, both with the helper's. So the server can make no mask in a client's name
   (which would let it fill a sum with its own), and a client's key that leaks later opens no earlier message.
3. What the two sides have to agree on is in the derivation (`MaskContext`, `MaskTicket`): a server that tells the
   helper another run, client, number, length, cohort or scale than it told the client gets a mask that fits nothing.

With differential privacy the helper answers with the masks less noise (`Unmasker.noise`), so the server never sees a
sum without it. How much is part of what client and helper have to agree on.

Only `Masker`, with a client's secret key, and `Unmasker`, with the helper's, make masks. Nothing of a server's process
imports this module: tests/privacy/secure/test_closed.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from offbeat.privacy.noise import keyed_normal
from offbeat.privacy.secure.streams import Words, add_keystream, derive
from offbeat.privacy.secure.tickets import MaskContext, MaskTicket, SumRequest, TicketError, agrees, framed

VERSION = b"offbeat/mask/1"
NOISE = b"offbeat/noise/1"


def mask_key(static: bytes, fresh: bytes, context: MaskContext, ticket: MaskTicket, helper: bytes) -> bytes:
    """The key of one message's mask. static, fresh: the two shared secrets."""
    info = framed(VERSION, context.to_bytes(), ticket.to_bytes(), helper)
    return derive(static + fresh, info)


@dataclass(frozen=True)
class Masker:
    """A client's end. secret: its X25519 key.   helper: the helper's public one, pinned in the client's credentials."""

    secret: bytes
    helper: bytes

    def __repr__(self) -> str:  # a secret must not reach a log
        return "Masker(…)"

    def mask(self, context: MaskContext, client: str, epoch: int, seq: int, words: Words) -> tuple[Words, MaskTicket]:
        """The masked words, and what the helper needs to know; each call has a key of its own."""
        own, fresh = X25519PrivateKey.from_private_bytes(self.secret), X25519PrivateKey.generate()
        public, once = (each.public_key().public_bytes_raw() for each in (own, fresh))
        ticket = MaskTicket(client, epoch, seq, public, once)
        theirs = X25519PublicKey.from_public_bytes(self.helper)
        key = mask_key(own.exchange(theirs), fresh.exchange(theirs), context, ticket, self.helper)
        masked = words.astype(np.uint32)
        add_keystream(masked, key)
        return masked, ticket


@dataclass(frozen=True)
class Unmasker:
    """The helper's end. secret: its X25519 key."""

    secret: bytes

    def __repr__(self) -> str:
        return "Unmasker(…)"

    def noise(self, request: SumRequest) -> Words:
        """What is added to this sum and no other: the same whenever it is asked for, and known to nobody else."""
        context = request.context
        key = derive(self.secret, framed(NOISE, request.to_bytes()))
        normal = keyed_normal(key, context.dim).numpy()
        return np.rint(normal * context.deviation).astype(np.int64).astype(np.uint32)

    def total(self, context: MaskContext, tickets: tuple[MaskTicket, ...]) -> Words:
        """The sum of the masks of these messages; raises `TicketError` for a key that nothing can be derived from."""
        own = X25519PrivateKey.from_private_bytes(self.secret)
        public, total = own.public_key().public_bytes_raw(), np.zeros(context.dim, dtype=np.uint32)
        for ticket in tickets:
            if not agrees(ticket.once):
                raise TicketError("key", f"{ticket.client!r} has sent a key with which no mask can be made")
            static, fresh = (own.exchange(X25519PublicKey.from_public_bytes(p)) for p in (ticket.seal, ticket.once))
            add_keystream(total, mask_key(static, fresh, context, ticket, public))
        return total
