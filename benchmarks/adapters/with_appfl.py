"""APPFL's virtual-time simulator: its asynchronous driver with the FedBuff aggregator.

A job takes a fixed time by client, which is its own mean; the driver has no random times. Its per-event table goes to a
logger that discards it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from pathlib import Path

import _torchvision  # noqa: F401
import torch
from appfl.agent import SimClientAgent, SimServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile
from common import Clock, Work, load, module, report, vector

# APPFL loads models and metrics from files.
PARTS = """
import copy
from pathlib import Path

from common import given

def make(folder):
    return copy.deepcopy(given(Path(folder))[1])

def accuracy(labels, outputs):
    return (outputs.argmax(axis=-1) == labels).mean()
"""


def configuration(work: Work, updates: int, scratch: str) -> dict:
    """One for the server and all clients, as APPFL's unified configuration has it."""
    (Path(scratch) / "made.py").write_text(PARTS)
    return {
        "model_configs": {
            "model_path": f"{scratch}/made.py",
            "model_name": "make",
            "model_kwargs": {"folder": str(work.folder)},
        },
        "log_configs": {"logging_output_dirname": scratch, "client_logging_output_filename": "client"},
        "algorithm_configs": {
            "num_global_epochs": updates,
            "trainer": "VanillaTrainer",
            "trainer_kwargs": {
                "mode": "step",
                "num_local_steps": work.steps,
                "optim": "SGD",
                "optim_args": {"lr": work.lr},
                "loss_fn": "CrossEntropyLoss",
                "metric_path": f"{scratch}/made.py",
                "metric_name": "accuracy",
                "train_batch_size": work.batch,
                "train_data_shuffle": True,
                "do_validation": False,
                "do_pre_validation": False,
                "num_workers": 0,
            },
            "scheduler": "AsyncScheduler",
            "scheduler_kwargs": {"num_clients": work.clients, "same_init_model": True},
            "aggregator": "FedBuffAggregator",
            "aggregator_kwargs": {
                "K": work.size,
                "client_weights_mode": "equal",
                "staleness_fn": "constant",
                "alpha": 1.0,
                "num_clients": work.size,
            },
        },
    }


def run(work: Work, updates: int, clock: Clock, datasets: list) -> torch.nn.Module:
    scratch = tempfile.mkdtemp()
    settings = configuration(work, updates, scratch)
    server = SimServerAgent(settings)
    clients = [SimClientAgent(settings, client_id=f"c{i}", client_dataset=data) for i, data in enumerate(datasets)]
    for part in (server, server.scheduler, server.aggregator, *clients, *(c.trainer for c in clients)):
        part.optimize_memory = False  # else it collects garbage three times a job, for most of a second
    profiles = {f"c{i}": ClientProfile(compute_factor=mean, bandwidth=0.0) for i, mean in enumerate(work.means)}
    silent = logging.getLogger("silent")
    silent.setLevel(logging.CRITICAL)
    driver = AsyncSimDriver(server, clients, profiles, work.clients, silent, base_step_time=1.0 / work.steps)
    clock.start()
    driver.run()
    clock.stop()
    assert len(driver.history) == updates, len(driver.history)
    final = module(work)
    final.load_state_dict(server.get_parameters(serial_run=True))
    return final


work, clock = load(), Clock()
inputs = work.x.float() * (1 / 255)
datasets = [torch.utils.data.TensorDataset(inputs[shard], work.y[shard]) for shard in work.shards]
with contextlib.redirect_stdout(io.StringIO()):
    final = run(work, work.updates, clock, datasets)
report(work, clock, vector(final), work.updates)
