"""FedLab's standalone pipeline: synchronous FedAvg, as many clients a round as the buffer has.

Its asynchronous server works between real processes only, not in the simulation.
"""

from __future__ import annotations

import _torchvision  # noqa: F401
import numpy as np
from common import Clock, Work, load, module, report, vector
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline

work, clock = load(), Clock()
rng = np.random.default_rng(1)


class Data:
    """Fresh mini-batches, as many as there are local steps."""

    def get_dataloader(self, client: int, batch_size: int):
        return [work.draw(client, rng) for _ in range(work.steps)]


class Pipeline(StandalonePipeline):
    """Without an evaluation after every round."""

    def evaluate(self) -> None:
        pass


class Silent:
    """A logger that says nothing."""

    def info(self, *words: object) -> None:
        pass


def run(work: Work, updates: int) -> SyncServerHandler:
    share = (work.size + 0.5) / work.clients
    server = SyncServerHandler(module(work), updates // work.size, share, logger=Silent())
    clients = SGDSerialClientTrainer(module(work), work.clients, logger=Silent())
    clients.setup_dataset(Data())
    clients.setup_optim(1, work.batch, work.lr)
    pipeline = Pipeline(server, clients)
    clock.start()
    pipeline.main()
    clock.stop()
    return server


run(work, 10 * work.size)
done = run(work, work.updates)
report(work, clock, vector(done.model), work.updates // work.size * work.size)
