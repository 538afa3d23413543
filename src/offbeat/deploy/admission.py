"""What a server takes from a client, and the code under which it refuses the rest.

| code | what is wrong |
|---|---|
| malformed, damaged, oversized | not a message, not the bytes that were sent, more of them than allowed |
| version | a message of another version of the protocol |
| run, identity | meant for another run; sent under another client's name |
| keys | verified with other keys than the log has for the client: they were replaced a moment before |
| fenced, epoch | from a client's former life, from one that was never greeted |
| replay, order | a settled number with another content, or a greeting or farewell said again; a number left out |
| late, uncalled, steps | of a job that is lost by now; of held work nobody asked for; an impossible number of steps |
| cancelled | of a job that the server has cancelled while the result was on its way |
| names, dtype, length | not the vectors that this algorithm's clients send |
| nonfinite, norm | holds a number that is not finite; longer than the bound |
| masks, slot | not the masks of this sum, or shares of others; of a client: no room in a sum that lacks other clients |
| key, forged | of secure aggregation: a key that no secret can be shared with; keys that their client has not signed |
| paused | while the client gets no work, because too many of its results were refused or its jobs failed |
| stale | made from a model more versions ago than the window allows |
| balks | a client that is left out, because it has kept cohorts from giving a sum again and again |
| twice | the client's second update of one model, where only sums are shown |
| slot | the client's second update since the last server step, where one slot each is asked for |
| crossed | ready for a sum of one task, while too few could be ready for any: another task goes first |
| over, removed, behind | the run is over; the client was removed; its memory is not the one the server knows of |
| quarantined | the fold failed on it: it is undone, and its job is lost |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch

from offbeat.core.compressor import Compressor
from offbeat.core.errors import SettingError, not_negative, positive
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy.encoding import SIZES, Message, RefusedError, dtype_of
from offbeat.deploy.envelope import LARGEST
from offbeat.privacy.secure.tickets import agrees

APPLIED = "applied"


@dataclass(frozen=True)
class Limits(State):
    """What is admitted.

    size: bytes of a message.   norm: Euclidean length of a vector; None: as the run teaches (`norms`), 0: any.
    window: versions that an update may be old.   slot: only one update a client between two server steps.
    held: jobs a client may hold without answering.   lease: seconds for a job, from when its client could begin it.
    patience: seconds without a sign of life.
    """

    size: int = 1 << 30
    norm: float | None = None
    window: int | None = None
    slot: bool = False
    held: int = 1000
    lease: float = 600.0
    patience: float = 15.0

    def __post_init__(self) -> None:
        positive(size=self.size, window=self.window, lease=self.lease, patience=self.patience)
        if self.size > LARGEST:
            raise SettingError(f"size = {self.size}: at most {LARGEST} bytes can be sealed at once")
        not_negative(norm=self.norm)
        if self.held < 2:
            raise SettingError(f"held = {self.held}: must be at least 2")

    def plain(self) -> dict[str, float]:
        """As an entry of the log holds them; what is None is left out."""
        return {name: float(value) for name, value in vars(self).items() if value is not None}

    @classmethod
    def read(cls, plain: Mapping[str, float]) -> Self:
        """From an entry of the log."""
        kinds = {each.name: each.default for each in fields(cls)}
        kept = {name: value for name, value in plain.items() if name in kinds}
        return cls(**{name: _as(kinds[name], name, value) for name, value in kept.items()})


def _as(default: object, name: str, value: float) -> Any:
    """A number of the type that this limit has."""
    if isinstance(default, bool):
        return bool(value)
    return int(value) if isinstance(default, int) or name == "window" else value


def admit(
    message: Message, expected: Mapping[str, int], dtype: str, coders: Mapping[str, Compressor] | None = None
) -> Payload:
    """The update's vectors. expected: name and length of each; nothing is copied before they agree.

    coders: of those that are compressed, how.
    """
    coders = coders or {}
    if set(message.parts) != set(expected):
        raise RefusedError("names", f"holds {', '.join(message.parts) or 'nothing'}, expected {', '.join(expected)}")
    for name, length in expected.items():
        kinds, count = (dtype, "bfloat16"), length
        if name in coders:
            kinds, count = ("bytes", "bytes"), coders[name].size(length, SIZES[dtype])
        if message.parts[name][0] not in kinds:
            raise RefusedError("dtype", f"{name} is {message.parts[name][0]}, expected {kinds[0]}")
        if message.length(name) != count:
            raise RefusedError("length", f"{name} has {message.length(name)} numbers, expected {count}")
    vectors = {
        name: _unpacked(message.vector(name), length, dtype, coders[name])
        if name in coders
        else message.vector(name).to(dtype_of(dtype))
        for name, length in expected.items()
    }
    for name, vector in vectors.items():
        if not bool(torch.isfinite(vector.sum())) and not bool(torch.isfinite(vector).all()):
            raise RefusedError("nonfinite", f"{name} holds a number that is not finite")
    return vectors


ONCE = "once"  # the part of a masked message that tells the helper which mask it has


def admit_masked(message: Message, name: str, dim: int) -> Payload:
    """The words of a masked update, [dim] of int32, and the 32 bytes that go with them."""
    sizes = {name: 4 * dim, ONCE: 32}
    if set(message.parts) != set(sizes):
        raise RefusedError("names", f"holds {', '.join(message.parts) or 'nothing'}, expected {name}, masked, and once")
    for each, size in sizes.items():
        dtype, raw = message.parts[each]
        if dtype != "bytes":
            raise RefusedError("dtype", f"{each} is {dtype}, expected bytes")
        if len(raw) != size:
            raise RefusedError("length", f"{each} has {len(raw)} bytes, expected {size}")
    if not agrees(bytes(message.parts[ONCE][1])):
        raise RefusedError("key", "no helper could take off the mask of this key")
    return {name: read_words(message, name), ONCE: message.vector(ONCE)}


def read_words(message: Message, name: str) -> Vector:
    """A part as numbers of 32 bits, modulo 2^32."""
    return message.vector(name).view(torch.int32)


def _unpacked(packed: Vector, length: int, dtype: str, coder: Compressor) -> Vector:
    like = torch.empty(1, length, dtype=dtype_of(dtype))
    try:
        return coder.value(coder.unpack(packed.unsqueeze(0), like))[0]
    except ValueError as error:
        raise RefusedError("malformed", f"what should be compressed is not: {error}") from None
