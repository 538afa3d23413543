"""Clients' own models: fine-tuned with the same number of gradients for every method, judged on their own tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from worlds import ACCURACY, Line, Scripted, run

from offbeat.algorithms import AREA, SCAFFOLD, FedAsync, FedAvg, FedBuff, LocalOnly, QuAFL
from offbeat.core.errors import SettingError
from offbeat.core.local import Local
from offbeat.core.metric import LOSS
from offbeat.core.random import PERSONAL, key, signed
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.data.base import Dataset
from offbeat.data.readers import digits
from offbeat.data.splits import Classes, Dirichlet, Owners
from offbeat.experiment.run import Run
from offbeat.local import MAML, SGD, Moreau, Prox, Scaffold
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.simulate.personal import Personal, summarise
from offbeat.simulate.run import Evaluate
from offbeat.timing import Exponential, Times

DIGITS = Supervised.split(digits(), 12, Classes(5), "softmax")
TIMES = Times(Exponential(1.0))
BATCH: dict[str, Any] = {"steps": 2, "batch": 10}
LOCALS = {
    "sgd": SGD(lr=0.2, **BATCH),
    "prox": Prox(lr=0.2, mu=0.1, **BATCH),
    "maml": MAML(lr=0.1, alpha=0.3, **BATCH),
    "moreau": Moreau(lr=0.5, penalty=0.5, inner=3, inner_lr=0.3, **BATCH),
}


def trained(server: Server, local: Local, **options: Any) -> Run:
    return run(DIGITS, server, local, TIMES, Until(updates=60), **options)


def by_hand(result: Run, client: int, steps: int, lr: float, penalty: float = 0.0) -> torch.Tensor:
    """θ ← θ − lr·(∇f(θ; D_k) + penalty·(θ − w)), a mini-batch of 10 of the client's own for every step."""
    oracle = DIGITS.oracle([client], [signed(key(0, PERSONAL, client))], steps, 10, False)
    w = theta = result.model.unsqueeze(0)
    for step in range(steps):
        theta = theta - lr * (oracle.gradient(theta, step) + penalty * (theta - w))
    return theta[0]


@pytest.mark.parametrize(
    ("name", "lr", "penalty"), [("sgd", 0.2, 0.0), ("prox", 0.2, 0.0), ("maml", 0.3, 0.0), ("moreau", 0.3, 0.5)]
)
@pytest.mark.parametrize(
    "server", [FedAsync(lr=0.3), AREA(size=4), FedBuff(size=4)], ids=["fedasync", "area", "fedbuff"]
)
def test_every_method_s_own_step_is_fine_tuning_by_hand(server: Server, name: str, lr: float, penalty: float) -> None:
    """SGD and FedProx: steps of lr. MAML: steps of α. Moreau: inner steps on h. Under a wrapping server (AREA) too."""
    result = trained(server, LOCALS[name])
    torch.testing.assert_close(result.personal(5, steps=4), by_hand(result, 5, 4, lr, penalty), rtol=0, atol=1e-6)


def test_the_budget_is_gradients_and_the_same_for_every_method() -> None:
    """Four gradients a client, on four mini-batches, whatever the local trainer's own number of steps is."""
    for local in LOCALS.values():
        asked: list[tuple[int, int]] = []
        simulation = trained(FedAsync(lr=0.3), local).simulation

        class Counting(type(DIGITS.oracle([0], [0], 1, 10, False))):  # type: ignore[misc]
            def gradient(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
                asked.append((step, sample))  # noqa: B023
                return super().gradient(w, step, sample)

        problem = Watched(DIGITS, Counting)
        simulation.problems = [problem]
        list(simulation.personal(0, DIGITS.initial(), range(12), 4))
        assert asked == [(0, 0), (1, 0), (2, 0), (3, 0)]


class Watched:
    """A problem whose oracles are of another kind."""

    def __init__(self, problem: Supervised, kind: type) -> None:
        self.problem, self.kind = problem, kind

    def initial(self) -> torch.Tensor:
        return self.problem.initial()

    def oracle(self, *asked: Any) -> Any:
        return self.kind(self.problem, *asked)


def test_without_a_budget_it_is_the_server_s_model() -> None:
    result = trained(FedAsync(lr=0.3), LOCALS["sgd"])
    assert torch.equal(result.personal(3, steps=0), result.model)


def test_local_only_models_are_what_the_clients_have() -> None:
    result = trained(LocalOnly(), LOCALS["sgd"])
    assert torch.equal(result.personal(3, steps=7), result.world.memories[3, 0][1]["own"])


def test_clients_with_memories_are_fine_tuned_too() -> None:
    """SCAFFOLD's c_i, AREA's y and QuAFL's own model are memories; fine-tuning is plain steps from the server's."""
    for server, local in (
        (SCAFFOLD(sampled=4), Scaffold(lr=0.2, **BATCH)),
        (QuAFL(sampled=4, period=1.0), LOCALS["sgd"]),
    ):
        result = trained(server, local)
        torch.testing.assert_close(result.personal(5, steps=3), by_hand(result, 5, 3, 0.2), rtol=0, atol=1e-6)


def test_one_client_and_all_clients_at_once_give_the_same_models() -> None:
    result = trained(AREA(size=4), LOCALS["moreau"])
    ((clients, models),) = result.simulation.personal(0, result.model, range(12), 3)
    for client in clients:
        torch.testing.assert_close(models[client], result.personal(client, steps=3), rtol=0, atol=1e-6)


def test_looking_at_personal_models_changes_nothing() -> None:
    plain = trained(AREA(size=4), LOCALS["sgd"])
    watched = trained(AREA(size=4), LOCALS["sgd"], evaluate=Evaluate(0.5, personal=Personal(steps=3)))
    assert torch.equal(plain.model, watched.model)


def test_the_metrics_are_the_mean_and_the_worst_tenth() -> None:
    assert summarise([0.5, 1.0, 0.9, 0.8], ACCURACY) == pytest.approx({"personal": 0.8, "personal_worst": 0.5})
    assert summarise([0.5, 1.0, 0.9, 0.8], LOSS) == pytest.approx({"personal": 0.8, "personal_worst": 1.0})
    many = [i / 20 for i in range(20)]
    assert summarise(many, ACCURACY)["personal_worst"] == pytest.approx((0 + 1 / 20) / 2)
    assert summarise([None, float("nan"), 0.5], ACCURACY) == {"personal": 0.5, "personal_worst": 0.5}
    assert summarise([None], ACCURACY) == {}


def test_a_measurement_holds_every_client_s_accuracy() -> None:
    result = trained(FedAsync(lr=0.3), LOCALS["sgd"], evaluate=Evaluate(1.0, personal=Personal(steps=3)))
    last = result.history[-1]
    own = torch.stack([result.personal(client, steps=3) for client in range(12)])
    assert last.each == pytest.approx(DIGITS.judge(own, range(12)))
    assert last.metrics["personal"] == pytest.approx(sum(last.each) / 12)
    assert last.metrics["personal_worst"] == pytest.approx(min(last.each))
    assert last.metrics["personal"] > last.metrics["accuracy"]


def test_only_the_first_clients_are_judged_if_asked() -> None:
    personal = Personal(steps=1, clients=5)
    some, all_ = (
        trained(FedAsync(lr=0.3), LOCALS["sgd"], evaluate=Evaluate(3.0, personal=p))
        for p in (personal, Personal(steps=1))
    )
    for few, many in zip(some.history, all_.history, strict=True):
        assert few.each == many.each[:5]


@pytest.mark.parametrize("until", [Until(time=3.0), Until(time=2.7), Until(updates=40), Until(time=9.0, accuracy=0.3)])
def test_personal_models_are_evaluated_at_the_end_alone_if_asked(until: Until) -> None:
    always, once = (
        run(DIGITS, FedAsync(lr=0.3), LOCALS["sgd"], TIMES, until, evaluate=Evaluate(1.0, personal=personal)).history
        for personal in (Personal(steps=1), Personal(steps=1, last=True))
    )
    assert once[-1] == always[-1]
    assert [bool(m.each) for m in once] == [False] * (len(once) - 1) + [True]
    before = [m.metrics["accuracy"] for m in always]
    assert len(before) > 1
    assert [m.metrics["accuracy"] for m in once if not m.each] == before[: len(once) - 1]


def test_problems_without_test_shares_and_impossible_budgets_are_refused() -> None:
    with pytest.raises(SettingError, match="have no test data of their own"):
        run(Quadratic(3), FedAvg(), SGD(lr=0.1), TIMES, Until(updates=1), evaluate=Evaluate(personal=Personal()))
    with pytest.raises(SettingError, match="steps = -1"):
        Personal(steps=-1)
    with pytest.raises(SettingError, match="clients = 0"):
        Personal(clients=0)


def test_a_client_that_does_not_exist_is_refused() -> None:
    result = run(Line([1.0]), FedAvg(), SGD(lr=0.1), Scripted([[1.0]]), Until(updates=1))
    with pytest.raises(SettingError, match="client 1: there are 1, numbered from 0"):
        result.personal(1)


# Test shares


def classes_of(problem: Supervised, client: int) -> tuple[np.ndarray, np.ndarray]:
    """How many (training, test) samples of each class a client has."""
    train = problem.data.train["y"].numpy()[problem.shards[client]]
    test = problem.data.test["y"][problem.test_shares[client]].numpy()
    return np.bincount(train, minlength=10), np.bincount(test, minlength=10)


@pytest.mark.parametrize("split", [Classes(5), Classes(2), Dirichlet(0.3)], ids=["5", "2", "dirichlet"])
def test_shares_have_the_class_proportions_of_the_client(split: Any) -> None:
    """A client with a share p of a class's training samples has p of its test samples, to a sample."""
    problem = Supervised.split(digits(), 12, split, "softmax")
    train, test = np.bincount(digits().train["y"], minlength=10), np.bincount(digits().test["y"], minlength=10)
    for client in range(12):
        mine, tested = classes_of(problem, client)
        assert np.abs(tested - mine / train * test).max() <= 1.0


def test_shares_are_disjoint_and_together_all_tests() -> None:
    together = torch.cat(DIGITS.test_shares)
    assert len(torch.unique(together)) == len(together) == len(digits().test["y"])


def test_even_the_smallest_client_is_judged() -> None:
    """300 clients of five samples: many have no whole test sample of any class and get one of their commonest."""
    problem = Supervised.split(digits(), 200, Dirichlet(0.3), "softmax")
    assert min(len(share) for share in problem.test_shares) >= 1
    for client in range(200):
        mine, tested = classes_of(problem, client)
        assert (mine[tested > 0] > 0).all()


def owned() -> Dataset:
    """The digits as if three people had written them in turn, and every seventh were nobody's."""
    data = digits()
    train, test = (torch.arange(len(y)) % 7 for y in (data.train["y"], data.test["y"]))
    return replace(
        data, owner=torch.where(train == 6, -1, train // 2), test_owner=torch.where(test == 6, -1, test // 2)
    )


def test_owners_are_judged_on_what_they_wrote_themselves() -> None:
    problem = Supervised.split(owned(), 3, Owners(), "softmax")
    names = problem.data.test_owner
    assert names is not None
    for client, share in enumerate(problem.test_shares):
        assert torch.equal(share, torch.nonzero(names == client).flatten())


def test_what_is_nobody_s_is_in_no_share() -> None:
    """Clients that are several owners get parts of the classes, without the positions that are no samples."""
    problem = Supervised.split(owned(), 5, Classes(4), "softmax")
    names = problem.data.test_owner
    assert names is not None
    assert all(bool((names[share] >= 0).all()) for share in problem.test_shares)
