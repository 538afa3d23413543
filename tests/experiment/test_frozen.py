"""A site whose frozen base is not the server's does not take part."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from offbeat.core.errors import SettingError
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.real import DeployOptions, PartyMaker, charter_of, plan_of
from offbeat.experiment.session import Session

MODULE = """
import os, time, torch
from torch import nn

def network(shape, classes):
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, classes))
    with torch.no_grad():
        made[1].weight.fill_(float(os.environ.get("OFFBEAT_TEST_BASE", "0.1")))
    return made

def slowly():
    first = nn.Linear(64, 8)
    time.sleep(0.05)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(8, 10))
"""


@pytest.fixture
def offered(tmp_path, monkeypatch) -> Any:
    """What a server asks of its clients, with this model."""
    (tmp_path / "based.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def charter(model: str) -> tuple[dict[str, Any], int]:
        table = {
            "until": {"updates": 2},
            "problem": {"data": "digits", "clients": 2, "model": model, "lora": {"rank": 2, "targets": "1"}},
            "algorithm": {"fedbuff": {"size": 1, "local": {"sgd": {"lr": 0.1, "batch": 4}}}},
        }
        experiment = Experiment.parse(table)
        spec, roster = experiment.runs[0], ["a", "b"]
        plan = plan_of(Session(experiment), spec, "run", roster, DeployOptions())
        made = json.loads(json.dumps(charter_of(experiment, spec, plan, DeployOptions(), True)))
        return made, plan.initial[0].numel()

    return charter


def test_another_base_is_refused_when_a_client_greets(offered, monkeypatch) -> None:
    charter, dim = offered("based:network")
    assert len(charter["frozen"][0]) == 64
    maker = PartyMaker(models=["based:network"])
    assert maker.party(charter, "b").problems[0].dim == dim
    monkeypatch.setenv("OFFBEAT_TEST_BASE", "0.2")
    with pytest.raises(SettingError, match=r"parameters of digits are not those of the server \(digest \w{12}"):
        PartyMaker(models=["based:network"]).party(charter, "b")
    del charter["frozen"]  # a server of before
    assert PartyMaker(models=["based:network"]).party(charter, "b").problems


def test_clients_of_one_process_make_their_models_one_after_the_other(offered) -> None:
    """First parameters are drawn from torch's global generator, which threads share."""
    charter, _ = offered("based:slowly")
    maker = PartyMaker(models=["based:slowly"])
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda client: maker.party(charter, client), "abab"))
    assert len({party.problems[0].flat.frozen for party in made}) == 1


def test_a_charter_does_not_name_the_servers_folders() -> None:
    algorithm = {"fedbuff": {"local": {"sgd": {"lr": 0.1}}}}
    table = {"modules": ["/srv/secret"], "problem": {"data": "digits", "clients": 2}, "algorithm": algorithm}
    experiment = Experiment.parse(table)
    plan = plan_of(Session(experiment), experiment.runs[0], "run", ["a", "b"], DeployOptions())
    assert "secret" not in json.dumps(charter_of(experiment, experiment.runs[0], plan, DeployOptions(), True))
