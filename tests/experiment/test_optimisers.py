"""Optimisers, schedules and batch sizes as experiment files write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.algorithms.optimisers import FedAdam, FedAMSGrad, FedAvgM
from offbeat.core.algorithm import Algorithm
from offbeat.core.local import BatchShare
from offbeat.local import MAML, SGD, Adam, AdamW, Prox
from offbeat.local.optimisers import AdamRule, Momentum
from offbeat.local.schedules import CosineDecay, Warmup

BASE: dict[str, Any] = {
    "until": {"updates": 12},
    "problem": {"data": "digits", "clients": 4},
    "timing": {"exponential": {"rate": 1.0}},
}
SGD_TABLE = {"sgd": {"lr": 0.1}}


def algorithm(name: str = "fedbuff", local: Any = None, **settings: Any) -> Algorithm:
    table = {**settings, "local": local or SGD_TABLE}
    return ob.Experiment.parse({**BASE, "algorithm": {name: table}}).algorithms[name]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"adam": {"lr": 0.01}}, FedAdam(0.01)),
        ({"adam": 0.01}, FedAdam(0.01)),
        ("momentum", FedAvgM()),
        ({"momentum": 0.5}, FedAvgM(0.5)),
        ({"amsgrad": {"lr": 0.1, "threshold": 4}}, FedAMSGrad(0.1, threshold=4)),
    ],
)
def test_a_server_optimiser_is_a_key_of_the_algorithm(table: Any, expected: Any) -> None:
    for name in ("fedbuff", "area", "fedavg", "defedavg-niid"):
        assert algorithm(name, server=table).server.server == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"sgd": {"lr": 0.1, "momentum": 0.9, "nesterov": True}},
            SGD(0.1, momentum=0.9, nesterov=True),
        ),
        ({"adam": {"lr": 0.003, "steps": 5, "batch": 32}}, Adam(0.003, 5, 32)),
        ({"adamw": {"lr": 0.003, "decay": 0.1, "keep": True}}, AdamW(0.003, decay=0.1, keep=True)),
        ({"prox": {"lr": 0.1, "optimiser": "adam"}}, Prox(0.1, optimiser=AdamRule())),
        ({"maml": {"lr": 0.1, "optimiser": {"momentum": 0.5}}}, MAML(0.1, optimiser=Momentum(0.5))),
        (
            {"sgd": {"lr": 0.1, "schedule": {"cosine": {"over": "job", "length": 9, "warmup": 2}}}},
            SGD(0.1, schedule=CosineDecay(9, over="job", warmup=2)),
        ),
        ({"sgd": {"lr": 0.1, "schedule": {"warmup": 5}}}, SGD(0.1, schedule=Warmup(5))),
        ({"sgd": {"lr": 0.1, "epochs": 2, "batch": {"share": 0.1}}}, SGD(0.1, epochs=2, batch=BatchShare(0.1))),
        ({"sgd": {"lr": 0.1, "batch": [4, 8, 4, 8], "accumulate": 2}}, SGD(0.1, 1, (4, 8, 4, 8), accumulate=2)),
    ],
)
def test_a_local_trainer_s_optimiser_schedule_and_batches_are_its_keys(table: Any, expected: Any) -> None:
    assert algorithm(local=table).local == expected


REFUSED = {
    "unknown": ({"server": {"adamm": {"lr": 1}}}, r"algorithm.fedbuff.server.adamm: unknown; did you mean 'adam'\?"),
    "no lr": ({"server": "adam"}, "algorithm.fedbuff.server.adam: lr missing"),
    "beta": ({"server": {"momentum": 1.0}}, r"algorithm.fedbuff.server.momentum = 1.0: must be in \[0, 1\)"),
    "gradient": (
        {"local": {"gradient": {"optimiser": "adam"}}},
        "algorithm.fedbuff.local.gradient.optimiser: unknown",
    ),
    "adam of adam": ({"local": {"adam": {"lr": 0.1, "optimiser": "adam"}}}, "local.adam.optimiser: unknown"),
    "batch": (
        {"local": {"sgd": {"lr": 0.1, "batch": 0.1}}},
        "local.sgd.batch = 0.1: expected a whole number or a list",
    ),
}


@pytest.mark.parametrize(("settings", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_in_one_line(settings: Any, said: str) -> None:
    with pytest.raises(ob.OffbeatError, match=said):
        algorithm(**settings)


OWN = """
from dataclasses import dataclass
import torch
from offbeat.core.optimiser import Optimiser, ServerOptimiser
from offbeat.local.schedules import LocalSchedule

@dataclass(frozen=True)
class Lion(Optimiser):
    def begin(self, model):
        return {"m": model * 0.0}
    def move(self, w, gradient, moments, lr, t):
        m = 0.9 * moments["m"] + 0.1 * gradient
        return w - lr * m.sign(), {"m": m}

@dataclass(frozen=True)
class Sharp(ServerOptimiser):
    lr: float = 0.5
    def way(self, direction, moments, t):
        return torch.clamp(direction, -0.1, 0.1), {}

@dataclass(frozen=True)
class Halving(LocalSchedule):
    def factor(self, k):
        return 0.5 ** k
"""


@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_an_own_optimiser_and_schedule_run_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    (tmp_path / "lion.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    local = {"sgd": {"lr": 0.01, "optimiser": "lion:Lion", "keep": True, "schedule": {"lion:Halving": {"over": "job"}}}}
    table = {"server": "lion:Sharp", "size": 2, "local": local}
    spec = ob.Experiment.parse({**BASE, "executor": executor, "algorithm": {"fedbuff": table}})
    assert [run.updates for run in spec.run(progress=False)] == [12]
