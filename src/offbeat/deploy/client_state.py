"""What a client keeps on its disk: who it is, what it remembers, and the message it is not sure has been settled."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch

from offbeat.core.local import BUDGETS, SUMS_SPENT
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.assignment import Assignment
from offbeat.deploy.effects import Progress
from offbeat.deploy.encoding import RefusedError


@dataclass(frozen=True)
class PendingResult:
    """A message that was written down before it was sent, and the memory that goes with it if it is applied."""

    epoch: int
    seq: int
    job: int
    task: int
    message: bytes
    memory: Payload | None  # None: as it was
    # where clients mask for each other:
    attempt: int = 0
    member: bytes = b""  # its part in a cohort (`CohortMember`), with all secrets
    words: bytes = b""  # the numbers that are to be masked
    cohort: int = 0  # the number of the cohort that it is in
    heard: bool = False  # whether it has what the others of that have shared
    shown: bool = False  # whether its masked numbers may have left this client, in this cohort or in one before

    @cached_property
    def digest(self) -> str:
        return encoding.digest(self.message)


@dataclass(frozen=True)
class ClientStateHeader(wire.ClientHeader):
    """What a client's state says in plain values."""

    epoch: int
    nonce: str
    accepted: bool = False
    seq: int = 0
    answers: int = 0  # sums for which it has given its shares away
    roster: int = 0  # where clients mask for each other, the largest serial number of a roster that it has seen


@dataclass(frozen=True)
class ClientState(ClientStateHeader):
    """A client's own state.

    settled: the last (epoch, seq) whose outcome `memory` includes.   memory: by task; empty for those without one.
    """

    settled: tuple[int, int] = (0, 0)
    memory: dict[int, Payload] = field(default_factory=dict)
    pending: PendingResult | None = None
    members: dict[int, bytes] = field(default_factory=dict)  # by number, its part in sums that are closed, not open
    cohort: int = 0  # the largest number of a cohort that it has taken part in

    def after(self, assignment: Assignment) -> ClientState:
        """This state with what the assignment says about the pending message taken in."""
        pending = self.pending
        if (
            pending is not None
            and assignment.last == (pending.epoch, pending.seq)
            and assignment.digest_last == pending.digest
        ):
            memory, members = self.memory, self.members
            if assignment.verdict == APPLIED and pending.memory is not None:
                memory = {**memory, pending.task: {**pending.memory, **_spent(memory.get(pending.task, {}))}}
            if assignment.verdict != APPLIED:
                memory = _given_back(memory, pending)
            if assignment.verdict == APPLIED and pending.heard:
                members = {pending.cohort: pending.member, **members}
            return replace(self, memory=memory, pending=None, settled=assignment.last, members=members)
        if self.named_by(assignment):
            # we were let in: what an earlier epoch had on its way is fenced for good
            memory = self.memory
            if pending is not None and pending.epoch < self.epoch:
                memory, pending = _given_back(memory, pending), None
            settled = assignment.last if assignment.seq == 0 and self.settled[0] < self.epoch else self.settled
            return replace(self, accepted=True, pending=pending, settled=settled, memory=memory)
        return self

    def named_by(self, assignment: Assignment) -> bool:
        """Whether this assignment is for this copy of the client, and not for one before or after it."""
        return (assignment.epoch, assignment.nonce) == (self.epoch, self.nonce)

    @property
    def progress(self) -> Progress:
        """What tells a newer state of the same life from an older one."""
        pending = self.pending
        within = (0, 0, False) if pending is None else (pending.attempt, pending.cohort, pending.heard)
        return self.seq, self.settled, *within, self.answers

    def beside(self, own: ClientState) -> ClientState:
        """This copy, as far as our own disk does not know better: the broker may have returned an old one.

        What was spent stays spent. Of a sum that the disk has been in, it knows itself whether it was answered for.
        """
        memory: dict[int, Payload] = {}
        for task, kept in self.memory.items():
            memory[task] = {**kept, **_more_spent(kept, own.memory.get(task, {}))}
        pending, here = self.pending, own.pending.cohort if own.pending is not None else 0
        members = {n: each for n, each in self.members.items() if n > own.cohort or n == here}
        if pending is not None and here != pending.cohort <= own.cohort:
            pending = replace(pending, heard=False)
        cohort, roster = max(self.cohort, own.cohort), max(self.roster, own.roster)
        members |= own.members
        return replace(self, memory=memory, pending=pending, members=members, cohort=cohort, roster=roster)

    def agrees(self, assignment: Assignment) -> bool:
        """Whether `memory` is the one that the server knows of."""
        return self.after(assignment).settled == assignment.last


def write_client_state(state: ClientState) -> bytes:
    """As bytes for the disk."""
    parts: dict[str, Vector | bytes] = {
        f"m/{task}/{name}": vector for task, memory in state.memory.items() for name, vector in memory.items()
    }
    header = {
        **{each.name: getattr(state, each.name) for each in fields(ClientStateHeader)},
        "settled": list(state.settled),
        "tasks": sorted(state.memory),
    }
    pending = state.pending
    if pending is not None:
        header["pending"] = [pending.epoch, pending.seq, pending.job, pending.task, pending.memory is not None]
        parts["message"] = pending.message
        parts |= {f"p/{name}": vector for name, vector in (pending.memory or {}).items()}
        if pending.member:
            header["member"] = [pending.attempt, pending.cohort, int(pending.heard), int(pending.shown)]
            parts |= {"member": pending.member, "words": pending.words}
    if state.cohort:
        header["cohorts"] = [state.cohort, *state.members]
        parts |= {f"c/{number}": member for number, member in state.members.items()}
    return encoding.pack("client_state", header, parts)


def read_client_state(data: bytes) -> ClientState:
    """From the disk; raises `RefusedError` for anything else."""
    message = encoding.unpack(data)
    if message.kind != "client_state":
        raise RefusedError("malformed", "not a client's state")
    h = message.header
    try:
        memory = {_whole(task): _under(message, f"m/{task}/") for task in h["tasks"]}
        pending = None
        if "pending" in h:
            *numbers, moved = h["pending"]
            epoch, seq, job, task = map(_whole, numbers)
            kept = _under(message, "p/") if moved else None
            pending = PendingResult(epoch, seq, job, task, bytes(message.parts["message"][1]), kept)
            if "member" in h:
                attempt, cohort, heard, *shown = map(_whole, h["member"])
                mine, words = (bytes(message.parts[name][1]) for name in ("member", "words"))
                pending = replace(pending, attempt=attempt, cohort=cohort, heard=heard > 0, member=mine, words=words)
                pending = replace(pending, shown=any(shown))
        epoch, seq = map(_whole, h["settled"])
        last, *numbers = map(_whole, h.get("cohorts", [0]))
        return ClientState(
            **vars(encoding.read(ClientStateHeader, h, "settled", "tasks", "pending", "member", "cohorts")),
            settled=(epoch, seq),
            memory=memory,
            pending=pending,
            members={number: bytes(message.parts[f"c/{number}"][1]) for number in numbers},
            cohort=last,
        )
    except (KeyError, TypeError, ValueError, IndexError):
        raise RefusedError("malformed", "not a client's state of this version") from None


def _spent(memory: Payload) -> Payload:
    """What a client has spent of its own budget, which no verdict changes: it was charged when it was written down."""
    return {name: memory[name] for name in BUDGETS if name in memory}


def _given_back(memory: dict[int, Payload], pending: PendingResult) -> dict[int, Payload]:
    """What a client remembers when a message was not applied: one that nobody has seen anything of was not spent."""
    kept = memory.get(pending.task, {})
    if not pending.member or pending.shown or SUMS_SPENT not in kept:
        return memory
    return {**memory, pending.task: {**kept, SUMS_SPENT: kept[SUMS_SPENT] - 1}}


def _more_spent(one: Payload, other: Payload) -> Payload:
    """The larger counts of the two, and the samples with which most was spent."""
    found = {}
    for name in BUDGETS:
        if counts := [each[name] for each in (one, other) if name in each]:
            rates = max((each[2:] for each in counts), key=lambda each: float(each[1] / each[0]) if each.sum() else 0.0)
            found[name] = torch.cat([counts[0][:2].maximum(counts[-1][:2]), rates])
    return found


def _whole(value: Any) -> int:
    if not encoding.whole(value):
        raise ValueError
    return int(value)


def _under(message: encoding.Message, prefix: str) -> Payload:
    return {name.removeprefix(prefix): message.vector(name) for name in message.parts if name.startswith(prefix)}
