"""A client, without its network, disk and clock: what it hears goes in, what it wants done comes out.

The rules, before the code:

1. A result is written to disk, with the memory that goes with it, before it is sent (`Save` before `Tell`). The same
   bytes are sent again until the assignment shows their verdict. One message is under way at a time.
2. Memory moves on if the verdict is "applied"; otherwise it stays what it was before the job. Only what a client has
   spent of its own privacy budgets (`BUDGETS`) moves on when a result is written down, whatever its verdict will be;
   by a whole job when one has failed, because that it has says something about the data; and by one job when a disk
   was lost, because the copy that is replaced may still send one result. No server's word sets it. A message for a sum
   (`SUMS_SPENT`) that was not applied, and of which not even masked numbers have left, is given back.
3. A client that has a memory also leaves a sealed copy of its disk with the broker (`Mirror`) before it tells anything:
   if the disk is lost, it reads that copy, takes in the verdict that the assignment shows, and comes back with a larger
   epoch. If the copy is not there or does not fit, it stops with an error. It never begins anew by itself. A disk
   that is older than the copy was restored from a backup: then the copy counts. A client that has no memory but takes
   part in cohorts leaves a copy of what it needs to open their sums, and begins anew with that, or without.
4. A client that was let in and finds another copy in its place stops: it has been fenced.
5. Jobs are done in the order of the assignment. Held results stay here until recalled. A job that is no longer listed
   was cancelled or lost: the client stops it between two local steps and goes on with the next.
6. If the server's log was restored from a backup, what was settled since then never was. The assignment says so, with
   an epoch larger than all before it: the client gives up its state, takes over the memory that the server has for it,
   and begins the next epoch. What the server does not know of its memory stays as it is; if the disk was lost, it
   comes from the copy that the backup has.
7. While a result waits for its verdict, the next job may begin if it needs no memory. Its result is kept here, not
   written down, until that verdict is known, and goes out if its job is on the assignment then.
8. Where clients mask for each other (`taking_part`), a result is sent in steps, as its cohort goes on. Each step is
   written down before it is told. The verdict on the first message says what became of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import TypeAlias

from offbeat.core.events import Job
from offbeat.core.local import BUDGETS, STEPS_SPENT, SUMS_SPENT
from offbeat.core.server import SPENT
from offbeat.core.vectors import Payload
from offbeat.deploy import effects, encoding, wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.assignment import Assignment, read_assignment, read_model
from offbeat.deploy.client_state import ClientState, PendingResult, read_client_state, write_client_state
from offbeat.deploy.effects import Done, Effect, Judgement
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.taking_part import TakingPart

Mask: TypeAlias = Callable[[wire.Trained, int, Payload], "encoding.Parts"]  # (header, task, upload)
GRACE = 15.0  # seconds after the end of a run in which a client waits for the verdict on its last message


class ClientCore:
    """One client of one run.

    firsts: its memory before its first job, by task.   fresh: makes a name for a new life of this client.
    retry: seconds after which something unanswered is said again.   beat: seconds between signs of life.
    mask: what is sent of a result under secure aggregation; it is asked once for each message.
    part: its part in cohorts, where clients mask for each other.
    """

    def __init__(
        self,
        run: str,
        client: str,
        firsts: Sequence[Payload],
        fresh: Callable[[], str],
        retry: float = 1.0,
        beat: float = 2.0,
        dtype: str = "",
        mask: Mask | None = None,
        part: TakingPart | None = None,
    ) -> None:
        self.mask, self.part = mask, part
        self.run, self.client, self.firsts, self.fresh = run, client, firsts, fresh
        self.retry, self.beat, self.dtype = retry, beat, dtype
        self.remembers = any(firsts)
        self.state: ClientState | None = None
        self.assignment: Assignment | None = None
        self.models: dict[str, Payload] = {}
        self.kept: dict[int, Done] = {}  # task -> newest finished held result
        self.ready: tuple[Job, Done | None, str] | None = None  # a result, or an error, that goes out after a verdict
        self.others: dict[str, float] = {}  # job -> seconds, of held results that newer ones have replaced
        self.current: Job | None = None
        self.interrupted = False
        self.wanted = ""  # digest of the model that is being fetched
        self.judging = 0  # the last evaluation that was begun
        self.answering = False
        self.leaving = self.over = self.recovering = self.comparing = False
        self.recovered_at = ("", (0, 0))  # how far the run knew us when we began to ask for our copy
        self.mirror_of: bytes | None = None  # what the broker has not confirmed to have
        self.mirror_progress: effects.Progress = (0, (0, 0), 0, 0, False, 0)
        self.told = self.signed = self.asked = float("-inf")
        self.pulse = (0, 0)  # (term, number) of the newest pulse of the server that was heard
        self.stopped = float("inf")  # since when the run is known to be over
        self.undone = -1  # settled messages that a restored run does not know of
        self.now = 0.0

    # What a client hears

    def start(self, disk: bytes | None, now: float = 0.0) -> list[Effect]:
        """Begin with what the disk holds; nothing happens before the first assignment."""
        self.now = now
        if disk is not None:
            found = read_client_state(disk)
            if (found.run, found.client) != (self.run, self.client):
                return self._exit(f"the state on disk is that of {found.client} in {found.run}")
            self.state = found
            if self.remembers or self.part is not None:
                return self._compare(found)
        return []

    def hear(self, data: bytes, now: float) -> list[Effect]:
        """An assignment has come."""
        self.now = now
        try:
            assignment = read_assignment(data)
        except RefusedError as error:
            if error.code == "version":
                return self._exit(str(error))
            return []  # the next one will do
        if assignment.run != self.run or (
            self.assignment is not None
            and (assignment.epoch, assignment.revision) < (self.assignment.epoch, self.assignment.revision)
        ):
            return []
        self.assignment = assignment
        for name, model in assignment.models.items():
            try:
                self.models[name] = read_model(model, name)
            except RefusedError:
                return []
        return self._move(assignment)

    def mirrored(self, data: bytes, now: float) -> list[Effect]:
        """The broker has it."""
        self.now = now
        if self.mirror_of is data:
            self.mirror_of = None
            return [*self._take_part(), *self._speak()]
        return []

    def recovered(self, data: bytes | None, now: float) -> list[Effect]:
        """What was left with the broker, or None if there is nothing."""
        self.now = now
        if self.comparing and self.state is not None:
            return self._compared(self.state, data)
        assignment = self.assignment
        if not self.recovering or assignment is None:
            return []
        self.recovering = False
        found, early = self._left(data), self.recovered_at != _place(assignment)
        if found is None and early:
            return self._recover(assignment)  # another copy was let in meanwhile, whose state pushed out this one's
        if found is None and not self.remembers:
            return self._begin_without_memory(None, assignment)
        if found is None:
            return self._exit("the disk was lost and no copy of this client's memory is left; retire this client")
        if found.nonce != (assignment.nonce or assignment.known_nonce):
            return self._move(assignment)  # another copy was let in meanwhile: look again
        if self.state is not None:
            found = found.beside(self.state)
        if not self.remembers:
            return self._begin_without_memory(found.after(assignment), assignment)
        if assignment.restored:
            self.state = _charged_in_doubt(found, assignment)
            return self._move(assignment)
        if not found.agrees(assignment):
            if found.settled > assignment.last:
                return []  # this assignment is an old one; a newer one will come
            if early:
                return self._recover(assignment)  # it was read before the last verdict: another copy was at work
            return self._exit("the disk was lost and the copy of this client's memory is too old; retire this client")
        return self._renew(_charged_in_doubt(found.after(assignment), assignment), assignment)

    def fetched(self, name: str, data: bytes | None, now: float) -> list[Effect]:
        """A model, or None if it is not there any more."""
        self.now = now
        if name != self.wanted:
            return []
        self.wanted = ""
        try:
            if data is not None:
                self.models[name] = read_model(data, name)
                anew = self.assignment is not None and (self.assignment.stopped or self.assignment.restored)
                return self._move(self.assignment) if self.assignment is not None and anew else self._work()
        except RefusedError:
            pass
        if self.assignment is not None and self.assignment.restored:
            self.wanted = name  # there is no way around it
            return []
        gone = [number for number, _, model in (self.assignment.judge if self.assignment else ()) if model == name]
        self.judging = max([self.judging, *gone])  # a model that is not there any more is not evaluated
        job = next((job for job, payload in (self.assignment.jobs if self.assignment else ()) if payload == name), None)
        return [] if job is None else self._hand_in(job, None, "its model is not there any more")

    def done(self, done: Done, now: float) -> list[Effect]:
        """The job at work is done, or was interrupted."""
        self.now = now
        if self.current is None or self.current.id != done.job.id:
            return []
        self.current, self.interrupted = None, False
        called = self.assignment is not None and done.job.task in self.assignment.recalls
        busy = self.state is not None and self.state.pending is not None  # with the result before: that was called
        if done.job.hold and (busy or not called):
            if done.steps == done.job.steps:
                self._replace(done)
            return self._work()
        return [*self._hand_in(done.job, done), *self._work()]

    def _replace(self, done: Done) -> None:
        """The newest held result stays; of the one before only the time that it took."""
        before = self.kept.get(done.job.task)
        if before is not None and len(self.others) < 200:
            self.others[str(before.job.id)] = before.compute
        self.kept[done.job.task] = done

    def failed(self, job: Job, reason: str, now: float) -> list[Effect]:
        """The job at work cannot be done."""
        self.now = now
        if self.current is None or self.current.id != job.id:
            return []
        self.current, self.interrupted = None, False
        if self.state is not None and not reason.startswith(SPENT):  # which is said before anything is computed
            self.state = _charged_more(self.state, {job.task: job.steps})
        return self._hand_in(job, None, reason)

    def judged(self, number: int, answer: Judgement, now: float) -> list[Effect]:
        """An evaluation is done."""
        self.now, self.answering = now, False
        if self.state is None or self.assignment is None:
            return []
        loss, diverged = (answer.loss, False) if _sendable(answer.loss) else (0.0, True)
        sums = {name: list(each) for name, each in answer.sums.items() if all(map(_sendable, each))}
        personal = {name: value for name, value in answer.personal.items() if _sendable(value)}
        said = (number, answer.total, loss, diverged, sums, personal)
        header = wire.Judged(self.run, self.client, self.state.epoch, *said)
        tell = effects.Tell(wire.say(header), f"{self.state.nonce}.judged.{number}")
        over = self.assignment.stopped and self.state.pending is None
        return [tell, *(self._evaluate(self.assignment) or self._done_with(self.assignment) if over else self._work())]

    def leave(self, now: float) -> list[Effect]:
        """Go away, and say so; work that is not done is lost."""
        self.now, self.leaving, self.over = now, True, True
        if self.state is None or not self.state.accepted:
            return [effects.Exit("")]
        bye = wire.Bye(self.run, self.client, self.state.epoch, self.seen)
        return [effects.Tell(wire.say(bye), f"{self.state.nonce}.bye.{now}"), effects.Exit("")]

    def tick(self, now: float) -> list[Effect]:
        """Some time has passed."""
        self.now = now
        wants: list[Effect] = []
        if self.over:
            return wants
        if now - self.signed >= self.beat:
            self.signed = now
            wants.append(effects.Sign(self.sign()))
        if self.comparing and self.state is not None and now - self.asked >= self.retry:
            wants += self._compare(self.state)
        if self.assignment is None:
            return wants
        if now - self.stopped > GRACE:  # nobody listens any more; what is not settled by now will not be applied
            return [*wants, *self._exit("")]
        if self.recovering and now - self.asked >= self.retry:
            wants += self._recover(self.assignment)
        if now - self.told >= self.retry:
            wants += self._speak()
        if self.wanted and now - self.asked >= self.retry:
            self.asked = now
            wants.append(effects.Fetch(self.wanted))
        return wants + self._work()

    # Who we are

    def _move(self, assignment: Assignment) -> list[Effect]:
        """Take in what the newest assignment says."""
        if not self.over and assignment.restored and (self.state is None or self.state.epoch <= assignment.epoch):
            return self._resync(assignment)
        if self.over or self.recovering or self.comparing:
            return []
        if self.state is not None and assignment.turned_away == (self.state.nonce, "removed"):
            return self._exit(
                "this client was removed from the run for good by its operator; ask them, or take part "
                "under another name"
            )
        if self.state is not None and assignment.turned_away == (self.state.nonce, "balks"):
            return self._exit(
                "this client is left out of the run: by silence or by shares that others could not open, it has kept "
                "cohorts from giving a sum; ask the operator of the server"
            )
        if self.state is None:
            return self._first(assignment)
        before = self.state
        if assignment.epoch >= before.epoch and not before.named_by(assignment):
            if before.accepted:
                return self._exit(
                    "fenced: another copy of this client has taken over; only one may run. If no other does, "
                    "move this one's state folder away and start it again"
                )
            return self._first(assignment)  # another copy was first; ask again, with a larger epoch
        after = before.after(assignment)
        if after.settled > assignment.last:
            return self._speak()  # an old assignment; the answer to what we say will be a newer one
        if after.settled != assignment.last:
            return self._first(assignment)  # our disk is older than what the server has settled
        waits = before.pending is not None and before.pending.member and not before.pending.heard
        if waits and after.pending is None and assignment.verdict == APPLIED:
            return self._first(assignment)  # another copy of this client got into a sum, and left what that needs
        self.state = after
        if assignment.stopped:
            self.stopped = min(self.stopped, self.now)
        if assignment.stopped and after.pending is None:
            return self._evaluate(assignment) or self._done_with(assignment)
        if not after.accepted and after is not before:
            return self._keep(after)  # a doubt was settled: written down before the next greeting relies on it
        unheard = after.pending is not None or not after.accepted or not assignment.present or bool(assignment.reveal)
        return [*self._take_part(), *(self._speak() if unheard else []), *self._work()]

    def _take_part(self) -> list[Effect]:
        """Go on in a cohort: what follows from it is told once it is written down. One copy is under way at a time."""
        state, assignment = self.state, self.assignment
        if self.part is None or state is None or assignment is None or self.mirror_of is not None:
            return []
        if not state.named_by(assignment) or state.settled != assignment.last:
            return []
        self.state = self.part.after(state, assignment)
        if self.state == state:
            return []
        data = write_client_state(self.state)
        sharing = assignment.call is not None and not assignment.call.sharers  # which needs no copy: it is done again
        if (self.state.pending != state.pending and not sharing) or self.state.answers != state.answers:
            # with fresh keys, or with what others wait for once the result is in a sum, or for whom it has answered
            self.mirror_of, self.mirror_progress = self._copy(self.state), self.state.progress
        return [effects.Save(data)]

    def _first(self, assignment: Assignment) -> list[Effect]:
        """We have no state that counts: a new client, or one that lost its disk."""
        if assignment.stopped:
            return self._exit("")
        if assignment.epoch == 0:
            memory = {task: first for task, first in enumerate(self.firsts) if first}
            return self._renew(ClientState(self.run, self.client, 0, "", memory=memory), assignment)
        if not self.remembers and self.part is None:
            return self._begin_without_memory(None, assignment)
        return self._recover(assignment)

    def _begin_without_memory(self, found: ClientState | None, assignment: Assignment) -> list[Effect]:
        """Begin without a memory; what others wait for is answered in the next epoch, too."""
        state = ClientState(self.run, self.client, assignment.epoch, "", settled=assignment.last)
        for kept in filter(None, (found, self.state)):
            state = replace(state, members={**state.members, **kept.members}, cohort=max(state.cohort, kept.cohort))
            state = replace(state, roster=max(state.roster, kept.roster), answers=max(state.answers, kept.answers))
            undecided = kept.pending.cohort if kept.pending is not None and kept.pending.heard else 0
            if undecided and undecided == state.cohort and undecided not in state.members:
                state = replace(state, cohort=undecided - 1)  # its verdict may be under way: then the copy has it
        return self._renew(state, assignment)

    def _resync(self, assignment: Assignment) -> list[Effect]:
        """The run was put back to an earlier state: begin anew, with the memory that goes with that state."""
        self.recovering = self.comparing = False
        if assignment.stopped:
            return self._exit("")
        if assignment.memory is None:
            return self._exit(
                "the run was restored from a backup, and its server does not know what this client is to remember; "
                "retire this client"
            )
        for name in assignment.memory.values():
            if name not in self.models:
                return [effects.Interrupt(False), *self._get(name)]
        given = {task: _without_budgets(self.models[name]) for task, name in assignment.memory.items()}
        if self.state is None and assignment.known_nonce and not self._all_in(given):
            return [effects.Interrupt(False), *self._recover(assignment)]
        own = self.state.memory if self.state is not None else {}
        memory = dict[int, Payload]()
        for task, first in enumerate(self.firsts):
            if first:
                memory[task] = {**first, **own.get(task, {}), **given.get(task, {})}
        if self.state is not None:
            epoch, seq = self.state.settled
            known = (assignment.known_epoch, assignment.known_seq)
            self.undone = seq - known[1] if epoch == known[0] else seq
        state = ClientState(self.run, self.client, assignment.epoch, "", memory=memory)
        if self.state is not None:
            state = replace(state, roster=self.state.roster, cohort=self.state.cohort)
        return [effects.Interrupt(False), *self._renew(state, assignment)]

    def _all_in(self, given: Mapping[int, Payload]) -> bool:
        """Whether this is all that a client remembers: no vector is missing, or longer here than there."""
        return all(
            name in given.get(task, {}) and given[task][name].numel() >= vector.numel()
            for task, first in enumerate(self.firsts)
            for name, vector in first.items()
        )

    def _compare(self, mine: ClientState) -> list[Effect]:
        """Look at what we left with the broker: if that is newer than our disk, the disk is an old backup."""
        self.comparing, self.asked = True, self.now
        return [effects.Recover(mine.nonce)]

    def _compared(self, mine: ClientState, data: bytes | None) -> list[Effect]:
        self.comparing = False
        wants = list[Effect]()
        left = self._left(data)
        if left is None or left.nonce != mine.nonce or left.progress < mine.progress:
            self.mirror_of, self.mirror_progress = self._copy(mine), mine.progress
        elif not self.remembers and left.progress > mine.progress:
            self.state = None  # the disk is as good as lost
        elif data is not None and left.progress > mine.progress:
            self.state = left
            wants.append(effects.Save(data))
        return [*wants, *(self._move(self.assignment) if self.assignment is not None else [])]

    def _left(self, data: bytes | None) -> ClientState | None:
        """What was left with the broker, if it is a state of this client in this run."""
        try:
            found = None if data is None else read_client_state(data)
        except RefusedError:
            return None
        return found if found is not None and (found.run, found.client) == (self.run, self.client) else None

    def _recover(self, assignment: Assignment) -> list[Effect]:
        if not self.recovering:
            self.recovered_at = _place(assignment)
        self.recovering, self.asked = True, self.now
        return [effects.Recover(assignment.nonce or assignment.known_nonce)]

    def _renew(self, state: ClientState, assignment: Assignment) -> list[Effect]:
        """Come back under a new name and with a larger epoch."""
        self._forget_work()
        epoch, last = assignment.epoch + 1, assignment.last
        return self._keep(replace(state, epoch=epoch, nonce=self.fresh(), accepted=False, seq=0, settled=last))

    def _forget_work(self) -> None:
        self.kept, self.ready, self.current, self.interrupted = {}, None, None, False

    # What we say

    def _keep(self, state: ClientState) -> list[Effect]:
        """This is the state now: write it down, leave a copy where that is needed, and only then speak."""
        self.state = state
        data = write_client_state(state)
        self.mirror_of, self.mirror_progress = self._copy(state), state.progress
        return [effects.Save(data), *self._speak()]

    def _copy(self, state: ClientState) -> bytes | None:
        """What is to be left with the broker; None: nothing."""
        pending = state.pending
        if not self.remembers and (self.part is None or not (state.members or (pending and pending.heard))):
            return None
        if not self.remembers and pending is not None:
            state = replace(state, pending=replace(pending, words=b""))  # its numbers could not be sent again
        return write_client_state(state)

    def _speak(self) -> list[Effect]:
        """Say what is unheard, at most once in a while."""
        state, assignment = self.state, self.assignment
        if self.over or self.recovering or self.comparing or state is None or assignment is None:
            return []
        if assignment.restored and state.epoch <= assignment.epoch:
            return []  # about to begin anew
        if self.mirror_of is not None:
            self.told = self.now
            return [effects.Mirror(state.nonce, self.mirror_of, self.mirror_progress)]
        wants: list[Effect] = []
        mine = state.named_by(assignment)
        if not mine or not assignment.present:
            if assignment.stopped and state.pending is None:
                return []
            self._forget_work()
            hello = wire.Hello(self.run, self.client, state.epoch, state.nonce, *state.settled, self.seen)
            wants.append(effects.Interrupt(False))
            wants.append(effects.Tell(wire.say(hello), f"{state.nonce}.hello.{self.now}"))
        if mine and self.part is not None:
            wants += self.part.tell(state, assignment)
        elif mine and state.pending is not None:
            wants.append(effects.Tell(state.pending.message, f"{state.nonce}.{state.pending.seq}"))
        if wants:
            self.told = self.now
        return wants

    def sign(self) -> bytes:
        """A sign of life."""
        epoch = self.state.epoch if self.state else 0
        job = self.current.id if self.current else 0
        beat = wire.Beat(self.run, self.client, epoch, self.seen, job, 0, self.current is not None, *self.pulse)
        return wire.say(beat)

    @property
    def seen(self) -> int:
        """One more than the revision of the newest assignment that we know."""
        return self.assignment.revision + 1 if self.assignment else 0

    def _hand_in(self, job: Job, done: Done | None, error: str = "") -> list[Effect]:
        """Send a result as soon as the one before has its verdict."""
        if self.state is None or self.state.pending is None:
            return self._pend(job, done, error)
        self.ready = self.ready or (job, done, error)
        return []

    def _pend(self, job: Job, done: Done | None, error: str = "") -> list[Effect]:
        """Write a result down and send it."""
        state = self.state
        if state is None or state.pending is not None:
            return []
        steps, times = (done.steps, (done.download, done.wait, done.compute)) if done else (0, (0.0, 0.0, 0.0))
        said = encoding.writable(
            error[:1000]
        )  # an error's text may be anything, and the server takes what can be written
        header = wire.Trained(
            self.run, self.client, state.epoch, state.seq + 1, job.id, steps, *times, said, self.others
        )
        if done is not None and done.cut:
            header = replace(header, cut=True)
        self.others = {}
        upload: encoding.Parts = dict(done.upload) if done else {}
        if self.mask is not None and done is not None:
            upload = self.mask(header, job.task, done.upload)
        moved = dict(done.memory) if done and self.firsts[job.task] else None
        pending = PendingResult(state.epoch, state.seq + 1, job.id, job.task, b"", moved)
        if self.part is not None and done is not None:
            pending = self.part.ready(header, pending, done.upload)
        else:
            pending = replace(pending, message=wire.say(header, upload, self.dtype))
        return self._keep(replace(_charged(state, job.task, moved, steps), seq=state.seq + 1, pending=pending))

    # What we do

    def _work(self) -> list[Effect]:
        """Go on with the assignment."""
        state, assignment = self.state, self.assignment
        if self.over or self.recovering or self.comparing or state is None or assignment is None:
            return []
        if not state.accepted or not state.named_by(assignment) or not assignment.present or assignment.stopped:
            return []
        return [*self._evaluate(assignment), *self._go_on(assignment, state)]

    def _go_on(self, assignment: Assignment, state: ClientState) -> list[Effect]:
        self.kept = {task: done for task, done in self.kept.items() if assignment.holds(done.job)}
        if self.ready is not None and state.pending is None:
            (job, done, error), self.ready = self.ready, None
            if any(listed.id == job.id for listed, _ in assignment.jobs):
                told = self._pend(job, done, error)
                return [*told, *(self._next(assignment) if self.current is None else [])]
        for task, partial in assignment.recalls.items() if state.pending is None else ():
            # What is done goes out at once, while newer work goes on: unless that is wanted too, or built on the same
            # memory, in which case there is only one of the two.
            alone = partial or bool(self.firsts[task])
            if task in self.kept and (self.current is None or not alone):
                told = self._pend(self.kept[task].job, self.kept.pop(task))
                return [*told, *(self._next(assignment) if self.current is None else [])]
        if self.current is not None:
            return self._watch(assignment, self.current)
        return self._next(assignment)

    def _watch(self, assignment: Assignment, current: Job) -> list[Effect]:
        """Whether the job at work is still wanted, or wanted at once."""
        listed = any(job.id == current.id for job, _ in assignment.jobs)
        if not listed and not assignment.holds(current):
            self.current, self.interrupted = None, False
            return [effects.Interrupt(False), *self._work()]
        if current.hold and assignment.recalls.get(current.task) and not self.interrupted:
            self.interrupted = True
            return [effects.Interrupt(True)]
        return []

    def _next(self, assignment: Assignment) -> list[Effect]:
        state = self.state  # the newest: a result may have been written down a moment ago
        if state is None:
            return []
        pending = state.pending
        for job, name in assignment.jobs:
            # While a result is on its way, newer work that needs no memory of it may begin: one plain job, and any that
            # waits to be called.
            if pending is not None and (self.firsts[job.task] or job.id <= pending.job):
                continue
            if self.ready is not None and (not job.hold or job.id == self.ready[0].id):
                continue
            kept = self.kept.get(job.task)
            if job.hold and kept is not None and kept.job.number >= job.number:
                continue
            if name not in self.models:
                return self._get(name)
            if job.hold and assignment.recalls.get(job.task):
                job = job._replace(steps=0)  # wanted at once, before its first step
            self.current = job
            payload = self.models[name]
            named = {digest for _, digest in assignment.jobs} | {digest for _, _, digest in assignment.judge}
            self.models = {digest: model for digest, model in self.models.items() if digest in named}
            return [effects.Train(job, payload, state.memory.get(job.task, {}))]
        return []

    def _evaluate(self, assignment: Assignment) -> list[Effect]:
        """Begin the next evaluation that is asked for, in parallel with the running job."""
        for number, task, name in assignment.judge if not self.answering else ():
            if number > self.judging:
                if name not in self.models:
                    return self._get(name)
                self.judging, self.answering = number, True
                memory = self.state.memory.get(task, {}) if self.state else {}
                return [effects.Judge(number, task, self.models[name], memory)]
        return []

    def _get(self, name: str) -> list[Effect]:
        """Fetch a model, one at a time."""
        if self.wanted:
            return []
        self.wanted, self.asked = name, self.now
        return [effects.Fetch(name)]

    def _done_with(self, assignment: Assignment) -> list[Effect]:
        """The run is over; leave as soon as nothing is asked for any more."""
        waiting = self.answering or any(number > self.judging for number, _, _ in assignment.judge)
        return [] if waiting else self._exit("")

    def _exit(self, error: str) -> list[Effect]:
        self.over = True
        return [effects.Interrupt(False), effects.Exit(error)]


def _charged(state: ClientState, task: int, moved: Payload | None, steps: int) -> ClientState:
    """The same with what this result has spent: other jobs may have been charged since it began."""
    for name, more in ((STEPS_SPENT, steps), (SUMS_SPENT, 1)):
        if moved is not None and name in moved:
            kept, spent = state.memory[task], moved[name].clone()
            spent[0] = kept[name][0] + more
            state = replace(state, memory={**state.memory, task: {**kept, name: spent}})
    return state


def _place(assignment: Assignment) -> tuple[str, tuple[int, int]]:
    """The life of this client that the server knows of, and the last message that it has settled."""
    return assignment.nonce or assignment.known_nonce, assignment.last


def _charged_in_doubt(state: ClientState, assignment: Assignment) -> ClientState:
    """The same with one job more spent: the copy that we replace may have sent a result that nobody will settle."""
    largest = {task: kept[STEPS_SPENT][1].item() for task, kept in state.memory.items() if STEPS_SPENT in kept}
    asked = {task: [job.steps for job, _ in assignment.jobs if job.task == task] for task in largest}
    state = _charged_more(state, dict.fromkeys(state.memory, 1), SUMS_SPENT)
    return _charged_more(state, {task: max([most, *asked[task]]) for task, most in largest.items()})


def _charged_more(state: ClientState, more: Mapping[int, float], name: str = STEPS_SPENT) -> ClientState:
    """The same with so much more spent, by task; nothing for a client that keeps no such budget."""
    memory = dict(state.memory)
    for task, count in more.items():
        if name in memory.get(task, {}):
            total, *others = memory[task][name].tolist()
            spent = memory[task][name].new_tensor([total + count, *others])
            memory[task] = {**memory[task], name: spent}
    return replace(state, memory=memory)


def _without_budgets(given: Payload) -> Payload:
    """What a server says that a client is to remember; what that has spent of its own budget is not for it to say."""
    return {name: vector for name, vector in given.items() if name not in BUDGETS}


def _sendable(number: float) -> bool:
    """Whether a number can be sent."""
    return isfinite(number) and abs(number) <= 1e30
