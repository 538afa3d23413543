"""The server of a run on its network and disk: reads the log, folds it, sends assignments, evaluates, saves."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from offbeat.core.errors import DivergedError, FolderError
from offbeat.core.state import Tensors, dump
from offbeat.core.vectors import Vector
from offbeat.core.watcher import Watcher
from offbeat.deploy import wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import AT_ONCE, FAILURES, Link, LogReader, as_json
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import LogEntry, Reducer
from offbeat.deploy.server_core import Append, Effect, Post, ServerCore
from offbeat.deploy.trace import Trips
from offbeat.deploy.wire import RefusedError
from offbeat.watch import checkpoint
from offbeat.watch.record import Recorder

log = logging.getLogger("offbeat.deploy")


def note(event: str, **fields: Any) -> None:
    """A line for the log, as JSON."""
    log.info(json.dumps({"time": round(time.time(), 3), "event": event, **fields}))


Measure = Callable[[int, Vector], Mapping[str, float]]


class RunServer:
    """One run's server. `folder` holds its checkpoint and its record; begun again there, it goes on.

    measure: metrics of a task's model; None: the clients evaluate.   charter: what clients are told about the run.
    models: bytes of large models that the broker keeps.   replicas: brokers of a cluster that keep the run's streams.
    save_every: seconds between checkpoints.   tick: called now and then, for a display.   trim: remove entries that the
    checkpoints have behind them from the log, which then cannot be folded again from its beginning.
    """

    def __init__(
        self,
        plan: Plan,
        link: Link,
        folder: Path,
        charter: Mapping[str, Any],
        *,
        measure: Measure | None = None,
        every: float | None = None,
        wait: int | None = None,
        save_every: float = 10.0,
        models: int = 1 << 30,
        replicas: int = 1,
        trim: bool = False,
        tick: Callable[[RunServer], None] | None = None,
    ) -> None:
        self.plan, self.link, self.folder, self.charter = plan, link, folder, charter
        self.measure, self.save_every, self.kept_models, self.tick = measure, save_every, models, tick
        self.replicas = replicas
        folder.mkdir(parents=True, exist_ok=True)
        saved = checkpoint.restore(Ledger, folder)
        ledger, extra = saved if saved else (None, {})
        self.recorder = Recorder(folder, extra.get("record"))
        self.trips = Trips(folder, extra.get("trips"))
        self.worked = float(extra.get("worked", 0.0))
        asks = measure is None and every is not None
        self.core = ServerCore(plan, ledger, [self.recorder, self.trips], every=every, asks=asks, wait=wait)
        self.reader = LogReader(link, plan.run, self._take)
        self.entries: asyncio.Queue[LogEntry] = asyncio.Queue()
        self.waiting = asyncio.Event()
        self.lag = 0.0  # seconds between an entry's time stamp and its being folded
        self.evaluating: set[asyncio.Task[None]] = set()
        self.began = self.saved = time.monotonic()
        self.asked = False  # to stop serving
        self.trim = trim
        self.safe = [0]  # the positions of the last two checkpoints
        self.parted: deque[tuple[int, str]] = deque()  # (position, subject) of large updates beside the log

    @property
    def ledger(self) -> Ledger:
        return self.core.ledger

    @property
    def wall(self) -> float:
        return self.worked + time.monotonic() - self.began

    async def run(self) -> None:
        """Serve until the run is over, or until `leave`; raises `DivergedError` if it has diverged."""
        link = self.link
        await link.insist(lambda: link.make_streams(self.plan.run, self.kept_models, self.replicas))
        await self._catch_up()
        await self.link.listen(f"{self.plan.run}.beat.*", self._beat)
        await self.link.client.subscribe(f"{self.link.root}.ask", cb=self._answer)
        link.reconnected.append(self._again)
        await link.insist(lambda: link.store("charter", as_json(self.charter)))
        await self._obey(self.core.boot(time.monotonic()))
        note("serving", run=self.plan.run, position=self.ledger.position, clients=len(self.plan.roster))
        while not self.asked and not self._over():
            await self._round()
        if self.ledger.stopped and not self.asked:
            self.trips.end(self.ledger, self.plan.unit)
            await self._farewell()
        self.save()
        note("left" if self.asked else "over", run=self.plan.run, reason=self.ledger.stopped)
        if self.ledger.diverged and not self.asked:
            raise DivergedError(self.ledger.diverged)

    def leave(self) -> None:
        """Stop serving; the run goes on when somebody serves it again."""
        self.asked = True
        self.waiting.set()

    def save(self) -> None:
        """Write a checkpoint: the state with its position in the log, and how far the record goes."""
        self.recorder.flush()
        self.trips.flush()
        extra = {"record": self.recorder.state, "trips": self.trips.state, "worked": self.wall}
        checkpoint.save(self.folder, self.ledger, extra)
        self.saved = time.monotonic()
        self.safe = [*self.safe[-1:], self.ledger.position]

    async def _trim(self) -> None:
        """Remove from the broker what both checkpoints have behind them."""
        position = self.safe[0]
        with contextlib.suppress(*FAILURES):
            await self.link.js.purge_stream(self.link.stream(self.plan.run, "log"), seq=position + 1)
            parts = self.link.stream(self.plan.run, "part")
            while self.parted and self.parted[0][0] <= position:
                await self.link.js.purge_stream(parts, subject=f"{self.link.root}.{self.parted.popleft()[1]}.>")

    # The log

    async def _catch_up(self) -> None:
        """Fold what the log has beyond the checkpoint, before anything is sent."""
        name = self.link.stream(self.plan.run, "log")
        info = await self.link.insist(lambda: self.link.js.stream_info(name))
        end = info.state.last_seq
        if end < self.ledger.position:
            raise FolderError(
                f"the broker's log of {self.plan.run} ends at {end}, but this server has folded {self.ledger.position} "
                f"entries: the broker has lost data; restore its store, or begin another run"
            )
        await self.link.insist(lambda: self.reader.start(self.ledger.position))
        while self.ledger.position < end:
            try:
                came = await asyncio.wait_for(self.entries.get(), 5.0)
            except TimeoutError:  # the broker was restarted, and has forgotten that we read
                await self.link.insist(lambda: self.reader.start(self.reader.position))
                continue
            self.core.replay(await whole(self.link, self.plan, came), time.monotonic())

    def _take(self, entry: LogEntry) -> None:
        self.entries.put_nowait(entry)
        self.waiting.set()

    async def _round(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.waiting.wait(), self.core.wait_for(time.monotonic(), 0.05))
        self.waiting.clear()
        while not self.entries.empty():
            came = self.entries.get_nowait()
            entry = await whole(self.link, self.plan, came)
            if entry.data is not came.data and self.trim:
                subject = f"{self.plan.run}.part.{entry.sender}.{wire.digest(entry.data)}"
                self.parted.append((entry.seq, subject))
            await self._obey(self.core.fold(entry, time.monotonic()))
            self.lag = max(0.0, time.time() - entry.stamp)
            if self.core.code not in ("", APPLIED):
                note("refused", client=entry.sender, code=self.core.code, position=entry.seq, bytes=len(entry.data))
        clock = time.monotonic()
        await self._obey(self.core.due(clock))
        for task in self.core.next_evaluation(clock):
            job = asyncio.create_task(self._evaluate(task))
            self.evaluating.add(job)
            job.add_done_callback(self.evaluating.discard)
        if clock - self.saved > self.save_every:
            self.save()
            if self.trim:
                await self._trim()
        await self.reader.watch()
        if self.tick is not None:
            self.tick(self)

    # Sending

    async def _obey(self, effects: Sequence[Effect]) -> None:
        run = self.plan.run
        for effect in effects:
            try:
                if isinstance(effect, Post):
                    await self.link.say(f"{run}.assignment.{self.plan.roster[effect.client]}", effect.data)
                elif isinstance(effect, Append):
                    await self.link.say(f"{run}.log", effect.data)
                else:
                    # a large model is stored before an assignment names it, whatever happens to the broker
                    put = partial(self.link.put, f"{run}.model.{effect.digest}", effect.data, done=set())
                    await self.link.insist(put)
            except FAILURES as error:  # assignments and entries are sent again when they are missed
                log.warning("not sent: %s", error)

    async def _again(self) -> None:
        """The broker is back: it may have missed what we sent, and has forgotten that we read."""
        await self.reader.start(self.reader.position)
        self.core.put.clear()
        await self.link.store("charter", as_json(self.charter))
        await self._obey(self.core.boot(time.monotonic()))

    async def _beat(self, sender: str, data: bytes) -> None:
        await self._obey(self.core.beat(sender, data, time.monotonic()))

    # Evaluating

    async def _evaluate(self, task: int) -> None:
        ledger = self.ledger
        model = self.plan.server.models(ledger.server)[task]
        vector, version, updates = model.vector, model.version, ledger.tally.updates
        now = (
            ledger.ends.get(task, ledger.now)
            if ledger.stopped or task in ledger.finished
            else max(ledger.now, min(self.core.now(time.monotonic()), self.plan.until.time or float("inf")))
        )
        if self.measure is not None:
            found = await asyncio.to_thread(self.measure, task, vector)
            metrics = {name: float(value) for name, value in found.items()}
            await self._obey([self.core.score(task, now, updates, version, metrics)])

    def _over(self) -> bool:
        """The run has stopped, and its last models are measured."""
        ledger = self.ledger
        if not ledger.stopped or self.evaluating:
            return False
        if self.core.every is None or self.core.asks:
            return not ledger.judging or time.monotonic() - self.core.folded_at > 5.0
        return all(
            ledger.measured[task] >= ledger.ends.get(task, ledger.now)
            for task in range(len(self.plan.locals))
            if task not in ledger.unborn
        )

    async def _farewell(self, patience: float = 6.0) -> None:
        """Wait until the clients that are there know that the run is over."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            there = [client for client, record in enumerate(self.ledger.clients) if record.present]
            if all(self.core.seen.get(c, 0) > self.ledger.clients[c].revision for c in there):
                return
            await self._round()

    # Being asked

    async def _answer(self, message: Any) -> None:
        if message.reply:
            await self.link.client.publish(message.reply, json.dumps(self.status()).encode())

    def status(self) -> dict[str, Any]:
        """The run as it stands, in plain data."""
        ledger, clock = self.ledger, time.monotonic()
        tally = ledger.tally
        last = self.recorder.measurements[-1] if self.recorder.measurements else None
        return {
            "run": self.plan.run,
            "state": ledger.stopped or ("running" if ledger.begun else "waiting for clients"),
            "time": ledger.now,
            "updates": tally.updates,
            "lost": tally.lost,
            "refused": dict(tally.refused),
            "repeated": tally.repeated,
            "staleness": tally.staleness_sum / tally.updates if tally.updates else 0.0,
            "versions": [model.version for model in self.plan.server.models(ledger.server)],
            "metrics": dict(last.metrics) if last else {},
            "position": ledger.position,
            "lag": self.lag,
            "clients": [
                {
                    "name": name,
                    "present": record.present,
                    "epoch": record.epoch,
                    "settled": record.seq,
                    "jobs": len(record.queue) + len(record.held),
                    "silent": clock - self.core.heard[c] if c in self.core.heard else None,
                }
                for c, (name, record) in enumerate(zip(self.plan.roster, ledger.clients, strict=True))
            ],
        }


async def whole(link: Link, plan: Plan, entry: LogEntry) -> LogEntry:
    """A large update lies beside the log in pieces: put it together. What does not fit stays as it came."""
    try:
        message = wire.unpack(entry.data, plan.limits.size) if len(entry.data) < 4096 else None
        if message is None or message.kind != "parted" or entry.sender not in plan.roster:
            return entry
        parted = wire.read(wire.Parted, message.header)
    except RefusedError:
        return entry
    if not 0 < parted.count <= 4096 or not 0 < parted.size <= plan.limits.size or not parted.name.isalnum():
        return entry._replace(data=wire.say(wire.Oversized(plan.run, entry.sender)))
    return entry._replace(data=await _parts(link, plan.run, entry, parted) or entry.data)


async def _parts(link: Link, run: str, entry: LogEntry, parted: wire.Parted) -> bytes | None:
    """The pieces put together, if they were there when the entry was made and are what it says."""
    stream, found = link.stream(run, "part"), bytearray()
    subject = f"{run}.part.{entry.sender}.{parted.name}"
    for at in range(0, parted.count, AT_ONCE):
        numbers = range(at, min(at + AT_ONCE, parted.count))
        for when, data in await asyncio.gather(*(_part(link, stream, f"{subject}.{number}") for number in numbers)):
            if when > entry.stamp or len(found) + len(data) > parted.size:
                return None
            found += data
    return bytes(found) if wire.digest(found) == parted.name else None


async def _part(link: Link, stream: str, subject: str) -> tuple[float, bytes]:
    """One piece; a broken connection is waited out, because it must not decide what the log means."""
    while True:
        with contextlib.suppress(*FAILURES):
            return await link.stamped(stream, subject) or (float("inf"), b"")
        await asyncio.sleep(0.2)


async def refold(link: Link, plan: Plan, end: int | None = None, watchers: Sequence[Watcher] = ()) -> Ledger:
    """The log of a run folded again, from its first entry up to this position."""
    reducer, entries = Reducer(plan, None, watchers), asyncio.Queue[LogEntry]()
    info = await link.js.stream_info(link.stream(plan.run, "log"))
    if info.state.first_seq > 1:
        raise FolderError(f"the log of {plan.run} begins at {info.state.first_seq}: its first entries were removed")
    reader = LogReader(link, plan.run, entries.put_nowait)
    await reader.start(0)
    while reducer.ledger.position < (info.state.last_seq if end is None else min(end, info.state.last_seq)):
        reducer.fold(await whole(link, plan, await entries.get()))
    return reducer.ledger


def fingerprint(ledger: Ledger) -> str:
    """A digest of the whole state, to the last bit."""
    tensors = Tensors()
    digest = hashlib.sha256(json.dumps(dump(ledger, tensors), sort_keys=True).encode())
    for name in sorted(tensors.table):
        digest.update(tensors.table[name].detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
