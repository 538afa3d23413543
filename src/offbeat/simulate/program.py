"""Several runs as one program.

Each run goes on until it needs a result that nobody has computed; then what all of them need is computed in one batch,
and their servers' arithmetic is done together. What happens in a run, and when, is the same as if it ran alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from offbeat.core.errors import DivergedError
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.vectors import stacked
from offbeat.simulate.abreast import Abreast, Over, Repeated, but_for_step_size
from offbeat.simulate.arena import ApartError
from offbeat.simulate.compute import Computing, Team, compute
from offbeat.simulate.loop import Simulation

_AT_ONCE = 64  # models that are evaluated together
_FOREVER = 1 << 60
_SLICE = 16  # events of a run that computes its results itself, before the others have their turn


class Program:
    """Runs that share their arenas and an executor, up to `width` of them at work at once.

    makers: (number, what gives the run when its turn comes).
    over: called with (number, run, error or None) as each one ends.
    Runs abreast are at work under one of their numbers, and end under their own.
    """

    def __init__(
        self,
        makers: Iterator[tuple[int, Callable[[], Simulation]]],
        over: Over,
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
            self._begin({number: make()})
        if len(self.active) > before:
            join(list(self.active.values()))

    def _begin(self, runs: Mapping[int, Simulation]) -> None:
        for number, run in runs.items():
            self.active[number] = run
            if run.executor.eager and len(run.problems) == 1:
                run.at_once = _FOREVER  # its models are evaluated from here

    def _advance(self) -> None:
        for number, run in list(self.active.items()):
            try:
                ended = self._go_on(run)
            except DivergedError as error:
                with suppress(DivergedError):
                    run.flush()  # so that the record shows how it came to that
                self.over(number, self.active.pop(number), error)
            except ApartError:
                assert isinstance(run, Abreast)
                del self.active[number]
                self._begin(run.part())
                join(list(self.active.values()))
            else:
                if ended:
                    self.ended[number] = self.active.pop(number)

    def _go_on(self, run: Simulation) -> bool:
        """Until it needs a result; tells whether it is over."""
        if isinstance(run, Abreast):
            return run.go_on(self.over)
        eager = run.executor.eager
        ended = run.advance(_FOREVER if eager else _SLICE, pause=eager)
        if run.computing.error is not None:
            raise run.computing.error
        return ended

    def _measure(self) -> None:
        """Evaluate what waits for it, of all runs that share a problem, when there is enough of it.

        It is not left waiting when no run of that problem is at work any more, though others may come.
        """
        waiting: dict[int, list[Simulation]] = {}
        for run in (*self.active.values(), *self.ended.values()):
            if run.world.pending and len(run.problems) == 1:
                waiting.setdefault(id(_single(run.problems[0])), []).append(run)
        at_work = {id(_single(run.problems[0])) for run in self.active.values()}
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
            if isinstance(run, Abreast):
                run.end_all(self.over)
            else:
                self.over(number, run, error)


def measure_together(runs: Sequence[Simulation]) -> None:
    """Evaluate the waiting models of runs that share one problem, in one pass."""
    singles = [run for run in runs if not isinstance(run, Abreast)]
    wide = [run for run in runs if isinstance(run, Abreast)]
    vectors = [pending.vector for run in singles for pending in run.world.pending]
    models = [*([stacked(vectors)] if vectors else ()), *(run.waiting() for run in wide)]
    found = iter(_single(runs[0].problems[0]).measure(models[0] if len(models) == 1 else torch.cat(models)))
    for run in singles:
        waiting, run.world.pending = run.world.pending, []
        mine = [(pending, next(found)) for pending in waiting]
        try:
            for pending, metrics in mine:
                run.measured(pending, metrics)
        except DivergedError as error:
            run.computing.error = run.computing.error or error
    for run in wide:
        run.evaluated(found)


def join(runs: Sequence[Simulation]) -> None:
    """Let the jobs of these runs be computed together wherever their problems and local trainers allow it."""
    problems: dict[Hashable, dict[int, Problem]] = {}
    for run in runs:
        for problem in map(_single, run.problems):
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
            Team(joint[_kin(problem)], trainers.setdefault(but_for_step_size(local), local), arena, firsts[id(problem)])
            for problem, local, arena in zip(map(_single, run.problems), run.locals, run.arenas, strict=True)
        ]


def _single(problem: Any) -> Problem:
    """The problem of each of several runs that are done abreast."""
    found: Problem = problem.inner if isinstance(problem, Repeated) else problem
    return found


def _kin(problem: Problem) -> Hashable:
    return getattr(problem, "kin", id(problem))
