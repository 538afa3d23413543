"""The course of events: what an event does to a run and what follows from a command, once for every runtime.

A runtime keeps the state, moves jobs and says when something happens: the simulator takes it from a heap in virtual
time, a deployment from its log. What happens then is decided here, by the rules of `core/events.py` and these:

1. When the run is over, the commands that its handler has yielded after the one that ended it are dropped.
2. Nothing is an event after the end: watchers are told of the last evaluations, the server is not.
3. Work for a client that is not there is `Lost` as soon as the handler that sent it is done, in the order of sending. A
   server that answers every such loss with more of it is stopped by an error.
4. A client that leaves loses its plain jobs and, of held work, the newest job of each task: what that has replaced
   never was. Then it has `Left`.
5. `view.flying` counts plain jobs, and held work once for each client and task that has any.
6. An evaluation whose loss is nan raises `DivergedError`: the run is over, whatever its server would make of it.
7. A `Cancel` that finds nothing in flight does nothing: what has arrived has arrived, and a client that is away has
   nothing in flight, as work for it is `Lost` (rule 3), cancelled or not.
8. A cancelled job counts as `cancelled` and not as `lost`: a plain job each, and of held work the newest job of the
   task. Each is a row of the record, after the row of the event on which it was cancelled.
9. Running statistics go towards what a client has reached from where the model is now, not from where it was when the
   client was sent it: that is what "delta" says of them in an update that is stale (`Course._rebased`).
10. Under secure aggregation an arrival is `Sealed`, and its numbers go into the sum of its task (`core/sums.py`). A sum
   that is full is closed, the next update begins another, and when it is open it is `Summed`: at once in virtual time.
   A run that ends after so many updates ends when the sums that are closed by then are open.
11. A client is in one sum of each version of a model: two sums of one model that differ in one client would show that
   client's update. So a client that has sent an update of the present model waits for the next one (`view.barred`), as
   long as its sum is not open. If no job is in flight any more, a sum is closed with fewer updates, of `secure.cohort`
   clients at least. A sum that is lost leaves its clients waiting; the run is over if these are all that there are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from offbeat.core.errors import DivergedError, HandlerError, OffbeatError, SettingError
from offbeat.core.events import (
    Admitted,
    Alarm,
    Cancel,
    Closed,
    Command,
    Dismissed,
    Event,
    Job,
    Joined,
    Left,
    Lost,
    Measured,
    Opened,
    Recall,
    Sealed,
    Send,
    Summed,
    Update,
)
from offbeat.core.local import Local
from offbeat.core.metric import Metric
from offbeat.core.run_state import InFlight, RunState, iterations
from offbeat.core.server import Server, Stepping, View, answers
from offbeat.core.sums import Cohort, Secure, encoder, words
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, alike, marked, materialise
from offbeat.core.watcher import ARRIVED, CANCELLED, EventRow, Measurement, Watcher

_NAN, _FOREVER = float("nan"), float("inf")
_MOST = 100_000  # losses in a row that a server may answer with work for clients that are not there


F = TypeVar("F", bound=InFlight)


class Traffic(Protocol[F]):
    """Moves jobs between the server and its clients. `absent` collects those for clients that are not there."""

    @property
    def absent(self) -> list[F]:
        """Jobs for clients that are not there, as if in flight."""

    def send(self, send: Send) -> None:
        """Put a job on its way."""

    def recall(self, recall: Recall) -> None:
        """Ask a client for held work."""

    def cancel(self, client: int, task: int) -> Sequence[F]:
        """A client's jobs of a task are gone, wherever they are; gives their flights, of held work the newest."""

    def land(self, job: Job) -> None:
        """The job is no longer in flight."""

    def drop(self, task: int) -> None:
        """The jobs of a task are gone, wherever they are."""

    def join(self, client: int) -> None:
        """The client is there."""

    def leave(self, client: int) -> Sequence[F]:
        """The client is gone; gives the flights that are lost with it, of held work the newest of each task."""


class Course(Generic[F]):
    """One run: a runtime derives from it and calls it when something happens.

    A runtime also says how an alarm is set (`alarm`), when a job began and ended (`times`) and where in the run it is
    (`place`); it may evaluate a task that is about to be finished (`look`) and all of them at the end (`over`).
    metrics: by task, all that its evaluations give.
    terms: by task, the times from which and until which it is there; without them, always.
    """

    def __init__(
        self,
        state: RunState,
        server: Server[Any],
        locals_: Sequence[Local],
        until: Until,
        metrics: Sequence[Sequence[Metric]],
        terms: Sequence[tuple[float, float]],
        view: View,
        traffic: Traffic[F],
        watchers: Sequence[Watcher],
        secure: Secure | None = None,
    ) -> None:
        self.state, self.server, self.locals, self.until = state, server, locals_, until
        self.secure = secure
        self.metrics, self.goals = metrics, until.goals(metrics)
        self.view = view
        self.watch(watchers)
        self.terms = terms or [(0.0, _FOREVER)] * len(locals_)
        guard = getattr(server, "guard", None)
        hidden = guard is not None and guard.limits  # what single clients note has no noise
        self.notes = [() if hidden else local.notes for local in locals_]
        self.budgeted = [local.by_sample for local in locals_]
        self.optimised = isinstance(server, Stepping) and server.optimiser is not None
        self.listens = type(server).measured is not Server.measured
        self.spans = [local.averaged if server.rebases else None for local in locals_]
        self.post = traffic.send
        # bound once: there is one for every event
        self.send: Callable[[Send], None] = self._post_and_keep if any(self.spans) or secure else traffic.send
        state.sealed = secure is not None
        self.land: Callable[[Job], None] = traffic.land
        self.absent, self.losing = traffic.absent, False
        self.recall, self.drop, self.join, self.leave = traffic.recall, traffic.drop, traffic.join, traffic.leave
        self.stop_jobs = traffic.cancel
        self.cancelled: list[F] = []  # by the event that is being handled

    def watch(self, watchers: Sequence[Watcher]) -> None:
        """Tell these, and nobody else, what happens from now on."""
        self.watchers = watchers
        self.listeners = [w for w in watchers if getattr(w, "keep_events", True)]

    def begin(self, initial: Sequence[Vector]) -> None:
        """The state before the first event, given every task's initial model."""
        state = self.state
        state.measured = [-1.0] * len(self.locals)
        state.unborn = {task: opens for task, (opens, _) in enumerate(self.terms) if opens > 0}
        state.server = self.server.begin(initial, self.view)
        state.spared = {task: marked(initial[task], *span) for task, span in enumerate(self.spans) if span}

    def turns(self) -> Iterator[tuple[float, int]]:
        """(time, task) of every opening and closing."""
        for task, term in enumerate(self.terms):
            yield from ((time, task) for time in term if 0 < time < _FOREVER)

    # What a runtime decides

    def alarm(self, time: float, key: str) -> None:
        """`Rang(key)` is to happen at this time."""
        raise NotImplementedError

    def times(self, flight: F, result: Any) -> tuple[float, float, float]:
        """When a job was sent, begun and done."""
        raise NotImplementedError

    def place(self) -> str:
        """Where in the run it is, for errors."""
        raise NotImplementedError

    def called(self, task: int) -> str:
        """A task's name, for errors."""
        return f"task {task}"

    def look(self, task: int) -> None:
        """A task is about to be finished."""

    def over(self) -> None:
        """The run has ended."""

    # What happens

    def arrived(self, flight: F, update: Update, result: Any = None) -> None:
        """A client's result is here. result: what the runtime knows about it, for `times`."""
        state, job = self.state, update.job
        task = job.task
        self.land(job)
        model = self.server.models(state.server)[task]
        staleness = model.version - job.version
        moved = None
        if staleness and flight.base is not None:
            moved = state.spared[task] * (model.vector - flight.base)
        tally = state.tally
        tally.arrived(task, staleness)
        for name in self.notes[task]:
            tally.note(name, float(update.vectors[name]))
        if self.budgeted[task]:
            tally.spend(task, job.client, job.steps)
        if self.secure is not None:
            self._seal(self.secure, flight, update, moved, staleness, result)
        else:
            self.handle(update if moved is None else self._rebased(update, moved), flight, staleness, result)
        self.end_at_updates()

    def end_at_updates(self) -> None:
        most = self.until.updates
        if most is not None and self.state.tally.updates >= most and not self.state.closed:
            self.end("updates")

    def complete(self, cohort: Cohort, size: int, secure: Secure) -> bool:
        """Whether no further update is to come into a sum, where a server step takes so many."""
        return cohort.full(size, secure)

    def _seal(
        self, secure: Secure, flight: F, update: Update, moved: Vector | None, staleness: int, result: Any
    ) -> None:
        """Put an update into its sum, and tell the server that it is there."""
        state, job = self.state, update.job
        size = self.server.adds(job.task) or 1
        cohort = self.sum_of(job)
        if not cohort.has_room(job.client, size, secure):
            raise SettingError(
                f"secure.cohort = {secure.cohort}: {cohort.count} updates have come from only {len(cohort.clients)} "
                "clients; a smaller cohort, or more clients that take part as often, would do"
            )
        if moved is not None:
            cohort.moved = moved if cohort.moved is None else cohort.moved + moved
        if state.barred(job.client, job.version, job.task):
            raise SettingError(
                f"secure: {type(self.server).__name__} has sent client {job.client} a model twice, and two sums with "
                "updates of one model could show one of them; let it ask view.barred before it sends"
            )
        self.collect(cohort, update, result)
        state.spoken.setdefault(job.task, {})[job.client] = job.version
        if not staleness:
            state.rested.setdefault(job.task, {})[job.client] = job.version
        state.complete = self.complete(cohort, size, secure)
        self.handle(Sealed(job), flight, staleness, result)

    def _look_at_sums(self, secure: Secure) -> None:
        """Close the sums that are full, or that no job in flight can fill."""
        state = self.state
        for task in [*state.cohorts]:
            cohort = state.cohorts.get(task)
            if cohort is None or task in state.finished or state.stopped:
                continue
            few = secure.bound is None and len(cohort.clients) >= secure.cohort and self._stands_still(task)
            if few or cohort.full(self.server.adds(task) or 1, secure):
                del state.cohorts[task]
                state.sums += 1
                state.closed[state.sums] = cohort
                self.unmask(state.sums)
        for task in [*state.rested]:
            self._end_if_all_wait(task)

    def _stands_still(self, task: int) -> bool:
        """Whether no job of a task is in flight, and no sum of it waits to be opened."""
        return self.ready(task) == self.flying(task) and all(each.task != task for each in self.state.closed.values())

    def flying(self, task: int) -> int:
        """Jobs of a task in flight."""
        flights = self.state.flights
        return len(flights) if len(self.locals) == 1 else sum(each.job.task == task for each in flights.values())

    def ready(self, task: int) -> int:
        """Of these, those whose results wait for others."""
        return 0

    def members(self) -> int:
        """Clients that take part, or may come back."""
        return self.view.clients

    def _end_if_all_wait(self, task: int) -> None:
        """A sum was lost, and nobody is left who has not been in one of this model."""
        state = self.state
        resting, ready, all_ = state.rested[task], self.ready(task), self.members()
        if not resting or len(resting) + ready < all_ or task in state.finished or state.stopped:
            return
        version = self.server.models(state.server)[task].version
        waiting = sum(each == version for each in resting.values())
        if waiting + ready >= all_ and self._stands_still(task):
            self.end("a sum is lost, and all clients were in one of this model: another one could show one of them")

    def sum_of(self, job: Job) -> Cohort:
        """The sum that an update goes into."""
        return self.state.cohorts.setdefault(job.task, Cohort(task=job.task))

    def collect(self, cohort: Cohort, update: Update, result: Any) -> None:
        """Put the numbers of an update into a sum."""
        assert self.secure is not None
        local = self.locals[update.job.task]
        (name,), exact = local.sends, encoder(local)
        self.state.tally.cut += exact is not None and exact.lost(materialise(update[name])) > 0
        cohort.add(update.job.client, words(update[name], self.secure.unit))

    def unmask(self, number: int) -> None:
        """A sum is full: open it, now or later."""
        assert self.secure is not None
        masks = None
        if self.secure.bound is not None and not self.secure.share:  # otherwise it is in the messages
            total = self.state.closed[number].total
            assert total is not None
            masks = -self.secure.noise(self.view.normal(materialise(total), number))
        self.summed(number, masks)

    def give_up(self, number: int) -> None:
        """A sum will never be open: its updates are lost, and what its clients have spent is spent.

        The server hears of a sum of none.
        """
        cohort = self.state.closed.pop(number)
        if cohort.task not in self.state.finished:
            nothing = 0.0 * self.server.models(self.state.server)[cohort.task].vector
            self.handle(Summed(cohort.task, nothing, 0))

    def summed(self, number: int, masks: Vector | None = None) -> None:
        """A sum is open. masks: what is to be taken off it."""
        assert self.secure is not None
        cohort = self.state.closed.pop(number)
        model = self.server.models(self.state.server)[cohort.task].vector
        if cohort.task not in self.state.finished:
            total = alike(model, cohort.value(self.secure.unit, materialise(model).dtype, masks))
            total = total if cohort.moved is None else total + cohort.moved
            self.handle(Summed(cohort.task, total, cohort.count))
        self.end_at_updates()

    def _rebased(self, update: Update, moved: Vector) -> Update:
        """The same with the way of running statistics from what they are now, not from what they were: by `moved`.

        A stale way, added to where others have led meanwhile, leads beyond what any client has seen: below zero, where
        no variance can be.
        """
        delta = update["delta"] + moved
        return Update(update.job, {**update.vectors, "delta": delta})

    def lose(self, flight: F, reason: str) -> None:
        """A job in flight will never arrive."""
        self.land(flight.job)
        self.lost(flight, reason)

    def lost(self, flight: F, reason: str) -> None:
        """A job that is not in flight any more has not arrived."""
        if not self.state.stopped:
            self.state.tally.lost += 1
            self.handle(Lost(flight.job, reason), flight)

    def joined(self, client: int) -> None:
        """A client is there."""
        self.join(client)
        self.handle(Joined(client))

    def left(self, client: int) -> None:
        """A client is gone."""
        for flight in self.leave(client):
            self.lost(flight, "left")
        self.handle(Left(client))

    def admitted(self, client: int, models: Sequence[Vector]) -> None:
        """The roster has one client more. models: every task's initial model."""
        self.handle(Admitted(client, models))

    def dismissed(self, client: int) -> None:
        """The roster has one client less; it has left before."""
        for waiting in self.state.rested.values():
            waiting.pop(client, None)
        self.handle(Dismissed(client))

    def turn(self, task: int) -> None:
        """A task opens or closes."""
        if task in self.state.unborn:
            del self.state.unborn[task]
            self.handle(Opened(task))
        else:
            self.close_task(task, "closed")

    def scored(self, measurement: Measurement, sure: Mapping[str, float] | None = None) -> None:
        """A task's model was evaluated. sure: values that the run goes by, where they are others."""
        task, metrics = measurement.task, measurement.metrics
        if isnan(metrics.get("loss", 0.0)):
            raise DivergedError(
                f"the loss of {self.called(task)} is nan at time {measurement.time:g}, version {measurement.version}; "
                f"use smaller steps"
            )
        for watcher in self.watchers:
            watcher.measured(measurement)
        if task in self.state.finished:
            return
        if sure is not None:
            metrics = {**metrics, **sure}
        if self.listens:
            self.handle(Measured(task, metrics))
        if reached := [goal.metric.name for goal in self.goals[task] if goal.reached(metrics)]:
            self.close_task(task, reached[0])

    def close_task(self, task: int, reason: str) -> None:
        """Finish a task without the server's doing, and tell it."""
        if task not in self.state.finished:
            self.finish_task(task, reason)
            self.handle(Closed(task))

    def finish_task(self, task: int, reason: str) -> None:
        """A task is over; with the last one, the run."""
        state = self.state
        if task in state.finished:
            return
        self.look(task)
        if task in state.finished:  # that look finished it
            return
        state.finished[task] = reason
        state.ends[task] = state.now
        self.drop(task)
        if len(state.finished) == len(self.locals):
            self.end(reason)

    def end(self, reason: str) -> None:
        """The run is over, unless it has been before."""
        if not self.state.stopped:
            self.state.stopped = reason or "stopped"
            self.over()

    # What the server says to it

    def handle(self, event: Event, flight: F | None = None, staleness: int = -1, result: Any = None) -> None:
        """Let the server handle an event and carry out its commands."""
        state = self.state
        if state.stopped:
            return
        state.events += 1
        before = self._memories() if self.optimised else ()
        try:
            if type(event) is Update:  # most are: they take the short way
                said = self.server.arrived(state.server, event, self.view)
            else:
                said = answers(self.server, state.server, event, self.view)
            commands = [*said]
            if before:
                self._check_steps(before)
            for command in commands:
                if type(command) is Send:
                    self.send(command)
                else:
                    self.obey(command)
                    if state.stopped:
                        break
        except OffbeatError:
            raise
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            raise HandlerError(
                f"{type(self.server).__name__} failed {self.place()}, {_describe(event)}: "
                f"{type(error).__name__}: {error} ({Path(line.filename).name}:{line.lineno}, in {line.name})"
            ) from error
        if self.listeners:
            self.report(event, flight, staleness, result)
        if self.cancelled:
            self._report_cancelled()
        if self.until.versions is not None:
            for task, model in enumerate(self.server.models(state.server)):
                if model.version >= self.until.versions:
                    self.close_task(task, "versions")
        if self.until.iterations is not None and iterations(self.server, state) >= self.until.iterations:
            self.end("iterations")
        if self.absent and not self.losing:
            self._lose_absent()
        if self.secure is not None and not state.stopped:
            self._look_at_sums(self.secure)

    def _post_and_keep(self, send: Send) -> None:
        """Put a job on its way, and keep its model where its update will be rebased."""
        self.post(send)
        state = self.state
        state.rested.get(send.task, {}).pop(send.client, None)
        flight = state.flights.get(state.jobs - 1)  # not there: nobody is
        if flight is not None and send.task in state.spared:
            flight.base = send.payload["model"]

    def _memories(self) -> list[tuple[int, Any]]:
        """Of every model, its version and what an optimiser keeps for it."""
        return [(model.version, model.memory) for model in self.server.models(self.state.server)]

    def _check_steps(self, before: Sequence[tuple[int, Any]]) -> None:
        """Raise if a model has stepped without the optimiser that was asked for."""
        for (version, memory), (now, kept) in zip(before, self._memories(), strict=True):
            if now > version and kept is memory:
                raise SettingError(
                    f"server: {type(self.server).__name__} has moved its model without the optimiser; let it call "
                    "self.step(state.model, lr, direction) or self.move(state.model, vector), or leave server out"
                )

    def _lose_absent(self) -> None:
        most, self.losing = len(self.absent) + _MOST, True
        for count, flight in enumerate(self.absent):  # it grows if the server answers with more
            if count == most:
                raise HandlerError(f"{type(self.server).__name__} keeps sending work to clients that are offline")
            self.lost(flight, "absent")
        self.absent.clear()
        self.losing = False

    def obey(self, command: Command) -> None:
        """Carry out a command."""
        if isinstance(command, Recall):
            self.recall(command)
        elif isinstance(command, Cancel):
            self._cancel(command)
        elif isinstance(command, Alarm):
            if not command.after >= 0:
                raise ValueError(f"an alarm after {command.after}: must not be negative")
            self.alarm(self.state.now + command.after, command.key)
        elif isinstance(command, Send):
            self.send(command)
        elif command.task is None:
            self.end(command.reason)
        else:
            self.finish_task(command.task, command.reason)

    def _cancel(self, cancel: Cancel) -> None:
        if not 0 <= cancel.task < len(self.locals):
            raise ValueError(f"work of task {cancel.task} cancelled, but there are {len(self.locals)}")
        gone = self.stop_jobs(cancel.client, cancel.task)
        self.state.tally.cancelled += len(gone)
        self.cancelled += gone

    def _report_cancelled(self) -> None:
        state, gone, self.cancelled = self.state, self.cancelled, []
        for flight in gone if self.listeners else ():
            job, version = flight.job, self.server.models(state.server)[flight.job.task].version
            place = (job.client, job.task, job.id, version, -1)
            row = EventRow(state.events, state.now, CANCELLED, *place, *self.times(flight, None), "cancelled")
            for watcher in self.listeners:
                watcher.event(row)

    def report(self, event: Event, flight: F | None, staleness: int, result: Any) -> None:
        """Tell those who keep events of one that was handled."""
        state = self.state
        job = flight.job if flight else None
        task = job.task if job else getattr(event, "task", 0)
        row = EventRow(
            state.events,
            state.now,
            ARRIVED if type(event) in (Update, Sealed) else type(event).__name__,
            job.client if job else getattr(event, "client", -1),
            task,
            job.id if job else -1,
            self.server.models(state.server)[task].version,
            staleness,
            *(self.times(flight, result) if flight else (_NAN, _NAN, _NAN)),
            event.reason if isinstance(event, Lost) else "",
        )
        for watcher in self.listeners:
            watcher.event(row)


def _describe(event: Event) -> str:
    match event:
        case Update(job) | Sealed(job):
            return f"an update of client {job.client} (job {job.id}, version {job.version})"
        case Lost(job, reason):
            return f"job {job.id} of client {job.client} lost ({reason})"
        case _:
            return repr(event)
