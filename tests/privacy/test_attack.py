"""Attackers in a simulation: what they send, what they train on, how fast they are; the same on every executor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from worlds import Line, Scripted, through_text

from offbeat.algorithms import AREA, FedAsyncMixing, FedAvg, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.random import Stream
from offbeat.core.until import Until
from offbeat.core.vectors import Vector
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.local import MAML, SGD
from offbeat.privacy.attack import (
    ALittleIsEnough,
    Attack,
    Backdoor,
    Fast,
    GaussianNoise,
    InnerProduct,
    LabelFlip,
    ManyTimes,
    OwnForgery,
    SignFlip,
    attackers,
)
from offbeat.privacy.poison import success
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

KINDS = {
    "noise": GaussianNoise(3.0),
    "flip": SignFlip(2.0),
    "scaled": ManyTimes(5.0),
    "alie": ALittleIsEnough(1.5),
    "ipm": InnerProduct(0.5),
    "own": OwnForgery(lambda delta, others, rng: delta + rng.uniform()),
}


def model(server: Any, kind: Any, executor: str = "serial", clients: Any = (1,), local: Any = None) -> torch.Tensor:
    problem = Line([1.0, 2.0, 4.0, -1.0])
    made = prepare(
        problem,
        Algorithm(server, local or SGD(lr=0.1, steps=2)),
        Times(Exponential(1.0)),
        Until(updates=80),
        executor=executor,
        attacks=[Attack(clients, kind)] if kind else (),
    )
    return server.models(made.run().server)[0].vector


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("server", [FedBuff(size=3), AREA(size=2), FedAsyncMixing(0.3)], ids=["buff", "area", "mixing"])
def test_the_same_attack_on_every_executor(server: Any, kind: Any) -> None:
    alone, stacked = model(server, kind), model(server, kind, "batched")
    assert torch.allclose(alone, stacked, atol=1e-9)
    assert not torch.allclose(alone, model(server, None))


def test_a_flipped_update_goes_the_other_way_under_every_server() -> None:
    """One round of four clients that all start from 0; client 1 reports −0.2 where it had reached 0.2."""
    clock, local = Scripted([[1.0]]), SGD(lr=0.1)
    for server in (FedBuff(size=4), AREA(size=4), FedAvg()):
        attacks = [Attack((1,), SignFlip())]
        made = prepare(Line([1.0, 2.0, 4.0, -1.0]), Algorithm(server, local), clock, Until(versions=1), attacks=attacks)
        found = server.models(made.run().server)[0].vector
        assert float(found) == pytest.approx(0.1 * (1.0 - 2.0 + 4.0 - 1.0) / 4)


def test_an_attacker_of_area_remembers_what_it_has_told() -> None:
    """Whatever it sends, the mean of what the clients have told is the model."""
    server = AREA(size=1)
    problem = Line([1.0, 2.0, 4.0, -1.0])
    attacks = [Attack((0,), ManyTimes(50.0))]
    made = prepare(problem, Algorithm(server, SGD(lr=0.1)), Times(Exponential(1.0)), Until(updates=60), attacks=attacks)
    world = made.run()
    told = float(world.plots[0].told[0])
    others = [float(world.memories[client, 0][1]["y"]) for client in (1, 2, 3)]
    assert float(world.server.model.vector) == pytest.approx((told + sum(others)) / 4)


def test_a_little_is_enough_and_inner_products_go_by_the_others() -> None:
    others = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])]
    delta, rng = torch.zeros(2), Stream(0)
    assert torch.allclose(ALittleIsEnough(1.0).forge(delta, others, rng), torch.tensor([2.0 - 2.0**0.5, 2.0]))
    assert torch.allclose(InnerProduct(0.5).forge(delta, others, rng), torch.tensor([-1.0, -1.0]))


def test_noise_is_as_long_as_it_says() -> None:
    found = GaussianNoise(10.0).forge(torch.tensor([3.0, 4.0] * 50), [], Stream(1))
    assert float(found.norm()) == pytest.approx(10.0 * (25.0 * 50) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("fast", [{"speed": 10.0}, {"kind": Fast(10.0)}, {"kind": Fast(5.0), "speed": 2.0}])
def test_fast_attackers_report_as_much_more_often(fast: Any) -> None:
    problem = Line([1.0] * 5)
    given = (problem, Algorithm(FedBuff(size=5), SGD(lr=0.1)), Times(Exponential(1.0)), Until(time=200.0))
    from offbeat.watch.history import History

    history = History(keep_events=True)
    prepare(*given, attacks=[Attack((2,), **fast)], watchers=[history]).run()
    counts = [sum(row.client == client for row in history.events if row.event == "Arrived") for client in range(5)]
    assert 8 <= counts[2] / (sum(counts) - counts[2]) * 4 <= 12


def test_a_run_goes_on_with_its_attackers_where_it_was_saved() -> None:
    def made(world: Any = None) -> Any:
        attacks = [Attack((1, 3), ALittleIsEnough(2.0), speed=3.0)]
        algorithm = Algorithm(AREA(size=2), SGD(lr=0.1))
        until = Until(updates=50)
        return prepare(
            Line([1.0, 2.0, 4.0, -1.0]),
            algorithm,
            Times(Exponential(1.0)),
            until,
            attacks=attacks,
            world=world,
            executor="serial",
        )

    whole = made().run()
    part = made()
    part.advance(40)
    resumed = made(through_text(part.world)).run()
    assert torch.equal(resumed.server.model.vector, whole.server.model.vector)


def test_attackers_are_drawn_by_the_seed_and_nobody_attacks_twice() -> None:
    attacks = [Attack(3, SignFlip()), Attack((0, 1), ManyTimes()), Attack(2, speed=2.0)]
    found = attackers(attacks, 10, 0)
    assert len(found) == 7
    assert found[0].kind == found[1].kind == ManyTimes()
    assert attackers(attacks, 10, 0) == found
    assert any(attackers(attacks, 10, seed).keys() != found.keys() for seed in range(1, 5))


def test_personalised_trainers_are_attacked_alike() -> None:
    local = MAML(lr=0.1, alpha=0.05)
    assert not torch.allclose(
        model(FedBuff(size=3), None, local=local), model(FedBuff(size=3), SignFlip(3.0), local=local)
    )


FILE: dict[str, Any] = {
    "problem": {"data": "digits", "clients": 5},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedbuff": {"size": 4, "local": {"sgd": {"lr": 0.5, "batch": 16}}}},
    "until": {"updates": 12},
}


def parsed(*attacks: Any, **changes: Any) -> Experiment:
    return Experiment.parse({**FILE, "attack": list(attacks), **changes})


def test_flipped_labels_are_the_attackers_own_and_no_others() -> None:
    made = parsed({"clients": [1], "kind": "label-flip"})
    spec = made.runs[0]
    plain: Any = Session(Experiment.parse(FILE)).problems(spec)[0]
    flipped: Any = Session(made).problems(spec)[0]
    mine = set(plain.shards[1].tolist())
    for sample in range(len(plain.data.train)):
        before, after = int(plain.data.train["y"][sample]), int(flipped.data.train["y"][sample])
        assert after == (9 - before if sample in mine else before)
    assert torch.equal(plain.data.test["y"], flipped.data.test["y"])


def test_a_backdoor_opens_and_says_how_often(tmp_path: Any) -> None:
    table = {
        "algorithm": {"fedbuff": {"size": 5, "local": {"sgd": {"lr": 0.5, "batch": 16, "steps": 5}}}},
        "until": {"updates": 150},
    }
    door = {"backdoor": {"target": 3, "share": 0.9, "size": 8}}
    rates = {}
    for name, attacks in {"open": [{"clients": [0, 1], "kind": door}], "shut": []}.items():
        experiment = parsed(*attacks, **table)
        session = Session(experiment)
        simulation = session.simulation(experiment.runs[0])
        world = simulation.run()
        kind = Backdoor(target=3, share=0.9, size=8)
        rates[name] = success(simulation.problems[0], kind, simulation.server.models(world.server)[0].vector)
    assert rates["open"] > 0.8 > 0.3 > rates["shut"]


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ({"clients": 2}, "kind missing"),
        ({"clients": 5, "kind": "sign-flip"}, "leave some honest"),
        ({"clients": [7], "kind": "sign-flip"}, "there are 5 clients"),
        ({"clients": 1, "kind": "sign"}, "did you mean 'sign-flip'"),
        ({"clients": 1, "kind": {"backdoor": {"target": 12}}}, "there are 10 classes"),
    ],
)
def test_what_cannot_attack_is_refused(attack: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Session(parsed(attack)).check()


def test_messages_of_two_vectors_and_compressed_ones_are_refused() -> None:
    local = {"scaffold": {"lr": 0.1}}
    with pytest.raises(SettingError, match="only one of delta"):
        Session(parsed({"clients": 1, "kind": "sign-flip"}, algorithm={"scaffold": {"local": local}})).check()
    small = {"sgd": {"lr": 0.1, "compress": "sign"}}
    with pytest.raises(SettingError, match="leave compress out"):
        Session(parsed({"clients": 1, "kind": "sign-flip"}, algorithm={"fedbuff": {"local": small}})).check()


def own(delta: Vector, others: Any, rng: Stream) -> Vector:
    return 0.0 * delta


def test_a_kind_is_known_by_its_name() -> None:
    assert parsed({"clients": 1, "kind": "fast"}).attack[0].pace == 10.0
    assert parsed({"clients": 1, "kind": {"fast": 3}}).attack[0].pace == 3.0
    assert parsed({"clients": 1, "kind": {"scaled": 7.0}}).attack[0].kind == ManyTimes(7.0)
    assert parsed({"clients": 1, "kind": "label-flip", "speed": 4}).attack[0] == Attack(1, LabelFlip(), 4.0)
