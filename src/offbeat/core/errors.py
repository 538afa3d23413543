"""Everything offbeat raises on purpose. Each message names the offending value and what to do about it.

OffbeatError
├── SettingError       a setting that cannot work: unknown key, negative rate, impossible combination
├── DataError          a data file that is missing, truncated or not what it claims to be
├── ModelError         a model that cannot be one flat vector: running statistics, no parameters
├── DivergedError      a client's result is not finite
├── FolderError        a run folder or checkpoint that cannot be read
├── WorkerError        worker processes die again and again
├── InterruptedRunError  the user stopped a run, which was saved
└── HandlerError       a server handler failed; carries the event that it was handling
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, get_args


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


def nearest(name: str, known: Iterable[str]) -> str:
    """What a name that is not among the known ones was probably meant to be."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


def finite(**settings: float | None) -> None:
    """Refuse settings that are not finite numbers; here and below, None is a setting left out."""
    _refuse(settings, lambda value: True, "must be a finite number")


def positive(**settings: float | None) -> None:
    """Refuse settings that are not finite numbers above 0."""
    _refuse(settings, lambda value: value > 0, "must be a positive number")


def not_negative(**settings: float | None) -> None:
    """Refuse settings that are not finite numbers from 0 on."""
    _refuse(settings, lambda value: value >= 0, "must be a number, 0 or above")


def share(**settings: float | None) -> None:
    """Refuse settings that are not in (0, 1]."""
    _refuse(settings, lambda value: 0 < value <= 1, "must be a share in (0, 1]")


def _refuse(settings: Mapping[str, Any], fits: Callable[[float], bool], wanted: str) -> None:
    for name, value in settings.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value) and fits(value)):
            raise SettingError(f"{name} = {value!r}: {wanted}")


def at_least(least: int, **settings: int | None) -> None:
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


def one_of(values: Any, **settings: Any) -> None:
    """Refuse settings that are not among the values of this Literal."""
    for name, value in settings.items():
        if value not in get_args(values):
            raise SettingError(f"{name} = {value!r}: must be one of {', '.join(map(repr, get_args(values)))}")
