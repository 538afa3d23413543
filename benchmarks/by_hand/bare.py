"""PyTorch without its objects: one flat vector, parameters as views into it, a step in place.

The floor for models whose gradient nobody writes by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from offbeat.core.vectors import Vector


class Bare:
    """A classification task; arguments as for `Plain`."""

    def __init__(
        self,
        module: nn.Module,
        x: Tensor,
        y: Tensor,
        scale: float,
        shards: Sequence[np.ndarray],
        steps: int,
        batch: int,
        lr: float,
        rng: Any,
    ) -> None:
        self.module = copy.deepcopy(module).to(x.device)
        self.x, self.y, self.scale, self.shards = x, y, scale, shards
        self.steps, self.batch, self.lr, self.rng = steps, batch, lr, rng
        self.parameters: list[Tensor] = list(self.module.parameters())
        self.w = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        at = 0
        for p in self.parameters:
            p.data = self.w[at : at + p.numel()].view(p.shape)
            at += p.numel()

    def initial(self) -> Vector:
        return self.w.clone()

    def train(self, sent: Vector, client: int) -> Vector:
        self.w.copy_(sent)
        shard = self.shards[client]
        drawn = shard[self.rng.integers(len(shard), size=(self.steps, self.batch))]
        for chosen in torch.from_numpy(drawn).to(self.x.device):
            inputs = self.x.index_select(0, chosen).float().mul_(self.scale)
            loss = cross_entropy(self.module(inputs), self.y.index_select(0, chosen))
            slopes = torch.autograd.grad(loss, self.parameters)
            with torch.no_grad():
                torch._foreach_add_(self.parameters, slopes, alpha=-self.lr)
        return sent - self.w

    def step(self, model: Vector, deltas: Sequence[Vector], lr: float) -> Vector:
        return model - (lr / len(deltas)) * torch.stack(list(deltas)).sum(dim=0)

    def vector(self, model: Vector) -> Vector:
        return model
