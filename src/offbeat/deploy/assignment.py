"""A client's assignment: all that the server wants of it and has to tell it, in one message that replaces the last.

The newest assignment says everything, so that one may be lost, doubled or overtaken. It lists the jobs in flight, the
recalls, and the verdict on the client's last message. Small models come with it; large ones are named by
their digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from offbeat.core.events import Job
from offbeat.core.vectors import Payload
from offbeat.deploy import encoding, wire
from offbeat.deploy.cohorts import CALL, ROSTER, SHARES, calls_of
from offbeat.deploy.encoding import Message, RefusedError
from offbeat.deploy.ledger import Ledger

INLINE = 1 << 17  # bytes of models that travel with an assignment
_CACHE = 1 << 27  # bytes of models that are kept packed


@dataclass(frozen=True)
class AssignmentHeader(wire.RunHeader):
    """What an assignment says in plain values."""

    revision: int
    epoch: int
    nonce: str
    seq: int
    digest_last: str
    verdict: str
    present: bool
    stopped: encoding.Text
    applied: int  # updates of this client, in all epochs
    refused: int
    failed: int
    known_epoch: int  # of a run that was restored from a backup: the client's last message of which it knows
    known_seq: int
    known_nonce: str = ""  # and which copy of the client that was from


@dataclass(frozen=True)
class CohortCall:
    """What is asked of a member of a cohort, as `cohorts.calls_of` writes it. call, roster, shares: as they came."""

    number: int
    phase: str
    sharers: tuple[int, ...]
    call: bytes
    roster: bytes
    shares: bytes


@dataclass(frozen=True, kw_only=True)
class Assignment(AssignmentHeader):
    """An assignment as its client reads it. jobs: (job, digest of its payload), in the order of sending."""

    jobs: tuple[tuple[Job, str], ...]
    oldest: Mapping[int, int]  # task -> the first held job whose result would still be taken
    recalls: Mapping[int, bool]  # task -> whether what is done so far is wanted
    turned_away: tuple[str, str]
    memory: Mapping[int, str] | None  # of a restored run: task -> digest of what the client is to remember
    judge: tuple[tuple[int, int, str], ...]  # (number, task, digest of the model) of evaluations that are asked for
    models: Mapping[str, bytes]  # by digest
    # where clients mask for each other:
    attempt: int = 0  # the least that its next result, if it waits for others, is to say
    waits: str = ""  # the digest of its message that waits for others
    call: CohortCall | None = None  # to a cohort
    reveal: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] = ()  # (sum, survivors, drop-outs), not answered

    @property
    def last(self) -> tuple[int, int]:
        """The last message that was settled."""
        return self.epoch, self.seq

    def holds(self, job: Job) -> bool:
        """Whether this is held work whose result would be taken, though newer work may have replaced it on the list."""
        return job.hold and job.id >= self.oldest.get(job.task, job.id + 1)

    @property
    def restored(self) -> bool:
        """Whether the run was put back to an earlier state, and no copy of this client has begun anew yet."""
        return self.epoch > 0 and not self.nonce


class Models:
    """Payloads as bytes and their digests; a payload that many jobs share is packed once."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], tuple[list[torch.Tensor], str, bytes]] = {}
        self.size = 0  # bytes

    def pack(self, payload: Payload) -> tuple[str, bytes]:
        """(digest, bytes) of a payload."""
        key = tuple(id(vector) for vector in payload.values())
        if key not in self.known:
            data = encoding.pack("model", {}, payload)
            self.known[key] = (
                list(payload.values()),
                encoding.digest(data),
                data,
            )  # the tensors, so that no id is reused
            self.size += len(data)
            while len(self.known) > 32 or (self.size > _CACHE and len(self.known) > 1):
                self.size -= len(self.known.pop(next(iter(self.known)))[2])
        _, name, data = self.known[key]
        return name, data


def read_model(data: bytes, name: str) -> Payload:
    """A payload from its bytes, checked against its digest."""
    if encoding.digest(data) != name:
        raise RefusedError("damaged", "a model is not the one that was asked for")
    message = encoding.unpack(data)
    return {part: message.vector(part) for part in message.parts}


def write_assignment(
    run: str,
    ledger: Ledger,
    client: int,
    models: Models,
    put: Callable[[str, bytes], None],
    inline: int = INLINE,
    roster: bytes | None = None,
) -> bytes:
    """The assignment of a client. `put` is called with every model that it does not carry.

    roster: as the coordinator has signed it, where clients mask for each other.
    """
    record = ledger.clients[client]
    found: dict[str, bytes] = {}

    def named(payload: Payload) -> str:
        name, data = models.pack(payload)
        found[name] = data
        return name

    recalls = {} if record.paused else record.recalls
    queued = [*record.queue, *(number for held in record.held.values() for number in held)]
    wanted = [] if record.paused else sorted(queued) if record.held else queued  # a job may have been put off
    flights = [ledger.flights[number] for number in wanted]
    # held work that newer work has replaced has no payload any more
    jobs = [[*flight.job, named(flight.payload)] for flight in flights if flight.payload is not None]
    asked = [
        judging
        for judging in ledger.judging.values()
        if record.present and client < judging.asked and client not in judging.claims
    ]
    judge = [[judging.number, judging.task, named({"model": judging.vector})] for judging in asked]
    resync = None if record.resync is None else [[task, named(part)] for task, part in record.resync.items()]
    on = found if sum(map(len, found.values())) <= inline else {}
    for name, data in found.items():
        if name not in on:
            put(name, data)
    last = (record.seq, record.digest, record.verdict)
    counts = (record.applied, record.refused, record.failed)
    plain = AssignmentHeader(
        run,
        record.revision,
        record.epoch,
        record.nonce,
        *last,
        record.present,
        ledger.stopped,
        *counts,
        *record.known,
        record.known_nonce,
    )
    header = {
        **vars(plain),
        "jobs": jobs,
        "oldest": [[task, held[0]] for task, held in record.held.items()],
        "recalls": [[task, partial] for task, partial in recalls.items()],
        "turned_away": list(record.turned_away),
        "memory": resync,
        "judge": judge,
    }
    called, parts = ({}, {}) if roster is None else calls_of(ledger, client, roster)
    return encoding.pack("assignment", {**header, **called}, {**on, **parts})


def read_assignment(data: bytes) -> Assignment:
    """An assignment taken apart; raises `RefusedError`."""
    message = encoding.unpack(data)
    if message.kind != "assignment":
        raise RefusedError("malformed", "not an assignment")
    try:
        return _assignment(message)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise RefusedError("malformed", "not an assignment of this version") from None


def _assignment(message: Message) -> Assignment:
    h: Mapping[str, Any] = message.header
    return Assignment(
        **vars(encoding.read(AssignmentHeader, h, *_LISTS)),
        jobs=tuple(_job(fields) for fields in h["jobs"]),
        oldest={_whole(task): _whole(number) for task, number in h["oldest"]},
        recalls={_whole(task): _flag(partial) for task, partial in h["recalls"]},
        turned_away=(_text(h["turned_away"][0]), _text(h["turned_away"][1])),
        memory=None if h["memory"] is None else {_whole(task): _text(name) for task, name in h["memory"]},
        judge=tuple((_whole(number), _whole(task), _text(name)) for number, task, name in h["judge"]),
        models={name: bytes(raw) for name, (_, raw) in message.parts.items() if name not in _COHORT},
        attempt=_whole(h.get("attempt", 0)),
        waits=_text(h.get("waits", "")),
        call=_call(message, *h["call"]) if h.get("call") else None,
        reveal=tuple((_whole(n), _places(in_it), _places(others)) for n, in_it, others in h.get("reveal", ())),
    )


_LISTS = ("jobs", "oldest", "recalls", "turned_away", "memory", "judge", "attempt", "waits", "call", "reveal")
_COHORT = (CALL, ROSTER, SHARES)


def _call(message: Message, number: Any, phase: Any, sharers: Any) -> CohortCall:
    call, roster, shares = (bytes(message.parts[name][1]) if name in message.parts else b"" for name in _COHORT)
    return CohortCall(_whole(number), _text(phase), _places(sharers), call, roster, shares)


def _places(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, value))


def _job(given: Any) -> tuple[Job, str]:
    *fields, name = given
    job = Job(*fields)
    for number in (job.id, job.client, job.task, job.version, job.steps, job.number):
        _whole(number)
    if type(job.lr) not in (int, float):
        raise ValueError
    return job._replace(lr=float(job.lr), hold=_flag(job.hold)), _text(name)


def _whole(value: Any) -> int:
    if not encoding.whole(value):
        raise ValueError
    return int(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value
