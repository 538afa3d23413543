"""Algorithms that are each other's special cases, and limits known in closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AREA, AsySG, DeFedAvg, DeFedAvgIID, FedAsync, FedAvg, FedBuff, LocalOnly, Polynomial
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.data.readers import digits
from offbeat.data.splits import Classes
from offbeat.local import SGD, Gradient, Moreau, Scaffold
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

NOISY = Quadratic(6, dim=4, noise=0.5, dtype=torch.float64)
TIMES = Times(Exponential((8.0, 4.0, 2.0, 1.0, 1.0, 0.5)))
UNTIL = Until(updates=300)


@pytest.mark.parametrize("size", [1, 4])
def test_fedbuff_with_one_local_step_is_asysg(size: int) -> None:
    """DeFedAvg, §4: with K = 1, w − (η·η̄/n) Σ ∇f, where η̄ is the local lr."""
    one = run(NOISY, FedBuff(size=size, lr=0.4), SGD(lr=0.05), TIMES, UNTIL)
    asysg = run(NOISY, AsySG(size=size, lr=0.4 * 0.05), Gradient(), TIMES, UNTIL)
    torch.testing.assert_close(one.model, asysg.model, rtol=0, atol=1e-12)


def test_fedasync_with_a_step_for_several_updates_is_fedbuff_bit_for_bit() -> None:
    settings: Any = {"size": 3, "lr": 0.3, "weight": Polynomial(0.5)}
    found = [run(NOISY, server(**settings), SGD(lr=0.1), TIMES, UNTIL).model for server in (FedBuff, FedAsync)]
    assert torch.equal(found[0], found[1])


def test_a_buffer_of_one_is_fedasync_bit_for_bit() -> None:
    """FedBuff, §II: "for K = 1, the presented algorithm reduces to vanilla asynchronous federated learning"."""
    local = SGD(lr=0.05, steps=3)
    one, each = (
        run(NOISY, server, local, TIMES, UNTIL).model for server in (FedBuff(size=1, lr=0.3), FedAsync(lr=0.3))
    )
    assert torch.equal(one, each)


def test_everybody_s_fedavg_with_one_step_is_gradient_descent_on_real_data() -> None:
    """w − lr·∇f(w) with f = (1/n) Σ f̂_i over whole data sets, differentiated in one piece."""
    problem = Supervised.split(digits(), 6, Classes(5), "softmax")
    found = run(problem, FedAvg(), SGD(lr=0.5), TIMES, Until(versions=5)).model
    shards = [problem.shards[client] for client in range(problem.clients)]
    w = problem.initial()
    for _ in range(5):
        w = w.detach().requires_grad_(True)
        outputs = [problem.flat(w, problem.train["x"][shard].float() * problem.scale) for shard in shards]
        losses = [
            torch.nn.functional.cross_entropy(out, problem.train["y"][shard])
            for out, shard in zip(outputs, shards, strict=True)
        ]
        (g,) = torch.autograd.grad(torch.stack(losses).mean(), w)
        w = w.detach() - 0.5 * g
    torch.testing.assert_close(found, w, rtol=0, atol=1e-5)


def test_one_client_is_one_client_whatever_the_server() -> None:
    """With n = 1 and nothing stale FedAsync, FedBuff(1), FedAvg, DeFedAvg(1) and AREA are the same descent."""
    problem, clock = Line([8.0]), Scripted([[1.0]])
    servers = [FedAsync(), FedBuff(size=1), FedAvg(), DeFedAvg(sampled=1), DeFedAvgIID(size=1)]
    found = {run(problem, s, SGD(lr=0.25, steps=2), clock, Until(updates=6)).model.item() for s in servers}
    assert found == {8.0 - 8.0 * 0.75**12}
    # AREA's reply is the model of before the aggregation, so its client is always one step behind
    area = run(problem, AREA(), SGD(lr=0.25, steps=2), clock, Until(updates=6)).model.item()
    assert area == 8.0 - 8.0 * 0.75**6


@pytest.mark.parametrize(
    "local", [SGD(lr=0.5), Moreau(lr=1.0, penalty=0.5, accuracy=1e-6, inner=50, inner_lr=0.5)], ids=["sgd", "me"]
)
def test_alone_every_client_reaches_its_own_optimum(local: SGD | Moreau) -> None:
    problem = Quadratic(5, dim=3, heterogeneity=5.0, convexity=0.3, dtype=torch.float64)
    result = run(problem, LocalOnly(), local, Times(Exponential(1.0)), Until(updates=1000))
    own = torch.stack([result.personal(client) for client in range(5)])
    torch.testing.assert_close(own, problem.c, rtol=0, atol=1e-3)
    assert torch.equal(result.model, problem.initial())  # nothing reaches the server


def test_alone_a_client_goes_on_from_its_own_model() -> None:
    """Three jobs of one halving step each: 8·(1 − 1/8), and the other client is 0 throughout."""
    result = run(Line([8.0, 0.0]), LocalOnly(), SGD(lr=0.5), Scripted([[1.0], [100.0]]), Until(updates=3))
    assert (result.personal(0).item(), result.personal(1).item()) == (7.0, 0.0)


def test_alone_nothing_travels() -> None:
    assert Algorithm(LocalOnly(), SGD(lr=0.1)).local.wire(100) == (0, 0)
    with pytest.raises(SettingError, match="Scaffold needs 'control' but LocalOnly sends only 'model'"):
        Algorithm(LocalOnly(), Scaffold(lr=0.1))


def test_centralised_training_is_descent_on_the_pooled_data() -> None:
    """The reference curve of FedAST's figure 3: one client that has everybody's samples."""
    problem = Supervised.split(digits(), 6, Classes(5), "softmax")
    pooled = problem.pooled()
    assert (pooled.clients, pooled.shards.sizes.tolist()) == (1, [len(problem.shards.order)])
    assert torch.equal(pooled.initial(), problem.initial())
    found = run(pooled, FedAvg(), SGD(lr=0.5), Scripted([[1.0]]), Until(versions=3)).model
    w = pooled.initial().unsqueeze(0)
    for _ in range(3):
        w = w - 0.5 * pooled.oracle([0], [0], 1, None, False).full(w)
    assert torch.equal(found, w[0])


def test_pooled_data_are_learnt_better_than_any_client_s() -> None:
    problem = Supervised.split(digits(), 6, Classes(2), "softmax")
    local = SGD(lr=0.5, steps=10, batch=20)
    options = {"evaluate": 100.0, "executor": "batched"}
    pooled = run(problem.pooled(), FedAvg(), local, Scripted([[1.0]]), Until(versions=40), **options)
    spread = run(problem, FedAvg(sampled=2), local, TIMES, Until(versions=40), **options)
    assert pooled.metrics["accuracy"] > 0.93 > spread.metrics["accuracy"]


def test_the_first_k_results_make_the_round_and_late_ones_are_ignored() -> None:
    """FedAST, D.1, over-selection: of three the first two count; client 2's 300 comes at 3 and is nobody's round."""
    problem, clock = Line([2.0, 4.0, 300.0]), Scripted([[1.0], [2.0], [3.0]])
    steps = prepare(problem, Algorithm(FedAvg(first=2), SGD(lr=1.0)), clock, Until(time=5.5)).steps()
    next(steps)
    seen = [(world.now, world.server.model.vector.item()) for world in steps if not world.stopped]
    # round 1 ends at 2; clients 0 and 1 go on while client 2 is still busy with round 1
    assert seen[:5] == [(1.0, 0.0), (2.0, 3.0), (3.0, 3.0), (3.0, 3.0), (4.0, 3.0)]


def test_with_first_a_round_asks_only_clients_that_are_free() -> None:
    result = run(Line([0.0] * 3), FedAvg(sampled=3, first=1), SGD(lr=1.0), Scripted([[1.0], [50.0]]), Until(versions=6))
    assert [e.client for e in result.events if e.event == "Arrived"].count(1) == 0
    assert result.world.now == 6.0
