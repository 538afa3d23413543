"""Running statistics: those of plain PyTorch, set and not stepped, the same by every way of computing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from parted import IMAGES, KEYS, LABELS, conv, problem, resnet
from torch import Tensor, nn

from offbeat.algorithms import FedAST, FedBuff
from offbeat.algorithms.optimisers import FedAdam, FedAMSGrad
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import ModelError, SettingError
from offbeat.core.local import Local, Work
from offbeat.core.server import Model
from offbeat.core.vectors import materialise
from offbeat.local import MAML, SGD, Adam, AdamW, Gradient, Moreau, Prox
from offbeat.problems.supervised import Supervised
from offbeat.simulate.arena import Arenas

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def trained(p: Supervised, local: Local, clients: list[int], steps: int = 3, model: Tensor | None = None) -> Tensor:
    """What these clients' vectors are after a job."""
    start = p.initial() if model is None else model
    local = p.pair(replace(local, steps=steps))
    keys = np.array([KEYS[c] for c in clients])
    work = Work(
        payload={"model": start.expand(len(clients), -1)},
        memory={name: v.expand(len(clients), -1) for name, v in local.remember(start).items()},
        lr=local.lr,
        steps=steps,
        oracle=p.oracle(clients, keys, steps, local.batch, local.shuffle),
        keys=keys,
    )
    carry = local.init(work)
    for work.step in range(steps):
        carry = local.step(carry, work)
    return carry["w"]


def by_torch(p: Supervised, module: nn.Module, client: int, steps: int, batch: int | None, lr: float) -> nn.Module:
    """The same in a plain loop, on the same mini-batches."""
    oracle = p.oracle([client], [KEYS[client]], steps, batch, False)
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, weight_decay=p.l2)
    module.train()
    for step in range(steps):
        which = torch.from_numpy(p.shards[client]) if batch is None else oracle.draws.indices(step, 0)[0]
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(IMAGES[which]), LABELS[which]).backward()
        optimiser.step()
    return module


def state(p: Supervised, w: Tensor) -> dict[str, Tensor]:
    return p.flat.views(w)


@pytest.mark.parametrize(
    ("make", "steps", "size", "lr"),
    [(lambda: conv(dropout=0.0), 5, 5, 0.05), (resnet, 2, 8, 0.001)],  # a step of a ResNet magnifies roundings
    ids=["conv", "resnet18"],
)
def test_parameters_and_statistics_are_those_of_plain_training(make: Any, steps: int, size: int, lr: float) -> None:
    p = problem(make(), l2=0.1)
    expected = by_torch(p, make(), 1, steps, size, lr).state_dict()
    for clients in ([1], [0, 1]):
        found = state(p, trained(p, SGD(lr=lr, batch=size), clients, steps)[clients.index(1)])
        assert set(expected) - set(found) == {n for n in expected if n.endswith("num_batches_tracked")}
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=2e-6)


def test_whole_batches_are_without_padding() -> None:
    p = problem(conv(dropout=0.0))
    together = trained(p, SGD(lr=0.05), [0, 1, 2, 3])
    for client in range(4):
        expected = by_torch(p, conv(dropout=0.0), client, 3, None, 0.05).state_dict()
        for name, value in state(p, together[client]).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "local",
    [
        SGD(lr=0.05, batch=4),
        SGD(lr=0.05, batch=4, clip=0.01, decay=0.5),
        Prox(lr=0.05, batch=4, mu=5.0),
        MAML(lr=0.05, batch=4, alpha=0.02),
        Moreau(lr=0.05, batch=4, inner=3, accuracy=1e-9),
        SGD(lr=0.05),
    ],
    ids=["sgd", "clip and decay", "prox", "maml", "moreau", "whole data"],
)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_stacked_clients_train_like_single_ones(local: Local, dropout: float) -> None:
    p = problem(conv(dropout), l2=0.1, weighted=True)
    together = trained(p, local, [0, 1, 2, 3])
    for client in range(4):
        torch.testing.assert_close(together[client], trained(p, local, [client])[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "local", [SGD(lr=0.05, batch=4, clip=1e-6), SGD(lr=0.05, batch=4, decay=9.0), Prox(lr=0.05, batch=4, mu=9.0)]
)
@pytest.mark.parametrize("l2", [0.0, 9.0])
def test_the_first_step_s_statistics_depend_on_no_clipping_decay_or_pull(local: Local, l2: float) -> None:
    expected = trained(problem(), SGD(lr=0.05, batch=4), [0, 1], steps=1)
    p = problem(l2=l2)
    found = trained(p, local, [0, 1], steps=1)
    torch.testing.assert_close(found[:, p.flat.running], expected[:, p.flat.running], rtol=0, atol=0)
    assert not torch.equal(found[:, p.flat.running], p.initial()[p.flat.running].expand(2, -1))
    assert l2 or isinstance(local, Prox) or not torch.allclose(found, expected)


def test_the_gradient_is_zero_at_statistics_and_l2_does_not_count_them() -> None:
    p, with_l2 = problem(conv(0.0)), problem(conv(0.0), l2=0.3)
    w = p.initial().expand(2, -1) + 0.1
    g = with_l2.oracle([0, 1], KEYS[:2], 1, 4, False).gradient(w, 0)
    assert g[:, p.flat.running].abs().max() == 0
    losses = [q.oracle([0, 1], KEYS[:2], 1, 4, False).loss(w, 0) for q in (with_l2, p)]
    expected = 0.15 * p.flat.parameters(w).square().sum(1)
    torch.testing.assert_close(losses[0] - losses[1], expected, rtol=1e-3, atol=1e-4)
    measured = [q.measure(w)[0]["loss"] for q in (with_l2, p)]
    assert measured[0] - measured[1] == pytest.approx(float(expected[0]), rel=1e-4)


def test_evaluation_uses_the_statistics_and_leaves_them_and_the_module_alone() -> None:
    p = problem(measured="all", weighted=True)
    w = trained(p, SGD(lr=0.05, batch=5), [1])[0]
    module = conv()
    module.load_state_dict(state(p, w), strict=False)
    module.eval()
    right = (module(IMAGES).argmax(1) == LABELS).float().mean()
    before = w.clone(), p.initial()
    loss = nn.functional.cross_entropy(module(IMAGES), LABELS, reduction="none").detach()
    found = p.measure(torch.stack([w, w]))[1]
    assert found["accuracy"] == pytest.approx(float(right))
    assert p.measure(w.unsqueeze(0))[0] == pytest.approx(found)
    mine = np.concatenate([p.shards[client] for client in range(4)])
    assert found["loss"] == pytest.approx(float(loss[mine].mean()), rel=1e-5)
    assert torch.equal(w, before[0])
    assert torch.equal(p.initial(), before[1])
    assert p.flat.module.training


def test_frozen_statistics_are_constants_that_training_uses_too() -> None:
    module = conv(dropout=0.0)
    module(IMAGES)  # some statistics
    p = problem(module, statistics="frozen")
    assert p.flat.running is None
    assert p.dim == sum(parameter.numel() for parameter in module.parameters())
    w = trained(p, SGD(lr=0.05, batch=5), [0, 1])[1]
    copy = conv(dropout=0.0)
    copy.load_state_dict(module.state_dict())
    copy[1].train = copy[6].train = lambda mode=True: None
    copy[1].training = copy[6].training = False
    expected = by_torch(p, copy, 1, 3, 5, 0.05).state_dict()
    for name, value in state(p, w).items():
        torch.testing.assert_close(value, expected[name], **CLOSE)


def test_a_variance_that_a_server_made_negative_is_used_as_zero() -> None:
    p = problem()
    w = p.initial()
    w[p.flat.running] = -1.0
    assert np.isfinite(p.measure(w.unsqueeze(0))[0]["loss"])
    assert torch.isfinite(trained(p, SGD(lr=0.05, batch=5), [0, 1], model=w)).all()


class Averaged(nn.Module):
    """Subtracts a moving average of its inputs, which it assigns anew or changes in place."""

    statistics = ("average",)

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("average", torch.zeros(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.detach().mean((0, 2, 3)).view(2, 1, 1)
            if self.in_place:
                self.average.mul_(0.9).add_(0.1 * mean)
            else:
                self.average = 0.9 * self.average + 0.1 * mean
        return x - self.average


@pytest.mark.parametrize("in_place", [True, False])
def test_a_layer_of_one_s_own_names_its_statistics(in_place: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(Averaged(in_place), nn.Flatten(), nn.Linear(128, 3))

    p = problem(make())
    expected = by_torch(p, make(), 1, 3, 5, 0.05).state_dict()
    for clients in ([1], [0, 1]):
        found = state(p, trained(p, SGD(lr=0.05, batch=5), clients)[-1])
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], **CLOSE)


class Unsaid(Averaged):
    statistics = ()  # type: ignore[assignment]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.statistics = ("calls",)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.linear = nn.Linear(2, 2)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_training_changes_unsaid_is_refused(in_place: bool) -> None:
    with pytest.raises(ModelError, match=r"changes its buffer '0.average' in training; list it .*`statistics`"):
        problem(nn.Sequential(Unsaid(in_place), nn.Flatten(), nn.Linear(128, 3)))


def test_wrong_uses_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match="statistics = 'mean': must be one of average, local, frozen, refuse"):
        problem(statistics="mean")
    with pytest.raises(ModelError, match=r"layer '1' \(BatchNorm2d\) keeps running statistics"):
        problem(statistics="refuse")
    with pytest.raises(ModelError, match="lists 'calls' among its statistics; list buffers of real numbers"):
        problem(nn.Sequential(Counting()))
    with pytest.raises(SettingError, match="Gradient reaches no model whose running statistics"):
        problem().pair(Gradient())
    from offbeat.algorithms import AsySG

    assert Algorithm(AsySG(lr=0.1), Gradient()).trainers([problem(statistics="frozen")]) == (Gradient(),)


def test_a_single_sample_that_cannot_be_normalised_is_refused() -> None:
    p, alone = problem(), problem(shards=[np.arange(5), np.array([7])])
    with pytest.raises(SettingError, match="batch = 1: made normalises by its batch and needs two samples"):
        p.oracle([0], KEYS[:1], 1, 1, False)
    with pytest.raises(SettingError, match=r"client 1 has one sample, .* set batch = 2 or more"):
        alone.oracle([0, 1], KEYS[:2], 1, None, False)
    assert alone.oracle([1], KEYS[:1], 1, 2, False) is not None
    fine = problem(nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3)))
    assert fine.oracle([0], KEYS[:1], 1, 1, False) is not None  # a batch of pixels


def test_an_optimiser_at_the_server_leaves_statistics_to_averaging() -> None:
    """With the same deltas, FedBuff with Adam has the statistics of FedBuff without."""
    p = problem()
    first, last = p.averaged or (0, 0)
    plain, adam = FedBuff(size=2), FedBuff(size=2, server=FedAdam(lr=0.01))
    sparing = Algorithm(adam, SGD(lr=0.1)).server_for([p])
    for lazy in (False, True):
        start, delta = p.initial(), torch.randn(p.dim, generator=torch.Generator().manual_seed(0))
        arenas = Arenas()
        vectors = [arenas.adopt(v) if lazy else v for v in (start, delta)]
        models = [Model(vectors[0]) for _ in range(3)]
        for server, model in zip((plain, adam, sparing), models, strict=True):
            for scale in (1.0, 0.3):
                server.step(model, -1.0, scale * vectors[1])
        by_none, by_adam, spared = (materialise(model.vector) for model in models)
        torch.testing.assert_close(spared[first:last], by_none[first:last])
        assert torch.equal(spared[:first], by_adam[:first])
        assert not torch.allclose(by_adam[first:last], by_none[first:last])


def test_an_optimiser_at_the_server_of_several_tasks_is_refused_over_statistics() -> None:
    algorithm = Algorithm(FedBuff(size=2, server=FedAdam(lr=0.01)), SGD(lr=0.1))
    with pytest.raises(SettingError, match="an optimiser at the server of several tasks would step running statistics"):
        algorithm.server_for([problem(), problem()])
    assert algorithm.server_for([problem(statistics="local")]) is algorithm.server
    nested = Algorithm(FedAST(requests=4, aggregate=FedBuff(server=FedAdam(lr=0.01))), SGD(lr=0.1))
    with pytest.raises(SettingError, match="an optimiser at the server of several tasks would step running statistics"):
        nested.server_for([problem(), problem()])
    alone: Any = nested.server_for([problem()])
    assert alone.aggregate.server.inner == FedAdam(lr=0.01)


def test_a_step_that_is_small_because_it_is_stale_leaves_statistics_to_averaging_too() -> None:
    p = problem()
    first, last = p.averaged or (0, 0)
    server: Any = Algorithm(FedBuff(server=FedAMSGrad(lr=0.5, threshold=1)), SGD(lr=0.1)).server_for([p])
    delta, fresh, stale = torch.ones(p.dim), Model(p.initial()), Model(p.initial(), stale=10)
    for model in (fresh, stale):
        server.step(model, -1.0, delta)
    assert torch.equal(stale.vector[first:last], p.initial()[first:last] - 1.0)
    moved, slowly = ((model.vector - p.initial())[:first] for model in (fresh, stale))
    torch.testing.assert_close(slowly, moved * 0.2)


@pytest.mark.parametrize(
    "local",
    [
        SGD(0.02),
        SGD(0.02, accumulate=2, batch=4),
        SGD(0.02, decay=5.0),
        Adam(0.02),
        AdamW(0.02, decay=5.0),
        MAML(0.02),
        Moreau(0.02),
    ],
    ids=lambda local: type(local).__name__,
)
def test_a_client_s_own_steps_renew_statistics_whatever_makes_them(local: Local) -> None:
    """After one step they are those of the first mini-batch; with accumulate, of the second."""
    p, at, steps = problem(conv(dropout=0.0)), problem().flat.running, local.accumulate
    w = p.initial().unsqueeze(0)
    oracle = p.oracle([0], [KEYS[0]], steps, 4, False)
    for step in range(steps):
        oracle.gradient(w, step)
    work = Work({"model": w}, {}, local.lr, 1, p.oracle([0], [KEYS[0]], steps, 4, False), [KEYS[0]], accumulate=steps)
    own = p.pair(local).personal(w, work, 1)
    assert torch.equal(own[:, at], oracle.renewed(w)[:, at])
    assert not torch.equal(own[:, at], w[:, at])


class Twice(nn.Module):
    """Layers that stand in the module under two names, one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.fixed = nn.Linear(128, 8), nn.BatchNorm1d(8), nn.Linear(8, 8).requires_grad_(False)
        self.again, self.also, self.last = self.norm, self.fixed, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.also(self.again(self.fixed(self.norm(self.first(x.flatten(1)))))))


@pytest.mark.parametrize("clients", [[0], [0, 1]], ids=["alone", "stacked"])
def test_a_module_with_a_layer_under_two_names_is_trained_like_any_other_and_stays_as_it_is(clients: list[int]) -> None:
    p = problem(Twice())
    before, first = {n: t.clone() for n, t in p.flat.module.state_dict().items()}, p.initial()
    w = trained(p, SGD(lr=0.1, batch=4), clients)[0]
    assert all(torch.equal(t, before[n]) for n, t in p.flat.module.state_dict().items())
    assert torch.equal(p.initial(), first)
    assert isinstance(p.flat.module.fixed.weight, nn.Parameter)
    plain = dict(by_torch(p, Twice(), 0, 3, 4, 0.1).state_dict())
    for name, value in state(p, w).items():
        torch.testing.assert_close(value, plain[name], **CLOSE)


def test_a_variance_below_zero_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    p = problem(conv())
    good = p.initial()
    bad = good.clone()
    p.flat.views(bad)[next(name for name in p.flat.views(bad) if name.endswith("running_var"))][0] = -0.5
    p.measure(torch.stack([good]))
    assert not caplog.records
    for _ in range(2):
        p.measure(torch.stack([good, bad]))
    (said,) = (record.getMessage() for record in caplog.records)
    assert "running_var below zero" in said


def test_only_a_step_s_own_mini_batch_renews_statistics_and_l2_counts_parameters_alone() -> None:
    p, heavy = problem(conv(dropout=0.0)), problem(conv(dropout=0.0), l2=2.0)
    w = p.initial().unsqueeze(0)
    oracle, other = (each.oracle([0], [KEYS[0]], 1, 4, False) for each in (p, heavy))
    oracle.gradient(w, 0)
    renewed = oracle.renewed(w)
    oracle.gradient(w, 0, sample=1)
    assert torch.equal(oracle.renewed(w), renewed)
    parameters = torch.cat([t.detach().flatten() for t in conv().parameters()])
    torch.testing.assert_close(other.loss(w, 0) - oracle.loss(w, 0), parameters.square().sum().unsqueeze(0))


@pytest.mark.parametrize("parts", [{"statistics": "local"}, {"personal": "7.*"}], ids=["local", "personal"])
def test_a_server_s_model_without_the_clients_parts_is_measured(parts: Any) -> None:
    p = problem(**parts)
    assert p.measure(p.initial().unsqueeze(0))[0]["loss"] > 0
