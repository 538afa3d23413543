"""PyTorch as its tutorials have it: a module, an optimiser for every job, state dictionaries back and forth."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.core.vectors import Vector

States = dict[str, Tensor]


class Plain:
    """A classification task.

    x: stored inputs [N, ...].   scale: from stored values to the module's inputs.
    """

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
        self.criterion = nn.CrossEntropyLoss()

    def initial(self) -> States:
        return {name: value.clone() for name, value in self.module.state_dict().items()}

    def train(self, sent: States, client: int) -> States:
        self.module.load_state_dict(sent)
        optimiser = torch.optim.SGD(self.module.parameters(), lr=self.lr)
        shard = self.shards[client]
        for _ in range(self.steps):
            chosen = torch.from_numpy(shard[self.rng.integers(len(shard), size=self.batch)]).to(self.x.device)
            inputs, labels = self.x[chosen].float() * self.scale, self.y[chosen]
            optimiser.zero_grad()
            loss = self.criterion(self.module(inputs), labels)
            loss.backward()
            optimiser.step()
        return {name: sent[name] - value for name, value in self.module.state_dict().items()}

    def step(self, model: States, deltas: Sequence[States], lr: float) -> States:
        return {
            name: value - lr * torch.stack([delta[name] for delta in deltas]).mean(dim=0)
            for name, value in model.items()
        }

    def vector(self, model: States) -> Vector:
        return torch.cat([model[name].reshape(-1) for name, _ in self.module.named_parameters()])


class _Bowl(nn.Module):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(start.clone())

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        return 0.5 * (h * (self.w - c) ** 2).sum()


class PlainQuadratic(Plain):
    """½ Σ h (w − c)², one step a job."""

    def __init__(self, start: Tensor, h: Tensor, c: Tensor, lr: float) -> None:
        super().__init__(_Bowl(start), h, c, 1.0, [], 1, 0, lr, None)

    def train(self, sent: States, client: int) -> States:
        self.module.load_state_dict(sent)
        optimiser = torch.optim.SGD(self.module.parameters(), lr=self.lr)
        optimiser.zero_grad()
        self.module(self.x[client], self.y[client]).backward()
        optimiser.step()
        return {name: sent[name] - value for name, value in self.module.state_dict().items()}
