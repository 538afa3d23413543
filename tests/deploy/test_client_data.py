"""What a site's loader gives: mistakes are named before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from offbeat.core.errors import DataError, SettingError
from offbeat.deploy.client_data import ClientProblem, dataset
from offbeat.deploy.effects import Judgement
from offbeat.experiment.real import HoldoutJudge, PartyMaker
from offbeat.local import SGD
from offbeat.simulate.personal import Personal


def test_inputs_that_are_not_finite_and_labels_that_are_not_whole_are_refused() -> None:
    x, y, module = torch.ones(6, 3), torch.arange(6) % 2, nn.Linear(3, 2)
    data = dataset((x, y.float()), module)
    assert (len(data.train), len(data.test), data.classes) == (5, 1, 2)
    assert len(dataset((x, y), module, holdout=0.0).test) == 0
    with pytest.raises(DataError, match=r"shape \[3\], the experiment says \[4\]"):
        dataset((x, y), module, shape=(4,))
    x[2, 1] = float("nan")
    with pytest.raises(DataError, match="'x': training sample 2 is not finite"):
        ClientProblem("own", module, 1, dataset((x, y), module))
    with pytest.raises(DataError, match="classes are whole numbers"):
        ClientProblem("own", module, 1, dataset((torch.ones(6, 3), y + 0.5), module))


def test_a_client_that_holds_nothing_out_trains_and_reports_no_evaluation() -> None:
    x, y, module = torch.ones(6, 3), torch.arange(6) % 2, nn.Linear(3, 2)
    for samples, holdout in ((6, 0.0), (1, 0.2)):
        problem = ClientProblem("own", module, 1, dataset((x[:samples], y[:samples]), module, holdout=holdout))
        assert problem.samples_of(0) == samples
        judge = HoldoutJudge([problem], [SGD(lr=0.1)], 0, 0, Personal(steps=1))
        assert judge(0, problem.initial(), {}) == Judgement(0)


def test_a_client_may_bring_columns_and_its_own_test_samples() -> None:
    table = {"age": torch.rand(9), "bmi": torch.rand(9), "cost": torch.rand(9)}
    module = nn.Linear(2, 1)
    problem = ClientProblem(
        "own", module, 3, dataset((table, table), module, "mse", target="cost"), metrics=("rmse", "r2"), loss="mse"
    )
    total, loss, sums = problem.claim(problem.initial())
    assert (total, list(sums)) == (9, ["rmse", "r2"])
    assert sums["rmse"][0] == pytest.approx(loss)


def test_the_loss_that_a_client_reports_is_that_of_what_its_samples_count() -> None:
    """Of tokens, known labels or weights: as in a simulation."""

    def known(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        there = target >= 0
        return ((output - target) ** 2 * there).sum(1), there.sum(1)

    x, y, module = torch.rand(8, 3), torch.rand(8, 4), nn.Linear(3, 4)
    y[2:, 1:] = -100.0
    problem = ClientProblem("own", module, 1, dataset(((x, y), (x, y)), module, known), loss=known)
    total, loss, _ = problem.claim(problem.initial())
    assert total == 8
    assert loss / total == pytest.approx(problem.measure(problem.initial().unsqueeze(0))[0]["loss"], rel=1e-5)
    nothing = ((x, y), (x, torch.full_like(y, -100.0)))
    assert ClientProblem("own", module, 1, dataset(nothing, module, known), loss=known).claim(problem.initial())[0] == 0


def test_a_site_that_names_no_loader_is_told_to() -> None:
    problem = {"data": "own", "shape": [2], "classes": 2, "clients": 1, "model": "linear"}
    table = {"until": {"time": 1.0}, "problem": problem, "algorithm": {"fedasync": {"local": {"sgd": {"lr": 0.1}}}}}
    charter = {"run": "r", "roster": ["a"], "label": "fedasync", "seed": 0, "experiment": table}
    with pytest.raises(SettingError, match="--data"):
        PartyMaker().party(charter, "a")


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"data": {"texts": {"folder": "/home/site/letters"}}}, "/home/site/letters"),
        ({"data": {"texts": "/home/site/letters"}}, "/home/site/letters"),
        ({"data": {"file": {"path": "patients.csv"}}}, "patients.csv"),
        ({"data": {"file": "patients.csv"}}, "patients.csv"),
        ({"data": "digits", "model": {"huggingface": "../model"}}, "../model"),
    ],
)
def test_a_server_has_nothing_read_that_a_site_does_not_allow(table: dict[str, Any], path: str) -> None:
    experiment = {"until": {"time": 1.0}, "problem": {**table, "clients": 1}, "algorithm": {"fedasync": {}}}
    charter = {"run": "r", "roster": ["a"], "label": "fedasync", "seed": 0, "experiment": experiment}
    with pytest.raises(SettingError, match=f"the server asks for 'file:{path}', .* with --allow file:{path}"):
        PartyMaker().party(charter, "a")
