"""What a client wants done, in the order in which it says so; the set is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from offbeat.core.events import Job
from offbeat.core.vectors import Payload

Progress: TypeAlias = tuple[int, tuple[int, int], int, int, bool, int]  # of a client's state; a newer one's is larger


class Save(NamedTuple):
    """Write this to the disk, whole or not at all, and be sure that it stays."""

    data: bytes


class Mirror(NamedTuple):
    """Leave this with the broker under this name, sealed; then call `mirrored`. progress: tells newer copies from older
    ones, which the broker may get in another order."""

    nonce: str
    data: bytes
    progress: Progress


class Recover(NamedTuple):
    """Read what was left with the broker under this name; then call `recovered`."""

    nonce: str


class Tell(NamedTuple):
    """Append this to the log. It may fail; it is told again."""

    data: bytes
    name: str  # the same for the same message


class Sign(NamedTuple):
    """A sign of life, to nobody in particular."""

    data: bytes


class Fetch(NamedTuple):
    """Get the model of this digest; then call `fetched`."""

    digest: str


class Train(NamedTuple):
    """Begin this job; call `done` or `failed` when it is."""

    job: Job
    payload: Payload
    memory: Payload


class Interrupt(NamedTuple):
    """Stop the job at work; with `keep`, call `done` with the steps that it has made."""

    keep: bool


class Judge(NamedTuple):
    """Evaluate this model on the client's own held-out data; then call `judged`."""

    number: int
    task: int
    payload: Payload
    memory: Payload


class Exit(NamedTuple):
    """There is nothing more to do; `error` is empty if that is as it should be."""

    error: str


Effect: TypeAlias = Save | Mirror | Recover | Tell | Sign | Fetch | Train | Interrupt | Judge | Exit


class Judgement(NamedTuple):
    """An evaluation on the client's own held-out samples. sums: by metric, what it is a function of.

    personal: the task's main metric, by its name, of the client's personalised model.
    """

    total: int
    loss: float = 0.0  # summed
    sums: Mapping[str, Sequence[float]] = {}
    personal: Mapping[str, float] = {}


class Done(NamedTuple):
    """A result. Times are seconds.   cut: whether a part of it was lost to fixed point."""

    job: Job
    upload: Payload
    memory: Payload
    steps: int
    download: float = 0.0
    wait: float = 0.0
    compute: float = 0.0
    cut: bool = False
