"""A run may be stopped, timed, judged and shown by any metric of its task; tasks of one run may have unlike ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms import FedAST
from offbeat.core.errors import SettingError
from offbeat.timing import Exponential, Times

TIMES = Times(Exponential(1.0))
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(400, 6, generator=GENERATOR)
Y = X @ torch.arange(6.0) + 0.1 * torch.randn(400, generator=GENERATOR)


def regression(*metrics: str, clients: int = 8) -> ob.Supervised:
    data = {"x": X, "y": Y}
    return ob.Supervised.split(data, clients, model=nn.Linear(6, 1), loss="mse", metrics=metrics, target="y")


def fedbuff(lr: float = 0.05) -> ob.Algorithm:
    return ob.Algorithm(ob.FedBuff(size=2), ob.SGD(lr=lr, steps=4, batch=16))


def test_a_run_ends_at_an_error_and_says_when_it_was_reached() -> None:
    result = ob.run(regression("rmse", "r2"), fedbuff(), TIMES, ob.Until(rmse=1.0), evaluate=0.5)
    assert result.world.stopped == "rmse"
    assert list(result.metrics) == ["rmse", "r2", "loss"]
    assert result.metrics["rmse"] <= 1.0
    assert all(m.metrics["rmse"] > 1.0 for m in result.history[:-1])
    assert result.time_to("rmse", 1.0) == result.history[-1].time
    later, sooner = result.time_to("r2", 0.9), result.time_to("r2", 0.5)
    assert sooner is not None
    assert later is None or sooner <= later
    assert f"<th>rmse</th><td>{result.metrics['rmse']:.4g}</td>" in result._repr_html_()  # in a notebook


def test_a_metric_that_is_not_the_tasks_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        SettingError,
        match=r"^until\.auroc: unknown; the task measures rmse, loss; otherwise time, updates, versions, iterations$",
    ):
        ob.run(regression("rmse"), fedbuff(), TIMES, ob.Until(auroc=0.9), evaluate=0.5)


def test_own_models_are_judged_by_the_tasks_own_metric_and_the_worst_have_the_largest_errors(tmp_path: Path) -> None:
    evaluate = ob.Evaluate(1.0, personal=ob.Personal(steps=2), targets=(2.0,))
    out = tmp_path / "out"
    result = ob.run(regression("rmse", clients=10), fedbuff(), TIMES, ob.Until(time=4.0), evaluate=evaluate, out=out)
    metrics, each = result.metrics, [own for own in result.history[-1].each if own is not None]
    assert metrics["personal"] == pytest.approx(sum(each) / 10)
    assert metrics["personal_worst"] == max(each) > metrics["personal"]
    table = pq.read_table(out / "fedbuff-0" / "personal.parquet")
    assert table.column_names == ["task", "time", "client", "value"]
    assert b'"rmse"' in table.schema.metadata[b"measured"]
    (read,) = ob.open(out)
    assert [(m.name, m.higher, m.share) for m in read.measured] == [
        ("rmse", False, False),
        ("loss", False, False),
        ("personal", False, False),
        ("personal_worst", False, False),
    ]
    assert read.targets == {"2": read.time_to("rmse", 2.0)}
    assert ob.open(out).best().mean == read.metrics["rmse"]
    page = (out / "report.html").read_text()
    assert "Rmse of each client" in page
    assert "Time to rmse" in page


def test_tasks_with_unlike_metrics_end_at_goals_of_their_own() -> None:
    classes = {"x": X, "y": (Y > 0).long()}
    other = ob.Supervised.split(classes, 8, model=nn.Linear(6, 2), target="y", name="sign")
    tasks = [regression("rmse"), other]
    goals = (ob.Goal(tasks[0].metrics[0], 2.0), ob.Goal(tasks[1].metrics[0], 0.9))
    server = FedAST(requests=8, size=2, lr=1.0, targets=goals)
    algorithm = ob.Algorithm(server, (ob.SGD(lr=0.05, steps=4, batch=16), ob.SGD(lr=0.5, steps=4, batch=16)))
    result = ob.run(tasks, algorithm, TIMES, ob.Until(time=500.0), evaluate=0.5)
    assert result.world.finished == {0: "target", 1: "target"}
    last = [next(m.metrics for m in reversed(result.history) if m.task == task) for task in (0, 1)]
    assert last[0]["rmse"] <= 2.0
    assert last[1]["accuracy"] >= 0.9


def test_a_function_of_all_outputs_is_measured_and_ends_a_run() -> None:
    def largest(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(-1) - targets).abs().max()

    largest.higher = False  # type: ignore[attr-defined]
    problem = ob.Supervised.split({"x": X, "y": Y}, 8, model=nn.Linear(6, 1), loss="mse", metrics=[largest], target="y")
    result = ob.run(problem, fedbuff(), TIMES, ob.Until(largest=5.0), evaluate=0.5)
    assert (result.world.stopped, result.metrics["largest"] <= 5.0) == ("largest", True)
