"""The event loop of the PyTorch baselines: whoever reports is sent the newest model; `size` deltas make a step."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
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
    """The model after so many updates."""
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
