"""A client, without its network, disk and clock: what it hears goes in, what it wants done comes out.

The rules, before the code:

1. A result is written to disk, with the memory that goes with it, before it is sent (`Save` before `Tell`). The same
   bytes are sent again until the desk shows their verdict. One message is under way at a time.
2. Memory moves on if the verdict is "applied"; otherwise it stays what it was before the job.
3. A client that has a memory also leaves a sealed copy of its disk with the broker (`Mirror`) before it tells anything:
   if the disk is lost, it reads that copy, takes in the verdict that the desk shows, and comes back with a larger
   epoch. If the copy is not there or does not fit, it stops with an error. It never begins anew by itself. A disk
   that is older than the copy was restored from a backup: then the copy counts.
4. A client that was let in and finds somebody else on its seat stops: it has been fenced.
5. Jobs are done in the order in which they lie on the desk. Held results stay here until recalled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite

from offbeat.core.events import Job
from offbeat.core.vectors import Payload
from offbeat.deploy import wire
from offbeat.deploy.desk import Desk, read_desk, read_model
from offbeat.deploy.effects import (
    Done,
    Effect,
    Exit,
    Fetch,
    Interrupt,
    Judge,
    Mirror,
    Recover,
    Save,
    Sign,
    Tell,
    Train,
)
from offbeat.deploy.memoir import Memoir, Pending, read_memoir, write_memoir
from offbeat.deploy.wire import RefusedError

GRACE = 15.0  # seconds after the end of a run in which a client waits for the verdict on its last message


class Member:
    """One client of one run.

    firsts: its memory before its first job, by task.   fresh: makes a name for a new life of this client.
    retry: seconds after which something unanswered is said again.   beat: seconds between signs of life.
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
    ) -> None:
        self.run, self.client, self.firsts, self.fresh = run, client, firsts, fresh
        self.retry, self.beat, self.dtype = retry, beat, dtype
        self.remembers = any(firsts)
        self.memoir: Memoir | None = None
        self.desk: Desk | None = None
        self.models: dict[str, Payload] = {}
        self.kept: dict[int, Done] = {}  # task -> newest finished held result
        self.others: dict[str, float] = {}  # job -> seconds, of held results that newer ones have replaced
        self.current: Job | None = None
        self.interrupted = False
        self.wanted = ""  # digest of the model that is being fetched
        self.judging = 0  # the last evaluation that was begun
        self.answering = False
        self.leaving = self.over = self.recovering = self.comparing = False
        self.mirror_of: bytes | None = None  # what the broker has not confirmed to have
        self.told = self.signed = self.asked = float("-inf")
        self.stopped = float("inf")  # since when the run is known to be over
        self.now = 0.0

    # What a client hears

    def start(self, disk: bytes | None, now: float = 0.0) -> list[Effect]:
        """Begin with what the disk holds; nothing happens before the first desk."""
        self.now = now
        if disk is not None:
            found = read_memoir(disk)
            if (found.run, found.client) != (self.run, self.client):
                return self._exit(f"the state on disk is that of {found.client} in {found.run}")
            self.memoir = found
            if self.remembers:
                return self._compare(found)
        return []

    def hear(self, data: bytes, now: float) -> list[Effect]:
        """A desk has come."""
        self.now = now
        try:
            desk = read_desk(data)
        except RefusedError:
            return []  # the next one will do
        if desk.run != self.run or (self.desk is not None and desk.revision < self.desk.revision):
            return []
        self.desk = desk
        for name, model in desk.models.items():
            try:
                self.models[name] = read_model(model, name)
            except RefusedError:
                return []
        return self._move(desk)

    def mirrored(self, data: bytes, now: float) -> list[Effect]:
        """The broker has it."""
        self.now = now
        if self.mirror_of is data:
            self.mirror_of = None
            return self._speak()
        return []

    def recovered(self, data: bytes | None, now: float) -> list[Effect]:
        """What was left with the broker, or None if there is nothing."""
        self.now = now
        if self.comparing and self.memoir is not None:
            return self._compared(self.memoir, data)
        desk = self.desk
        if not self.recovering or desk is None:
            return []
        self.recovering = False
        try:
            found = None if data is None else read_memoir(data)
        except RefusedError:
            found = None
        if found is None or (found.run, found.client) != (self.run, self.client):
            return self._exit("the disk was lost and no copy of this client's memory is left; retire this client")
        if found.nonce != desk.nonce:
            return self._move(desk)  # somebody else took the seat meanwhile: look again
        if not found.agrees(desk):
            if found.settled > desk.last:
                return []  # this desk is an old one; a newer one will come
            return self._exit("the disk was lost and the copy of this client's memory is too old; retire this client")
        return self._renew(found.after(desk), desk)

    def fetched(self, name: str, data: bytes | None, now: float) -> list[Effect]:
        """A model, or None if it is not there any more."""
        self.now = now
        if name != self.wanted:
            return []
        self.wanted = ""
        try:
            if data is not None:
                self.models[name] = read_model(data, name)
                return self._move(self.desk) if self.desk and self.desk.stopped else self._work()
        except RefusedError:
            pass
        gone = [number for number, _, model in (self.desk.judge if self.desk else ()) if model == name]
        self.judging = max([self.judging, *gone])  # a model that is not there any more is not evaluated
        job = next((job for job, payload in (self.desk.jobs if self.desk else ()) if payload == name), None)
        return [] if job is None else self._pend(job, None, "its model is not there any more")

    def done(self, done: Done, now: float) -> list[Effect]:
        """The job at work is done, or was interrupted."""
        self.now = now
        if self.current is None or self.current.id != done.job.id:
            return []
        self.current, self.interrupted = None, False
        called = self.desk is not None and done.job.task in self.desk.recalls
        busy = self.memoir is not None and self.memoir.pending is not None  # with the result before: that was called
        if done.job.hold and (busy or not called):
            if done.steps == done.job.steps:
                self._replace(done)
            return self._work()
        return [*self._pend(done.job, done), *self._work()]

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
        return self._pend(job, None, reason)

    def judged(self, number: int, right: int, total: int, loss: float, now: float) -> list[Effect]:
        """An evaluation is done."""
        self.now, self.answering = now, False
        if self.memoir is None or self.desk is None:
            return []
        loss, diverged = (loss, False) if isfinite(loss) else (0.0, True)
        header = wire.Judged(self.run, self.client, self.memoir.epoch, number, right, total, loss, diverged)
        tell = Tell(wire.say(header), f"{self.memoir.nonce}.judged.{number}")
        over = self.desk.stopped and self.memoir.pending is None
        return [tell, *(self._evaluate(self.desk) or self._done_with(self.desk) if over else self._work())]

    def leave(self, now: float) -> list[Effect]:
        """Go away, and say so; work that is not done is lost."""
        self.now, self.leaving, self.over = now, True, True
        if self.memoir is None or not self.memoir.accepted:
            return [Exit("")]
        bye = wire.Bye(self.run, self.client, self.memoir.epoch)
        return [Tell(wire.say(bye), f"{self.memoir.nonce}.bye.{now}"), Exit("")]

    def tick(self, now: float) -> list[Effect]:
        """Some time has passed."""
        self.now = now
        effects: list[Effect] = []
        if self.over:
            return effects
        if now - self.signed >= self.beat:
            self.signed = now
            effects.append(Sign(self.sign()))
        if self.comparing and self.memoir is not None and now - self.asked >= self.retry:
            effects += self._compare(self.memoir)
        if self.desk is None:
            return effects
        if now - self.stopped > GRACE:  # nobody listens any more; what is not settled by now will not be applied
            return [*effects, *self._exit("")]
        if self.recovering and now - self.asked >= self.retry:
            effects += self._recover(self.desk)
        if now - self.told >= self.retry:
            effects += self._speak()
        if self.wanted and now - self.asked >= self.retry:
            self.asked = now
            effects.append(Fetch(self.wanted))
        return effects + self._work()

    # Who we are

    def _move(self, desk: Desk) -> list[Effect]:
        """Take in what the newest desk says."""
        if self.over or self.recovering or self.comparing:
            return []
        if desk.turned_away[1] == "retired" and self.memoir is not None and desk.turned_away[0] == self.memoir.nonce:
            return self._exit("this client was retired")
        if self.memoir is None:
            return self._first(desk)
        before = self.memoir
        sits = (desk.epoch, desk.nonce) == (before.epoch, before.nonce)
        if before.accepted and not sits and desk.epoch >= before.epoch:
            return self._exit("fenced: another copy of this client has taken over")
        if not before.accepted and not sits and desk.epoch >= before.epoch:
            return self._first(desk)  # somebody was faster; ask again, with a larger epoch
        after = before.after(desk)
        if after.settled > desk.last:
            return self._speak()  # an old desk; the answer to what we say will be a newer one
        if after.settled != desk.last:
            return self._first(desk)  # our disk is older than what the server has settled
        self.memoir = after
        if desk.stopped:
            self.stopped = min(self.stopped, self.now)
        if desk.stopped and after.pending is None:
            return self._evaluate(desk) or self._done_with(desk)
        if not after.accepted and after is not before:
            return self._keep(after)  # a doubt was settled: written down before the next greeting relies on it
        unheard = after.pending is not None or not after.accepted or not desk.present
        return [*(self._speak() if unheard else []), *self._work()]

    def _first(self, desk: Desk) -> list[Effect]:
        """We have no state that counts: a new client, or one that lost its disk."""
        if desk.epoch == 0:
            memory = {task: first for task, first in enumerate(self.firsts) if first}
            return self._renew(Memoir(self.run, self.client, 0, "", memory=memory), desk)
        if not self.remembers:
            return self._renew(Memoir(self.run, self.client, desk.epoch, "", settled=desk.last), desk)
        return self._recover(desk)

    def _compare(self, mine: Memoir) -> list[Effect]:
        """Look at what we left with the broker: if that is newer than our disk, the disk is an old backup."""
        self.comparing, self.asked = True, self.now
        return [Recover(mine.nonce)]

    def _compared(self, mine: Memoir, data: bytes | None) -> list[Effect]:
        self.comparing = False
        effects = list[Effect]()
        try:
            left = None if data is None else read_memoir(data)
        except RefusedError:
            left = None
        if left is not None and (left.run, left.client, left.nonce) == (mine.run, mine.client, mine.nonce):
            if (left.seq, left.settled) > (mine.seq, mine.settled) and data is not None:
                self.memoir = left
                effects.append(Save(data))
        else:
            left = None
        if left is None or (left.seq, left.settled) < (mine.seq, mine.settled):
            self.mirror_of = write_memoir(mine)
        return [*effects, *(self._move(self.desk) if self.desk is not None else [])]

    def _recover(self, desk: Desk) -> list[Effect]:
        self.recovering, self.asked = True, self.now
        return [Recover(desk.nonce)]

    def _renew(self, memoir: Memoir, desk: Desk) -> list[Effect]:
        """Come back under a new name and with a larger epoch."""
        self._forget_work()
        fresh = self.fresh()
        return self._keep(replace(memoir, epoch=desk.epoch + 1, nonce=fresh, accepted=False, seq=0, settled=desk.last))

    def _forget_work(self) -> None:
        self.kept, self.current, self.interrupted = {}, None, False

    # What we say

    def _keep(self, memoir: Memoir) -> list[Effect]:
        """This is the state now: write it down, leave a copy where that is needed, and only then speak."""
        self.memoir = memoir
        data = write_memoir(memoir)
        self.mirror_of = data if self.remembers else None
        return [Save(data), *self._speak()]

    def _speak(self) -> list[Effect]:
        """Say what is unheard, at most once in a while."""
        memoir, desk = self.memoir, self.desk
        if self.over or self.recovering or self.comparing or memoir is None or desk is None:
            return []
        if self.mirror_of is not None:
            self.told = self.now
            return [Mirror(memoir.nonce, self.mirror_of)]
        effects: list[Effect] = []
        sits = (desk.epoch, desk.nonce) == (memoir.epoch, memoir.nonce)
        if not sits or not desk.present:
            if desk.stopped and memoir.pending is None:
                return []
            self._forget_work()
            hello = wire.Hello(self.run, self.client, memoir.epoch, memoir.nonce, *memoir.settled)
            effects.append(Interrupt(False))
            effects.append(Tell(wire.say(hello), f"{memoir.nonce}.hello.{self.now}"))
        if sits and memoir.pending is not None:
            effects.append(Tell(memoir.pending.message, f"{memoir.nonce}.{memoir.pending.seq}"))
        if effects:
            self.told = self.now
        return effects

    def sign(self) -> bytes:
        """A sign of life."""
        epoch = self.memoir.epoch if self.memoir else 0
        seen = self.desk.revision + 1 if self.desk else 0
        job = self.current.id if self.current else 0
        beat = wire.Beat(self.run, self.client, epoch, seen, job, 0, self.current is not None)
        return wire.say(beat)

    def _pend(self, job: Job, done: Done | None, error: str = "") -> list[Effect]:
        """Write a result down and send it."""
        memoir = self.memoir
        if memoir is None or memoir.pending is not None:
            return []
        steps, times = (done.steps, (done.download, done.wait, done.compute)) if done else (0, (0.0, 0.0, 0.0))
        header = wire.Result(
            self.run, self.client, memoir.epoch, memoir.seq + 1, job.id, steps, *times, error[:1000], self.others
        )
        self.others = {}
        message = wire.say(header, dict(done.upload) if done else {}, self.dtype)
        moved = dict(done.memory) if done and self.firsts[job.task] else None
        pending = Pending(memoir.epoch, memoir.seq + 1, job.id, job.task, message, moved)
        return self._keep(replace(memoir, seq=memoir.seq + 1, pending=pending))

    # What we do

    def _work(self) -> list[Effect]:
        """Go on with what lies on the desk."""
        memoir, desk = self.memoir, self.desk
        if self.over or memoir is None or desk is None or not memoir.accepted or not desk.present or desk.stopped:
            return []
        if (desk.epoch, desk.nonce) != (memoir.epoch, memoir.nonce) or self.recovering or self.comparing:
            return []
        return [*self._evaluate(desk), *self._go_on(desk, memoir)]

    def _go_on(self, desk: Desk, memoir: Memoir) -> list[Effect]:
        for task, partial in desk.recalls.items() if memoir.pending is None else ():
            # What is done goes out at once, while newer work goes on: unless that is wanted too, or built on the same
            # memory, in which case there is only one of the two.
            alone = partial or bool(self.firsts[task])
            if task in self.kept and (self.current is None or not alone):
                told = self._pend(self.kept[task].job, self.kept.pop(task))
                return [*told, *(self._next(desk) if self.current is None else [])]
        if self.current is not None:
            return self._watch(desk, self.current)
        return self._next(desk)

    def _watch(self, desk: Desk, current: Job) -> list[Effect]:
        """Whether the job at work is still wanted, or wanted at once."""
        listed = any(job.id == current.id for job, _ in desk.jobs)
        newer = any(job.hold and job.task == current.task and job.number > current.number for job, _ in desk.jobs)
        if not listed and not (current.hold and newer):
            self.current, self.interrupted = None, False
            return [Interrupt(False), *self._work()]
        if current.hold and desk.recalls.get(current.task) and not self.interrupted:
            self.interrupted = True
            return [Interrupt(True)]
        return []

    def _next(self, desk: Desk) -> list[Effect]:
        memoir = self.memoir  # the newest: a result may have been written down a moment ago
        if memoir is None:
            return []
        pending = memoir.pending
        for job, name in desk.jobs:
            # While a result is on its way, only work that waits to be called may begin, if it needs no memory of it.
            if pending is not None and (not job.hold or self.firsts[job.task] or job.id <= pending.job):
                continue
            kept = self.kept.get(job.task)
            if job.hold and kept is not None and kept.job.number >= job.number:
                continue
            if name not in self.models:
                return self._get(name)
            if job.hold and desk.recalls.get(job.task):
                job = job._replace(steps=0)  # wanted at once, before its first step
            self.current = job
            payload = self.models[name]
            named = {digest for _, digest in desk.jobs} | {digest for _, _, digest in desk.judge}
            self.models = {digest: model for digest, model in self.models.items() if digest in named}
            return [Train(job, payload, memoir.memory.get(job.task, {}))]
        return []

    def _evaluate(self, desk: Desk) -> list[Effect]:
        """Begin the next evaluation that is asked for, beside whatever job is at work."""
        for number, task, name in desk.judge if not self.answering else ():
            if number > self.judging:
                if name not in self.models:
                    return self._get(name)
                self.judging, self.answering = number, True
                return [Judge(number, task, self.models[name])]
        return []

    def _get(self, name: str) -> list[Effect]:
        """Fetch a model, one at a time."""
        if self.wanted:
            return []
        self.wanted, self.asked = name, self.now
        return [Fetch(name)]

    def _done_with(self, desk: Desk) -> list[Effect]:
        """The run is over; leave as soon as nothing is asked for any more."""
        waiting = self.answering or any(number > self.judging for number, _, _ in desk.judge)
        return [] if waiting else self._exit("")

    def _exit(self, error: str) -> list[Effect]:
        self.over = True
        return [Interrupt(False), Exit(error)]
