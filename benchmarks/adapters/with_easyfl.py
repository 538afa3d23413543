"""EasyFL on one machine: synchronous FedAvg, as many clients a round as the buffer has.

EasyFL simulates stragglers by sleeping; there is no virtual time and no asynchronous server.
"""

from __future__ import annotations

import os

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"  # its messages are older than today's protobuf

import _torchvision  # noqa: F401
import easyfl
import numpy as np
import torch
from common import Clock, Work, load, module, report, vector
from easyfl.coordinator import _global_coord as coordinator
from easyfl.datasets import FederatedTensorDataset

work, clock = load(), Clock()
rng = np.random.default_rng(1)


class Batches:
    """A client's fresh mini-batches, as many as there are local steps."""

    def __init__(self, client: int) -> None:
        self.client = client

    def __iter__(self):
        return (work.draw(self.client, rng) for _ in range(work.steps))


class Data(FederatedTensorDataset):
    """The shards as they are given."""

    def loader(self, batch_size, client_id=None, **options):
        return Batches(int(client_id[1:]))


class Model(torch.nn.Module):
    """EasyFL makes the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = module(work)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def run(work: Work, updates: int) -> torch.nn.Module:
    one = {"x": [0.0], "y": [0]}
    data = Data({f"c{client:04d}": one for client in range(work.clients)}, simulated=True)
    easyfl.register_dataset(data, data)
    easyfl.register_model(Model)
    easyfl.init(
        {
            "server": {
                "rounds": updates // work.size,
                "clients_per_round": work.size,
                "test_every": 10**9,
                "save_model_every": 10**9,
            },
            "client": {
                "local_epoch": 1,
                "batch_size": work.batch,
                "optimizer": {"type": "SGD", "lr": work.lr, "momentum": 0.0, "weight_decay": 0.0},
            },
            "tracking": {"database": str(work.folder / "tracking.db")},
        }
    )
    clock.start()
    easyfl.run()
    clock.stop()
    return coordinator.server._model


done = run(work, work.updates)
report(work, clock, vector(done), work.updates // work.size * work.size)
