"""Clients' own models: the server's model after a client's own fine-tuning, judged on that client's own test share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from offbeat.core.errors import at_least
from offbeat.core.local import Local, Work
from offbeat.core.problem import Problem
from offbeat.core.random import PERSONAL, key, signed
from offbeat.core.vectors import Payload, Vector, stacked

_ROWS = 64  # clients at a time


@dataclass(frozen=True)
class Personal:
    """How clients' own models are judged.

    steps: gradients that each client may spend on its own model, the same for every method.
    clients: at most so many clients, the first ones; None: all.
    """

    steps: int = 1
    clients: int | None = None

    def __post_init__(self) -> None:
        at_least(0, steps=self.steps)
        at_least(1, clients=self.clients)


@runtime_checkable
class PersonalProblem(Protocol):
    """A problem whose clients have test shares of their own."""

    def judge(self, models: Vector, clients: Sequence[int]) -> list[float]:
        """Accuracy of row i on the test share of client i."""


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
    for at in range(0, len(clients), _ROWS):
        some = clients[at : at + _ROWS]
        keys = [signed(key(seed, PERSONAL, c)) for c in some]
        kept = [memories.get(c, first) for c in some]
        rows = vector.expand(len(some), -1)
        work = Work(
            payload={name: rows if name == "model" else torch.zeros_like(rows) for name in local.needs},
            memory={name: stacked([m[name] for m in kept]) for name in first},
            lr=local.lr,
            steps=steps,
            oracle=problem.oracle(some, keys, steps, local.batch, local.shuffle),
            keys=keys,
        )
        yield some, local.personal(rows, work, steps)


def summarise(accuracies: Sequence[float]) -> dict[str, float]:
    """Mean over clients, and mean over the worst tenth of them."""
    worst = sorted(accuracies)[: max(1, len(accuracies) // 10)]
    return {"personal": sum(accuracies) / len(accuracies), "personal_worst": sum(worst) / len(worst)}
