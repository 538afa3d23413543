"""What clients, server and helper say to each other about masks: plain values of bounded size, and no secret.

Decoding is total: any bytes give a message or a `TicketError`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from offbeat.core.errors import OffbeatError
from offbeat.core.sums import Secure

KEY = 32  # bytes of a public key
NAME = 64  # letters of a name at most
TICKETS = 1 << 16  # messages of a sum at most
DIM = 1 << 30  # words of a message at most
LIFE = 1 << 20  # sums between two restored backups, at most: numbers begin anew after a multiple of it
_COUNTS = 1 << 53  # numbers beyond it are not exact everywhere
_REQUEST = b"OBM1"
_ANY = X25519PrivateKey.from_private_bytes(bytes(32))  # hides nothing: every key fails on the same points


class TicketError(OffbeatError):
    """A message about masks is not accepted; `code` says why, in one word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def agrees(key: bytes) -> bool:
    """Whether a secret can be shared by this X25519 key; there is none for the few points of small order."""
    try:
        _ANY.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def framed(*parts: bytes) -> bytes:
    """Parts as one byte string that no other parts give."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@dataclass(frozen=True)
class MaskContext:
    """What all messages of a sum have in common.

    dim: words of a message.   cohort, bits: as the experiment has them, and so as the clients were told.
    deviation: of the noise in the sum or, where clients mask for each other, in each message, in units of the last
    bit; 0: none.   participations: sums that a client may be in, with noise.
    """

    federation: str
    run: str
    task: int
    dim: int
    cohort: int
    bits: int
    deviation: float = 0.0
    participations: int = 0

    def to_bytes(self) -> bytes:
        numbers = struct.pack(">QQQQ", self.task, self.dim, self.cohort, self.bits)
        noise = [struct.pack(">dQ", self.deviation, self.participations)] if self.deviation else []
        return framed(self.federation.encode(), self.run.encode(), numbers, *noise)


def context_for(federation: str, run: str, task: int, dim: int, secure: Secure) -> MaskContext:
    """Of messages of so many words under these settings."""
    bound = secure.bound
    noise = (0.0, 0) if bound is None else ((secure.share or bound.deviation) / secure.unit, bound.participations)
    return MaskContext(federation, run, task, dim, secure.cohort, secure.places, *noise)


@dataclass(frozen=True)
class MaskTicket:
    """One masked message. epoch, seq: its number.   seal: the client's public key.   once: that of this message."""

    client: str
    epoch: int
    seq: int
    seal: bytes
    once: bytes

    def to_bytes(self) -> bytes:
        return framed(self.client.encode(), struct.pack(">QQ", self.epoch, self.seq), self.seal, self.once)


@dataclass(frozen=True)
class SumRequest:
    """The server asks for the sum of the masks of these messages. number: of the sum, in the order of closing."""

    number: int
    context: MaskContext
    tickets: tuple[MaskTicket, ...]

    def to_bytes(self) -> bytes:
        head = struct.pack(">QI", self.number, len(self.tickets))
        return _REQUEST + framed(head, self.context.to_bytes(), *(each.to_bytes() for each in self.tickets))

    @property
    def digest(self) -> str:
        """What it is known by."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def read_request(data: bytes) -> SumRequest:
    """Raises `TicketError` and nothing else."""
    try:
        if data[:4] != _REQUEST:
            raise ValueError("not a request")
        head, shared, *each = parts(data[4:], TICKETS + 2)
        number, count = struct.unpack(">QI", head)
        if count != len(each) or not 0 < number < _COUNTS:
            raise ValueError("another number of tickets than it says")
        return SumRequest(number, read_context(shared), tuple(map(_ticket, each)))
    except (ValueError, struct.error) as error:
        raise TicketError("malformed", str(error)[:80]) from None


def read_context(data: bytes) -> MaskContext:
    """Raises `ValueError` or `struct.error` for anything else."""
    federation, run, numbers, *noise = parts(data, 4)
    task, dim, cohort, bits = struct.unpack(">QQQQ", numbers)
    if not (task < 1 << 16 and 0 < dim <= DIM and cohort <= TICKETS and bits < 64):
        raise ValueError("a number beyond its bound")
    deviation, participations = struct.unpack(">dQ", noise[0]) if noise else (0.0, 0)
    if noise and not (0 < deviation < 1 << 32 and 0 < participations < _COUNTS):
        raise ValueError("a number beyond its bound")
    return MaskContext(read_name(federation), read_name(run), task, dim, cohort, bits, deviation, participations)


def _ticket(data: bytes) -> MaskTicket:
    client, numbers, seal, once = parts(data, 4)
    epoch, seq = struct.unpack(">QQ", numbers)
    if not (0 < epoch < _COUNTS and 0 < seq < _COUNTS) or (len(seal), len(once)) != (KEY, KEY):
        raise ValueError("a number beyond its bound, or no key")
    return MaskTicket(read_name(client), epoch, seq, seal, once)


def read_name(raw: bytes) -> str:
    """Raises `ValueError` for anything else."""
    if not 0 < len(raw) <= NAME or not raw.isascii():
        raise ValueError("not a name")
    return raw.decode()


def parts(data: bytes, most: int) -> list[bytes]:
    """What `framed` was given, at most so many parts."""
    found = list(_cut(data, most))
    if len(found) < 2:
        raise ValueError("too short")
    return found


def _cut(data: bytes, most: int) -> Iterator[bytes]:
    at = 0
    for _ in range(most + 1):
        if at == len(data):
            return
        if at + 4 > len(data):
            break
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            break
        yield data[at + 4 : at + 4 + size]
        at += 4 + size
    raise ValueError("more or fewer bytes than it says")
