"""One client's job, a local step at a time: it can be stopped between two steps and asked for what is done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from offbeat.core.errors import DivergedError, SpentError
from offbeat.core.events import Job
from offbeat.core.local import STEPS_SPENT, Local, Work, allowed_steps, batch_size, check_upload, needed
from offbeat.core.problem import Problem
from offbeat.core.random import SAMPLE, key, signed
from offbeat.core.server import SPENT
from offbeat.core.sums import encoder
from offbeat.core.vectors import Payload


def check_allowance(problem: Problem, local: Local, job: Job, memory: Payload) -> None:
    """Raise if a job would exceed a budget that this client keeps: of local steps, or of messages for sums."""
    exact = encoder(local)
    if exact is not None and (why := exact.exhausted(memory)):
        raise SpentError(f"{SPENT}: {why}")
    allowed = allowed_steps(local, problem)
    if allowed is None:
        return
    spent, most = int(memory[STEPS_SPENT][0]), allowed(job.client)
    samples, drawn, *_ = [*map(int, memory[STEPS_SPENT][2:].tolist()), 0, 0]
    if samples:  # all of its steps count as those of which a sample was part with the largest probability
        most = min(most, local.allowance(samples, drawn) or 0)
    if spent + job.steps > most:
        raise SpentError(f"{SPENT}: {spent:,} of {most:,} local steps are spent, and this job would take {job.steps:,}")


class Training:
    """The same arithmetic on the same draws as in the simulator, for one row."""

    def __init__(
        self,
        problem: Problem,
        local: Local,
        job: Job,
        payload: Payload,
        memory: Payload,
        seed: int,
        go_on: Callable[[int], bool] | None = None,
    ) -> None:
        """go_on: asked between steps that are made in one call, with their number so far: whether to make another."""
        check_allowance(problem, local, job, memory)
        own = signed(key(seed, SAMPLE, job.client, job.number, job.task))
        device = problem.initial().device
        self.job, self.local, self.steps = job, local, 0
        self.go_on, self.made = go_on, 0
        self.work = Work(
            payload={name: vector.to(device).unsqueeze(0) for name, vector in needed(local, payload).items()},
            memory={name: vector.to(device).unsqueeze(0) for name, vector in memory.items()},
            lr=job.lr,
            steps=job.steps,
            oracle=problem.oracle(
                [job.client], [own], job.steps * local.accumulate, batch_size(local, problem, job.client), local.shuffle
            ),
            keys=np.array([own], dtype=np.int64),
            accumulate=local.accumulate,
            jobs=[job],
            packed=True,
            secret=True,
            between=self._between,
        )
        self.carry = local.init(self.work)

    def step(self) -> bool:
        """One local step, or all of a trainer that makes them in one call; whether there are more."""
        if self.steps < self.job.steps:
            self.work.step = self.steps
            self.carry = self.local.step(self.carry, self.work)
            self.steps = max(self.steps + 1, self.made)
        return self.steps < self.job.steps

    def _between(self, made: int) -> bool:
        self.made = made
        return made < self.job.steps and (self.go_on is None or self.go_on(made))

    def result(self) -> tuple[Payload, Payload]:
        """(upload, memory) after the steps that were made."""
        self.work.steps = self.steps
        upload, memory = self.local.final(self.carry, self.work)
        check_upload(self.local, upload)
        for name, rows in {**memory, **upload}.items():
            if not bool(torch.isfinite(rows).all()):
                raise DivergedError(f"{name} is not finite after {self.steps} steps with lr = {self.job.lr:g}")
        return {k: v[0].cpu() for k, v in upload.items()}, {k: v[0].cpu() for k, v in memory.items()}
