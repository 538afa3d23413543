"""fluke: synchronous FedAvg, as many clients a round as the buffer has.

fluke simulates no time.
"""

from __future__ import annotations

import contextlib
import io

import _torchvision  # noqa: F401
import numpy as np
from common import Clock, Work, load, module, report, vector
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL

work, clock = load(), Clock()
rng = np.random.default_rng(1)


class Loader:
    """A client's data: every pass over it is the mini-batches of one job."""

    def __init__(self, client: int) -> None:
        self.client, self.size, self.max_size = client, len(work.shards[client]), len(work.shards[client])

    def __len__(self) -> int:
        return work.steps

    def __iter__(self):
        return (work.draw(self.client, rng) for _ in range(work.steps))


class Splitter:
    """The shards as they are given."""

    def assign(self, clients: int, batch_size: int):
        return ([Loader(client) for client in range(clients)], [None] * clients), None


def run(work: Work, updates: int):
    settings = DDict(
        model=module(work),
        client=DDict(
            batch_size=work.batch,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=False),
    )
    algorithm = CentralizedFL(work.clients, Splitter(), settings)
    clock.start()
    algorithm.run(updates // work.size, (work.size + 0.5) / work.clients, finalize=False)
    clock.stop()
    return algorithm.server.model


FlukeENV().set_eval_cfg(task="classification", eval_every=10**9, server=False, pre_fit=False, post_fit=False)
with contextlib.redirect_stdout(io.StringIO()):
    run(work, 10 * work.size)
    done = run(work, work.updates)
report(work, clock, vector(done), work.updates // work.size * work.size)
