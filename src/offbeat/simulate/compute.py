"""When results are computed: not before one is needed, and then all at once.

A job's inputs are fixed when it is sent, so its result may be computed at any time up to its arrival. When an arrival
needs a result, a stacking executor computes with it every job that is sure to arrive, of all runs that were
given to it; jobs that are held, lost or replaced are not among them and are never computed.

Where arithmetic is lazy, an arrival does not need its result yet: the server is given a row in which it will stand, and
goes on. The result is needed when a job is sent whose model depends on it, or when its value is read; until then
more jobs become certain, and batches grow. This is for jobs that send one vector and keep nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple, TypeAlias

from offbeat.core.errors import DivergedError
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.random import SAMPLE, key
from offbeat.core.until import Until
from offbeat.core.vectors import Payload
from offbeat.simulate.arena import Arena, LazyArena
from offbeat.simulate.execute import Executor, Ready, Result
from offbeat.simulate.lazy import LazyVector
from offbeat.simulate.world import ARRIVE, Flight, World, made

_ALL = 1 << 60
_OWED = 128  # rows at most that a server is given before they are computed


class Team(NamedTuple):
    """Jobs that can be stacked: one problem and one local trainer; `first` is the number of a run's client 0 in it."""

    problem: Problem
    local: Local
    arena: Arena | None
    first: int = 0


Teams: TypeAlias = dict[tuple[int, int, int], tuple[Team, list[tuple["Computing", Ready]]]]


class Computing:
    """Fills in the results of a world's flights.

    firsts: the clients' memories before their first job, by task.   teams: with whom each task's jobs are computed.
    owed: jobs that have arrived and are not computed yet, with the rows that the server was given.
    abreast: of runs that are done as one, those of each.
    """

    error: DivergedError | None = None

    def __init__(
        self,
        world: World,
        firsts: Sequence[Payload],
        executor: Executor,
        seed: int,
        until: Until,
    ) -> None:
        self.world, self.firsts = world, firsts
        self.executor, self.until = executor, until
        self.teams: Sequence[Team] = ()
        self.owed: dict[int, tuple[Flight, LazyVector]] = {}
        self.abreast: Sequence[Computing] = ()
        self.looked = 0  # jobs that were sent before this number do not depend on what is owed
        self.keys = [key(seed, SAMPLE, client) for client in range(len(world.numbers))]

    def result(self, flight: Flight) -> Result:
        """(upload, memory) of this flight; the memory is the client's from now on."""
        if flight.result is None:
            if self.error is None and self.defers(flight.job.task):
                return self._owe(flight)
            if self.executor.ahead:
                self._announce()
            compute([self], flight)
        if self.error is not None:
            raise self.error
        result = flight.result
        assert result is not None
        memory = result[1]
        if memory:
            job = flight.job
            committed = self.world.memories.get((job.client, job.task))
            if committed is None or committed[0] < job.number:  # uploads may overtake each other
                self.world.memories[job.client, job.task] = (job.number, memory)
        return result

    def defers(self, task: int) -> bool:
        """Whether a result of this task may be given to the server before it is computed."""
        team = self.teams[task]
        plain = not self.firsts[task] and not team.local.notes and len(team.local.sends) == 1
        return plain and self.executor.eager and self.executor.stacked and isinstance(team.arena, LazyArena)

    def _owe(self, flight: Flight) -> Result:
        team = self.teams[flight.job.task]
        assert isinstance(team.arena, LazyArena)
        row = team.arena.owe()
        self.owed[flight.job.id] = flight, row
        team.arena.debtors[id(self)] = self.pay
        return {team.local.sends[0]: row}, {}  # type: ignore[dict-item]

    def pay(self) -> None:
        """Compute what is owed, with all that can be."""
        compute([self])

    def blocked(self) -> bool:
        """Whether a job was sent whose model depends on what is owed, or too much is."""
        world = self.world
        new = (world.flights.get(number) for number in range(self.looked, world.jobs))
        if len(self.owed) >= _OWED or any(flight is not None and _open(flight) for flight in new):
            return True
        self.looked = world.jobs
        return False

    def flight(self, number: int) -> Flight:
        """A job that is to be computed."""
        return self.owed[number][0] if number in self.owed else self.world.flights[number]

    def review(self) -> None:
        """Raise if the run has been found to have diverged."""
        blame(self.executor.review())
        if self.error is not None:
            raise self.error

    def wanted(self, flight: Flight | None) -> list[int]:
        """The jobs that are to be computed now, given that this flight's result is needed."""
        if not self.executor.eager and flight is not None:
            return self._chain(flight.job.id)
        numbers = list(self.world.todo)
        if self.owed:
            flights = self.world.flights
            numbers = [*self.owed, *(n for n in numbers if not _open(flights[n]))]
        left = _ALL if self.until.updates is None else self.until.updates - self.world.tally.updates
        if self.until.time is None and left >= len(numbers):
            return numbers
        needed = [*self.owed] if flight is None else [*self.owed, flight.job.id]
        return self._in_time(numbers, left + len(self.owed), needed)

    def _in_time(self, numbers: list[int], left: int, needed: list[int]) -> list[int]:
        """Those that may arrive before the run ends, and what they build on."""
        limit = self.until.time
        numbers = [n for n in numbers if limit is None or self.flight(n).arrive <= limit]
        if left < len(numbers):
            numbers = needed + self._first(set(numbers).difference(needed), left - len(needed))
        if any(self.flight(n).after is not None for n in numbers):
            numbers = list(dict.fromkeys(m for n in numbers for m in self._chain(n)))
        return numbers

    def _first(self, numbers: set[int], count: int) -> list[int]:
        """The first of these in the order in which they will be handled, which at equal times the heap decides."""
        flights = self.world.flights
        entries = (e for e in self.world.heap if e[1] == ARRIVE and e[3] in numbers)
        return [int(e[3]) for e in nsmallest(count, (e for e in entries if flights[int(e[3])].arrive == e[0]))]

    def ready(self, flight: Flight) -> Ready:
        """A job with what its computation reads."""
        job = flight.job
        memory: Payload = self.firsts[job.task]
        if memory:
            before = None if flight.after is None else self.world.flights.get(flight.after)
            if before is not None and before.result is not None:
                memory = before.result[1]
            elif (committed := self.world.memories.get((job.client, job.task))) is not None:
                memory = committed[1]
        client = job.client
        row = self.owed[job.id][1] if self.owed and job.id in self.owed else None
        return made(Ready, (job, flight.payload, memory, self.keys[client], self.teams[job.task].first + client, row))

    def take(self, number: int, result: Result) -> None:
        """The result of a job."""
        world = self.world
        world.tally.computed += 1
        if self.owed and number in self.owed:
            del self.owed[number]
            return
        flight = world.flights[number]
        flight.result, flight.payload = result, None
        del world.todo[number]

    def settled(self) -> None:
        """Nothing is owed any longer."""
        for team in self.teams:
            if isinstance(team.arena, LazyArena) and team.arena.debtors:
                team.arena.debtors.pop(id(self), None)

    def _announce(self) -> None:
        """Tell the executor which jobs will arrive next, of those that can be computed."""
        world, executor = self.world, self.executor
        nearest = nsmallest(executor.ahead, world.todo, key=lambda number: world.flights[number].arrive)
        jobs = []
        for flight in (world.flights[number] for number in nearest if self.before(number) is None):
            team = self.teams[flight.job.task]
            jobs.append((team.problem, team.local, self.ready(flight)))
        executor.expect(self, world.todo, jobs)

    def before(self, number: int) -> int | None:
        """The job that has to be computed before this one, if any."""
        after = self.flight(number).after
        flight = None if after is None else self.world.flights.get(after)
        return None if flight is None or flight.result is not None else after

    def _chain(self, needed: int) -> list[int]:
        """This job and the uncomputed jobs in flight whose memory it builds on."""
        chain = [needed]
        while (before := self.before(chain[-1])) is not None:
            chain.append(before)
        return chain


def compute(runs: Sequence[Computing], flight: Flight | None = None) -> None:
    """Compute what these runs want, in as many rounds as a client has jobs that build on each other.

    A run that turns out to have diverged keeps the error; the others are not concerned.
    """
    executor = runs[0].executor
    blame(executor.review(newest=False))
    waiting = [(run, run.wanted(flight)) for run in runs]
    while waiting:
        teams: Teams = {}
        waiting = [(run, later) for run, numbers in waiting if (later := _sort(run, numbers, teams))]
        for team, group in teams.values():
            results, errors = executor.compute(team.problem, team.local, team.arena, group)
            for (run, ready), result in zip(group, results, strict=True):
                run.take(ready.job.id, result)
            if isinstance(team.arena, LazyArena) and team.arena.open:
                team.arena.paid([r.owed for _, r in group if r.owed is not None])
            blame(errors)
    for run in runs:
        run.settled()


def _sort(run: Computing, numbers: Iterable[int], teams: Teams) -> list[int]:
    """Put the jobs that can be computed now into their teams; gives the others."""
    flights = run.world.flights
    later: list[int] = []
    places: dict[int, list[tuple[Computing, Ready]]] = {}
    for number in numbers:
        flight = run.flight(number) if run.owed else flights[number]
        if flight.after is not None and run.before(number) is not None:
            later.append(number)
            continue
        task = flight.job.task
        if task not in places:
            team = run.teams[task]
            places[task] = teams.setdefault((id(team.problem), id(team.local), id(team.arena)), (team, []))[1]
        places[task].append((run, run.ready(flight)))
    return later


def _open(flight: Flight) -> bool:
    """Whether a job's model depends on rows that are owed."""
    vectors: Iterable[Any] = (flight.payload or {}).values()
    return any(type(v) is LazyVector and v.slot in v.arena.open for v in vectors)


def blame(errors: Iterable[tuple[Computing, DivergedError]]) -> None:
    """Each run keeps its first error."""
    for run, error in errors:
        run.error = run.error or error
