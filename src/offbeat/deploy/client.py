"""A client of a run on its network, disk and processor: does what its `ClientCore` wants, in that order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from offbeat.core.errors import DivergedError
from offbeat.core.events import Job
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import effects, wire
from offbeat.deploy.assignment import INLINE
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.disk import Disk
from offbeat.deploy.effects import Done, Effect
from offbeat.deploy.keys import Seal
from offbeat.deploy.link import FAILURES, Link
from offbeat.deploy.train import Training
from offbeat.timing.base import Clock

log = logging.getLogger("offbeat.deploy")

TICK = 0.2  # seconds
QUICK = 0.004  # a job that took less the last time is done at once: handing it to a thread would take as long


@dataclass(frozen=True)
class Party:
    """What a client needs to take part in a run.

    problems: by task, with this client's data at least.   judge: (right, total, summed loss) of a task's model on the
    client's own held-out data; None: it has none.   clock: how long jobs are to take, in units of `unit` seconds, for
    trying out a federation on one machine; None: as long as they take.
    """

    run: str
    client: str
    number: int
    problems: Sequence[Problem]
    locals: Sequence[Local]
    seed: int
    judge: Callable[[int, Vector], tuple[int, int, float]] | None = None
    clock: Clock | None = None
    unit: float = 1.0
    dtype: str = ""


class RunClient:
    """One client of one run."""

    def __init__(self, party: Party, link: Link, folder: Path, beat: float = 2.0, retry: float = 2.0) -> None:
        self.party, self.link = party, link
        self.disk = Disk(folder, party.run)
        self.seal = Seal(link.creds)
        self.stream, self.mirrors = link.stream(party.run, "assignment"), f"{party.run}.mirror.{party.client}"
        firsts = [local.remember(p.initial().cpu()) for local, p in zip(party.locals, party.problems, strict=True)]
        self.core = ClientCore(
            party.run, party.client, firsts, lambda: secrets.token_hex(8), retry=retry, beat=beat, dtype=party.dtype
        )
        self.queue: asyncio.Queue[Callable[[ClientCore, float], list[Effect]]] = asyncio.Queue()
        self.pool = ThreadPoolExecutor(1)
        self.halt: threading.Event | None = None  # of the job at work
        self.keep = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.under_way: set[str] = set()  # what `_once` has begun
        self.stored: tuple[str, set[int]] = ("", set())  # pieces of the last large update that the broker has
        self.first_seen: dict[int, float] = {}
        self.fetching: dict[str, float] = {}
        self.spent: dict[int, float] = {}  # task -> seconds of its last job
        self.mirror_at: dict[str, tuple[int, int]] = {}  # nonce -> (number of the last head, slot)
        self.ended: str | None = None
        self.applied = self.refused = self.jobs = 0

    async def run(self) -> str:
        """Take part until the run is over; gives an error, or nothing if all went well."""
        try:
            await self._do(self.core.start(self.disk.read(), time.monotonic()))
            await self.link.listen(f"{self.party.run}.assignment.{self.party.client}", self._assignment)
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
            self.disk.close()

    def leave(self) -> None:
        """Go, and say so."""
        self.queue.put_nowait(lambda core, now: core.leave(now))

    async def _step(self) -> None:
        try:
            heard = await asyncio.wait_for(self.queue.get(), TICK)
        except TimeoutError:
            await self._do(self.core.tick(time.monotonic()))
            if self.core.assignment is None:
                await self._look()
            return
        before = self.core.state
        wants = heard(self.core, time.monotonic())
        self._count(before)
        await self._do(wants)
        await self._do(self.core.tick(time.monotonic()))

    def _count(self, before: Any) -> None:
        """For the display."""
        assignment, after = self.core.assignment, self.core.state
        if assignment is None:
            return
        now = time.monotonic()
        for job, _ in assignment.jobs:
            self.first_seen.setdefault(job.id, now)
        if before is not None and before.pending is not None and after is not None and after.pending is None:
            if assignment.verdict == "applied":
                self.applied += 1
            else:
                self.refused += 1
                log.warning("%s: job %d was refused: %s", self.party.client, before.pending.job, assignment.verdict)

    # Hearing

    async def _assignment(self, _: str, data: bytes) -> None:
        self.queue.put_nowait(lambda core, now: core.hear(data, now))

    async def _look(self) -> None:
        """Read the assignment that the broker has: what was said while we were away."""
        with contextlib.suppress(*FAILURES):
            found = await self.link.last(self.stream, f"{self.party.run}.assignment.{self.party.client}")
            if found is not None:
                await self._assignment("", found[1])

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
                with contextlib.suppress(*FAILURES):
                    await action()
            finally:
                self.under_way.discard(what)

        self._later(do())

    # Doing

    async def _do(self, wants: Sequence[Effect]) -> None:
        for effect in wants:
            match effect:
                case effects.Save(data):
                    self.disk.save(data)
                case effects.Tell(data, name) if len(data) <= INLINE:
                    await self._tell(data, name)
                case effects.Tell(data, name):
                    self._once(f"tell {name}", partial(self._tell_large, data, name))
                case effects.Sign(data):
                    with contextlib.suppress(*FAILURES):
                        await self.link.say(f"{self.party.run}.beat.{self.party.client}", data)
                case effects.Mirror(nonce, data):
                    self._once(f"mirror {nonce} {id(data)}", partial(self._mirror, nonce, data))
                case effects.Recover(nonce):
                    self._once(f"recover {nonce}", partial(self._recover, nonce))
                case effects.Fetch(digest):
                    self._once(f"fetch {digest}", partial(self._fetch, digest))
                case effects.Train():
                    self._train(effect)
                case effects.Interrupt(keep):
                    self._stop_training(keep)
                case effects.Judge(number, task, payload):
                    self._later(self._judge(number, task, payload))
                case effects.Exit(error):
                    await asyncio.sleep(0)  # let what was said before go out
                    self.ended = error

    async def _tell(self, data: bytes, name: str) -> None:
        with contextlib.suppress(*FAILURES):
            await self.link.say(f"{self.party.run}.up.{self.party.client}", data, name)

    async def _tell_large(self, data: bytes, name: str) -> None:
        """In pieces if need be; what the broker has is not sent again after a broken connection."""
        run, client = self.party.run, self.party.client
        if len(data) > self.link.piece:
            digest = wire.digest(data)
            if self.stored[0] != digest:
                self.stored = digest, set()
            count = await self.link.put(f"{run}.part.{client}.{digest}", data, once=True, done=self.stored[1])
            data = wire.say(wire.Parted(run, client, digest, count, len(data)))
        await self.link.say(f"{run}.up.{client}", data, name)
        await self.link.client.flush(60)  # not again while it is on its way

    async def _mirror(self, nonce: str, data: bytes) -> None:
        """Leave a sealed copy; the broker compares and sets, so that a copy that was overtaken does not overwrite."""
        run, subject = self.party.run, f"{self.mirrors}.{nonce}"
        if nonce not in self.mirror_at:
            found = await self.link.last(self.stream, f"{subject}.head")
            self.mirror_at[nonce] = (found[0] if found else 0, 0)
        at, slot = self.mirror_at.pop(nonce)  # looked up again if this fails
        sealed = self.seal.close(data, f"{run} {nonce}")
        header: dict[str, Any] = {"run": run, "slot": 0, "count": 0, "name": ""}
        parts: dict[str, bytes] = {"sealed": sealed}
        if len(sealed) > self.link.piece:
            slot = 1 - slot
            count = await self.link.put(f"{subject}.{slot}", sealed)
            header |= {"slot": slot, "count": count, "name": wire.digest(sealed)}
            parts = {}
        at = await self.link.store(f"{subject}.head", wire.pack("mirror", header, parts), expect=at)
        self.mirror_at[nonce] = (at, slot)
        self.queue.put_nowait(lambda core, now: core.mirrored(data, now))

    async def _recover(self, nonce: str) -> None:
        subject, sealed = f"{self.mirrors}.{nonce}", None
        found = await self.link.last(self.stream, f"{subject}.head")
        if found is not None:
            message = wire.unpack(found[1])
            if "sealed" in message.parts:
                sealed = bytes(message.parts["sealed"][1])
            else:
                slot, count, name = (message.header[key] for key in ("slot", "count", "name"))
                sealed = await self.link.get(self.stream, f"{subject}.{int(slot)}", int(count), str(name))
        data = self.seal.open(sealed, f"{self.party.run} {nonce}") if sealed is not None else None
        self.queue.put_nowait(lambda core, now: core.recovered(data, now))

    async def _fetch(self, digest: str) -> None:
        """A large model. Of a cluster's brokers, one that lags behind may answer: so not at once is not never."""
        run, began, data = self.party.run, time.monotonic(), None
        for wait in (0.1, 0.4, 1.5, 0.0):
            data = await self.link.get(self.link.stream(run, "model"), f"{run}.model.{digest}", None, digest)
            if data is not None:
                break
            await asyncio.sleep(wait)
        self.fetching[digest] = time.monotonic() - began
        self.queue.put_nowait(lambda core, now: core.fetched(digest, data, now))

    async def _judge(self, number: int, task: int, payload: Payload) -> None:
        right, total, loss = 0, 0, 0.0
        if self.party.judge is not None:
            right, total, loss = await asyncio.to_thread(self.party.judge, task, payload["model"])
        self.queue.put_nowait(lambda core, now: core.judged(number, right, total, loss, now))

    # Training, in a thread, a step at a time

    def _train(self, train: effects.Train) -> None:
        self._stop_training(False)
        self.halt, self.keep = threading.Event(), False
        self.jobs += 1
        job = train.job
        waited = max(0.0, time.monotonic() - self.first_seen.pop(job.id, time.monotonic()))
        work = (asyncio.get_running_loop(), self.halt, train, waited)
        if self.party.clock is None and not job.hold and self.spent.get(job.task, 1.0) < QUICK:
            self._work(*work)
        else:
            self.pool.submit(self._work, *work)

    def _stop_training(self, keep: bool) -> None:
        if self.halt is not None:
            self.keep = keep
            self.halt.set()
            if not keep:
                self.halt = None

    def _work(
        self, loop: asyncio.AbstractEventLoop, halt: threading.Event, train: effects.Train, waited: float
    ) -> None:
        job = train.job

        def say(heard: Callable[[ClientCore, float], list[Effect]]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone: so are we
                loop.call_soon_threadsafe(self.queue.put_nowait, heard)

        try:
            done = self._trained(halt, train, waited)
        except Exception as error:  # a client's failure is a lost job, never a crash
            reason = str(error)
            if not isinstance(error, DivergedError):
                log.exception("%s: job %d failed", self.party.client, job.id)
                reason = f"{type(error).__name__}: {error}"
            say(lambda core, now: core.failed(job, reason, now))
        else:
            if done is not None:
                say(lambda core, now: core.done(done, now))

    def _trained(self, halt: threading.Event, train: effects.Train, waited: float) -> Done | None:
        party, job = self.party, train.job
        download, compute, upload = self._pace(job)
        halt.wait(download)
        began = stepped = time.monotonic()
        training = Training(party.problems[job.task], party.locals[job.task], *train, party.seed)
        more = job.steps > 0
        while more and not halt.is_set():
            until = began + compute * (training.steps + 1) / job.steps
            if until > time.monotonic() and halt.wait(until - time.monotonic()):
                break
            more = training.step()
            stepped = time.monotonic()
        if halt.is_set() and not self.keep:
            return None
        vectors, moved = training.result()
        # Of interrupted work, what its whole steps took: the part of a step that was in vain would make it look slow.
        until = stepped if 0 < training.steps < job.steps else time.monotonic()
        spent = self.spent[job.task] = until - began
        time.sleep(upload)
        fetched = sum(self.fetching.values())
        self.fetching.clear()
        return Done(job, vectors, moved, training.steps, download + fetched, max(0.0, waited - fetched), spent)

    def _pace(self, job: Job) -> tuple[float, float, float]:
        """Seconds that the parts of this job are to take at least."""
        clock, unit = self.party.clock, self.party.unit
        if clock is None:
            return 0.0, 0.0, 0.0
        down, up = self.party.locals[job.task].wire(self.party.problems[job.task].dim)
        times = clock.durations(job, down, up)
        return times.download * unit, times.compute * unit, times.upload * unit


async def read_charter(link: Link) -> dict[str, Any] | None:
    """What is being run, if anything is."""
    with contextlib.suppress(*FAILURES, ValueError):
        found = await link.last(link.board, "charter")
        if found is not None:
            charter = json.loads(found[1])
            if isinstance(charter, dict):
                return charter
    return None
