"""Clients' own models: the server's model after a client's own fine-tuning, judged on that client's own test share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Protocol, runtime_checkable

import torch

from offbeat.core.errors import at_least
from offbeat.core.events import Job
from offbeat.core.local import Local, Work, batch_size
from offbeat.core.metric import Metric, all_metrics
from offbeat.core.problem import Problem
from offbeat.core.random import PERSONAL, key, signed
from offbeat.core.vectors import Payload, Vector, stacked

_ROWS = 64  # clients at a time


@dataclass(frozen=True)
class Personal:
    """How clients' own models are evaluated.

    steps: gradients that each client may spend on its own model, the same for every method.
    clients: at most this many clients, the first ones; None: all.
    last: only at the end of the run.
    """

    steps: int = 1
    clients: int | None = None
    last: bool = False

    def __post_init__(self) -> None:
        at_least(0, steps=self.steps)
        at_least(1, clients=self.clients)


@runtime_checkable
class PersonalProblem(Protocol):
    """A problem whose clients have test shares of their own."""

    def judge(self, models: Vector, clients: Sequence[int]) -> list[float]:
        """The task's main metric of row i on the test share of client i; nan: it has none."""


def personal_models(
    problem: Problem,
    local: Local,
    vector: Vector,
    memories: Mapping[int, Payload],
    clients: Sequence[int],
    steps: int,
    seed: int,
) -> Iterator[tuple[Sequence[int], Vector]]:
    """(clients, their models [n, d]), a few clients at a time."""
    first = local.remember(problem.initial())
    rows_ = _ROWS if local.batch is None or isinstance(local.batch, int) else 1  # of one batch size
    for at in range(0, len(clients), rows_):
        some = clients[at : at + rows_]
        keys = [signed(key(seed, PERSONAL, c)) for c in some]
        kept = [memories.get(c, first) for c in some]
        rows = vector.expand(len(some), -1)
        work = Work(
            payload={name: rows if name == "model" else torch.zeros_like(rows) for name in local.needs},
            memory={name: stacked([m[name] for m in kept]) for name in first},
            lr=local.lr,
            steps=steps,
            oracle=problem.oracle(
                some, keys, steps * local.accumulate, batch_size(local, problem, some[0]), local.shuffle
            ),
            keys=keys,
            accumulate=local.accumulate,
            jobs=[Job(-1, client, 0, -1, steps, local.lr, -1) for client in some],
        )
        yield some, local.personal(rows, work, steps)


def judged(personal: Personal | None, problems: Sequence[Problem]) -> Personal | None:
    """How clients' own models are judged: as said; as they are, where clients keep a part of a model to themselves."""
    kept = any(getattr(problem, "owned", False) for problem in problems)
    return Personal(steps=0) if personal is None and kept else personal


def measured_metrics(problem: Problem, personal: Personal | None) -> tuple[Metric, ...]:
    """All that an evaluation of this problem gives; clients' own models lead where the server's lacks their part."""
    return all_metrics(problem.metrics, personal is not None, bool(getattr(problem, "owned", False)))


def counted(personal: Personal | None, clients: int) -> int:
    """How many clients' own models are judged: the first ones."""
    return 0 if personal is None else min(personal.clients or clients, clients)


def summarise(values: Sequence[float | None], metric: Metric) -> dict[str, float]:
    """Mean of the clients' values of a metric, and mean over the worst tenth of them."""
    known = sorted((v for v in values if v is not None and not isnan(v)), reverse=not metric.higher)
    worst = known[: max(1, len(known) // 10)]
    return {"personal": sum(known) / len(known), "personal_worst": sum(worst) / len(worst)} if known else {}
