"""Doing the arithmetic of jobs: one at a time, or as stacked rows.

Both ways call the same local half on the same draws; they differ only in how many rows a call has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch

from offbeat.core.errors import DivergedError, SettingError, positive
from offbeat.core.events import Job
from offbeat.core.local import Carry, Local, Work
from offbeat.core.problem import Problem
from offbeat.core.random import SAMPLE, key, signed
from offbeat.core.vectors import Payload, Vector

Result = tuple[Payload, Payload]  # (upload, new memory)


class Ready(NamedTuple):
    """A job with everything that its computation reads."""

    job: Job
    payload: Payload
    memory: Payload


@dataclass(frozen=True)
class Executor:
    """How jobs are computed.

    stacked: whether everything that can be computed is computed together.
    memory: bytes that the stacked vectors of one call may take; larger groups are cut into chunks.
    """

    stacked: bool
    memory: float = 1e9

    def __post_init__(self) -> None:
        positive(memory=self.memory)

    @property
    def name(self) -> str:
        return "batched" if self.stacked else "serial"

    def compute(self, problem: Problem, local: Local, ready: Sequence[Ready], seed: int) -> list[Result]:
        """The results of these jobs of one task, in their order."""
        rows = max(1, int(self.memory / (4 * problem.dim * 8))) if self.stacked else 1  # about 8 vectors a client
        results: list[Result] = []
        for at in range(0, len(ready), rows):
            results += _train(problem, local, ready[at : at + rows], seed)
        return results


def executor(name: str, problems: Iterable[Problem]) -> Executor:
    """The executor of this name; `auto` stacks where the problems say that stacking pays."""
    if name == "auto":
        return Executor(stacked=all(p.stacks for p in problems))
    if name in ("serial", "batched"):
        return Executor(stacked=name == "batched")
    raise SettingError(f"executor = {name!r}: must be 'auto', 'serial' or 'batched'")


def _train(problem: Problem, local: Local, ready: Sequence[Ready], seed: int) -> list[Result]:
    jobs = [r.job for r in ready]
    keys = [signed(key(seed, SAMPLE, j.client, j.number, j.task)) for j in jobs]
    most = max(j.steps for j in jobs)
    work = Work(
        payload=_stack([r.payload for r in ready]),
        memory=_stack([r.memory for r in ready]),
        lr=_column([j.lr for j in jobs], ready),
        steps=_column([j.steps for j in jobs], ready),  # type: ignore[arg-type]
        oracle=problem.oracle([j.client for j in jobs], keys, most, local.batch, local.shuffle),
        keys=torch.tensor(keys, device=_device(ready)).unsqueeze(1),
    )
    carry = local.init(work)
    fewest = min(j.steps for j in jobs)
    for step in range(most):
        work.step = step
        after = local.step(carry, work)
        carry = after if step < fewest else _keep(carry, after, work.steps, step)
    upload, memory = local.final(carry, work)
    _check_finite({**upload, **{k: v for k, v in memory.items() if k not in upload}}, jobs, problem)
    if len(jobs) == 1:
        return [({k: v[0] for k, v in upload.items()}, {k: v[0] for k, v in memory.items()})]
    # clones, so that one slow client's row does not keep the rows of its whole batch alive
    return [
        ({k: v[i].clone() for k, v in upload.items()}, {k: v[i].clone() for k, v in memory.items()})
        for i in range(len(jobs))
    ]


def _stack(payloads: Sequence[Payload]) -> Payload:
    if len(payloads) == 1:
        return {name: vector.unsqueeze(0) for name, vector in payloads[0].items()}
    return {name: torch.stack([p[name] for p in payloads]) for name in payloads[0]}


def _column(values: Sequence[float], ready: Sequence[Ready]) -> float | Vector:
    """One number where all rows agree, otherwise a column [n, 1]."""
    if all(v == values[0] for v in values):
        return values[0]
    dtype = next(iter(ready[0].payload.values())).dtype
    return torch.tensor(values, dtype=dtype, device=_device(ready)).unsqueeze(1)


def _device(ready: Sequence[Ready]) -> torch.device:
    return next(iter(ready[0].payload.values())).device


def _keep(before: Carry, after: Carry, steps: Vector | int, step: int) -> Carry:
    """Rows whose steps are done stay as they are."""
    active = steps > step if isinstance(steps, Vector) else torch.tensor(steps > step)
    return {name: torch.where(active, after[name], before[name]) for name in after}


def _check_finite(upload: Payload, jobs: Sequence[Job], problem: Problem) -> None:
    for name, rows in upload.items():
        if bool(torch.isfinite(rows.sum())):
            continue
        bad = (~torch.isfinite(rows)).any(dim=1).nonzero()
        if len(bad):
            job = jobs[int(bad[0])]
            raise DivergedError(
                f"client {job.client}, job {job.id} of {problem.name}: its {name} is not finite after {job.steps} "
                f"local steps with lr = {job.lr:g} (model version {job.version}); use a smaller step or clip gradients"
            )


def group_by_task(ready: Sequence[Ready]) -> Iterable[tuple[int, list[Ready]]]:
    """The jobs of each task together, in their order."""
    ordered = sorted(ready, key=lambda r: r.job.task)
    return ((task, list(group)) for task, group in groupby(ordered, key=lambda r: r.job.task))
