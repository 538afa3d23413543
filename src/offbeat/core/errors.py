"""Everything offbeat raises on purpose. Each message names the offending value and what to do about it.

OffbeatError
├── SettingError       a setting that cannot work: unknown key, negative rate, impossible combination
├── DataError          a data file that is missing, truncated or not what it claims to be
├── ModelError         a model that cannot be one flat vector: running statistics, no parameters
├── DivergedError      a client's result is not finite
├── FolderError        a run folder or checkpoint that cannot be read
├── WorkerError        worker processes die again and again
└── HandlerError       a server handler failed; carries the event that it was handling
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


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


class HandlerError(OffbeatError):
    """A server handler failed while it handled an event."""


def unknown(kind: str, name: str, known: Iterable[str]) -> SettingError:
    """The error for a name that is not among the known ones, naming the nearest."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return SettingError(f"unknown {kind} {name!r}; {hint}")


def positive(**settings: float | None) -> None:
    """Refuse settings that must be positive numbers; None is a setting left out."""
    for name, value in settings.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise SettingError(f"{name} = {value}: must be a positive number")
