"""A client of a run on its network, disk and processor: does what its `ClientCore` wants, in that order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from offbeat.core.errors import DivergedError, SettingError, SpentError
from offbeat.core.events import Job
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.sums import Secure, encoder
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import effects
from offbeat.deploy.board import parse_pulse
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.disk import Disk
from offbeat.deploy.effects import Done, Effect, Judgement, Progress
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import ModelSeal, PrivateSeal, derive
from offbeat.deploy.identity import Creds
from offbeat.deploy.link import Kept, Link
from offbeat.deploy.masking import Masking, PairMasking
from offbeat.deploy.questions import Asking, CopyPiece, channel_of, copy_name, write
from offbeat.deploy.taking_part import TakingPart
from offbeat.deploy.train import Training
from offbeat.deploy.uplink import Uplink
from offbeat.timing.base import Clock

log = logging.getLogger("offbeat.deploy")

TICK = 0.2  # seconds
LOOK = 2.0  # seconds between polls of the broker while nothing has arrived
KEY = 32  # bytes of the models' key before an assignment
QUICK = 0.004  # a job that took less the last time is done at once: handing it to a thread would take as long

Heard: TypeAlias = Callable[[ClientCore, float], list[Effect]]


@dataclass(frozen=True)
class Party:
    """What a client needs to take part in a run.

    problems: by task, with this client's data at least.   judge: what a task's model comes to on the client's own
    held-out data, given the client's memory; None: it has none.   clock: how long jobs are to take, in units of `unit`
    seconds, for trying out a federation on one machine; None: as long as they take.   secure: whether what it sends is
    masked.
    """

    run: str
    client: str
    number: int
    problems: Sequence[Problem]
    locals: Sequence[Local]
    seed: int
    judge: Callable[[int, Vector, Payload], Judgement] | None = None
    clock: Clock | None = None
    unit: float = 1.0
    dtype: str = ""
    secure: Secure | None = None


class RunClient:
    """One client of one run."""

    def __init__(self, party: Party, link: Link, folder: Path, beat: float = 2.0, retry: float = 2.0) -> None:
        self.party, self.link = party, link
        self.disk = Disk(folder, party.run)
        self.channel, self.asking = channel_of(link.creds, party.run), Asking(link, party.run)
        self.private = copy_seal(link.creds)
        self.models: ModelSeal | None = None
        self.desk = b""  # the last assignment that was heard
        self.looked = 0.0  # when the broker was last asked for it
        firsts = [local.remember(p.initial().cpu()) for local, p in zip(party.locals, party.problems, strict=True)]
        self.core = ClientCore(
            party.run,
            party.client,
            firsts,
            lambda: secrets.token_hex(8),
            retry=retry,
            beat=beat,
            dtype=party.dtype,
            mask=_mask(party, link.creds),
            part=_part(party, link.creds),
        )
        self.queue: asyncio.Queue[Heard] = asyncio.Queue()
        self.pool = ThreadPoolExecutor(1)
        self.computing = threading.Lock()  # a problem computes one thing at a time: a local step, or an evaluation
        self.halt: threading.Event | None = None  # of the job at work
        self.keep = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.under_way: set[str] = set()  # what `_once` has begun
        self.trouble = ""  # why the broker does not take what we send
        self.uplink = Uplink(link, self.channel, party.run, retry)
        self.first_seen: dict[int, float] = {}
        self.fetching: dict[str, float] = {}
        self.spent: dict[int, float] = {}  # task -> seconds of its last job
        self.ended: str | None = None
        self.jobs = 0
        self.cut = 0  # results of which a part was lost to fixed point

    async def run(self) -> str:
        """Take part until the run is over; gives an error, or nothing if all went well."""
        heard: list[Any] = []
        try:
            await self._do(self.core.start(self.disk.read(), time.monotonic()))
            await self.asking.listen()
            heard.append(await self.link.listen(f"desk.{self.party.run}", self._assignment))
            heard.append(await self.link.listen(f"pulse.{self.party.run}", self._pulse))
            self.link.reconnected.append(self._look)
            await self._look()
            while self.ended is None:
                await self._step()
            await self._do([effects.Sign(self.core.sign())])
            return self.ended
        finally:
            self._stop_training(False)
            for task in self.tasks:
                task.cancel()
            self.pool.shutdown(wait=False, cancel_futures=True)
            if self._look in self.link.reconnected:
                self.link.reconnected.remove(self._look)
            for subscription in heard:
                with contextlib.suppress(*FAILURES):
                    await subscription.unsubscribe()
            await self.asking.close()
            self.disk.close()

    @property
    def applied(self) -> int:
        """Updates of this client that were applied since the run began, as the server counts them."""
        return 0 if self.core.assignment is None else self.core.assignment.applied

    @property
    def stopped(self) -> str:
        """Why the run is over, "" if it is not, as far as this client knows."""
        return "" if self.core.assignment is None else self.core.assignment.stopped

    @property
    def tally(self) -> str:
        """What has become of this client's results since the run began, as the server counts them."""
        told = self.core.assignment
        if told is None:
            return "no updates applied"
        parts = [f"{told.applied:,} updates applied", f"{told.refused:,} refused"]
        return ", ".join([*parts, f"{told.failed:,} jobs failed"] if told.failed else parts)

    @property
    def leaving(self) -> bool:
        """Whether it was asked to go before the run was over."""
        return self.core.leaving

    @property
    def doing(self) -> str:
        """What it has done and is at, in one line."""
        job = self.core.current
        at = f"job {job.id}, {job.steps} steps from version {job.version}" if job else "waiting for work"
        return f"{self.tally}; {at}"

    def leave(self) -> None:
        """Go, and say so."""
        self.queue.put_nowait(lambda core, now: core.leave(now))

    async def _step(self) -> None:
        try:
            heard = await self._next()
        except TimeoutError:
            await self._do(self.core.tick(time.monotonic()))
            if self.core.assignment is None and time.monotonic() - self.looked > LOOK:
                await self._look()
            return
        before = self.core.state
        wants = heard(self.core, time.monotonic())
        self._count(before)
        await self._do(wants)
        await self._do(self.core.tick(time.monotonic()))

    async def _next(self) -> Heard:
        """What was heard; a task that waits for it is made only if there is nothing yet."""
        return await asyncio.wait_for(self.queue.get(), TICK) if self.queue.empty() else self.queue.get_nowait()

    def _count(self, before: Any) -> None:
        """What is told about jobs and results."""
        if self.core.undone >= 0:
            lost = f"{self.core.undone:,} of this client's results since then are lost"
            log.warning("%s: %s was restored from a backup; %s", self.party.client, self.party.run, lost)
            self.core.undone = -1
        if self.core.part is not None and self.core.part.refused:
            log.warning("%s: does not take part in %s", self.party.client, self.core.part.refused)
            self.core.part.refused = ""
        assignment, after = self.core.assignment, self.core.state
        if assignment is None:
            return
        now = time.monotonic()
        for job, _ in assignment.jobs:
            self.first_seen.setdefault(job.id, now)
        pending = None if before is None or after is None or after.pending is not None else before.pending
        if pending is not None and assignment.verdict not in ("", "applied", "over", "cancelled"):
            log.warning("%s: job %d was refused: %s", self.party.client, pending.job, assignment.verdict)

    # Hearing

    async def _assignment(self, _: str, data: bytes) -> None:
        """An assignment, with the key of the models before it."""
        try:
            opened = self.channel.open("desk", data)
        except RefusedError as error:
            # before the first one, what the broker has kept may be for the keys that this client had before
            level = logging.WARNING if self.desk else logging.DEBUG
            log.log(level, "%s: what came as an assignment is not the server's (%s)", self.party.client, error)
            return
        if self.models is None or self.models.key != opened[:KEY]:
            self.models = ModelSeal(opened[:KEY])
        if self.desk != opened:
            self.desk = opened
            self.uplink.told.clear()  # there is news: what was not answered is said again when it is time
        self.queue.put_nowait(lambda core, now: core.hear(opened[KEY:], now))

    async def _pulse(self, _: str, data: bytes) -> None:
        """A sign of life of the server, which ours answer to."""
        with contextlib.suppress(RefusedError):
            pulse = parse_pulse(self.link.creds, self.party.run, data)
            self.core.pulse = max(self.core.pulse, (pulse.term, pulse.number))

    async def _look(self) -> None:
        """Read the assignment that the broker has: what was said while we were away."""
        self.uplink.told.clear()
        self.looked = time.monotonic()
        with contextlib.suppress(*FAILURES):
            found = await self.link.get(f"get.desk.{self.party.run}")
            if found is not None:
                await self._assignment("", found.data)

    def _later(self, action: Any) -> None:
        task = asyncio.get_running_loop().create_task(action)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _once(self, what: str, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin this, unless it is under way: what takes long is asked for again and again until it is done."""
        if what in self.under_way:
            return
        self.under_way.add(what)

        async def do() -> None:
            try:
                await action()
                self.trouble = ""
            except FAILURES as error:  # it is tried again
                self._troubled(error)
            finally:
                self.under_way.discard(what)

        self._later(do())

    def _troubled(self, error: Exception) -> None:
        """Say what waiting alone does not help against, once."""
        said = str(getattr(error, "description", "") or "")
        if ("resource" in said or "storage" in said) and said != self.trouble:
            self.trouble, who = said, self.party.client
            advice = "its operator has to free space on its disk or raise its limits"
            log.warning("%s: the broker has no room for what this client sends (%s); %s", who, said, advice)

    # Doing

    async def _do(self, wants: Sequence[Effect]) -> None:
        for effect in wants:
            match effect:
                case effects.Save(data):
                    self.disk.save(data)
                case effects.Tell(data, name):
                    self._once(f"tell {name}", partial(self.uplink.tell, data, name))
                case effects.Sign(data):
                    with contextlib.suppress(*FAILURES):
                        await self.link.say(f"beat.{self.party.run}", self.channel.seal("beat", data))
                case effects.Mirror(nonce, data, progress):
                    self._once(f"mirror {nonce} {id(data)}", partial(self._mirror, nonce, data, progress))
                case effects.Recover(nonce):
                    self._once(f"recover {nonce}", partial(self._recover, nonce))
                case effects.Fetch(digest):
                    self._once(f"fetch {digest}", partial(self._fetch, digest))
                case effects.Train():
                    self._train(effect)
                case effects.Interrupt(keep):
                    self._stop_training(keep)
                case effects.Judge():
                    self._later(self._judge(effect))
                case effects.Exit(error):
                    await asyncio.sleep(0)  # let what was said before go out
                    self.ended = error

    async def _mirror(self, nonce: str, data: bytes, progress: Progress) -> None:
        """Leave a sealed copy with the broker, which keeps the last few."""
        run = self.party.run
        sealed = self.private.seal(data, "copy", run, nonce)
        size, name = self.link.piece - 1024, copy_name(progress)
        pieces = [sealed[at : at + size] for at in range(0, len(sealed), size)]
        messages = [
            write("copy", CopyPiece(nonce, name, number, len(pieces)), piece) for number, piece in enumerate(pieces)
        ]
        await self.link.put(messages, lambda _: f"mirror.{run}")
        self.queue.put_nowait(lambda core, now: core.mirrored(data, now))

    async def _recover(self, nonce: str) -> None:
        """Ask the server for our copy; only its word that there is none counts as that."""
        data = None
        for skip in range(3):
            with contextlib.suppress(RefusedError):
                sealed = await self.asking.ask("copy", nonce, skip)
                if sealed is not None:
                    data = self.private.open(sealed, "copy", self.party.run, nonce)
                break
        self.queue.put_nowait(lambda core, now: core.recovered(data, now))

    async def _fetch(self, digest: str) -> None:
        """A large model. Of a cluster's brokers, one that lags behind may answer: so not at once is not never."""
        began, data = time.monotonic(), None
        for wait in (0.1, 0.4, 1.5, 0.0):
            with contextlib.suppress(RefusedError):
                if self.models is not None:
                    place = f"get.model.{self.party.run}.{self.models.address(digest)}"
                    sealed = await self.link.collect(partial(self._piece, place), None)
                    data = self.models.open(digest, sealed or b"")
                    break
            await asyncio.sleep(wait)
        self.fetching[digest] = time.monotonic() - began
        self.queue.put_nowait(lambda core, now: core.fetched(digest, data, now))

    async def _piece(self, place: str, number: int) -> Kept | None:
        return await self.link.get(f"{place}.{number}")

    async def _judge(self, wanted: effects.Judge) -> None:
        answer = Judgement(0) if self.party.judge is None else await asyncio.to_thread(self._judged, wanted)
        self.queue.put_nowait(lambda core, now: core.judged(wanted.number, answer, now))

    def _judged(self, wanted: effects.Judge) -> Judgement:
        assert self.party.judge is not None
        with self.computing:
            return self.party.judge(wanted.task, wanted.payload["model"], wanted.memory)

    # Training, in a thread, a step at a time

    def _train(self, train: effects.Train) -> None:
        self._stop_training(False)
        self.halt, self.keep = threading.Event(), False
        self.jobs += 1
        job = train.job
        waited = max(0.0, time.monotonic() - self.first_seen.pop(job.id, time.monotonic()))
        loop, put = asyncio.get_running_loop(), self.queue.put_nowait
        quick = self.spent.get(job.task, 1.0) < QUICK and not self.computing.locked()
        alone = bool(self.party.locals[job.task].alone)  # it may have to wait for another client of this process
        if self.party.clock is None and not job.hold and quick and not alone:
            self._work(put, self.halt, train, waited)
        else:
            self.pool.submit(self._work, lambda heard: loop.call_soon_threadsafe(put, heard), self.halt, train, waited)

    def _stop_training(self, keep: bool) -> None:
        if self.halt is not None:
            self.keep = keep
            self.halt.set()
            if not keep:
                self.halt = None

    def _work(self, put: Callable[[Heard], object], halt: threading.Event, train: effects.Train, waited: float) -> None:
        job = train.job

        def say(heard: Heard) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone: so are we
                put(heard)

        try:
            done = self._trained(halt, train, waited)
        except Exception as error:  # a client's failure is a lost job, never a crash
            reason = str(error)
            if isinstance(error, DivergedError):
                log.warning("%s: job %d has diverged: %s", self.party.client, job.id, reason)
            elif isinstance(error, SpentError):
                log.warning("%s refuses job %d: %s", self.party.client, job.id, reason)
            else:
                log.exception("%s: job %d failed", self.party.client, job.id)
                reason = f"{type(error).__name__}: {error}"
            say(lambda core, now: core.failed(job, reason, now))
        else:
            if done is not None:
                say(lambda core, now: core.done(done, now))

    def _trained(self, halt: threading.Event, train: effects.Train, waited: float) -> Done | None:
        party, job = self.party, train.job
        download, compute, upload = self._pace(job)
        if download:
            halt.wait(download)
        began = stepped = time.monotonic()

        def due(made: int) -> bool:
            """Wait until it is time to end the next step; whether to make it."""
            until = began + compute * (made + 1) / job.steps
            if until > time.monotonic():
                halt.wait(until - time.monotonic())
            return not halt.is_set()

        def go_on(made: int) -> bool:
            nonlocal stepped
            stepped = time.monotonic()
            self.computing.release()
            try:
                return due(made)
            finally:
                self.computing.acquire()

        with self.computing:  # its first numbers come from the model, too
            training = Training(party.problems[job.task], party.locals[job.task], *train, party.seed, go_on)
        more = job.steps > 0
        while more and due(training.steps):
            with self.computing:
                more = training.step()
            stepped = stepped if training.made else time.monotonic()
        if halt.is_set() and not self.keep:
            return None
        with self.computing:
            vectors, moved = training.result()
        # Of interrupted work only completed steps are timed: an abandoned step would make the client look slow.
        until = stepped if 0 < training.steps < job.steps else time.monotonic()
        spent = self.spent[job.task] = until - began
        if upload:
            time.sleep(upload)
        fetched = sum(self.fetching.values())
        self.fetching.clear()
        times = (download + fetched, max(0.0, waited - fetched), spent)
        return Done(job, vectors, moved, training.steps, *times, self._cut(job, vectors))

    def _cut(self, job: Job, vectors: Payload) -> bool:
        """Whether numbers of a result were too large for fixed point, so that a part of them is lost; it is said."""
        exact = encoder(self.party.locals[job.task])
        lost = 0 if exact is None else sum(map(exact.lost, vectors.values()))
        if exact is not None and lost:
            self.cut += 1
            if self.cut & (self.cut - 1) == 0:  # the first, the second, the fourth: not every line of a log
                most = f"{lost:,} numbers of job {job.id} were beyond ±{exact.largest * exact.secure.unit:g}"
                advice = f"what was beyond is lost; give fewer secure.bits than {exact.secure.places}, or clip"
                log.warning("%s: %s; %s (%d updates so far)", self.party.client, most, advice, self.cut)
        return lost > 0

    def _pace(self, job: Job) -> tuple[float, float, float]:
        """Seconds that the parts of this job are to take at least."""
        clock, unit = self.party.clock, self.party.unit
        if clock is None:
            return 0.0, 0.0, 0.0
        down, up = self.party.locals[job.task].wire(self.party.problems[job.task].dim)
        times = clock.durations(job, down, up)
        return times.download * unit, times.compute * unit, times.upload * unit


def _mask(party: Party, creds: Creds) -> Masking | None:
    """How a client's messages are masked, if they are."""
    if party.secure is None or party.secure.mode == "cohort":
        return None
    if not creds.helper:
        raise SettingError(
            f"{party.run} sums updates with a helper, and the keys of {creds.client} know none; ask the coordinator "
            "for newer ones, which `offbeat keys helper` makes"
        )
    return Masking(creds.federation, party.run, party.secure, creds.seal, creds.helper)


def _part(party: Party, creds: Creds) -> TakingPart | None:
    """A client's part in cohorts, where clients mask for each other."""
    if party.secure is None or party.secure.mode != "cohort":
        return None
    return TakingPart(PairMasking(creds.federation, party.run, party.secure, creds.sign, creds.coordinator))


def copy_seal(creds: Creds) -> PrivateSeal:
    """Seals the copies of its state that a client leaves with the broker."""
    about = ("copy", creds.federation, creds.client)
    return PrivateSeal(derive(creds.copy, *about), [derive(before, *about) for before in creds.copies_before])
