"""Cohorts of a run whose clients mask for each other: what the fold makes of their messages.

The rules, before the code:

1. A client that has trained says that it is ready, with keys of this attempt, and keeps its numbers. Its message is not
   settled yet, and its job stays in flight. It does not count as late while it waits for others.
2. When as many are ready for a task as a step of it takes, they are called to a cohort. If nobody else is at work, nor
   waits for a sum to be opened, fewer are called, `secure.cohort` of them at least: otherwise everybody would wait for
   ever. Of several tasks, the one with the oldest job goes first: so none waits for ever. If too few are ready in each,
   that is the one with the oldest job of those for which enough clients have work, and who waits in another task puts
   the result off: it is refused, is in no sum, and its job comes again after the one of that task.
3. A cohort deals shares, then sends masked numbers. Each phase ends when all that are left have done so, or after a
   while without the others. Whoever is left out is to say again that it is ready, with fresh keys.
4. If fewer than `threshold` or `secure.cohort` are left before the sum is closed, the cohort is aborted, and all its
   members come again. Nobody has given anything away by then.
5. Those whose masked numbers are here when masking ends are in the sum: their messages are settled as "applied", each
   once, and the server is told. From here on the sum is closed and never made again from the same numbers: two sums
   that differ in one client would show that one's.
6. A client keeps a cohort from giving a sum by silence in a phase that half of the others are done with, or by shares
   that a third of the members say they cannot open. If that was one member alone, in a cohort of up to three, one of
   the two lies, and it counts for both. After `BALKS` such cohorts in a row a client is left out of the run.
7. A closed sum is open when `threshold` of its members have given away their shares. They can do so late. If some are
   wrong, more are waited for: any that fit do. A sum that too few can open any more is lost, as with a helper
   (`Sums.unopened`).
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from offbeat.core.guard import Guard
from offbeat.core.server import SPENT
from offbeat.core.sums import Cohort
from offbeat.core.vectors import Vector
from offbeat.deploy import wire
from offbeat.deploy.admission import ONCE, read_words
from offbeat.deploy.encoding import Message, RefusedError
from offbeat.deploy.helping import context_of
from offbeat.deploy.ledger import Gathering, Ledger, SentJob, Waiting
from offbeat.deploy.part import FoldPart
from offbeat.privacy.secure.calls import SEALED, Call, ReadyKeys, read_call, read_ready, threshold
from offbeat.privacy.secure.opening import left_masks
from offbeat.privacy.secure.shamir import SHARE
from offbeat.privacy.secure.tickets import KEY, TicketError

SHARING, MASKING, OPENING = "sharing", "masking", "opening"
PHASE = "\0phase:"  # the key of the alarm at the end of a phase
PART = 10  # of a lease that a phase takes at most
BALKS = 5  # cohorts in a row that a client may keep from giving a sum


class Cohorts(FoldPart):
    """The cohorts in a fold's ledger."""

    @property
    def least(self) -> int:
        assert self.plan.secure is not None
        return self.plan.secure.cohort

    # A client is ready

    def known(self, client: int, result: wire.Trained, digest: str) -> bool:
        """Whether there is nothing to do about this message: it waits already, or is of an attempt that is over."""
        record, waiting = self.ledger.clients[client], self.ledger.waiting.get(result.job)
        if result.error:
            return False
        if waiting is not None and waiting.client == client and result.attempt >= record.attempt:
            if waiting.digest == digest:
                return True
            self.again(result.job)  # its client has lost the keys of the other one
        return result.attempt < record.attempt

    def wait(self, client: int, flight: SentJob, result: wire.Trained, message: Message, digest: str) -> None:
        """A result is ready; raises `RefusedError` unless its keys are its client's."""
        record, context = self.ledger.clients[client], context_of(self.plan, flight.job.task)
        if message.parts.keys() != {"keys"} or message.parts["keys"][0] != "bytes":
            raise RefusedError("names", f"holds {', '.join(message.parts) or 'nothing'}, expected keys")
        try:
            keys = bytes(message.parts["keys"][1])
            ready = read_ready(record.name, (result.epoch, result.seq, result.attempt), keys)
        except TicketError as error:
            raise RefusedError(error.code, str(error)) from None
        if not ready.verify(context, bytes.fromhex(record.sign)):
            raise RefusedError("forged", "its keys are not signed by its client")
        self.ledger.waiting[flight.job.id] = Waiting(client, dict(vars(result)), keys.hex(), digest)
        self.ledger.ready.append(flight.job.id)
        self.fold.traffic.rest(flight.job.id)

    def again(self, job: int) -> None:
        """The client of this job is to say once more that it is ready, with other keys."""
        waiting = self.ledger.waiting[job]
        self.ledger.clients[waiting.client].attempt = waiting.said["attempt"] + 1
        self.fold.traffic.renew(job)
        self.fold.traffic.touch(waiting.client)

    def rekeyed(self, client: int) -> None:
        """A client has other keys: what it has signed with those before is void."""
        for job in self.ledger.clients[client].queue:
            if job in self.ledger.waiting:
                self.again(job)

    # Calling

    def look(self) -> None:
        """After each entry: go on with cohorts that have lost a member, and call the next one."""
        fewer, self.fold.traffic.fewer = self.fold.traffic.fewer, set()
        for number in sorted(fewer):
            if number in self.ledger.gatherings:
                self._advance(self.ledger.gatherings[number])
        while chosen := self._chosen():
            self._call(chosen)
        self._end_if_spent()

    def _chosen(self) -> list[int]:
        """The jobs of the next cohort, if there is one."""
        ready = dict[int, list[int]]()
        for job in self.ledger.ready:
            ready.setdefault(self._task(job), []).append(job)
        for task, jobs in ready.items():
            size = self.fold.server.adds(task) or 1
            if len(jobs) >= size:
                return jobs[:size]
        if not ready or self._at_work():
            return []
        enough = [jobs for jobs in ready.values() if len(jobs) >= self.least]
        if enough:
            return min(enough, key=min)
        self._put_off()
        return []

    def _task(self, job: int) -> int:
        return self.ledger.flights[job].job.task

    def _at_work(self) -> bool:
        """Whether anybody who has work does not wait for others, or is about to."""
        census = self.fold.traffic.census
        return len(self.ledger.ready) < len(census.present) - len(census.idle) or self._opening()

    def _put_off(self) -> None:
        """Those who wait where too few are ready let another task go first: each has its turn, the oldest job's."""
        ledger, working = self.ledger, dict[int, set[int]]()
        for flight in ledger.flights.values():
            working.setdefault(flight.job.task, set()).add(flight.job.client)
        able = [self._task(job) for job in sorted(ledger.flights) if len(working[self._task(job)]) >= self.least]
        if not able:
            return  # others have to come
        first = able[0]
        for job in [*ledger.ready]:
            waiting = ledger.waiting[job]
            if self._task(job) != first and waiting.client in working[first]:
                record = ledger.clients[waiting.client]
                record.seq, record.digest, record.verdict = waiting.said["seq"], waiting.digest, "crossed"
                record.attempt, record.cancelled = 0, []
                ledger.tally.refused["crossed"] = ledger.tally.refused.get("crossed", 0) + 1
                self.fold.verdicts.spend_refused(waiting.client, wire.Trained(**waiting.said), ledger.flights[job])
                self.fold.traffic.put_off(job, first)

    def _end_if_spent(self) -> None:
        """Finish a task if all who have work wait, and the budgets of too many of the others are spent for it."""
        ledger, server = self.ledger, self.fold.server
        guard: Guard | None = getattr(server, "guard", None)
        if guard is None:
            return
        for task in ledger.open_tasks:
            ready = {ledger.waiting[job].client for job in ledger.ready}
            working = {flight.job.client for flight in ledger.flights.values()}
            if not ready or working - ready or ledger.gatherings or ledger.stopped:
                return
            if guard.exhausted(server.models(ledger.server)[task], self.fold.view.clients, self.least):
                self.fold.close_task(task, SPENT)

    def _opening(self) -> bool:
        """Whether a sum is being opened, whose members are then at work again; not if that has taken a lease."""
        each = self.ledger.gatherings.values()
        return any(one.phase == OPENING and one.alarm in self.ledger.alarms for one in each)

    def _call(self, jobs: list[int]) -> None:
        ledger = self.ledger
        ledger.sums += 1
        task = ledger.flights[jobs[0]].job.task
        call = Call(ledger.sums, context_of(self.plan, task), tuple(self._ready(job) for job in jobs))
        clients = [ledger.waiting[job].client for job in jobs]
        gathering = Gathering(ledger.sums, task, _bytes(call.to_bytes()), clients, jobs, SHARING)
        ledger.gatherings[gathering.number] = gathering
        ledger.ready = [job for job in ledger.ready if job not in jobs]
        for job in jobs:
            ledger.waiting[job].cohort = gathering.number
        self._begin(gathering, SHARING)

    def _ready(self, job: int) -> ReadyKeys:
        waiting = self.ledger.waiting[job]
        numbers = waiting.said["epoch"], waiting.said["seq"], waiting.said["attempt"]
        return read_ready(self.ledger.clients[waiting.client].name, numbers, bytes.fromhex(waiting.keys))

    def _begin(self, gathering: Gathering, phase: str) -> None:
        """A phase begins: the members are told, and it ends after a while."""
        gathering.phase, limits = phase, self.ledger.limits
        self.ledger.alarms.pop(gathering.alarm, None)
        seconds = limits.lease if phase == OPENING else limits.lease / PART
        self.fold.alarm(self.ledger.now + seconds / self.plan.unit, f"{PHASE}{gathering.number}:{phase}")
        gathering.alarm = self.ledger.counter
        for client in gathering.clients:
            self.fold.traffic.touch(client)

    # What members say

    def shared(self, client: int, number: int, message: Message) -> str:
        """A member has dealt shares."""
        gathering, place = self._place(client, number, SHARING)
        if gathering is None or place in gathering.sealed:
            return self._repeated(client)
        gathering.sealed[place] = _part(message, "shares", SEALED * (len(gathering.clients) - 1))
        self._advance(gathering)
        return ""

    def masked(self, client: int, number: int, message: Message) -> str:
        """A member has sent its update."""
        gathering, place = self._place(client, number, MASKING)
        if gathering is None or place in gathering.masked or place not in gathering.sharers:
            return self._repeated(client)
        dim = self.plan.initial[gathering.task].numel()
        _part(message, "words", 4 * dim)
        gathering.masked[place] = read_words(message, "words")
        self._advance(gathering)
        return ""

    def accused(self, client: int, number: int, message: Message) -> str:
        """A member cannot open what others have dealt: it drops out, and comes again in another cohort."""
        gathering, place = self._place(client, number, MASKING)
        if gathering is None or place not in gathering.sharers or place in gathering.masked:
            return self._repeated(client)
        marks = _part(message, "accused", len(gathering.clients))
        gathering.accused[place] = [each for each in gathering.sharers if marks[each] and each != place]
        self.again(gathering.jobs[place])
        for each in gathering.accused[place]:
            against, third = sum(each in those for those in gathering.accused.values()), len(gathering.clients) / 3
            if against >= third > against - 1:
                self._balks(gathering.clients[each])
                if against == 1:
                    self._balks(client)
        return ""

    def _balks(self, client: int) -> None:
        """A client has kept a cohort from giving a sum."""
        record = self.ledger.clients[client]
        record.balks += 1
        if record.balks >= BALKS and not record.left_out:
            record.left_out = True
            self.ledger.left_out += 1
            self.fold.sessions.leave_out(client)

    def revealed(self, client: int, number: int, message: Message) -> str:
        """A member has given away its shares; when enough have, the sum is open."""
        gathering = self.ledger.gatherings.get(number)
        place = gathering.clients.index(client) if gathering is not None and client in gathering.clients else -1
        if gathering is None or place not in gathering.survivors or place in gathering.answers:
            return self._repeated(client)
        gathering.answers[place] = _part(message, "shares", SHARE * len(gathering.sharers))
        self.fold.traffic.touch(client)
        return self._open(gathering)

    def _place(self, client: int, number: int, phase: str) -> tuple[Gathering | None, int]:
        """The cohort of this number and the client's place in it, if it is in this phase and the client in it."""
        gathering = self.ledger.gatherings.get(number)
        if gathering is not None and gathering.phase == phase:
            for place in self._left(gathering):
                if gathering.clients[place] == client:
                    return gathering, place
        return None, -1

    def _repeated(self, client: int) -> str:
        self.fold.traffic.changed.add(client)  # it has missed what came since: its assignment goes out again
        self.ledger.tally.repeated += 1
        return ""

    # Phases

    def ring(self, key: str) -> None:
        """A phase has taken long enough."""
        number, phase = key.removeprefix(PHASE).split(":")
        gathering = self.ledger.gatherings.get(int(number))
        if gathering is None or gathering.phase != phase:
            return
        if phase != OPENING:
            self._advance(gathering, late=True)

    def _left(self, gathering: Gathering) -> list[int]:
        """The places of those who have not dropped out."""
        waiting, number = self.ledger.waiting, gathering.number
        return [n for n, job in enumerate(gathering.jobs) if job in waiting and waiting[job].cohort == number]

    def _advance(self, gathering: Gathering, late: bool = False) -> None:
        """Go on with a cohort if all that are left are done with its phase, or if it is late."""
        if gathering.phase == OPENING:
            return
        left, sharing = self._left(gathering), gathering.phase == SHARING
        if not sharing:
            left = [place for place in left if place in gathering.sharers]
        done = [place for place in left if place in (gathering.sealed if sharing else gathering.masked)]
        needed = max(threshold(len(gathering.clients)), self.least)
        if late and 2 * len(done) >= len(left):
            for place in left:
                if place not in done:
                    self._balks(gathering.clients[place])
            left = [place for place in left if gathering.jobs[place] in self.ledger.waiting]
        if len(left) < needed or (late and len(done) < needed):
            self._abort(gathering)
        elif late or len(done) == len(left):
            for place in left:
                if place not in done:
                    self.again(gathering.jobs[place])
            if sharing:
                gathering.sharers = done
                self._begin(gathering, MASKING)
            else:
                self._close(gathering, done)

    def _abort(self, gathering: Gathering) -> None:
        self._drop(gathering)
        self.ledger.aborted += 1
        for place in self._left(gathering):
            self.again(gathering.jobs[place])

    def _close(self, gathering: Gathering, survivors: list[int]) -> None:
        """These are in the sum, and their messages are settled."""
        ledger, masked = self.ledger, gathering.masked
        gathering.survivors, gathering.masked = survivors, {}
        ledger.closed[gathering.number] = Cohort(task=gathering.task)
        self._begin(gathering, OPENING)
        (name,) = self.fold.locals[gathering.task].sends
        for place in survivors:
            job = gathering.jobs[place]
            waiting, flight = ledger.waiting[job], ledger.flights[job]
            ledger.clients[waiting.client].balks = 0
            once = bytes.fromhex(waiting.keys)[KEY : 2 * KEY]
            vectors = {name: masked[place], ONCE: _bytes(once)}
            result = wire.Trained(**waiting.said)
            self.fold.verdicts.settle(flight, result, waiting.digest, vectors, gathering.number)

    # Opening

    def _open(self, gathering: Gathering) -> str:
        call, able = read_call(_raw(gathering.call)), len(self._able(gathering))
        more = len(gathering.answers) - call.threshold
        if more < 0 or (more & (more - 1) and len(gathering.answers) < able):
            return ""  # if some are wrong, all that there are by now are looked at a few times, not for each answer
        answers = {place: _raw(answer) for place, answer in gathering.answers.items()}
        try:
            masks = left_masks(call, gathering.survivors, gathering.dropped, answers)
        except TicketError as error:
            if len(answers) < able:
                return ""  # others can still answer
            self._lose(gathering, str(error))
            raise RefusedError("masks", str(error)) from None
        self._forget(gathering)
        return self.fold.sums.unmasked(gathering.number, torch.from_numpy(masks.view("int32")))

    def _lose(self, gathering: Gathering, why: str) -> None:
        self._forget(gathering)
        self.fold.sums.unopened(gathering.number, why)

    def _drop(self, gathering: Gathering) -> None:
        del self.ledger.gatherings[gathering.number]
        self.ledger.alarms.pop(gathering.alarm, None)

    def _forget(self, gathering: Gathering) -> None:
        self._drop(gathering)
        for place in gathering.survivors:
            if place not in gathering.answers:  # it need not answer any more
                self.fold.traffic.touch(gathering.clients[place])

    def removed(self) -> None:
        """A client is gone for good, and with it what it could have answered."""
        for gathering in [*self.ledger.gatherings.values()]:
            able, needed = len(self._able(gathering)), threshold(len(gathering.clients))
            if gathering.phase == OPENING and able < needed:
                self._lose(gathering, "too many of its members were removed")
            elif gathering.phase == OPENING and able == len(gathering.answers):
                with contextlib.suppress(RefusedError):
                    self._open(gathering)

    def _able(self, gathering: Gathering) -> list[int]:
        """The places of those who have answered, or can."""
        clients, answers = self.ledger.clients, gathering.answers
        gone = [clients[n].removed or clients[n].left_out for n in gathering.clients]
        return [place for place in gathering.survivors if place in answers or not gone[place]]

    def over(self) -> None:
        """The run has ended: nobody is waited for."""
        for waiting in [*self.ledger.waiting.values()]:
            record = self.ledger.clients[waiting.client]
            record.seq, record.digest, record.verdict = waiting.said["seq"], waiting.digest, "over"
        self.clear()

    def clear(self) -> None:
        """There are no cohorts any more."""
        self.ledger.waiting, self.ledger.ready, self.ledger.gatherings = {}, [], {}


def calls_of(ledger: Ledger, client: int, roster: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a client's assignment says about cohorts, and what goes into its body.

    waits: the digest of its message that waits for others.   call: (number, phase, sharers) of its cohort.
    reveal: (number, survivors, drop-outs) of each sum for which it has not given away its shares.
    """
    record, parts = ledger.clients[client], dict[str, bytes]()
    waits, call = "", list[Any]()
    for job in record.queue:
        if job in ledger.waiting:
            waiting = ledger.waiting[job]
            waits = waiting.digest
            if waiting.cohort:
                gathering = ledger.gatherings[waiting.cohort]
                call = [gathering.number, gathering.phase, gathering.sharers]
                parts = {CALL: _raw(gathering.call), ROSTER: roster}
                if gathering.phase == MASKING:
                    parts[SHARES] = _shares_for(gathering, gathering.clients.index(client))
    reveal = [
        [each.number, each.survivors, each.dropped]
        for each in ledger.gatherings.values()
        if each.phase == OPENING and client in each.clients and _owes(each, each.clients.index(client))
    ]
    return {"attempt": record.attempt, "waits": waits, "call": call, "reveal": reveal}, parts


CALL, ROSTER, SHARES = "cohort/call", "cohort/roster", "cohort/shares"  # names of parts of an assignment


def _owes(gathering: Gathering, place: int) -> bool:
    return place in gathering.survivors and place not in gathering.answers


def _shares_for(gathering: Gathering, place: int) -> bytes:
    """What the other sharers have sealed for this member, in the order of their places."""
    found = []
    for sharer in gathering.sharers:
        if sharer != place:
            at = SEALED * (place - (place > sharer))  # nobody seals shares for itself
            found.append(_raw(gathering.sealed[sharer][at : at + SEALED]))
    return b"".join(found)


def _part(message: Message, name: str, size: int) -> Vector:
    """A part of so many bytes and nothing else; raises `RefusedError`."""
    if message.parts.keys() != {name} or message.parts[name][0] != "bytes":
        raise RefusedError("names", f"holds {', '.join(message.parts) or 'nothing'}, expected {name}")
    if message.length(name) != size:
        raise RefusedError("length", f"{name} has {message.length(name)} bytes, expected {size}")
    return message.vector(name)


def _bytes(raw: bytes) -> Vector:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _raw(vector: Vector) -> bytes:
    return bytes(vector.numpy().tobytes())
