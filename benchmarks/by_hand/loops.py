"""The event loops of the PyTorch baselines, for one task and for several that share the clients."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any, Protocol, TypeVar

from offbeat.core.vectors import Vector

M = TypeVar("M")  # a model or a difference of models, as the trainer likes to keep it


class Trainer(Protocol[M]):
    """One task's client and server arithmetic."""

    def initial(self) -> M:
        """The first model."""

    def train(self, sent: M, client: int) -> M:
        """A client's job: sent − reached."""

    def step(self, model: M, deltas: Sequence[M], lr: float) -> M:
        """A new model, model − lr · mean(deltas)."""

    def vector(self, model: M) -> Vector:
        """The model as one vector, in the order of the module's parameters."""


def fedbuff(trainer: Trainer[M], means: Sequence[float], size: int, lr: float, updates: int, rng: Any) -> Vector:
    """Whoever reports is sent the newest model, `size` deltas make a step; the model after so many updates."""
    model = trainer.initial()
    sent = [model] * len(means)
    heap = [(mean * rng.standard_exponential(), client) for client, mean in enumerate(means)]
    heapify(heap)
    deltas: list[M] = []
    for _ in range(updates):
        now, client = heap[0]
        deltas.append(trainer.train(sent[client], client))
        if len(deltas) == size:
            model = trainer.step(model, deltas, lr)
            deltas = []
        sent[client] = model
        heapreplace(heap, (now + means[client] * rng.standard_exponential(), client))
    return trainer.vector(model)


def fedast(
    trainers: Sequence[Trainer[Any]],
    times: Sequence[float],
    slowness: Sequence[float],
    requests: int,
    size: int,
    lr: float,
    rounds: int,
    rng: Any,
) -> list[Vector]:
    """Every task has its share of the requests on their way, sent to clients at random, which queue them.

    A task ends after so many rounds and its requests go to the others. times: β of a job, by task; a job takes
    β + Exp(2β), times its client's slowness.
    """
    models = [trainer.initial() for trainer in trainers]
    deltas: list[list[Any]] = [[] for _ in trainers]
    versions, active = [0] * len(trainers), list(range(len(trainers)))
    free = [0.0] * len(slowness)
    heap: list[tuple[float, int, int, int, Any]] = []
    order = count()

    def send(task: int, now: float) -> None:
        client = int(rng.integers(len(slowness)))
        work = times[task] * slowness[client] * (1.0 + 2.0 * rng.standard_exponential())
        free[client] = max(now, free[client]) + work
        heappush(heap, (free[client], next(order), client, task, models[task]))

    for task in active:
        for _ in range(requests // len(active)):
            send(task, 0.0)
    while active:
        now, _, client, task, sent = heappop(heap)
        if versions[task] == rounds:
            continue  # its task is over
        deltas[task].append(trainers[task].train(sent, client))
        if len(deltas[task]) == size:
            models[task] = trainers[task].step(models[task], deltas[task], lr)
            deltas[task] = []
            versions[task] += 1
        if versions[task] < rounds:
            send(task, now)
            continue
        active.remove(task)
        for at in range(requests // len(trainers) if active else 0):
            send(active[at % len(active)], now)
    return [trainer.vector(model) for trainer, model in zip(trainers, models, strict=True)]
