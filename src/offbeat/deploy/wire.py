"""What goes over the network and onto disks: a JSON header, then raw little-endian numbers. No code, no pickle.

    4 bytes "OBT1" | 4 bytes length of the header | header, JSON | body

The header's `parts` is the manifest of the body: [name, dtype, count] of each vector, one after the other, and `digest`
its SHA-256. Sizes are checked against what is there before anything is allocated; whatever is wrong is a `RefusedError`
with a code of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

import torch

from offbeat.core.errors import OffbeatError
from offbeat.core.vectors import Vector

MAGIC = b"OBT1"
HEADER = 1 << 18  # bytes of a header at most
PARTS = 4096  # vectors of a message at most
LIMIT = 1 << 33  # bytes of a message, unless a smaller limit is given
_BIG = 1 << 53  # integers beyond it are not exact everywhere

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "bytes": torch.uint8}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Parts = Mapping[str, Vector | bytes]


class RefusedError(OffbeatError):
    """Something that came over the network is not accepted; `code` says why, in one word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Message(NamedTuple):
    """A message taken apart; `parts` are views into the bytes that came."""

    header: dict[str, Any]
    parts: dict[str, tuple[str, memoryview]]  # name -> (dtype, bytes)

    @property
    def kind(self) -> str:
        return str(self.header["kind"])

    def vector(self, name: str) -> Vector:
        """A part as numbers, copied out of the message; bfloat16 becomes float32."""
        dtype, raw = self.parts[name]
        if not len(raw):
            return torch.empty(0, dtype=DTYPES[dtype])
        found = torch.frombuffer(bytearray(raw), dtype=DTYPES[dtype])
        return found.float() if dtype == "bfloat16" else found

    def length(self, name: str) -> int:
        """How many numbers a part has."""
        dtype, raw = self.parts[name]
        return len(raw) // DTYPES[dtype].itemsize


def pack(kind: str, header: Mapping[str, Any], parts: Parts | None = None, dtype: str = "") -> bytes:
    """A message. `dtype` "bfloat16" halves float32 vectors, with rounding."""
    manifest, body = [], []
    for name, value in (parts or {}).items():
        if isinstance(value, bytes):
            manifest.append([name, "bytes", len(value)])
            body.append(value)
        else:
            vector = value.detach().cpu().reshape(-1).contiguous()
            if dtype and vector.dtype == torch.float32:
                vector = vector.to(DTYPES[dtype])
            manifest.append([name, _NAMES[vector.dtype], vector.numel()])
            body.append(vector.view(torch.uint8).numpy().tobytes())
    raw = b"".join(body)
    full = {"kind": kind, **header}
    if manifest:
        full |= {"parts": manifest, "digest": digest(raw)}
    text = json.dumps(full, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > HEADER:
        raise ValueError(f"a header of {len(text)} bytes; at most {HEADER}")
    return MAGIC + struct.pack("<I", len(text)) + text + raw


def unpack(data: bytes | memoryview, limit: int = LIMIT) -> Message:
    """A message taken apart, with every size and the digest checked; raises `RefusedError` and nothing else."""
    view = memoryview(data)
    if len(view) > limit:
        raise RefusedError("oversized", f"{len(view)} bytes, at most {limit} are taken")
    if len(view) < 8 or bytes(view[:4]) != MAGIC:
        raise RefusedError("malformed", "not a message of this protocol")
    (length,) = struct.unpack("<I", view[4:8])
    if length > HEADER or 8 + length > len(view):
        raise RefusedError("malformed", f"a header of {length} bytes does not fit")
    try:
        header = json.loads(bytes(view[8 : 8 + length]), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise RefusedError("malformed", "the header is not JSON") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise RefusedError("malformed", "the header lacks its kind")
    return Message(header, _parts(header, view[8 + length :]))


def _parts(header: Mapping[str, Any], body: memoryview) -> dict[str, tuple[str, memoryview]]:
    manifest = header.get("parts", [])
    if not isinstance(manifest, list) or len(manifest) > PARTS:
        raise RefusedError("malformed", "the manifest is not a list of a sensible length")
    found, at = dict[str, tuple[str, memoryview]](), 0
    for entry in manifest:
        name, dtype, count = _entry(entry)
        size = count * DTYPES[dtype].itemsize
        if name in found or at + size > len(body):
            raise RefusedError("malformed", "the manifest promises more than there is, or something twice")
        found[name] = dtype, body[at : at + size]
        at += size
    if at != len(body):
        raise RefusedError("malformed", f"{len(body) - at} bytes that the manifest does not name")
    if manifest and header.get("digest") != digest(body):
        raise RefusedError("damaged", "the digest of the body is another one")
    return found


def _entry(entry: Any) -> tuple[str, str, int]:
    if isinstance(entry, list) and len(entry) == 3:
        name, dtype, count = entry
        if isinstance(name, str) and isinstance(dtype, str) and dtype in DTYPES and _whole(count):
            return name, dtype, count
    raise RefusedError("malformed", "an entry of the manifest is not [name, dtype, count]")


def digest(data: bytes | bytearray | memoryview) -> str:
    """SHA-256, the first half of it: enough to tell messages apart and to see damage."""
    return hashlib.sha256(data).hexdigest()[:32]


# Headers as dataclasses

T = TypeVar("T")


def read(kind: type[T], header: Mapping[str, Any]) -> T:
    """The header as this dataclass of plain values, every field checked; other fields are ignored."""
    values = {}
    for name, hint, needed in _fields(kind):  # type: ignore[arg-type]
        if name in header:
            values[name] = _checked(header[name], hint, name)
        elif needed:
            raise RefusedError("malformed", f"{kind.__name__} lacks {name}")
    return kind(**values)


@cache
def _fields(kind: type) -> list[tuple[str, Any, bool]]:
    """(name, type, whether it must be given) of each field."""
    hints = get_type_hints(kind)
    return [
        (each.name, hints[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
    ]


def _checked(value: Any, hint: Any, name: str) -> Any:
    if hint is int and _whole(value):
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str) and len(value) <= 4096:
        return value
    if hint == dict[str, float] and isinstance(value, dict) and len(value) <= 256:
        return {str(key): _checked(v, float, name) for key, v in value.items()}
    raise RefusedError("malformed", f"{name} is not what it should be")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _BIG


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


@dataclass(frozen=True)
class RunHeader:
    """What every message says."""

    run: str


@dataclass(frozen=True)
class ClientHeader(RunHeader):
    """What every message of a client says."""

    client: str


@dataclass(frozen=True)
class Hello(ClientHeader):
    """A client is there. after_*: the last of its messages that it knows to be settled, if its epoch is new."""

    epoch: int
    nonce: str
    after_epoch: int = 0
    after_seq: int = 0


@dataclass(frozen=True)
class Trained(ClientHeader):
    """A job is done, or cannot be done (`error`). Times are seconds, measured by the client.

    others: job -> what it took to compute, of held results since the last message that nobody asked for.
    """

    epoch: int
    seq: int
    job: int
    steps: int
    download: float = 0.0
    wait: float = 0.0
    compute: float = 0.0
    error: str = ""
    others: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Parted(ClientHeader):
    """A message too large for the broker, which lies beside the log in pieces."""

    name: str  # its digest
    count: int
    size: int


class Oversized(ClientHeader):
    """A message in pieces that is larger than what is taken: what the server reads in its place."""


@dataclass(frozen=True)
class Bye(ClientHeader):
    """A client leaves."""

    epoch: int


@dataclass(frozen=True)
class Judged(ClientHeader):
    """A client's count of right answers on its own held-out data, for the evaluation of this number."""

    epoch: int
    number: int
    right: int
    total: int
    loss: float = 0.0  # summed over the samples
    diverged: bool = False  # the loss is nan, which JSON has no word for


class Begun(RunHeader):
    """The run begins."""


@dataclass(frozen=True)
class Rung(RunHeader):
    """An alarm is due."""

    alarm: int


@dataclass(frozen=True)
class Expired(RunHeader):
    """A job's lease is over."""

    job: int


@dataclass(frozen=True)
class Gone(RunHeader):
    """Nothing was heard of a client for too long."""

    client: int
    epoch: int


@dataclass(frozen=True)
class Scored(RunHeader):
    """A model was evaluated by the server."""

    task: int
    time: float
    updates: int
    version: int
    metrics: dict[str, float]
    diverged: bool = False  # the loss is nan


@dataclass(frozen=True)
class Asked(RunHeader):
    """The clients are to evaluate a task's model on their own held-out data."""

    task: int


@dataclass(frozen=True)
class Halted(RunHeader):
    """The run ends from outside: its time is over, or somebody stopped it."""

    reason: str


@dataclass(frozen=True)
class Retired(RunHeader):
    """A client will not come back; what it has contributed stays."""

    client: int


@dataclass(frozen=True)
class Beat(ClientHeader):
    """A client's heartbeat; not part of the log. seen: one more than the revision of the newest assignment it knows."""

    epoch: int
    seen: int
    job: int = 0
    done: int = 0  # local steps of it
    working: bool = False


FromClient: TypeAlias = Hello | Trained | Parted | Oversized | Bye | Judged
FromServer: TypeAlias = Begun | Rung | Expired | Gone | Scored | Asked | Halted | Retired
Header: TypeAlias = FromClient | FromServer | Beat

HEADERS: dict[str, type[Any]] = {each.__name__.lower(): each for each in get_args(Header)}  # by kind


def say(header: Header, parts: Parts | None = None, dtype: str = "") -> bytes:
    """The message with this header."""
    return pack(type(header).__name__.lower(), vars(header), parts, dtype)


def heard(message: Message) -> Any:
    """The header of a message, as the class of its kind."""
    if message.kind not in HEADERS:
        raise RefusedError("malformed", f"of an unknown kind, {message.kind[:40]!r}")
    return read(HEADERS[message.kind], message.header)
