"""A site whose frozen base is not the server's does not take part."""

from __future__ import annotations

import json

import pytest

from offbeat.core.errors import SettingError
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.real import DeployOptions, PartyMaker, charter_of, plan_of
from offbeat.experiment.session import Session

MODULE = """
import os, torch
from torch import nn

def network(shape, classes):
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, classes))
    with torch.no_grad():
        made[1].weight.fill_(float(os.environ.get("OFFBEAT_TEST_BASE", "0.1")))
    return made
"""


def test_another_base_is_refused_when_a_client_greets(tmp_path, monkeypatch) -> None:
    (tmp_path / "based.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    table = {
        "until": {"updates": 2},
        "problem": {"data": "digits", "clients": 2, "model": "based:network", "lora": {"rank": 2, "targets": "1"}},
        "algorithm": {"fedbuff": {"size": 1, "local": {"sgd": {"lr": 0.1, "batch": 4}}}},
    }
    experiment = Experiment.parse(table)
    spec, roster = experiment.runs[0], ["a", "b"]
    plan = plan_of(Session(experiment), spec, "run", roster, DeployOptions())
    charter = json.loads(json.dumps(charter_of(experiment, spec, plan, DeployOptions(), True)))
    assert len(charter["frozen"][0]) == 64
    maker = PartyMaker(models=["based:network"])
    assert maker.party(charter, "b").problems[0].dim == plan.initial[0].numel()
    monkeypatch.setenv("OFFBEAT_TEST_BASE", "0.2")
    with pytest.raises(SettingError, match=r"parameters of digits are not those of the server \(digest \w{12}"):
        PartyMaker(models=["based:network"]).party(charter, "b")
    del charter["frozen"]  # a server of before
    assert PartyMaker(models=["based:network"]).party(charter, "b").problems
