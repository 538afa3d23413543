"""Runs that differ in nothing but the step size of their clients, done as one run.

When something happens in a run depends on its seed, its timing and its server, and not on the numbers in its vectors.
So these runs have the same events, and one of them is planned for all: its vectors hold those of all, side by side
(`WideArena`), and a job is computed once for each. As rows do not mix, each run has the numbers that it would have
alone; a run that diverges is over, and the others go on.

Whatever does depend on numbers is refused where it shows: a server that reads a vector's value or a job's step size
gets an `ApartError`, and the runs are then done one by one, from their beginning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Never, TypeAlias

import torch

from offbeat.core.errors import DivergedError, OffbeatError
from offbeat.core.events import Send
from offbeat.core.local import Local
from offbeat.core.state import State, copied, exchange
from offbeat.core.vectors import Vector, materialise
from offbeat.simulate.arena import ApartError, Arenas, LazyArena, WideArena
from offbeat.simulate.lazy import LazyVector
from offbeat.simulate.loop import Simulation
from offbeat.simulate.world import World

Over: TypeAlias = Callable[[int, Simulation, DivergedError | None], None]  # number, run, error
_FOREVER = 1 << 60


class StepSizes(tuple[float, ...]):
    """The step sizes of a job of several runs: nothing can be worked out with them as if they were one."""

    __slots__ = ()

    def _refuse(self, *_: object) -> Never:
        raise ApartError("the step sizes of several runs are read as if they were one")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __mul__ = __rmul__ = __add__ = _refuse
    __hash__ = tuple.__hash__


class Repeated:
    """A problem whose initial model is there several times."""

    def __init__(self, problem: Any, count: int) -> None:
        self.inner, self.count = problem, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def initial(self) -> Vector:
        found: Vector = self.inner.initial().repeat(self.count)
        return found


class Abreast(Simulation):
    """Several runs as one. runs: by number, as they were made; they themselves never begin.

    again: makes them anew, by number, if they cannot be done abreast after all.
    """

    def __init__(self, runs: dict[int, Simulation], arenas: Arenas, again: Callable[[], dict[int, Simulation]]) -> None:
        first, *_ = several = list(runs.values())
        self.numbers, self.several, self.again = list(runs), several, again
        self.going = dict(enumerate(self.numbers))  # of those that are not over: by place, the number
        self.step_sizes = StepSizes(run.locals[0].lr for run in several)
        super().__init__(
            [Repeated(problem, len(several)) for problem in first.problems],
            first.server,
            first.locals,
            first.clock,
            first.executor,
            first.until,
            first.seed,
            first.every,
            [watcher for run in several for watcher in run.watchers],
            _side_by_side([run.world for run in several], {}),
            terms=first.terms,
            arenas=arenas.wide(len(several)),
        )
        assert self.rows is not None
        firsts = _side_by_side([run.computing.firsts for run in several], {})
        self.computing.firsts = exchange(firsts, self.rows.adopt)
        self.computing.abreast = [run.computing for run in several]
        self.send, self._send_one = self._send_all, self.send

    def _send_all(self, send: Send) -> None:
        if send.lr is not None:
            raise ApartError("the server sets its clients' step size")
        self._send_one(send._replace(lr=self.step_sizes))  # type: ignore[arg-type]

    # What becomes of each

    def go_on(self, over: Over) -> bool:
        """Until a result is needed; tells whether all is over. over: called with each run that has diverged."""
        while self.going:
            self.computing.error = next(filter(None, map(self._error, self.going)), None)
            try:
                ended = self.advance(_FOREVER, pause=True)
            except DivergedError as error:
                if not any(map(self._error, self.going)):
                    raise ApartError("a run has diverged, and it is unknown which") from error
            except ApartError:
                raise
            except OffbeatError as error:  # which one of the runs by itself will show
                raise ApartError(str(error)) from error
            if not any(map(self._error, self.going)):
                return ended
            self.flush()  # so that the record shows how it came to that
            self._end([place for place in self.going if self._error(place)], over)
        return True

    def end_all(self, over: Over) -> None:
        """Those that are not over yet, at the end."""
        self._end(list(self.going), over)

    def _end(self, places: Sequence[int], over: Over) -> None:
        for place in places:
            over(self.going.pop(place), self.ended(place), self._error(place))

    def _error(self, place: int) -> DivergedError | None:
        return self.several[place].computing.error

    def ended(self, place: int) -> Simulation:
        """One of the runs with its own numbers, for those who look at the end of a run: jobs in flight have none."""
        run, world = self.several[place], copy.copy(self.world)
        world.server = exchange(copied(world.server), lambda vector: self._own(vector, place))
        run.world = run.state = world
        return run

    def saved(self, number: int) -> World:
        """The whole world of one of the runs, as it would be alone."""
        place = self.numbers.index(number)
        world: World = exchange(copied(self.world), lambda vector: self._own(vector, place))
        for flight in world.flights.values():
            flight.job = flight.job._replace(lr=self.step_sizes[place])
        return world

    def part(self) -> dict[int, Simulation]:
        """The runs that are not over, one by one and from their beginning: they cannot be done abreast."""
        if self.computing.owed:
            self.computing.pay()  # or rows that nobody fills would be given away
        self.computing.abreast = [copy.copy(each) for each in self.computing.abreast]  # nobody's, from now on
        going = set(self.going.values())
        return {number: run for number, run in self.again().items() if number in going}

    def _own(self, vector: Any, place: int) -> Vector:
        arena = vector.arena if isinstance(vector, LazyVector) else None
        if isinstance(arena, WideArena):
            return arena.apart([vector])[place]
        found: Vector = vector
        return found

    # Measuring

    def waiting(self) -> Vector:
        """The models that wait for their evaluation, [n · count, d]."""
        vectors: list[Any] = [pending.vector for pending in self.world.pending]
        found: Vector = vectors[0].arena.apart(vectors)
        return found

    def evaluated(self, found: Iterator[Any]) -> None:
        """The metrics of these."""
        waiting, self.world.pending = self.world.pending, []
        metrics = [[next(found) for _ in self.several] for _ in waiting]
        for place in self.going:
            run = self.several[place]
            try:
                for pending, each in zip(waiting, metrics, strict=True):
                    run.measured(pending, each[place])
            except DivergedError as error:
                run.computing.error = run.computing.error or error

    def flush(self) -> None:
        if self.world.pending:
            self.evaluated(iter(self.problems[0].measure(self.waiting())))


def abreast(runs: dict[int, Simulation], arenas: Arenas, again: Callable[[], dict[int, Simulation]]) -> Abreast | None:
    """These runs as one, if that can be."""
    several = list(runs.values())
    if len(several) < 2 or not all(_plain(run) and _alike(several[0], run) for run in several):
        return None
    try:
        return Abreast(runs, arenas, again)
    except ApartError:
        return None


def _plain(run: Simulation) -> bool:
    """Whether nothing that happens in a run can depend on its numbers, as far as can be seen from here."""
    (problem, *others), (local, *_) = run.problems, run.locals
    memory = run.computing.firsts[0].values()
    return (
        not others
        and run.world.events == 0
        and run.executor.stacked
        and run.executor.eager
        and isinstance(run.arenas[0], LazyArena)
        and not (run.prompt or run.judged or run.secure or run.adversary or run.weigh)
        and not (local.notes or local.paced or local.by_sample or any(run.spans))
        and run.traffic.allowed[0] is None
        and all(materialise(vector).shape == (problem.dim,) for vector in memory)
    )


def _alike(one: Simulation, other: Simulation) -> bool:
    """Whether two runs differ in nothing but the step size of their clients."""
    return (
        one.problems[0] is other.problems[0]
        and one.server == other.server
        and but_for_step_size(one.locals[0]) == but_for_step_size(other.locals[0])
        and one.locals[0].steps == other.locals[0].steps
        and (one.until, one.every, one.seed, one.terms) == (other.until, other.every, other.seed, other.terms)
        and getattr(one.clock, "times", one.clock) == getattr(other.clock, "times", other.clock)
        and one.executor is other.executor
    )


def but_for_step_size(local: Local) -> Hashable:
    """Equal for local trainers that differ in nothing but the step size and the number of steps, which jobs carry."""
    inner = {f.name: but_for_step_size(v) for f in fields(local) if isinstance(v := getattr(local, f.name), Local)}
    plain = replace(local, lr=1.0, steps=1)
    shown = {f.name: getattr(plain, f.name) for f in fields(plain) if f.name not in inner}
    return (type(local), repr(sorted(shown.items(), key=lambda item: item[0])), repr(sorted(inner.items())))


def _side_by_side(values: Sequence[Any], seen: dict[tuple[int, ...], tuple[Any, Any]]) -> Any:
    """Several trees that differ in their vectors alone as one, with these side by side."""
    first = values[0]
    if isinstance(first, torch.Tensor) or hasattr(first, "tensor"):
        which = tuple(map(id, values))
        if which not in seen:
            seen[which] = values, torch.cat([materialise(value) for value in values])
        return seen[which][1]
    if isinstance(first, State):
        found = copy.copy(first)
        for f in fields(first):  # type: ignore[arg-type]
            setattr(found, f.name, _side_by_side([getattr(value, f.name) for value in values], seen))
        return found
    if isinstance(first, dict):
        if any([*value] != [*first] for value in values):
            raise ApartError("the runs begin differently")
        return {key: _side_by_side([value[key] for value in values], seen) for key in first}
    if isinstance(first, list) or type(first) is tuple:
        if any(len(value) != len(first) for value in values):
            raise ApartError("the runs begin differently")
        return type(first)(_side_by_side(each, seen) for each in zip(*values, strict=True))
    if any(value != first for value in values):
        raise ApartError("the runs begin differently")
    return first
