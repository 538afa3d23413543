"""The floor: what somebody could write in an afternoon for one algorithm and one model, in numpy.

A heap of arrivals, flat float32 vectors, a gradient by hand. No classes, no settings, nothing that could be resumed,
recorded or changed. FedBuff's server: the mean of `size` deltas, then the client that reported starts again at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def softmax(
    x: npt.NDArray[np.uint8],  # [N, d] pixels
    y: Ints,
    shards: Sequence[Ints],
    means: Sequence[float],
    *,
    classes: int,
    steps: int,
    batch: int,
    lr: float,
    size: int,
    updates: int,
    rng: Any,
) -> Floats:
    """Softmax regression; the model after so many updates, [classes · d]."""
    model = np.zeros((classes, x.shape[1]), np.float32)
    sent = [model] * len(shards)
    heap = [(mean * rng.standard_exponential(), client) for client, mean in enumerate(means)]
    heapify(heap)
    total, rows, rate = np.zeros_like(model), np.arange(batch), np.float32(lr / (batch * 255.0))
    pixel = np.float32(1 / 255.0)
    for update in range(1, updates + 1):
        now, client = heap[0]
        shard = shards[client]
        chosen = shard[rng.integers(len(shard), size=(steps, batch))]
        labels = y[chosen]
        w = sent[client]
        for step in range(steps):
            inputs = x[chosen[step]].astype(np.float32)
            error = inputs @ w.T
            error *= pixel
            error -= error.max(axis=1, keepdims=True)
            np.exp(error, out=error)
            error /= error.sum(axis=1, keepdims=True)
            error[rows, labels[step]] -= 1.0
            error *= rate
            w = w - error.T @ inputs
        total += sent[client] - w
        if update % size == 0:
            model = model - total * np.float32(1.0 / size)
            total[:] = 0.0
        sent[client] = model
        heapreplace(heap, (now + means[client] * rng.standard_exponential(), client))
    return model.reshape(-1)


def quadratic(
    h: Floats,
    c: Floats,
    start: Floats,
    means: Sequence[float],
    *,
    lr: float,
    size: int,
    updates: int,
    rng: Any,
) -> Floats:
    """One gradient step an update on ½ Σ h (w − c)²; the model after so many updates, [d]."""
    model = start
    curvatures, centres = list(h), list(c)
    sent = [model] * len(curvatures)
    heap = [(mean * rng.standard_exponential(), client) for client, mean in enumerate(means)]
    heapify(heap)
    total, rate, share = np.zeros_like(model), np.float32(lr), np.float32(1.0 / size)
    for update in range(1, updates + 1):
        now, client = heap[0]
        total += rate * (curvatures[client] * (sent[client] - centres[client]))
        if update % size == 0:
            model = model - total * share
            total[:] = 0.0
        sent[client] = model
        heapreplace(heap, (now + means[client] * rng.standard_exponential(), client))
    return model
