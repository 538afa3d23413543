"""What becomes of a client's message on its way to the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from offbeat.core.errors import Checked
from offbeat.core.vectors import Vector


class Code(NamedTuple):
    """Rows [n, d] as a compressor sends them. which: a whole number for each of theirs [n, d].

    numbers: what each row needs besides, [n, k].
    """

    which: Vector
    numbers: Vector


@dataclass(frozen=True)
class Compressor(Checked):
    """Rows [n, d] go in, something shorter is sent, and rows come out at the other end, always the same.

    feedback: error feedback: the client keeps what was not sent and adds it to its next message; what is sent is then
        scaled to come as near to what was meant as it can. By default what is not sent is lost, and random compressors
        are right on average.
    """

    feedback: bool = field(default=False, kw_only=True)

    def code(self, x: Vector, uniform: Callable[[], Vector]) -> Code:
        """What is sent of these rows. uniform: random numbers in (0, 1), [n, d], the clients' own."""
        raise NotImplementedError

    def value(self, code: Code) -> Vector:
        """The rows that come out."""
        raise NotImplementedError

    def size(self, dim: int, width: int = 4) -> int:
        """Bytes of a row of so many numbers, each of this width."""
        raise NotImplementedError

    def pack(self, code: Code) -> Vector:
        """The same as bytes [n, size]."""
        raise NotImplementedError

    def unpack(self, packed: Vector, like: Vector) -> Code:
        """From bytes [n, size] of rows like these [n, d]; raises `ValueError` for bytes that `pack` does not give."""
        raise NotImplementedError
