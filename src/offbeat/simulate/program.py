"""Several runs as one program.

Each run goes on until it needs a result that nobody has computed; then what all of them need is computed in one batch,
and their servers' arithmetic is done together. What happens in a run, and when, is the same as if it ran alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from offbeat.core.errors import DivergedError
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.vectors import stacked
from offbeat.simulate.compute import Computing, Team, compute
from offbeat.simulate.loop import Simulation

_AT_ONCE = 64  # models that are evaluated together
_FOREVER = 1 << 60
_SLICE = 16  # events of a run that computes its results itself, before the others have their turn


class Program:
    """Runs that share their arenas and an executor, up to `width` of them at work at once.

    makers: (number, what gives the run when its turn comes).
    over: called with (number, run, error or None) as each one ends.
    """

    def __init__(
        self,
        makers: Iterator[tuple[int, Callable[[], Simulation]]],
        over: Callable[[int, Simulation, DivergedError | None], None],
        width: int = 1 << 30,
    ) -> None:
        self.over, self.width = over, width
        self.makers = makers
        self.more = True
        self.active: dict[int, Simulation] = {}
        self.ended: dict[int, Simulation] = {}  # but for their last evaluations

    def rounds(self) -> Iterator[dict[int, Simulation]]:
        """To the end of all runs; gives those that are not over after every batch."""
        while self.more or self.active or self.ended:
            self._admit()
            self._advance()
            self._measure()
            batches: dict[int, list[Computing]] = {}
            for run in self.active.values():
                if run.executor.eager:
                    batches.setdefault(id(run.executor), []).append(run.computing)
            for batch in batches.values():
                compute(batch)
            yield {**self.active, **self.ended}

    def _admit(self) -> None:
        before = len(self.active)
        while self.more and len(self.active) < self.width:
            number, make = next(self.makers, (0, None))
            if make is None:
                self.more = False
                break
            run = self.active[number] = make()
            if run.executor.eager and len(run.problems) == 1:
                run.at_once = _FOREVER  # its models are evaluated from here
        if len(self.active) > before:
            join(list(self.active.values()))

    def _advance(self) -> None:
        for number, run in list(self.active.items()):
            try:
                eager = run.executor.eager
                ended = run.advance(_FOREVER if eager else _SLICE, pause=eager)
                if run.computing.error is not None:
                    raise run.computing.error
            except DivergedError as error:
                with suppress(DivergedError):
                    run.flush()  # so that the record shows how it came to that
                self.over(number, self.active.pop(number), error)
            else:
                if ended:
                    self.ended[number] = self.active.pop(number)

    def _measure(self) -> None:
        """Evaluate what waits for it, of all runs that share a problem, when there is enough of it.

        It is not left waiting when no run of that problem is at work any more, though others may come.
        """
        waiting: dict[int, list[Simulation]] = {}
        for run in (*self.active.values(), *self.ended.values()):
            if run.world.pending and len(run.problems) == 1:
                waiting.setdefault(id(run.problems[0]), []).append(run)
        at_work = {id(run.problems[0]) for run in self.active.values()}
        for problem, sharing in waiting.items():
            if problem not in at_work or sum(len(run.world.pending) for run in sharing) >= _AT_ONCE:
                measure_together(sharing)
        for number, run in list(self.ended.items()):
            if len(run.problems) == 1 and run.world.pending and run.computing.error is None:
                continue  # with others, later
            del self.ended[number]
            error = None
            try:
                run.flush()
                run.computing.review()
            except DivergedError as found:
                error = found
            self.over(number, run, error)


def measure_together(runs: Sequence[Simulation]) -> None:
    """Evaluate the waiting models of runs that share one problem, in one pass."""
    vectors = [pending.vector for run in runs for pending in run.world.pending]
    found = iter(runs[0].problems[0].measure(stacked(vectors)))
    for run in runs:
        waiting, run.world.pending = run.world.pending, []
        mine = [(pending, next(found)) for pending in waiting]
        try:
            for pending, metrics in mine:
                run.measured(pending, metrics)
        except DivergedError as error:
            run.computing.error = run.computing.error or error


def join(runs: Sequence[Simulation]) -> None:
    """Let the jobs of these runs be computed together wherever their problems and local trainers allow it."""
    problems: dict[Hashable, dict[int, Problem]] = {}
    for run in runs:
        for problem in run.problems:
            problems.setdefault(_kin(problem), {})[id(problem)] = problem
    joint: dict[Hashable, Problem] = {}
    firsts: dict[int, int] = {}
    for kin, members in problems.items():
        several = list(members.values())
        joint[kin] = several[0] if len(several) == 1 else several[0].union(several)  # type: ignore[attr-defined]
        first = 0
        for problem in several:
            firsts[id(problem)] = first
            first += problem.clients
    trainers: dict[Any, Local] = {}
    for run in runs:
        run.computing.teams = [
            Team(joint[_kin(problem)], trainers.setdefault(_alike(local), local), arena, firsts[id(problem)])
            for problem, local, arena in zip(run.problems, run.locals, run.arenas, strict=True)
        ]


def _kin(problem: Problem) -> Hashable:
    return getattr(problem, "kin", id(problem))


def _alike(local: Local) -> Hashable:
    """Equal for local trainers that differ in nothing but the step size and the number of steps, which jobs carry."""
    inner = {f.name: _alike(v) for f in fields(local) if isinstance(v := getattr(local, f.name), Local)}
    plain = replace(local, lr=1.0, steps=1)
    shown = {f.name: getattr(plain, f.name) for f in fields(plain) if f.name not in inner}
    return (type(local), repr(sorted(shown.items(), key=lambda item: item[0])), repr(sorted(inner.items())))
