"""What a client wants done, in the order in which it says so; the set is closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from offbeat.core.events import Job
from offbeat.core.vectors import Payload


@dataclass(frozen=True)
class Save:
    """Write this to the disk, whole or not at all, and be sure that it stays."""

    data: bytes


@dataclass(frozen=True)
class Mirror:
    """Leave this with the broker under this name, sealed; then call `mirrored`."""

    nonce: str
    data: bytes


@dataclass(frozen=True)
class Recover:
    """Read what was left with the broker under this name; then call `recovered`."""

    nonce: str


@dataclass(frozen=True)
class Tell:
    """Append this to the log. It may fail; it is told again."""

    data: bytes
    name: str  # the same for the same message


@dataclass(frozen=True)
class Sign:
    """A sign of life, to nobody in particular."""

    data: bytes


@dataclass(frozen=True)
class Fetch:
    """Get the model of this digest; then call `fetched`."""

    digest: str


@dataclass(frozen=True)
class Train:
    """Begin this job; call `done` or `failed` when it is."""

    job: Job
    payload: Payload
    memory: Payload


@dataclass(frozen=True)
class Interrupt:
    """Stop the job at work; with `keep`, call `done` with the steps that it has made."""

    keep: bool


@dataclass(frozen=True)
class Judge:
    """Evaluate this model on the client's own held-out data; then call `judged`."""

    number: int
    task: int
    payload: Payload


@dataclass(frozen=True)
class Exit:
    """There is nothing more to do; `error` is empty if that is as it should be."""

    error: str


Effect: TypeAlias = Save | Mirror | Recover | Tell | Sign | Fetch | Train | Interrupt | Judge | Exit


@dataclass(frozen=True)
class Done:
    """A result. Times are seconds."""

    job: Job
    upload: Payload
    memory: Payload
    steps: int
    download: float = 0.0
    wait: float = 0.0
    compute: float = 0.0
