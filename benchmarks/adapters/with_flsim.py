"""FLSim's asynchronous trainer with its FedBuff aggregator.

Clients start at Poisson times and train for exponential ones; their overlap is what 128 busy clients would have. A user
is drawn for each job, so the clients' own rates cannot be kept.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from common import Clock, load, module, report, vector
from hydra.utils import instantiate
from omegaconf import OmegaConf

_dataclass = dataclasses.dataclass


def _hashable(cls=None, /, **options):
    """FLSim's configurations are each other's defaults; from 3.11 on Python wants such defaults to have a hash."""
    if cls is None:
        return lambda cls: _hashable(cls, **options)
    return _dataclass(cls, **options, **({"unsafe_hash": True} if cls.__module__.startswith("flsim") else {}))


dataclasses.dataclass = _hashable

import flsim.trainers  # noqa: E402, F401
from flsim.data.data_provider import IFLDataProvider, IFLUserData  # noqa: E402
from flsim.interfaces.metrics_reporter import IFLMetricsReporter  # noqa: E402
from flsim.interfaces.model import IFLModel  # noqa: E402
from flsim.utils.config_utils import fl_config_from_json  # noqa: E402
from flsim.utils.simple_batch_metrics import FLBatchMetrics  # noqa: E402

work = load()
rng = np.random.default_rng(1)


class User(IFLUserData):
    """One client: as many fresh mini-batches as there are local steps."""

    def __init__(self, client: int) -> None:
        self.client = client

    def num_train_examples(self) -> int:
        return work.batch * work.steps

    def num_train_batches(self) -> int:
        return work.steps

    def train_data(self):
        return (work.draw(self.client, rng) for _ in range(work.steps))

    def num_eval_examples(self) -> int:
        return 0

    def num_eval_batches(self) -> int:
        return 0

    def eval_data(self):
        return iter(())


class Provider(IFLDataProvider):
    """All clients."""

    def __init__(self) -> None:
        self.users = [User(client) for client in range(work.clients)]

    def train_user_ids(self):
        return list(range(work.clients))

    def num_train_users(self) -> int:
        return work.clients

    def get_train_user(self, user_index: int) -> User:
        return self.users[user_index]

    def train_users(self):
        return self.users

    def eval_users(self):
        return []

    def test_users(self):
        return []


class Model(IFLModel):
    """The module as FLSim wants it."""

    def __init__(self) -> None:
        self.module = module(work)

    def fl_forward(self, batch):
        inputs, labels = batch
        outputs = self.module(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        return FLBatchMetrics(
            loss=loss, num_examples=len(labels), predictions=outputs.detach(), targets=labels, model_inputs=[]
        )

    def fl_create_training_batch(self, **kwargs):
        return kwargs["batch"] if "batch" in kwargs else tuple(kwargs.values())

    def fl_get_module(self):
        return self.module

    def fl_cuda(self) -> None:
        raise NotImplementedError

    def get_eval_metrics(self, batch):
        with torch.no_grad():
            return self.fl_forward(batch)

    def get_num_examples(self, batch) -> int:
        return len(batch[1])


class Silent(IFLMetricsReporter):
    """Keeps nothing."""

    def add_batch_metrics(self, metrics) -> None:
        pass

    def aggregate(self, one_user_metrics) -> None:
        pass

    def report_metrics(self, *args, **kwargs):
        return None, False

    def reset(self) -> None:
        pass

    def compute_scores(self):
        return {}

    def create_eval_metrics(self, scores, total_loss, **kwargs):
        return {}

    def compare_metrics(self, eval_metrics, best_metrics) -> bool:
        return True

    def get_best_metric(self):
        return None

    def set_summary_writer(self, log_dir) -> None:
        pass


def trainer(updates: int, model: Model):
    """An asynchronous trainer for about so many updates: an epoch is one update a client."""
    mean = sum(work.means) / len(work.means)
    settings = {
        "trainer": {
            "_base_": "base_async_trainer",
            "epochs": max(1, updates // work.clients),
            "do_eval": False,
            "always_keep_trained_model": True,
            "report_train_metrics": False,
            "aggregator": {
                "_base_": "base_fed_avg_with_lr_hybrid_aggregator",
                "buffer_size": work.size,
                "lr": 1.0 / work.size,
            },
            "client": {"epochs": 1, "optimizer": {"_base_": "base_optimizer_sgd", "lr": work.lr}},
            "training_event_generator": {
                "_base_": "base_async_training_event_generator",
                "training_start_time_distribution": {
                    "_base_": "base_poisson_training_start_time_distribution",
                    "training_rate": work.clients / mean,
                },
                "duration_distribution_generator": {
                    "_base_": "base_per_user_exponential_duration_distribution",
                    "training_duration_mean": mean,
                },
            },
            "async_weight": {"_base_": "base_async_weight"},
        }
    }
    return instantiate(OmegaConf.create(fl_config_from_json(settings)).trainer, model=model, cuda_enabled=False)


def run(updates: int) -> Model:
    model = Model()
    made = trainer(updates, model)
    clock.start()
    made.train(Provider(), Silent(), num_total_users=work.clients)
    clock.stop()
    return made.global_model()


clock = Clock()
run(work.clients)
done = run(work.updates)
total = work.clients * max(1, work.updates // work.clients)
report(work, clock, vector(done.fl_get_module()), total)
