"""Flower's simulation runtime: FedAvg rounds with every client in each, spread over Ray's workers.

Flower has no virtual time and no asynchronous strategy; full rounds are what its runtime does fastest.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import psutil
import torch
from common import Clock, given, load, module, report, vector
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = HERE  # Ray's workers import `common` too
FOLDER = Path(os.sys.argv[1]).resolve()


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """A client's job."""
    work, model = given(FOLDER)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
    rng = np.random.default_rng()
    for _ in range(work.steps):
        inputs, labels = work.draw(int(context.node_config["partition-id"]), rng)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.batch})}
    return Message(content=RecordDict(content), reply_to=message)


server = ServerApp()
clock = Clock()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """A warm-up of two rounds, then the rounds that are timed."""
    work = load(FOLDER)
    first = module(work)
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=work.clients)
    strategy.start(grid, ArrayRecord(first.state_dict()), num_rounds=2)
    rounds = max(1, work.updates // work.clients)
    before = cpu()
    clock.start()
    done = strategy.start(grid, ArrayRecord(first.state_dict()), num_rounds=rounds)
    clock.stop()
    clock.cpu = cpu() - before
    first.load_state_dict(done.arrays.to_torch_state_dict())
    report(work, clock, vector(first), rounds * work.clients, cores=psutil.cpu_count())


def cpu() -> float:
    """Seconds of this process and of Ray's."""
    mine = psutil.Process()
    times = [p.cpu_times() for p in (mine, *mine.children(recursive=True))]
    return sum(t.user + t.system for t in times)


if __name__ == "__main__":
    clients = load(FOLDER).clients
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"log_to_driver": False}}
    run_simulation(server, client, num_supernodes=clients, backend_config=resources)
