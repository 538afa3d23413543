"""Which samples a client's step sees, and what it makes of them.

The data are unit vectors: sample j is the j-th one, so the columns of softmax regression's gradient at 0 say how
often each sample was drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.nn.functional import cross_entropy
from worlds import run, same_world, seen, through_text

from offbeat.algorithms.area import AREA
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DataError, SettingError
from offbeat.core.random import key, signed
from offbeat.core.until import Until
from offbeat.data.base import Dataset
from offbeat.data.readers import digits
from offbeat.data.splits import IID, Dirichlet
from offbeat.local.sgd import SGD
from offbeat.models.linear import Softmax
from offbeat.problems.evaluation import Evaluation
from offbeat.problems.supervised import Supervised
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

SHARDS = [np.array([3, 5, 8, 11, 12, 19]), np.array([0, 1]), np.array([2, 4, 6, 7, 9]), np.array([10])]
LABELS = torch.arange(20) % 4
UNITS = Dataset.pairs("units", torch.eye(20), LABELS, torch.eye(20)[:8], LABELS[:8], classes=4, scale=1.0)
EVERYBODY = [0, 1, 2, 3]


def problem(**settings: Any) -> Supervised:
    return Supervised(UNITS, Softmax((20,), 4), SHARDS, **settings)


def oracle(clients: list[int], batch: int | None, shuffle: bool = False, job: int = 0, **settings: Any) -> Any:
    keys = [signed(key(0, 3, c, job)) for c in clients]
    return problem(**settings).oracle(clients, keys, 50, batch, shuffle)


def counts(asked: Any, rows: int, step: int, batch: int, sample: int = 0) -> torch.Tensor:
    """How often each sample was drawn, [rows, 20]: at 0 all classes have probability ¼, so its label's entry is −¾."""
    g = asked.gradient(torch.zeros(rows, 80), step, sample).view(rows, 4, 20)
    return (g.abs().amax(dim=1) * batch / 0.75).round().long()


def test_shuffling_visits_every_sample_once_an_epoch() -> None:
    asked = oracle([0], batch=2, shuffle=True)
    epochs = [sum(counts(asked, 1, step, 2)[0] for step in range(at, at + 3)) for at in (0, 3, 6)]
    assert all(epoch.nonzero().flatten().tolist() == sorted(SHARDS[0]) and epoch.max() == 1 for epoch in epochs)
    firsts = {tuple(counts(asked, 1, step, 2)[0].nonzero().flatten().tolist()) for step in (0, 3, 6, 9, 12)}
    assert len(firsts) > 1  # each epoch in an order of its own


def test_an_epoch_that_ends_within_a_batch_is_followed_by_the_next() -> None:
    """Five samples, batches of two: five steps are two epochs."""
    asked = oracle([2], batch=2, shuffle=True)
    total = sum(counts(asked, 1, step, 2)[0] for step in range(5))
    assert total[SHARDS[2]].tolist() == [2, 2, 2, 2, 2]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_client_smaller_than_the_batch_repeats_its_samples(shuffle: bool) -> None:
    found = counts(oracle([1, 3], 5, shuffle), 2, 0, 5)
    assert found.sum(dim=1).tolist() == [5, 5]
    assert found[1, 10] == 5
    assert not shuffle or sorted(found[0, :2].tolist()) == [2, 3]


def test_drawing_is_uniform_over_a_client_s_own_samples() -> None:
    total = sum(counts(oracle([0], 50, job=job), 1, step, 50)[0] for job in range(10) for step in range(10))
    assert total.sum() == total[SHARDS[0]].sum() == 5000
    assert chisquare(total[SHARDS[0]]).pvalue > 0.01


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("step", [0, 7, 49])
def test_alone_and_in_a_batch_a_client_draws_the_same(shuffle: bool, step: int) -> None:
    together = counts(oracle(EVERYBODY, 3, shuffle), 4, step, 3)
    alone = [counts(oracle([c], 3, shuffle), 1, step, 3)[0] for c in EVERYBODY]
    assert torch.equal(together, torch.stack(alone))


def test_steps_may_be_asked_for_in_any_order_and_independent_samples_differ() -> None:
    asked = oracle([0], 3)
    late, early = counts(asked, 1, 30, 3), counts(asked, 1, 2, 3)
    assert torch.equal(late, counts(oracle([0], 3), 1, 30, 3))
    assert torch.equal(early, counts(oracle([0], 3), 1, 2, 3))
    others = [counts(asked, 1, 2, 3, sample=s) for s in range(1, 5)]
    assert any(not torch.equal(early, other) for other in others)


def test_all_data_is_the_mean_over_each_client_s_samples_whatever_their_sizes() -> None:
    w = torch.randn(4, 80, generator=torch.Generator().manual_seed(0))
    found = oracle(EVERYBODY, batch=None).gradient(w, 0)
    for client, shard in enumerate(SHARDS):
        mine = w[client].clone().requires_grad_()
        loss = cross_entropy(torch.eye(20)[shard] @ mine.view(4, 20).T, LABELS[shard])
        torch.testing.assert_close(found[client], torch.autograd.grad(loss, mine)[0])
        torch.testing.assert_close(found[client], oracle([client], None).gradient(w[client : client + 1], 0)[0])


@pytest.mark.parametrize(("weighted", "shares"), [(True, [6 / 14, 2 / 14, 5 / 14, 1 / 14]), (False, [0.25] * 4)])
def test_the_objective_is_the_clients_functions_together(weighted: bool, shares: list[float]) -> None:
    """Weighted: f = Σ (s_i/S) f̂_i and a client's function has its share in it; otherwise f = mean of the f̂_i."""
    w = torch.randn(80, generator=torch.Generator().manual_seed(1))
    p = problem(weighted=weighted, l2=0.1)
    losses = oracle(EVERYBODY, None, weighted=weighted, l2=0.1).loss(w.expand(4, -1), 0)
    plain = oracle(EVERYBODY, None, l2=0.1).loss(w.expand(4, -1), 0)
    torch.testing.assert_close(losses, plain * torch.tensor(shares) if weighted else plain)
    assert p.measure(w[None])[0]["loss"] == pytest.approx(float((plain * torch.tensor(shares)).sum()), rel=1e-5)


def test_relative_weights_are_those_by_share_times_the_number_of_clients() -> None:
    """So a step size that serves 4 clients serves 8 with half the samples each, and the objective is the same."""
    w = torch.randn(80, generator=torch.Generator().manual_seed(1))
    relative, share = (
        oracle(EVERYBODY, None, weighted=way, l2=0.1).gradient(w.expand(4, -1), 0) for way in ("relative", True)
    )
    torch.testing.assert_close(relative, 4 * share)
    assert problem(weighted="relative", l2=0.1).measure(w[None]) == problem(weighted=True, l2=0.1).measure(w[None])
    assert problem(weighted="relative").shards.shares.mean() == pytest.approx(1.0)


def test_other_weights_are_refused() -> None:
    with pytest.raises(SettingError, match="weighted = 'share': must be False, True or 'relative'"):
        problem(weighted="share")


def test_the_regulariser_pulls_towards_0() -> None:
    w = torch.ones(1, 80)
    pulled, free = (oracle([0], None, l2=l2).gradient(w, 0) for l2 in (0.5, 0.0))
    torch.testing.assert_close(pulled - free, 0.5 * w)


def test_the_hessian_is_the_slope_of_the_gradient_alone_and_in_a_batch() -> None:
    generator = torch.Generator().manual_seed(2)
    w, v = torch.randn(4, 80, generator=generator), torch.randn(4, 80, generator=generator)
    asked = oracle(EVERYBODY, 3, l2=0.1)
    found = asked.hvp(w, v, 1)
    slope = (asked.gradient(w + 1e-2 * v, 1) - asked.gradient(w - 1e-2 * v, 1)) / 2e-2
    torch.testing.assert_close(found, slope, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(found[2:3], oracle([2], 3, l2=0.1).hvp(w[2:3], v[2:3], 1))


def test_measuring_several_models_is_measuring_each() -> None:
    models = torch.randn(5, 80, generator=torch.Generator().manual_seed(3))
    together, single = problem().measure(models), [problem().measure(m[None])[0] for m in models]
    right = [(m.view(4, 20)[:, :8].argmax(dim=0) == LABELS[:8]).float().mean().item() for m in models]
    assert [m["accuracy"] for m in together] == [m["accuracy"] for m in single] == right
    assert [m["loss"] for m in together] == pytest.approx([m["loss"] for m in single])


def test_nine_of_ten_right_are_a_target_of_nine_tenths() -> None:
    labels = torch.tensor([0, 1] * 5)
    data = Dataset.pairs("units", torch.eye(10), labels, torch.eye(10), labels, classes=2, scale=1.0)
    w = torch.zeros(2, 10)
    w[labels, torch.arange(10)] = 1.0
    w[:, 9] = torch.tensor([1.0, 0.0])  # the last one is taken for the other class
    measured = Supervised(data, Softmax((10,), 2), [np.arange(10)]).measure(w.view(1, 20))
    assert measured[0]["accuracy"] >= 0.9


def test_networks_are_measured_with_few_samples_or_few_models_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Supervised.split(digits(), 4, model="mlp", measured=60)
    models = torch.randn(5, network.dim, generator=torch.Generator().manual_seed(4))
    at_once = network.measure(models)
    pairs: list[int] = []

    def noted(self: Evaluation, models: Any, parts: Any) -> Any:
        pairs.append(len(models) * len(parts[0]))
        return by_network(self, models, parts)

    by_network = Evaluation._by_network
    monkeypatch.setattr(Evaluation, "_by_network", noted)
    for chunk, largest in ((130, 120), (40, 40)):  # two models for all 60 samples; one for 40, two for the other 20
        monkeypatch.setattr("offbeat.problems.evaluation._NETWORK", (chunk, chunk))
        pairs.clear()
        measured = network.measure(models)
        assert max(pairs, default=0) == largest
        assert [m["accuracy"] for m in measured] == [m["accuracy"] for m in at_once]
        assert [m["loss"] for m in measured] == pytest.approx([m["loss"] for m in at_once])


def test_impossible_problems_are_refused() -> None:
    with pytest.raises(DataError, match="client 1 has no data"):
        Supervised(UNITS, Softmax((20,), 4), [np.array([1]), np.array([], dtype=int)])
    with pytest.raises(SettingError, match="at least one client"):
        Supervised(UNITS, Softmax((20,), 4), [])
    with pytest.raises(SettingError, match="l2 = -1"):
        problem(l2=-1.0)


DIGITS = Supervised.split(digits(), 10, Dirichlet(0.3), l2=1e-4)
TIMING = Times(Exponential(1.0))


@pytest.mark.parametrize(
    "local", [SGD(lr=0.5, steps=3, batch=16), SGD(lr=0.5, steps=3, batch=16, shuffle=True), SGD(lr=0.5)]
)
def test_on_real_data_serial_and_batched_agree_and_learn(local: SGD) -> None:
    a, b = (
        run(DIGITS, FedBuff(size=5), local, TIMING, Until(updates=300), executor=e, evaluate=10.0)
        for e in ("serial", "batched")
    )
    assert seen(a.events) == seen(b.events)
    torch.testing.assert_close(a.model, b.model, rtol=1e-3, atol=1e-4)
    assert a.metrics["accuracy"] > 0.8


@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_on_real_data_a_resumed_run_ends_bit_for_bit_the_same(executor: str) -> None:
    algorithm, until = Algorithm(AREA(size=3), SGD(lr=0.2, steps=2, batch=8)), Until(updates=60)
    whole, half = (prepare(DIGITS, algorithm, TIMING, until, executor=executor) for _ in range(2))
    whole.run()
    steps = half.steps()
    for _ in range(31):
        next(steps)
    rest = prepare(DIGITS, algorithm, TIMING, until, executor=executor, world=through_text(half.world))
    assert same_world(rest.run(), whole.world)


def test_clients_have_the_names_of_their_natural_owners() -> None:
    x, y = torch.randn(9, 2), torch.arange(9) % 3
    whose = ["south"] * 4 + ["north"] * 3 + ["east"] * 2
    table = {"x": x, "y": y, "site": whose}
    p = Supervised.split(table, 3, client="site")
    assert p.client_names == ["east", "north", "south"]
    assert "3 clients (east, north, south) with 2 to 3 samples each" in repr(p)
    assert Supervised.split(table, 3, IID(), client="site").client_names == []
    assert Supervised.split((x, y), 3).client_names == []
