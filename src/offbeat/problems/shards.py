"""Which samples each client has, and which of them a local step draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.problem import Numbers
from offbeat.core.random import below, bits

Ints = npt.NDArray[np.int64]

_AHEAD = 1 << 20  # draws made ahead at most
_FEW = 1 << 13  # draws that a CPU has made before a GPU was told what to do


class Shards:
    """Sample numbers of all clients, one client after the other.

    shares: what each client's own function is multiplied with.
    """

    def __init__(self, order: Ints, sizes: Ints, shares: npt.NDArray[np.float64], device: torch.device) -> None:
        self.order, self.sizes, self.shares, self.device = order, sizes, shares, device
        self.starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        if device.type == "cuda":  # mini-batches are drawn there
            self.there = [torch.from_numpy(part).to(device) for part in (self.order, self.starts, self.sizes)]

    def __getitem__(self, client: int) -> Ints:
        """The samples of one client."""
        return self.order[self.starts[client] : self.starts[client] + self.sizes[client]]

    @classmethod
    def union(cls, parts: Sequence[Shards]) -> Shards:
        """The clients of all parts, one part after the other."""
        order, sizes = np.concatenate([p.order for p in parts]), np.concatenate([p.sizes for p in parts])
        return cls(order, sizes, np.concatenate([p.shares for p in parts]), parts[0].device)


class Draws:
    """The mini-batches of some clients: draw c of a client is a function of its key and c alone."""

    def __init__(self, shards: Shards, clients: Numbers, keys: Numbers, steps: int, batch: int, shuffle: bool) -> None:
        self.shards, self.batch, self.shuffle, self.steps = shards, batch, shuffle, max(steps, 1)
        self.which = np.asarray(clients, dtype=np.int64)
        self.keys = np.asarray(keys, dtype=np.int64)[:, None]
        self.drawn: dict[int, tuple[int, Tensor]] = {}  # sample -> (first step, indices [n, steps, batch])

    def indices(self, step: int, sample: int) -> Tensor:
        """Sample numbers [n, batch] of one local step, on the problem's device; several steps are drawn at once."""
        first, block = self.drawn.get(sample, (0, None))
        if block is None or not first <= step < first + block.shape[1]:
            ahead = max(1, min(self.steps - step, _AHEAD // (len(self.keys) * self.batch)))
            first, block = step, self._draw(step, ahead, sample)
            self.drawn[sample] = first, block
        return block[:, step - first]

    def several(self, steps: int) -> Tensor | None:
        """Those of the first so many local steps at once, [n, steps, batch]; None: they are too many for that."""
        if steps * len(self.keys) * self.batch > _AHEAD:
            return None
        self.indices(0, 0)
        return self.drawn[0][1][:, :steps]

    def _draw(self, step: int, count: int, sample: int) -> Tensor:
        shards, which = self.shards, self.which
        counters = np.arange(step * self.batch, (step + count) * self.batch, dtype=np.int64)[None, :]
        shape = (len(which), count, self.batch)
        if shards.device.type == "cuda" and not self.shuffle and len(which) * counters.size > _FEW:
            order, starts, sizes = shards.there
            there = torch.from_numpy(np.stack([which, self.keys[:, 0]])).to(shards.device, non_blocking=True)
            chosen = there[0].unsqueeze(1)
            first, last = int(counters[0, 0]) + (sample << 40), int(counters[0, -1]) + (sample << 40)
            random = bits(there[1].unsqueeze(1), torch.arange(first, last + 1, device=shards.device))
            return order[starts[chosen] + below(random, sizes[chosen])].view(shape)
        if self.shuffle:
            places = np.stack([self._shuffled(row, counters[0], sample) for row in range(len(which))])
        else:
            places = below(bits(self.keys, counters + (sample << 40)), shards.sizes[which][:, None])
        drawn = shards.order[shards.starts[which][:, None] + places].reshape(shape)
        return torch.from_numpy(drawn).to(shards.device, non_blocking=True)

    def _shuffled(self, row: int, counters: Ints, sample: int) -> Ints:
        """Draw number c is place c mod size of epoch c div size, each epoch in an order of its own."""
        size = int(self.shards.sizes[self.which[row]])
        first, last = int(counters[0]) // size, int(counters[-1]) // size
        order: Ints = np.concatenate([self._epoch(row, e, sample, size) for e in range(first, last + 1)])
        places: Ints = order[counters - first * size]
        return places

    def _epoch(self, row: int, epoch: int, sample: int, size: int) -> Ints:
        counters = np.arange(size, dtype=np.int64) + (sample << 40) + (1 << 39) + epoch * size
        order: Ints = np.argsort(bits(self.keys[row], counters), kind="stable")
        return order
