"""What models are measured on: a fixed sample for the objective, and everything at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import offbeat as ob
from offbeat.core.errors import SettingError
from offbeat.data.base import Dataset
from offbeat.data.readers import load
from offbeat.data.texts import windows
from offbeat.models.linear import Softmax
from offbeat.problems import evaluation
from offbeat.problems.evaluation import OBJECTIVE, Evaluation, _equally
from offbeat.problems.supervised import Supervised
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

SIZES = [3000, 100, 40, 1500, 60]


def problem(**settings: Any) -> Supervised:
    """Clients of unlike sizes whose data differ."""
    g = torch.Generator().manual_seed(0)
    ends = np.cumsum(SIZES)
    shards = [np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    owner = torch.from_numpy(np.repeat(np.arange(5), SIZES))
    x = torch.randn(sum(SIZES), 4, generator=g) + owner[:, None]
    y = (x.sum(1) > 4 + owner).long()
    data = Dataset.pairs("made", x, y, x[:50], y[:50], classes=2)
    return Supervised(data, Softmax((4,), 2), shards, **settings)


def test_the_objective_is_measured_on_a_sample_and_exactly_if_asked() -> None:
    p, everything = problem(), problem(measured="all")
    assert (p.sample, everything.sample) == (OBJECTIVE, None)
    w = torch.randn(2, p.dim, generator=torch.Generator().manual_seed(1))
    exact = [m["loss"] for m in everything.measure(w)]
    assert [p.exact(each) for each in w] == pytest.approx(exact)
    sampled = [m["loss"] for m in p.measure(w)]
    assert sampled != exact
    assert sampled == pytest.approx(exact, rel=0.05)
    assert sampled == [m["loss"] for m in problem().measure(w)]  # always the same ones


def test_clients_that_weigh_by_their_samples_are_sampled_by_them() -> None:
    p, everything = problem(weighted=True), problem(weighted=True, measured="all")
    w = torch.randn(1, p.dim, generator=torch.Generator().manual_seed(1))
    assert p.measure(w)[0]["loss"] == pytest.approx(everything.measure(w)[0]["loss"], rel=0.05)
    assert len(p.evaluation.used) == OBJECTIVE


def test_a_number_limits_test_samples_too() -> None:
    p = problem(measured=20)
    assert (len(p.evaluation.used), len(p.evaluation.tested)) == (20, 20)
    assert len(problem().evaluation.tested) == 50


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 200))
def test_every_client_gives_equally_many_or_all_that_it_has(sizes: list[int], most: int) -> None:
    if most >= sum(sizes):
        return
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    chosen = _equally(starts, np.array(sizes), most)
    assert len(np.unique(chosen)) == len(chosen) <= most
    taken = [
        int(((chosen >= start) & (chosen < start + size)).sum()) for start, size in zip(starts, sizes, strict=True)
    ]
    if most < len(sizes):
        assert sorted(set(taken)) in ([0, 1], [1])
        assert len(chosen) == most
    else:
        largest = max(taken)
        assert all(took == min(size, largest) for took, size in zip(taken, sizes, strict=True))
        assert most - len(chosen) < sum(size > largest for size in sizes) or most - len(chosen) == 0


def test_a_finished_run_tells_the_loss_on_all_training_samples() -> None:
    p = problem()
    algorithm = ob.Algorithm(ob.FedAvg(), ob.SGD(lr=0.05, batch=16))
    result = ob.run(p, algorithm, Times(Exponential(1.0)), ob.Until(versions=4), evaluate=1.0)
    last = result.history[-1]
    assert result.metrics["loss"] == p.exact(result.model)
    assert result.metrics["loss"] != last.metrics["loss"]
    assert result.metrics["accuracy"] == last.metrics["accuracy"]


def run(p: Supervised, evaluate: ob.Evaluate) -> Any:
    algorithm = ob.Algorithm(ob.FedAvg(), ob.SGD(lr=0.05, batch=16))
    return ob.run(p, algorithm, Times(Exponential(1.0)), ob.Until(versions=4), evaluate=evaluate)


def test_a_number_of_samples_that_was_asked_for_holds_for_the_end_as_well() -> None:
    p = problem()
    result = run(p, ob.Evaluate(every=1.0, samples=60))
    assert result.metrics == result.history[-1].metrics
    assert result.metrics["loss"] == pytest.approx(problem(measured=60).measure(result.model[None])[0]["loss"])
    assert result.metrics["loss"] != p.exact(result.model)
    assert p.measured is None


def test_evaluating_on_all_samples_means_so_every_time() -> None:
    p = problem()
    result = run(p, ob.Evaluate(every=1.0, samples="all"))
    assert result.metrics == result.history[-1].metrics
    assert result.metrics["loss"] == pytest.approx(p.exact(result.model))


def test_runs_that_ask_for_equally_many_samples_share_one_problem() -> None:
    p = problem()
    algorithm = ob.Algorithm(ob.FedAvg(), ob.SGD(lr=0.05, batch=16))
    made = [
        prepare(p, algorithm, Times(Exponential(1.0)), ob.Until(versions=1), seed=seed, evaluate=evaluate).problems[0]
        for evaluate in (ob.Evaluate(samples=60), ob.Evaluate(every=0.5, samples=60), ob.Evaluate(samples=20), None)
        for seed in (0, 1)
    ]
    assert [made.index(each) for each in made] == [0, 0, 0, 0, 4, 4, 6, 6]
    assert made[6] is p


def test_a_problem_without_samples_cannot_be_measured_on_some() -> None:
    quadratic = ob.Quadratic(3)
    with pytest.raises(SettingError, match=r"evaluate\.samples = 60: .* has no samples"):
        ob.run(quadratic, ob.Algorithm(ob.FedAvg(), ob.SGD(lr=0.1)), Times(Exponential(1.0)), ob.Until(versions=4),
               evaluate=ob.Evaluate(samples=60))  # fmt: skip


def test_what_a_few_samples_take_on_a_gpu_says_how_many_are_evaluated_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    p = Supervised.split(load("digits"), 4, model=model)
    asked: list[Any] = []

    def fit(function: Callable[..., Any], arguments: Any, tried: int) -> int:
        asked.append((len(function(arguments[0][:tried])), tried))
        return 48

    monkeypatch.setattr(evaluation, "fit", fit)
    found = Evaluation(p)
    assert found._chunk == 256
    first = p.initial()
    monkeypatch.setattr(p, "initial", lambda: first)
    monkeypatch.setattr(p, "device", torch.device("cuda"))
    assert (found._chunk, found._chunk) == (48, 48)
    assert asked == [(256, 256)]


def test_what_is_evaluated_is_known_before_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, some of it is measured for its memory first."""
    monkeypatch.setattr(Evaluation, "_chunk", property(lambda self: len(self.tested)))
    texts = windows({"a": "ham and spam. " * 40, "b": "eggs and toast. " * 40}, window=12)
    p = Supervised.split(texts, 2, model="gpt", options={"layers": 1, "heads": 1, "width": 8})
    assert p.measure(p.initial().unsqueeze(0))[0]["loss"] > 0
