"""Keys of an experiment file that say what of a model is trained, where, and how precisely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parted import normed

import offbeat as ob
from offbeat.core.errors import OffbeatError
from offbeat.experiment.session import Session
from offbeat.report import tables

TABLE: dict[str, Any] = {
    "until": {"updates": 60},
    "evaluate": {"every": 2.0},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"area": {"size": 2, "local": {"sgd": {"lr": 0.1, "steps": 5, "batch": 16}}}},
}


def experiment(precision: str = "single", **problem: Any) -> ob.Experiment:
    return ob.Experiment.parse(
        {
            **TABLE,
            "precision": precision,
            "problem": {"data": "digits", "clients": 6, "model": "parted:normed", **problem},
        }
    )


def test_a_model_with_batch_normalisation_and_dropout_learns_and_goes_back_into_its_module(tmp_path: Path) -> None:
    (result,) = experiment().run(tmp_path / "run")
    assert result.metrics["accuracy"] > 0.7
    problem = Session(experiment()).problems(experiment().runs[0])[0]
    module = normed((1, 8, 8), 10)
    module.load_state_dict(problem.flat.state(result.model))  # type: ignore[attr-defined]
    test = problem.test  # type: ignore[attr-defined]
    parts = problem.parts(test, torch.arange(len(test)))  # type: ignore[attr-defined]
    with torch.no_grad():
        right = (module.eval()(parts[0]).argmax(1) == parts[1]).float().mean()
    assert result.metrics["accuracy"] == pytest.approx(float(right))


@pytest.mark.parametrize("settings", [{"statistics": "local"}, {"personal": ["2.*", "5.*"], "statistics": "local"}])
def test_what_stays_with_the_clients_is_judged_there(settings: dict[str, Any], tmp_path: Path) -> None:
    (result,) = experiment(**settings).run(tmp_path / "run")
    assert result.metrics["personal"] > 0.7
    assert result.metrics["personal"] > result.metrics["accuracy"]  # the server's statistics are those of no data


def test_the_metric_of_the_clients_own_models_leads_where_they_keep_a_part(tmp_path: Path) -> None:
    results = experiment(personal="5.*").run(tmp_path / "run")
    assert list(results[0].metrics) == ["personal", "personal_worst", "accuracy", "loss"]
    assert results[0].own.name == "personal"
    head, _ = tables.rows(results)
    assert head[1] == "personal"
    (plain,) = experiment().run(tmp_path / "plain")
    assert plain.own.name == "accuracy"


def test_the_run_folder_holds_what_clients_keep_of_the_model(tmp_path: Path) -> None:
    (result,) = experiment(personal="5.*").run(tmp_path / "run")
    problem: Any = Session(experiment(personal="5.*")).problems(experiment().runs[0])[0]
    modules = [result.module(client=client, problem=problem) for client in (0, 1)]
    assert not torch.equal(modules[0][5].weight, modules[1][5].weight)  # type: ignore[index]
    assert torch.equal(modules[0][1].weight, modules[1][1].weight)  # type: ignore[index]
    own = torch.stack([torch.cat([result.model, result._own_part(0, client)]) for client in range(6)])
    judged = problem.judge(own, range(6))
    assert sum(judged) / 6 == pytest.approx(result.metrics["personal"])
    with pytest.raises(OffbeatError, match="client = 9: area, seed 0 has kept no part of a model of this client"):
        result.module(client=9, problem=problem)


def test_bf16_trains_as_well(tmp_path: Path) -> None:
    (single,), (half,) = (experiment(p).run(tmp_path / p) for p in ("single", "bf16"))
    assert half.metrics["accuracy"] == pytest.approx(single.metrics["accuracy"], abs=0.05)
    assert half.metrics != single.metrics


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": "head.*"}, r"problem.train = 'head.\*': no trained parameter has such a name; there are 1.weight"),
        ({"personal": "*"}, "nothing would be learnt jointly"),
        ({"statistics": "mean"}, 'problem.statistics = "mean"'),
        ({"statistics": "refuse"}, r"the layer '2' \(BatchNorm1d\) keeps running statistics"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match=message):
        experiment(**settings).run(tmp_path / "run")


def test_bf16_is_refused_where_there_is_no_network(tmp_path: Path) -> None:
    table = {**TABLE, "precision": "bf16", "problem": {"data": "quadratic", "clients": 4}}
    with pytest.raises(OffbeatError, match='precision = "bf16" is for networks'):
        ob.Experiment.parse(table).run(tmp_path / "run")
