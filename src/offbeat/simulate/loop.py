"""The loop: take the next entry from the heap, let the server handle it, carry out what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop
from math import isnan
from typing import Any

from offbeat.core.errors import DivergedError, HandlerError, OffbeatError, SettingError
from offbeat.core.events import (
    Alarm,
    Closed,
    Command,
    Event,
    Job,
    Joined,
    Left,
    Lost,
    Measured,
    Opened,
    Rang,
    Recall,
    Send,
    Started,
    Update,
)
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.server import Server, answers
from offbeat.core.state import exchange
from offbeat.core.vectors import Vector, settled, stacked
from offbeat.simulate.compute import Computing, Team
from offbeat.simulate.execute import Executor
from offbeat.simulate.log import Measurement, Row, Watcher
from offbeat.simulate.personal import Personal, Shared, personal_models, summarise
from offbeat.simulate.tape import Arena, Arenas
from offbeat.simulate.traffic import Traffic
from offbeat.simulate.view import WorldView
from offbeat.simulate.world import ARRIVE, MEASURE, RING, TURN, Flight, Pending, Pool, Until, World
from offbeat.timing.base import Clock

__all__ = ["Simulation", "Until"]

_NAN, _FOREVER = float("nan"), float("inf")
_AT_ONCE = 8  # models evaluated in one pass


class Simulation:
    """One run in virtual time. `world` is all of its state; everything else is fixed.

    terms: by task, the times from which and until which it is there; without them, always.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        server: Server[Any],
        locals_: Sequence[Local],
        clock: Clock,
        executor: Executor,
        until: Until,
        seed: int = 0,
        evaluate_every: float | None = None,
        watchers: Sequence[Watcher] = (),
        world: World | None = None,
        personal: Personal | None = None,
        terms: Sequence[tuple[float, float]] = (),
        arenas: Arenas | None = None,
    ) -> None:
        self.problems, self.server, self.locals = problems, server, locals_
        self.clock, self.executor, self.until, self.seed = clock, executor, until, seed
        self.every, self.watchers, self.judged = evaluate_every, watchers, personal
        self.listeners = [w for w in watchers if getattr(w, "keep_events", True)]
        self.terms = terms or [(0.0, float("inf"))] * len(problems)
        self.clients = problems[0].clients
        for problem in problems:
            if problem.clients != self.clients:
                raise SettingError(
                    f"{problem.name} is split over {problem.clients} clients and {problems[0].name} over "
                    f"{self.clients}: tasks share their clients"
                )
        initial = [p.initial() for p in problems]
        self.arenas: list[Arena | None] = [None] * len(problems)
        if executor.stacked:  # vectors are rows, and what servers do with them is recorded
            arenas = Arenas() if arenas is None else arenas
            self.arenas = [arenas.like(x) for x in initial]
            initial = [arenas.adopt(x) for x in initial]
        self.initial = initial
        firsts = [local.remember(x) for local, x in zip(locals_, initial, strict=True)]
        self.notes = [local.notes for local in locals_]
        self.listens = type(server).measured is not Server.measured
        # Measurements may wait for each other unless somebody acts on them.
        self.at_once = _AT_ONCE
        self.prompt = self.listens or until.accuracy is not None
        self.world = self._empty() if world is None else world
        for flight in self.world.flights.values():
            flight.job = Job(*flight.job)  # a saved one comes back as a plain tuple
        if world is not None and arenas is not None:
            exchange(world, arenas.adopt)
        self.limit = _FOREVER if until.time is None else until.time
        self.view = WorldView(self.world, clock, seed)
        teams = [Team(*parts) for parts in zip(problems, locals_, self.arenas, strict=True)]
        self.computing = Computing(self.world, teams, firsts, executor, seed, until)
        wires = [local.wire(p.dim) for local, p in zip(locals_, problems, strict=True)]
        self.traffic = Traffic(self.world, clock, locals_, wires, [bool(m) for m in firsts])
        if world is None:
            self._begin()

    # Running

    def run(self) -> World:
        """Until the end; the vectors of the world are then plain tensors."""
        while not self.advance(1 << 30):
            pass
        self.finish()
        return self.world

    def steps(self) -> Iterator[World]:
        """The run, an event at a time; stop iterating whenever you like and go on later with the same world."""
        over = False
        while not over:
            over = self.advance(1)
            yield self.world
        self.finish()

    def advance(self, events: int, pause: bool = False) -> bool:
        """Handle up to so many events; tells whether the run is over.

        pause: also stop where a result is needed that has not been computed, and leave it to the caller.
        """
        world = self.world
        if world.events == 0:
            self._handle(Started())
            events -= 1
        heap, flights = world.heap, world.flights
        last = world.events + events
        while not world.stopped and world.events < last:
            if not heap or heap[0][0] > self.limit:
                self._end("time" if self.until.time is not None else "nothing left to do")
                break
            time, kind, _, ref = heap[0]
            if kind == ARRIVE:
                flight = flights.get(ref)  # type: ignore[arg-type]
                if flight is None or flight.arrive != time:
                    heappop(heap)  # recalled, replaced or lost meanwhile
                    continue
                if pause and flight.result is None and not flight.lost:
                    return False
                heappop(heap)
                world.now = time
                self._arrive(flight)
            else:
                heappop(heap)
                world.now = time
                self._occur(kind, ref)
        return bool(world.stopped)

    def finish(self) -> None:
        """After the end: evaluate what is waiting for it, and settle all vectors."""
        self.flush()
        self.computing.review()
        exchange(self.world, settled)

    def _empty(self) -> World:
        n, always = self.clients, self.clock.always
        there = [c for c in range(n) if always or self.clock.present(c, 0.0)]
        return World(
            server=None,
            present=Pool.of(there, n),
            idle=Pool.of(there, n),
            free=[0.0] * n,
            numbers=[0] * n,
            measured=[-1.0] * len(self.problems),
            unborn={task: opens for task, (opens, _) in enumerate(self.terms) if opens > 0},
        )

    def _begin(self) -> None:
        self.world.server = self.server.begin(self.initial, self.view)
        if not self.clock.always:
            for client in range(self.clients):
                self.traffic.push_flip(client, 0.0)
        for task, (opens, closes) in enumerate(self.terms):
            for time in (opens, closes):
                if 0 < time < float("inf"):
                    self.traffic.push(time, TURN, task)
            if self.every is not None:
                self.traffic.push(opens, MEASURE, task)

    def _occur(self, kind: int, ref: int | str) -> None:
        """Handle an entry of the heap that is no arrival."""
        world = self.world
        if kind == MEASURE:
            self._measure(int(ref))
            if self.every is not None and int(ref) not in world.finished and not self._stuck():
                self.traffic.push(world.now + self.every, MEASURE, ref)
        elif kind == RING:
            self._handle(Rang(str(ref)))
        elif kind == TURN:
            self._turn(int(ref))
        else:
            self._flip(int(ref))

    def _stuck(self) -> bool:
        """Whether nothing but measurements will ever happen again, and no time limit would end that."""
        return self.until.time is None and all(entry[1] == MEASURE for entry in self.world.heap)

    def _arrive(self, flight: Flight) -> None:
        world, job = self.world, flight.job
        if flight.lost:
            self.traffic.land(job)
            world.tally.lost += 1
            self._handle(Lost(job, flight.lost), flight)
            return
        result = flight.result
        if result is None or result[1] or self.computing.error is not None:
            result = self.computing.result(flight)
        upload = result[0]
        self.traffic.land(job)
        staleness = self.server.models(world.server)[job.task].version - job.version
        tally = world.tally
        tally.arrived(job.task, staleness)
        for name in self.notes[job.task]:
            tally.note(name, float(upload[name]))
        self._handle(Update(job, upload), flight, staleness)
        if self.until.updates is not None and tally.updates >= self.until.updates:
            self._end("updates")

    def _end(self, reason: str) -> None:
        world = self.world
        if reason == "time":
            world.now = self.until.time or world.now
        world.stopped = world.stopped or reason
        if self.every is not None:
            for task in range(len(self.problems)):
                if world.measured[task] < world.now and task not in world.finished:
                    self._measure(task)

    # Events

    def _handle(self, event: Event | Update, flight: Flight | None = None, staleness: int = -1) -> None:
        world = self.world
        world.events += 1
        try:
            if isinstance(event, Update):  # most are: they take the short way
                said = self.server.arrived(world.server, event, self.view)
            else:
                said = answers(self.server, world.server, event, self.view)
            for command in [*said]:
                if type(command) is Send:
                    self.traffic.send(command)
                else:
                    self._obey(command)
        except OffbeatError:
            raise
        except Exception as error:
            raise HandlerError(
                f"{type(self.server).__name__} failed on event {world.events} at time {world.now:g}, "
                f"{_describe(event)}: {type(error).__name__}: {error}"
            ) from error
        if self.listeners:
            self._report(event, flight, staleness)
        if self.until.versions is not None:
            for task, model in enumerate(self.server.models(world.server)):
                if model.version >= self.until.versions:
                    self._close(task, "versions")

    def _report(self, event: Event | Update, flight: Flight | None, staleness: int) -> None:
        world = self.world
        job = flight.job if flight else None
        client = job.client if job else getattr(event, "client", -1)
        task = job.task if job else getattr(event, "task", 0)
        row = Row(
            world.events,
            world.now,
            "Arrived" if type(event) is Update else type(event).__name__,
            client,
            task,
            job.id if job else -1,
            self.server.models(world.server)[task].version,
            staleness,
            flight.sent if flight else _NAN,
            flight.start if flight else _NAN,
            flight.end if flight else _NAN,
            event.reason if isinstance(event, Lost) else "",
        )
        for watcher in self.listeners:
            watcher.event(row)

    # Commands

    def _obey(self, command: Command) -> None:
        if isinstance(command, Recall):
            self.traffic.recall(command)
        elif isinstance(command, Alarm):
            if not command.after >= 0:
                raise ValueError(f"an alarm after {command.after}: must not be negative")
            self.traffic.push(self.world.now + command.after, RING, command.key)
        elif isinstance(command, Send):
            self.traffic.send(command)
        elif command.task is None:
            self._end(command.reason)
        else:
            self._finish(command.task, command.reason)

    def _flip(self, client: int) -> None:
        """The client comes or goes."""
        world = self.world
        if self.view.present(client):
            for flight in self.traffic.leave(client):
                world.tally.lost += 1
                self._handle(Lost(flight.job, "left"), flight)
            self._handle(Left(client))
        else:
            self.traffic.join(client)
            self._handle(Joined(client))
        self.traffic.push_flip(client, world.now)

    def _turn(self, task: int) -> None:
        """A task comes or goes."""
        if task in self.world.unborn:
            del self.world.unborn[task]
            self._handle(Opened(task))
        else:
            self._close(task, "closed")

    def _close(self, task: int, reason: str) -> None:
        """Finish a task without the server's doing, and tell it."""
        if task not in self.world.finished:
            self._finish(task, reason)
            if not self.world.stopped:
                self._handle(Closed(task))

    def _finish(self, task: int, reason: str) -> None:
        world = self.world
        if task in world.finished:
            return
        if self.every is not None and world.measured[task] < world.now:
            self._measure(task)
            if task in world.finished:  # that measurement finished it
                return
        world.finished[task] = reason
        world.ends[task] = world.now
        self.traffic.drop(task)
        if len(world.finished) == len(self.problems):
            self._end(reason)

    # Measuring

    def _measure(self, task: int) -> None:
        world = self.world
        if task in world.finished:
            return
        model = self.server.models(world.server)[task]
        world.measured[task] = world.now
        each = self._judge(task, settled(model.vector)) if self.judged else []
        world.pending.append(Pending(task, world.now, world.tally.updates, model.version, model.vector, each))
        if self.prompt or len(world.pending) >= self.at_once:
            self.flush()

    def _judge(self, task: int, vector: Vector) -> list[float]:
        """Accuracies of the clients' own models, made from this one; at once, because clients' memories change."""
        problem = self.problems[task]
        if self.judged is None or not isinstance(problem, Shared):
            return []
        clients = range(min(self.judged.clients or self.clients, self.clients))
        return [
            accuracy
            for some, models in self.personal(task, vector, clients, self.judged.steps)
            for accuracy in problem.judge(models, some)
        ]

    def personal(
        self, task: int, vector: Vector, clients: Sequence[int], steps: int
    ) -> Iterator[tuple[Sequence[int], Vector]]:
        """(clients, their own models [n, d]) as of now, with so many gradients each."""
        memories = {c: m for (c, t), (_, m) in self.world.memories.items() if t == task}
        return personal_models(self.problems[task], self.locals[task], vector, memories, clients, steps, self.seed)

    def flush(self) -> None:
        """Evaluate the models that are waiting for it."""
        world = self.world
        waiting, world.pending = world.pending, []
        for task, problem in enumerate(self.problems):
            mine = [p for p in waiting if p.task == task]
            if not mine:
                continue
            for p, metrics in zip(mine, problem.measure(stacked(p.vector for p in mine)), strict=True):
                self.measured(p, metrics)

    def measured(self, pending: Pending, metrics: Mapping[str, float]) -> None:
        """A model that was waiting has been evaluated."""
        task = pending.task
        if isnan(metrics.get("loss", 0.0)):
            raise DivergedError(
                f"the loss of {self.problems[task].name} is nan at time {pending.time:g}, version {pending.version}; "
                f"use smaller steps"
            )
        if pending.each:
            metrics = {**metrics, **summarise(pending.each)}
        found = Measurement(task, pending.time, pending.updates, pending.version, metrics, pending.each)
        for watcher in self.watchers:
            watcher.measured(found)
        if self.listens:
            self._handle(Measured(task, metrics))
        target = self.until.accuracy
        if target is not None and metrics.get("accuracy", 0.0) >= target:
            self._close(task, "accuracy")


def _describe(event: Event | Update) -> str:
    match event:
        case Update(job):
            return f"an update of client {job.client} (job {job.id}, version {job.version})"
        case Lost(job, reason):
            return f"job {job.id} of client {job.client} lost ({reason})"
        case _:
            return repr(event)
