"""Doing the arithmetic of jobs: one at a time, or as stacked rows.

Both ways call the same local trainer on the same draws; they differ in how many rows a call has, and in who does the
server's arithmetic: one at a time it is done at once, stacked it may be lazy (lazy.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from offbeat.core.errors import DivergedError, OffbeatError, TrainingError, failure, positive
from offbeat.core.events import Job
from offbeat.core.local import Carry, Local, Work, Wrapper, batch_size, check_upload, needed
from offbeat.core.problem import Problem
from offbeat.core.random import further
from offbeat.core.vectors import Payload, Vector, even, stacked
from offbeat.simulate.arena import Arena, WideArena
from offbeat.simulate.lazy import LazyVector
from offbeat.simulate.world import made

Result = tuple[Payload, Payload]  # (upload, new memory)


class Ready(NamedTuple):
    """A job with everything that its computation reads."""

    job: Job
    payload: Payload
    memory: Payload
    key: int  # of its client's draws
    client: int  # its number in the problem that it is computed with
    owed: LazyVector | None = None  # where its result belongs, if that was handed out before it was computed


Group = Sequence[tuple[Any, Ready]]  # with the run that each belongs to
Errors = list[tuple[Any, DivergedError]]

_WORTH = 0.75  # of the rows: where no more are left, the others are left out


class Executor:
    """How jobs are computed.

    stacked: whether everything that can be computed is computed together.
    memory: bytes that the stacked vectors of one call may take; larger groups are cut into chunks.
    """

    def __init__(self, stacked: bool, memory: float = 1e9, reason: str = "") -> None:
        positive(memory=memory)
        self.stacked, self.memory, self.reason = stacked, memory, reason
        self.eager = stacked  # computes all that can be, as soon as one result is needed
        self.ahead = 0  # how many of the jobs that will be needed next it wants to hear of
        self.late: list[Callable[[], Errors]] = []  # checks of what a GPU was last told to compute
        self.earlier: list[Callable[[], Errors]] = []  # … and of what it was told before that

    @property
    def name(self) -> str:
        return "batched" if self.stacked else "serial"

    def compute(self, problem: Problem, local: Local, arena: Arena | None, group: Group) -> tuple[list[Result], Errors]:
        """The results of these jobs of one team, in their order, and which runs they show to have diverged."""
        wide = arena.count if isinstance(arena, WideArena) else 1
        most = (
            max(1, int(self.memory / (4 * problem.dim * 8 * wide))) if self.stacked else 1
        )  # about 8 vectors a client
        results: dict[int, Result] = {}
        errors: Errors = []
        order = sorted(range(len(group)), key=lambda at: -group[at][1].job.steps)  # long jobs with long ones
        for chosen in _chunks(problem, local, group, order, most):
            some = [group[i] for i in chosen]
            done, rows = train(problem, local, arena, [ready for _, ready in some])
            results.update(zip(chosen, done, strict=True))
            if next(iter(rows.values())).is_cuda:
                self.late.append(_faults_later(problem, some, rows))
            else:
                errors += faults(problem, some, rows)
        return [results[i] for i in range(len(group))], errors

    def settle(self) -> Executor:
        """The executor to compute with, now that there are jobs: this one, unless it has yet to choose."""
        return self

    def expect(self, run: Any, todo: Container[int], jobs: Iterable[tuple[Problem, Local, Ready]]) -> None:
        """A run will need these next, in this order; of what it was said to need before, what is in `todo` still is."""

    def close(self) -> None:
        """Let go of what it holds; it may be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def review(self, newest: bool = True) -> Errors:
        """Which runs have diverged since the last look.

        newest: by all that was computed. Otherwise by all but the last batch, which a GPU may still be busy with: its
        next one is prepared meanwhile. Which batches are looked at does not depend on how fast it is.
        """
        looks, self.earlier, self.late = self.earlier, self.late, []
        if newest:
            looks, self.earlier = looks + self.earlier, []
        return [error for look in looks for error in look()]


def _chunks(problem: Problem, local: Local, group: Group, order: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Which jobs are computed together: at most so many, of one batch size."""
    if local.batch is None or isinstance(local.batch, int):
        parts = [order]
    else:
        sizes: dict[int | None, list[int]] = {}
        for i in order:
            ready = group[i][1]
            sizes.setdefault(batch_size(local, problem, ready.job.client, ready.client), []).append(i)
        parts = [*sizes.values()]
    for part in parts:
        size = even(len(part), most)
        for at in range(0, len(part), size):
            yield part[at : at + size]


def train(problem: Problem, local: Local, arena: Arena | None, ready: Sequence[Ready]) -> tuple[list[Result], Payload]:
    """(the results, everything that clients sent or keep as stacked rows); without an arena, of one job.

    The longest jobs come first.
    """
    gather: Callable[[Sequence[Any]], Vector] = arena.apart if isinstance(arena, WideArena) else stacked
    payload = {name: gather([r.payload[name] for r in ready]) for name in needed(local, ready[0].payload)}
    memory = {name: gather([r.memory[name] for r in ready]) for name in ready[0].memory}
    given = ready
    if isinstance(arena, WideArena):
        ready = [each for r in ready for each in apart(r)]
    work = _work(problem, local, ready, payload, memory)
    try:
        carry = _walk(problem, local, ready, work, stacked=arena is not None)
        work.step = max(0, ready[0].job.steps - 1)
        upload, stays = local.final(carry, work)
        check_upload(local, upload)
    except OffbeatError:
        raise
    except Exception as error:
        raise _failed(local, ready, error) from error
    rows = {**upload, **stays, **upload}  # what is sent comes first
    if arena is None:
        sent: dict[str, Any] = {k: v[0] if v.shape[1] == problem.dim else float(v) for k, v in upload.items()}
        return [(sent, {k: v[0] for k, v in stays.items()})], rows
    kept: dict[int, list[Any]] = {}
    for values in (*upload.values(), *stays.values()):
        if id(values) in kept:
            continue
        if values.shape[1] == problem.dim:
            kept[id(values)] = arena.keep(values.reshape(len(given), -1), [r.owed for r in given] if arena.open else ())
        elif any(values is note for note in upload.values()):
            kept[id(values)] = values.flatten().tolist()
        else:  # vectors of a memory that are longer or shorter than the model
            kept[id(values)] = [row.clone() for row in values]
    return list(zip(_shares(upload, kept, len(given)), _shares(stays, kept, len(given)), strict=True)), rows


def _failed(local: Local, ready: Sequence[Ready], error: Exception) -> TrainingError:
    """A local trainer's mistake, with its place in the file of its class and the jobs in which it showed."""
    while isinstance(local, Wrapper):
        local = local.inner
    file = getattr(sys.modules[type(local).__module__], "__file__", None) or type(local).step.__code__.co_filename
    job = ready[0].job
    where = f"client {job.client}, job {job.id}" if len(ready) == 1 else f"in {len(ready)} jobs at once"
    said = failure(error, file)
    if isinstance(error, KeyError) and (hidden := {*error.args} & ready[0].payload.keys()):
        said += f"; the server sends it: declare in the class what it reads, needs = {(*local.needs, *hidden)}"
    return TrainingError(f"{type(local).__name__}, {where}: {said}")


def apart(ready: Ready) -> Iterator[Ready]:
    """A job of runs abreast as the jobs of these runs."""
    job, *others = ready
    several: Iterable[float] = job.lr  # type: ignore[assignment]
    for lr in several:
        yield made(Ready, (made(Job, (*job[:5], lr, *job[6:])), *others))


def _work(problem: Problem, local: Local, ready: Sequence[Ready], payload: Payload, memory: Payload) -> Work:
    """The jobs as their local trainer sees them."""
    jobs, drawn = [r.job for r in ready], _Keys(ready)
    given = payload or memory  # a client by itself is sent nothing
    clients = np.array([r.client for r in ready], dtype=np.int64)
    batch = batch_size(local, problem, jobs[0].client, ready[0].client)
    return Work(
        payload=payload,
        memory=memory,
        lr=_column([job.lr for job in jobs], given),
        steps=_column([job.steps for job in jobs], given),  # type: ignore[arg-type]
        oracle=problem.oracle(clients, drawn, jobs[0].steps * local.accumulate, batch, local.shuffle),  # type: ignore[arg-type]
        keys=drawn,  # type: ignore[arg-type]
        accumulate=local.accumulate,
        jobs=jobs,
    )


def _walk(problem: Problem, local: Local, ready: Sequence[Ready], work: Work, stacked: bool) -> Carry:
    """All local steps. Jobs that are done are put aside, and left out as soon as they are enough to be worth it."""
    carry = local.init(work)
    steps = ready[0].job.steps
    alike = stacked and ready[-1].job.steps == steps
    if alike and (done := local.all_steps(carry, work, steps)) is not None:
        return done
    aside: list[Carry] = []
    going = rows = len(ready)
    for step in range(steps):
        left = going
        while ready[left - 1].job.steps <= step:
            left -= 1
        if left < going:
            aside.append({name: values[left:going].clone() for name, values in carry.items()})
            going = left
        if left <= _WORTH * rows:
            rows = left
            payload, memory, carry = (
                {name: values[:rows] for name, values in given.items()} for given in (work.payload, work.memory, carry)
            )
            work = _work(problem, local, ready[:rows], payload, memory)
        work.step = step
        carry = local.step(carry, work)
    if not aside:
        return carry
    aside.append({name: values[:going] for name, values in carry.items()})
    return {name: torch.cat([part[name] for part in reversed(aside)]) for name in carry}


def _shares(rows: Payload, kept: Mapping[int, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    """What each client has of these rows."""
    each: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, values in rows.items():
        for mine, vector in zip(each, kept[id(values)], strict=True):
            mine[name] = vector
    return each


class _Keys:
    """The keys of some jobs as an array, computed at the first draw."""

    __slots__ = ("found", "ready")

    def __init__(self, ready: Sequence[Ready]) -> None:
        self.ready = ready
        self.found: np.ndarray | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.found is None:
            jobs = [r.job for r in self.ready]
            self.found = further([r.key for r in self.ready], [j.number for j in jobs], [j.task for j in jobs])
        return self.found


def _column(values: Sequence[float], given: Payload) -> float | Vector:
    """One number where all rows agree, otherwise a column [n, 1] that goes with what is given."""
    if values.count(values[0]) == len(values):
        return values[0]
    model = next(iter(given.values()))
    return torch.tensor(values, dtype=model.dtype).to(model.device, non_blocking=True).unsqueeze(1)


def faults(problem: Problem, group: Group, rows: Payload) -> Errors:
    """Which runs have diverged, by these rows of what was sent or kept."""
    found = (_faults_in(problem, group, name, v) for name, v in rows.items() if not isfinite(float(v.sum())))
    return [error for errors in found for error in errors]


def _faults_in(problem: Problem, group: Group, name: str, values: Vector) -> Errors:
    """The same by values whose sum is not finite: a run has diverged, or the sum overflows."""
    bad = (~torch.isfinite(values)).any(dim=1).nonzero().flatten()
    found: Errors = []
    wide = len(values) // len(group)
    for at in bad.tolist():
        run, ready = group[at // wide]
        if wide > 1:
            run, ready = run.abreast[at % wide], [*apart(ready)][at % wide]
        found.append((run, _diverged(ready.job, name, problem)))
    return found


def _faults_later(problem: Problem, group: Group, rows: Payload) -> Callable[[], Errors]:
    """The same for a GPU, which is asked when it is done with these rows: a question at once would have to wait."""
    sums = torch.stack([values.sum() for values in rows.values()])
    here = torch.empty(len(rows), dtype=sums.dtype, pin_memory=True)
    here.copy_(sums, non_blocking=True)
    with torch.cuda.device(sums.device):
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

    def look() -> Errors:
        done.synchronize()
        suspect = [item for item, total in zip(rows.items(), here.tolist(), strict=True) if not isfinite(total)]
        return [error for name, values in suspect for error in _faults_in(problem, group, name, values)]

    return look


def _diverged(job: Job, name: str, problem: Problem) -> DivergedError:
    return DivergedError(
        f"client {job.client}, job {job.id} of {problem.name}: its {name} is not finite after {job.steps} "
        f"local steps with lr = {job.lr:g} (model version {job.version}); use a smaller step or clip gradients"
    )
