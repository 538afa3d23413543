"""Messages as bytes, on the network and on disk: a JSON header, then raw little-endian numbers. No code, no pickle.

    3 bytes "OBT", 1 of the version | 4 bytes length of the header | header, JSON | body

The header's `parts` is the manifest of the body: [name, dtype, count] of each vector, one after the other. Sizes are
checked against what is there before anything is allocated. Damage is noticed by what carries a message: an envelope is
signed, a model is known by its digest, and a client's disk has one of all that it holds.

Decoding is total: any bytes give a message or a `RefusedError` with a code of its own. The schema is closed: fields
that a kind of message does not have are refused, and so is any number, text, list or nesting beyond its bound. Text
is Unicode that can be written anywhere (no lone surrogates).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from offbeat.core.errors import OffbeatError, SettingError

if TYPE_CHECKING:  # connecting and asking work without PyTorch, which takes seconds to import
    import torch

    from offbeat.core.vectors import Vector

    Parts = Mapping[str, Vector | bytes]

VERSION = 2  # of the messages and of what the fold makes of them; one digit
MAGIC = b"OBT%d" % VERSION
HEADER = 1 << 18  # bytes of a header at most
SHORT = 1 << 12  # the same of what is read before it is known to be of any use: signs of life, questions, copies
DEPTH = 4  # lists and mappings within each other
PARTS = 4096  # vectors of a message at most
NAME = 64  # letters of a name
SUMS = 8192  # numbers of a list: what a metric of a client is made from
KEYS = 256  # of a mapping, and letters of a key or of the name of a vector
LIMIT = 1 << 33  # bytes of a message, unless a smaller limit is given
_BIG = 1 << 53  # integers beyond it are not exact everywhere

SIZES = {"float32": 4, "bfloat16": 2, "float64": 8, "bytes": 1}  # bytes of a number
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")


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
        import torch

        dtype, raw = self.parts[name]
        if not len(raw):
            return torch.empty(0, dtype=dtype_of(dtype))
        found = torch.frombuffer(bytearray(raw), dtype=dtype_of(dtype))
        return found.float() if dtype == "bfloat16" else found

    def length(self, name: str) -> int:
        """How many numbers a part has."""
        dtype, raw = self.parts[name]
        return len(raw) // SIZES[dtype]


def check_name(what: str, name: str) -> str:
    """A name that may stand in a subject of the broker and in a path: letters, digits, - _ + and nothing else."""
    if not _PLAIN.fullmatch(name):
        raise SettingError(f"{what} {name!r}: use up to 64 letters, digits, - _ + and begin with a letter or digit")
    return name


@cache
def dtype_of(name: str) -> torch.dtype:
    """The type of numbers with this name."""
    import torch

    found: torch.dtype = getattr(torch, "uint8" if name == "bytes" else name)
    return found


@cache
def name_of(dtype: torch.dtype) -> str:
    """The name under which numbers of this type travel."""
    names = {dtype_of(name): name for name in SIZES}
    return names[dtype]


def pack(kind: str, header: Mapping[str, Any], parts: Parts | None = None, dtype: str = "") -> bytes:
    """A message. `dtype` "bfloat16" halves float32 vectors, with rounding."""
    manifest, body = list[list[Any]](), list[bytes | memoryview]()
    for name, value in (parts or {}).items():
        if isinstance(value, bytes):
            manifest.append([name, "bytes", len(value)])
            body.append(value)
        else:
            vector = value.detach().cpu().reshape(-1).contiguous()
            if dtype and name_of(vector.dtype) == "float32":
                vector = vector.to(dtype_of(dtype))
            manifest.append([name, name_of(vector.dtype), vector.numel()])
            body.append(vector.view(dtype_of("bytes")).numpy().data)
    full = {"kind": kind, **header, **({"parts": manifest} if manifest else {})}
    text = write_json(full)
    if len(text) > HEADER:
        raise ValueError(f"a header of {len(text)} bytes; at most {HEADER}")
    return b"".join((MAGIC, struct.pack("<I", len(text)), text, *body))


def unpack(data: bytes | memoryview, limit: int = LIMIT, longest: int = HEADER) -> Message:
    """A message taken apart, with every size checked; raises `RefusedError` and nothing else.

    longest: bytes of its header at most.
    """
    view = memoryview(data)
    if len(view) > limit:
        raise RefusedError("oversized", f"{len(view)} bytes, at most {limit} are taken")
    if len(view) < 8 or bytes(view[:3]) != MAGIC[:3]:
        raise RefusedError("malformed", "not a message of this protocol")
    if bytes(view[:4]) != MAGIC:
        other = bytes(view[3:4]).decode("ascii", "replace")
        raise RefusedError(
            "version",
            f"a message of protocol version {other!r}, and this side speaks version {VERSION}; install the same "
            f"release of offbeat at the server and at every site",
        )
    (length,) = struct.unpack("<I", view[4:8])
    if length > longest or 8 + length > len(view):
        raise RefusedError("malformed", f"a header of {length} bytes does not fit")
    header = read_json(bytes(view[8 : 8 + length]))
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise RefusedError("malformed", "the header lacks its kind")
    return Message(header, _parts(header, view[8 + length :]))


def effort(data: bytes | memoryview) -> float:
    """As how many messages this one counts: reading a header may take 0.2 ms for each kilobyte of it."""
    return 1.0 + min(int.from_bytes(data[4:8], "little"), HEADER) / 1024


def read_json(data: bytes) -> Any:
    """Plain data from JSON that was received: numbers are finite and exact, keys are unique, text can be written.

    Raises `RefusedError`.
    """
    try:
        found = _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        raise RefusedError("malformed", "the header is not JSON, or holds a key twice or no number") from None
    _check_plain((found,), DEPTH)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a duplicate key")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_once)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def write_json(value: Any) -> bytes:
    """Plain data as JSON without spaces."""
    return _ENCODER.encode(value).encode()


def _check_plain(values: Iterable[Any], depth: int) -> None:
    for value in values:
        kind = type(value)
        if kind is int:
            if not -_BIG < value < _BIG:
                raise RefusedError("malformed", "an integer that is not exact everywhere")
        elif kind is float:
            if not math.isfinite(value):
                raise RefusedError("malformed", "a number that is not finite")
        elif kind is str:
            if not value.isascii() and _surrogates(value):
                raise RefusedError("malformed", "text with lone surrogates, which cannot be written")
        elif kind is list or kind is dict:
            if not depth:
                raise RefusedError("malformed", f"lists and mappings more than {DEPTH} deep")
            _check_plain(value, depth - 1)
            if kind is dict:
                if (long := max(map(len, value), default=0)) > KEYS:
                    raise RefusedError("malformed", f"a key of {long} letters")
                _check_plain(value.values(), depth - 1)


def _surrogates(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def writable(text: str) -> str:
    """The text as it may stand in a message: printable, on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _parts(header: Mapping[str, Any], body: memoryview) -> dict[str, tuple[str, memoryview]]:
    manifest = header.get("parts", [])
    if not isinstance(manifest, list) or len(manifest) > PARTS:
        raise RefusedError("malformed", "the manifest is not a list of a sensible length")
    found, at = dict[str, tuple[str, memoryview]](), 0
    for entry in manifest:
        name, dtype, count = _entry(entry)
        size = count * SIZES[dtype]
        if name in found or at + size > len(body):
            raise RefusedError("malformed", "the manifest lists more than the message holds, or a part twice")
        found[name] = dtype, body[at : at + size]
        at += size
    if at != len(body):
        raise RefusedError("malformed", f"{len(body) - at} bytes that the manifest does not name")
    return found


def _entry(entry: Any) -> tuple[str, str, int]:
    if isinstance(entry, list) and len(entry) == 3:
        name, dtype, count = entry
        named = isinstance(name, str) and len(name) <= KEYS
        if named and isinstance(dtype, str) and dtype in SIZES and whole(count):
            return name, dtype, count
    raise RefusedError("malformed", "an entry of the manifest is not [name, dtype, count]")


def digest(data: bytes | bytearray | memoryview) -> str:
    """SHA-256, the first half of it: enough to tell messages apart and to see damage."""
    return hashlib.sha256(data).hexdigest()[:32]


# Headers as dataclasses


class Range(NamedTuple):
    """What a number may be; of text, how long."""

    least: float
    most: float


Name = Annotated[str, Range(0, NAME)]
Text = Annotated[str, Range(0, 1000)]
Count = Annotated[int, Range(0, _BIG - 1)]
Seconds = Annotated[float, Range(0.0, 1e9)]  # thirty years
Loss = Annotated[float, Range(-1e30, 1e30)]

T = TypeVar("T")


def read(kind: type[T], header: Mapping[str, Any], *others: str) -> T:
    """The header as this dataclass of plain values, every field checked.   others: names that it may have besides."""
    values, names = {}, {*others, *_FRAME}
    for name, hint, needed in _fields(kind):  # type: ignore[arg-type]
        names.add(name)
        if name in header:
            values[name] = _checked(header[name], hint, name)
        elif needed:
            raise RefusedError("malformed", f"{kind.__name__} lacks {name}")
    unknown = header.keys() - names
    if unknown:
        raise RefusedError("malformed", f"{kind.__name__} has no {min(unknown)[:40]!r}")
    return kind(**values)


_FRAME = ("kind", "parts")  # what every message may have


@cache
def _fields(kind: type) -> list[tuple[str, Any, bool]]:
    """(name, type, whether it must be given) of each field."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (each.name, hints[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
    ]


@cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...], Any, Range | None]:
    """(origin, arguments, plain type, bound) of an annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    return origin, inner, *(inner if origin is Annotated else (hint, None))


def _checked(value: Any, hint: Any, name: str) -> Any:
    """The value, if it is of this type; a number or text without a bound of its own has a common one."""
    origin, inner, kind, bound = _shape(hint)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str) and len(value) <= (bound.most if bound else NAME):
        return value
    if kind is int and whole(value) and (bound is None or bound.least <= value <= bound.most):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)  # of an integer that JSON may hold, and so exact
        if math.isfinite(number) and (bound is None or bound.least <= number <= bound.most):
            return number
    if origin is dict and isinstance(value, dict) and len(value) <= KEYS:
        return {_checked(k, inner[0], name): _checked(v, inner[1], name) for k, v in value.items()}
    if origin is list and isinstance(value, list) and len(value) <= SUMS:
        return [_checked(each, inner[0], name) for each in value]
    raise RefusedError("malformed", f"{name} has the wrong type or is out of range")


def whole(value: Any) -> bool:
    """Whether this is a whole number, from 0 on, that is exact everywhere."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _BIG
