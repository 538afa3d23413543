"""Everything offbeat raises on purpose. Each message names the offending value and what to do about it.

OffbeatError
├── SettingError       a setting that cannot work: unknown key, negative rate, impossible combination
├── DataError          a data file that is missing, truncated or not what it claims to be
├── ModelError         a model that cannot be one flat vector: running statistics, no parameters
├── DivergedError      a client's result is not finite
├── SpentError         a job would exceed a client's own privacy budget
├── TrainingError      a local trainer failed: a class, or a training loop of the user's own
├── FolderError        a run folder or checkpoint that cannot be read
├── WorkerError        worker processes die again and again
├── InterruptedRunError  the user stopped a run, which was saved
└── HandlerError       a server handler failed; carries the event that it was handling
"""

from __future__ import annotations

import dataclasses
import difflib
import errno
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


class OffbeatError(Exception):
    """Base of all errors raised on purpose; the command line prints them in one line and exits with 1."""


class SettingError(OffbeatError, ValueError):
    """A setting that cannot work."""


class DataError(OffbeatError):
    """A data file that is missing, truncated or not what it claims to be."""


class ModelError(OffbeatError):
    """A model that cannot be trained as one flat vector."""


class DivergedError(OffbeatError):
    """A client's result is not finite."""


class SpentError(OffbeatError):
    """A job would exceed what is left of a client's own privacy budget."""


class TrainingError(OffbeatError):
    """A local trainer failed, or a training loop of the user's own left no model that could be taken."""


class FolderError(OffbeatError):
    """A run folder or checkpoint that cannot be read."""


class WorkerError(OffbeatError):
    """Worker processes die again and again."""


class InterruptedRunError(OffbeatError):
    """The user stopped a run; it was saved and can be resumed."""


class HandlerError(OffbeatError):
    """A server handler failed while it handled an event."""


def unknown(kind: str, name: str, known: Iterable[str]) -> SettingError:
    """The error for a name that is not among the known ones, naming the nearest."""
    return SettingError(f"unknown {kind} {name!r}; {nearest(name, known)}")


def not_installed(what: str, extra: str, otherwise: str = "") -> SettingError:
    """The error for something that needs packages which an extra of offbeat installs. otherwise: what works without."""
    ways = f"pip install 'offbeat[{extra}]', or in a clone pip install -c constraints.txt -e '.[{extra}]'"
    return SettingError(f"{what}; install the extra {extra}: {ways}{otherwise}")


def failure(error: BaseException, file: str | None = None) -> str:
    """What went wrong in a user's function that was called where this is caught: in one line, with its place.

    The place is the last line that was at work in the file of the function: what it calls may fail deep in a library.
    file: that file, if it is not the function itself that was called.
    """
    said = next(iter(str(error).strip().splitlines()), "no reason given")
    inside = traceback.extract_tb(error.__traceback__)[1:]
    file = inside[0].filename if file is None and inside else file
    at = next((frame for frame in reversed(inside) if frame.filename == file), None)
    place = f" ({Path(at.filename).name}:{at.lineno}, in {at.name})" if at else ""
    return f"{type(error).__name__}: {said}{place}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What a name that is not among the known ones was probably meant to be."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


def _checker(fits: Callable[[float], bool], wanted: str) -> Callable[..., None]:
    """A function that refuses settings, given by name, which are not finite numbers that fit; None is one left out."""

    def refuse(**settings: Any) -> None:
        for name, value in settings.items():
            number = isinstance(value, Real) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value) and fits(value)):
                raise SettingError(f"{name} = {value!r}: {wanted}")

    refuse.__doc__ = f"Refuse settings, given by name: each {wanted}, or None if it is left out."
    return refuse


finite = _checker(lambda value: True, "must be a finite number")
positive = _checker(lambda value: value > 0, "must be a positive number")
not_negative = _checker(lambda value: value >= 0, "must be a number, 0 or above")
share = _checker(lambda value: 0 < value <= 1, "must be a share in (0, 1]")
fraction = _checker(lambda value: 0 <= value < 1, "must be in [0, 1)")


def at_least(least: int, /, **settings: int | None) -> None:
    """Refuse settings that are not whole numbers from `least` on."""
    for name, value in settings.items():
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
            raise SettingError(f"{name} = {value!r}: must be a whole number")
        if value is not None and value < least:
            raise SettingError(f"{name} = {value!r}: must be at least {least}")


def ordered(**settings: float) -> None:
    """Refuse two settings of which the first exceeds the second."""
    (low, first), (high, second) = settings.items()
    if first > second:
        raise SettingError(f"{low} = {first!r}: must not exceed {high} = {second!r}")


Positive = Annotated[float, positive]
NotNegative = Annotated[float, not_negative]
Share = Annotated[float, share]
Fraction = Annotated[float, fraction]
Count = Annotated[int, partial(at_least, 1)]


class Checked:
    """Base of dataclasses whose fields are checked by their types: those above, literals, and what holds them.

    A list is taken for a tuple, and a whole number of NumPy's for an int.

    >>> @dataclasses.dataclass
    ... class Step(Checked):
    ...     lr: Positive
    >>> Step(-1.0)
    Traceback (most recent call last):
    offbeat.core.errors.SettingError: lr = -1.0: must be a positive number
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in _hints(kind).items():
            value = getattr(self, name)
            if isinstance(value, list) and _takes_a_tuple(hint):
                value = tuple(value)
                object.__setattr__(self, name, value)
            elif isinstance(value, Integral) and not isinstance(value, int):
                value = int(value)
                object.__setattr__(self, name, value)
            _check(hint, value, name)


def _takes_a_tuple(hint: Any) -> bool:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(option) or option for option in options]
    return tuple in kinds and list not in kinds


@lru_cache(maxsize=1024)
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields; a class whose annotations cannot be looked up here adds none."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        with suppress(NameError):
            found |= get_type_hints(base, include_extras=True)
    return {f.name: found[f.name] for f in dataclasses.fields(kind) if f.init and f.name in found}


def _check(hint: Any, value: Any, name: str) -> None:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        hint.__metadata__[0](**{name: value})
    elif origin is Literal:
        if value not in inner:
            raise SettingError(f"{name} = {value!r}: must be one of {', '.join(map(repr, inner))}")
    elif origin in (Union, UnionType):
        checked = [option for option in inner if get_origin(option) in (Annotated, Literal)]
        fitting = [option for option in inner if checked and _fits(option, value)]
        for option in (fitting or checked)[:1]:
            try:
                _check(option, value, name)
            except SettingError as error:
                words = [repr(w) for other in checked if other is not option for w in _words(other)]
                raise SettingError(" or ".join([str(error), *words])) from None
    elif origin is tuple and isinstance(value, tuple | list):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        for at, (kind, each) in enumerate(zip(kinds, value, strict=False)):
            _check(kind, each, f"{name}[{at}]")
    elif origin is Mapping and isinstance(value, Mapping):
        if not value and get_origin(inner[1]) is Annotated:
            raise SettingError(f"{name} = {value!r}: must hold at least one number")
        for key, each in value.items():
            _check(inner[1], each, f"{name}.{key}")


def _words(option: Any) -> tuple[Any, ...]:
    return get_args(option) if get_origin(option) is Literal else ()


def _fits(option: Any, value: Any) -> bool:
    origin = get_origin(option) or option
    return value in get_args(option) if origin is Literal else isinstance(origin, type) and isinstance(value, origin)


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def disk_full(error: Exception) -> bool:
    """Whether an error says that a disk has no room."""
    known = isinstance(error, OSError) and error.errno in _NO_ROOM
    return known or any(f"(os error {code})" in str(error) for code in _NO_ROOM)  # as safetensors says it


def one_line(error: Exception) -> str:
    """The first line of an error raised by the user's code or by a library, with the next if it announces one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {said or 'no reason given'}"
