"""pfl's simulated back end: synchronous FedAvg, as many clients a round as the buffer has.

pfl simulates no time; its rounds are the fastest that it has.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from common import Clock, Work, load, module, report, vector
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

logging.disable(logging.WARNING)
work, clock = load(), Clock()
rng = np.random.default_rng(1)


class WithLoss(torch.nn.Module):
    """pfl asks the module for its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = module(work)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}


def user(client: int) -> Dataset:
    """A client's fresh mini-batches, one after the other."""
    drawn = [work.draw(client, rng) for _ in range(work.steps)]
    return Dataset(raw_data=[torch.cat(part) for part in zip(*drawn, strict=True)])


def run(work: Work, updates: int) -> WithLoss:
    made = WithLoss()
    model = PyTorchModel(
        model=made,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(made.parameters(), lr=1.0),
    )
    users = FederatedDataset(user, get_user_sampler("random", list(range(work.clients))))
    settings = NNAlgorithmParams(
        central_num_iterations=updates // work.size,
        evaluation_frequency=10**9,
        train_cohort_size=work.size,
        val_cohort_size=None,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch)
    backend = SimulatedBackend(training_data=users, val_data=users)
    clock.start()
    FederatedAveraging().run(settings, backend, model, local, send_metrics_to_platform=False)
    clock.stop()
    return made


run(work, 10 * work.size)
done = run(work, work.updates)
report(work, clock, vector(done), work.updates // work.size * work.size)
