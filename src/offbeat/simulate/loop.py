"""The loop: take the next entry from the heap, let the server handle it, carry out what it says."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import torch

from offbeat.core.errors import DivergedError, HandlerError, OffbeatError, SettingError, positive
from offbeat.core.events import (
    Alarm,
    Arrived,
    Closed,
    Command,
    Event,
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
from offbeat.core.server import Server
from offbeat.core.vectors import Vector
from offbeat.simulate.compute import Computing
from offbeat.simulate.execute import Executor
from offbeat.simulate.log import Measurement, Row, Watcher
from offbeat.simulate.personal import Personal, Shared, personal_models, summarise
from offbeat.simulate.traffic import Traffic
from offbeat.simulate.view import WorldView
from offbeat.simulate.world import ARRIVE, MEASURE, RING, TURN, Flight, Pending, Pool, World
from offbeat.timing.base import Clock


@dataclass(frozen=True)
class Until:
    """When a run ends: at whichever of these comes first.

    time: virtual time.   updates: arrived results.   versions: server steps.   accuracy: on the test set.
    """

    time: float | None = None
    updates: int | None = None
    versions: int | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        positive(time=self.time, updates=self.updates, versions=self.versions, accuracy=self.accuracy)
        if self.time is None and self.updates is None and self.versions is None:
            raise SettingError("until needs at least one of time, updates and versions, or a run might never end")
        if self.accuracy is not None and self.accuracy > 1:
            raise SettingError(f"until.accuracy = {self.accuracy}: is a share, at most 1")


_NAN = float("nan")
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
    ) -> None:
        self.problems, self.server, self.locals = problems, server, locals_
        self.clock, self.executor, self.until, self.seed = clock, executor, until, seed
        self.every, self.watchers, self.judged = evaluate_every, watchers, personal
        self.terms = terms or [(0.0, float("inf"))] * len(problems)
        self.clients = problems[0].clients
        for problem in problems:
            if problem.clients != self.clients:
                raise SettingError(
                    f"{problem.name} is split over {problem.clients} clients and {problems[0].name} over "
                    f"{self.clients}: tasks share their clients"
                )
        self.initial = [p.initial() for p in problems]
        firsts = [local.remember(x) for local, x in zip(locals_, self.initial, strict=True)]
        self.listens = type(server).measured is not Server.measured
        # Measurements may wait for each other unless somebody acts on them.
        self.prompt = self.listens or until.accuracy is not None
        self.world = self._empty() if world is None else world
        self.view = WorldView(self.world, clock, seed)
        self.computing = Computing(self.world, problems, locals_, firsts, executor, seed)
        wires = [local.wire(p.dim) for local, p in zip(locals_, problems, strict=True)]
        self.traffic = Traffic(self.world, clock, locals_, wires, [bool(m) for m in firsts])
        if world is None:
            self._begin()

    # Running

    def run(self) -> World:
        """Until the end."""
        for _ in self.steps():
            pass
        return self.world

    def steps(self) -> Iterator[World]:
        """The run, an event at a time; stop iterating whenever you like and go on later with the same world."""
        world = self.world
        if world.events == 0:
            self._handle(Started())
            yield world
        while not world.stopped:
            self._advance()
            yield world
        self.flush()

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

    def _advance(self) -> None:
        """Handle the next entry of the heap."""
        world = self.world
        limit = self.until.time
        if not world.heap or (limit is not None and world.heap[0][0] > limit):
            self._end("time" if limit is not None else "nothing left to do")
            return
        time, kind, _, ref = heapq.heappop(world.heap)
        if kind == ARRIVE:
            flight = world.flights.get(ref)  # type: ignore[arg-type]
            if flight is None or flight.arrive != time:
                return  # recalled, replaced or lost meanwhile
            world.now = time
            self._arrive(flight)
        elif kind == MEASURE:
            world.now = time
            self._measure(int(ref))
            if self.every is not None and int(ref) not in world.finished and not self._stuck():
                self.traffic.push(time + self.every, MEASURE, ref)
        elif kind == RING:
            world.now = time
            self._handle(Rang(str(ref)))
        elif kind == TURN:
            world.now = time
            self._turn(int(ref))
        else:
            world.now = time
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
        upload, _ = self.computing.result(flight)
        self.traffic.land(job)
        tally = world.tally
        staleness = self.server.models(world.server)[job.task].version - job.version
        tally.updates += 1
        tally.staleness_sum += staleness
        mine = tally.tasks.setdefault(job.task, [0, 0])
        mine[0] += 1
        mine[1] += staleness
        if staleness > tally.staleness_max:
            tally.staleness_max = staleness
        for name in self.locals[job.task].notes:
            tally.note(name, float(upload[name]))
        self._handle(Arrived(Update(job, upload)), flight, staleness)
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

    def _handle(self, event: Event, flight: Flight | None = None, staleness: int = -1) -> None:
        world, server = self.world, self.server
        world.events += 1
        try:
            commands = list(self._dispatch(server, world.server, event))
            for command in commands:
                self._obey(command)
        except OffbeatError:
            raise
        except Exception as error:
            raise HandlerError(
                f"{type(server).__name__} failed on event {world.events} at time {world.now:g}, "
                f"{_describe(event)}: {type(error).__name__}: {error}"
            ) from error
        if self.watchers:
            self._report(event, flight, staleness)
        if self.until.versions is not None:
            for task, model in enumerate(server.models(world.server)):
                if model.version >= self.until.versions:
                    self._close(task, "versions")

    def _dispatch(self, server: Server[Any], state: Any, event: Event) -> Iterable[Command]:
        view = self.view
        match event:
            case Arrived(update):
                return server.arrived(state, update, view)
            case Rang(name):
                return server.rang(state, name, view)
            case Lost(job, reason):
                return server.lost(state, job, reason, view)
            case Measured(task, metrics):
                return server.measured(state, task, metrics, view)
            case Joined(client):
                return server.joined(state, client, view)
            case Left(client):
                return server.left(state, client, view)
            case Started():
                return server.started(state, view)
            case Opened(task):
                return server.opened(state, task, view)
            case Closed(task):
                return server.closed(state, task, view)

    def _report(self, event: Event, flight: Flight | None, staleness: int) -> None:
        world = self.world
        job = flight.job if flight else None
        client = job.client if job else getattr(event, "client", -1)
        task = job.task if job else getattr(event, "task", 0)
        row = Row(
            world.events,
            world.now,
            type(event).__name__,
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
        for watcher in self.watchers:
            watcher.event(row)

    # Commands

    def _obey(self, command: Command) -> None:
        if isinstance(command, Send):
            self.traffic.send(command)
        elif isinstance(command, Recall):
            self.traffic.recall(command)
        elif isinstance(command, Alarm):
            if not command.after >= 0:
                raise ValueError(f"an alarm after {command.after}: must not be negative")
            self.traffic.push(self.world.now + command.after, RING, command.key)
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
        each = self._judge(task, model.vector)
        world.pending.append(Pending(task, world.now, world.tally.updates, model.version, model.vector, each))
        if self.prompt or len(world.pending) >= _AT_ONCE:
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
            for p, metrics in zip(mine, problem.measure(torch.stack([p.vector for p in mine])), strict=True):
                if isnan(metrics.get("loss", 0.0)):
                    raise DivergedError(
                        f"the loss of {problem.name} is nan at time {p.time:g}, version {p.version}; use smaller steps"
                    )
                if p.each:
                    metrics = {**metrics, **summarise(p.each)}
                for watcher in self.watchers:
                    watcher.measured(Measurement(task, p.time, p.updates, p.version, metrics, p.each))
                if self.listens:
                    self._handle(Measured(task, metrics))
                target = self.until.accuracy
                if target is not None and metrics.get("accuracy", 0.0) >= target:
                    self._close(task, "accuracy")


def _describe(event: Event) -> str:
    match event:
        case Arrived(update):
            return f"an update of client {update.job.client} (job {update.job.id}, version {update.job.version})"
        case Lost(job, reason):
            return f"job {job.id} of client {job.client} lost ({reason})"
        case _:
            return repr(event)
